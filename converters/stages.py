"""Reports the stage of a long call to a progress display: `with stage("compare")`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Show = Callable[[str], contextlib.AbstractContextManager[None]]


def _silent(_: str) -> contextlib.AbstractContextManager[None]:
  return contextlib.nullcontext()


_show: ContextVar[Show] = ContextVar("show", default=_silent)


def stage(name: str) -> contextlib.AbstractContextManager[None]:
  """Marks a part of the work that may take seconds. It is shown only inside `shown_by`."""
  return _show.get()(name)


@contextlib.contextmanager
def shown_by(show: Show) -> Iterator[None]:
  """Calls `show` with the name of each stage. The context manager that it returns is active during
  the stage."""
  token = _show.set(show)
  try:
    yield
  finally:
    _show.reset(token)
