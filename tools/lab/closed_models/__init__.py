"""Closed SavedModels: opened, exported, and measured against direct conversions."""
