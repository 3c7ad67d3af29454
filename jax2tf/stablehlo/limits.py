"""Limits of what a process may take; where the system has none (Windows), nothing is limited."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import time
from collections.abc import Iterator


@contextlib.contextmanager
def processor(seconds: int) -> Iterator[None]:
  """Ends the process by SIGXCPU if the block takes longer than these seconds of the processor."""
  if sys.platform == "win32":
    yield
    return
  import resource  # noqa: PLC0415  (Windows has none)

  before = resource.getrlimit(resource.RLIMIT_CPU)
  _, most = before
  last = math.ceil(time.process_time()) + seconds
  soft = last if most == resource.RLIM_INFINITY else min(last, most)
  resource.setrlimit(resource.RLIMIT_CPU, (soft, most))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_CPU, before)


def has_ended(code: int | None) -> bool:
  """Whether the exit code is that of a process that took too long."""
  return sys.platform != "win32" and code == -signal.SIGXCPU
