"""Rows of docs/reports/generation.md."""

SECTIONS = ("models", "trained")
