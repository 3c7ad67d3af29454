"""Shared parts of the exporters to other runtimes."""

from . import expanded, pairs  # noqa: F401  (which register expansions and rules of pairs)
