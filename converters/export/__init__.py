"""Shared parts of the exporters to other formats."""
