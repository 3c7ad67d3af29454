"""Which stage a long call is in, for whoever shows it: `with stage("compare")`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Show = Callable[[str], contextlib.AbstractContextManager[None]]


def _silent(_: str) -> contextlib.AbstractContextManager[None]:
  return contextlib.nullcontext()


_show: ContextVar[Show] = ContextVar("show", default=_silent)


def stage(name: str) -> contextlib.AbstractContextManager[None]:
  """A part of the work that may take seconds. Nothing is shown unless somebody asked for it by `shown_by`."""
  return _show.get()(name)


@contextlib.contextmanager
def shown_by(show: Show) -> Iterator[None]:
  """Has `show` called with the name of each stage; what it returns is entered for the time of the stage."""
  token = _show.set(show)
  try:
    yield
  finally:
    _show.reset(token)
