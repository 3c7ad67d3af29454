"""A SavedModel against its function, in a process without JAX."""

from ..comparison.report import Latency, Report, Row, VerificationError
from .verification import verify

__all__ = ["Latency", "Report", "Row", "VerificationError", "verify"]
