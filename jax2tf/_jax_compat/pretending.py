"""Has JAX see devices that are not there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import xla_bridge

_LISTS = ("devices", "local_devices")
_COUNTS = ("device_count", "local_device_count")


@contextlib.contextmanager
def pretend_devices(n: int) -> Iterator[None]:
  """Traces for n devices on a machine that has fewer, for instance for a pod on a laptop.

  Inside the context, `jax.devices()` and similar functions list this process's first device n
  times, so `jax.make_mesh`, `jax.experimental.mesh_utils.create_device_mesh`, `jax.sharding.Mesh`
  and `jax.pmap` accept them. Functions for these devices can be traced and converted, but nothing
  can run on them. The context applies to all threads of the process.

  Args:
    n: the number of devices, at least 1.

  Returns:
    a context manager.

  Raises:
    ValueError: `n` is not a positive integer.

  Examples:
    >>> import jax, jax.numpy as jnp, jax2tf
    >>> from jax.sharding import AxisType, PartitionSpec
    >>> with jax2tf.pretend_devices(8):
    ...   mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    >>> mean = jax.shard_map(
    ...   lambda x: jax.lax.pmean(x.sum(), "i"),
    ...   mesh=mesh,
    ...   in_specs=PartitionSpec("i"),
    ...   out_specs=PartitionSpec(),
    ... )
    >>> jax2tf.convert(mean)(jnp.arange(16.0)).numpy().item()
    15.0
  """
  if not isinstance(n, int) or isinstance(n, bool) or n < 1:
    raise ValueError(f"n = {n!r}: give the number of devices, at least 1")
  first = jax.local_devices()[0]

  def listed(*_: Any, **__: Any) -> list[jax.Device]:
    return [first] * n

  def counted(*_: Any, **__: Any) -> int:
    return n

  new = dict.fromkeys(_LISTS, listed) | dict.fromkeys(_COUNTS, counted)
  # What a jitted function has asked of its devices is in JAX's caches.
  jax.clear_caches()
  with contextlib.ExitStack() as stack:
    stack.callback(jax.clear_caches)
    for module in (xla_bridge, jax):
      for name, replacement in new.items():
        stack.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, replacement)
    yield
