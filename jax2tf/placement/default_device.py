"""Which equations were traced inside a `jax.default_device`, which leaves nothing else in a jaxpr.

While we trace, XLA metadata of the equations record it: they stay with the equations through
differentiation, and XLA ignores unknown metadata.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jax2tf import _jax_compat
from jax2tf.jaxprs import Eqn

_NAME = "jax2tf_default_device"
_recording = threading.local()


@contextlib.contextmanager
def recorded(name_of: Callable[[Any], str | None]) -> Iterator[None]:
  """Context manager: equations traced inside a `jax.default_device` record `name_of(device)`."""
  before = getattr(_recording, "value", None)
  _recording.value = (name_of, jax.config.jax_default_device)
  try:
    yield
  finally:
    _recording.value = before


def default_device_of(eqn: Eqn) -> str | None:
  """The name that `recorded` recorded."""
  return (eqn.ctx.xla_metadata or {}).get(_NAME)


def _record(device: Any) -> None:
  if (recording := getattr(_recording, "value", None)) is None:
    return
  name_of, device_around = recording
  name = None if device is None or device is device_around else name_of(device)
  _jax_compat.set_xla_metadata(_NAME, name)


_jax_compat.call_on_default_device(_record)
