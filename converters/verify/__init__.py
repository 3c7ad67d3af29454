"""Compares a SavedModel, run in a process without JAX, with its JAX function."""

from .report import Latency, Report, Row, VerificationError
from .verification import verify

__all__ = ["Latency", "Report", "Row", "VerificationError", "verify"]
