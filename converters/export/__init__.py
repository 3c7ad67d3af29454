"""Shared parts of the exporters to other runtimes."""

from . import pairs  # noqa: F401  (which registers the rules of complex numbers)
