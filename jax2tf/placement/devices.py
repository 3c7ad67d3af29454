"""Maps places (JAX's device names) to TensorFlow devices."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import tensorflow as tf
from jax.sharding import Sharding

# "cpu:1": a platform and an index among its local devices; or "host", the memory of the CPU.
Place = str

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
_GPUS = frozenset({"cuda", "rocm"})
HOST = "host"


def place_of(target: Any) -> Place | None:
  """The one device that a target of `jax.device_put` names; None for several, and for none."""
  if isinstance(target, jax.Device):
    local = jax.local_devices(backend=target.platform)
    return place_named(f"{target.platform}:{local.index(target) if target in local else target.id}")
  if isinstance(target, Sharding):
    if (target.memory_kind or "").endswith(HOST):
      return HOST
    return place_of(next(iter(target.device_set))) if len(target.device_set) == 1 else None
  return HOST if target == jax.memory.Space.Host else None


def place_named(name: str) -> Place:
  """The place of that name; cuda and rocm are the names that `jax.export` has for gpu."""
  return re.sub("^(cuda|rocm)", "gpu", name)


@dataclass(frozen=True)
class Destination:
  """Where the graph will run.

  Attributes:
    platforms: of cpu, cuda, rocm, tpu; empty for this machine, whose devices are then known.
    device_map: place, or platform, -> TensorFlow device; None leaves it to TensorFlow.
    keep_shardings: whether sharding annotations become XlaSharding ops.
    dtensor_mesh: the mesh of DTensor on which they become layouts, or None.
  """

  platforms: tuple[str, ...] = ()
  device_map: Mapping[str, str | None] = field(default_factory=dict)
  keep_shardings: bool = False
  dtensor_mesh: Any = None

  @property
  def annotates_shardings(self) -> bool:
    """Whether sharding annotations have an effect in the graph."""
    return self.keep_shardings or self.dtensor_mesh is not None

  @property
  def on_gpu(self) -> bool:
    """Whether the graph may run on a GPU, so that its ops should have kernels there."""
    if self.platforms:
      return not _GPUS.isdisjoint(self.platforms)
    # Logical devices would start TensorFlow's runtime, after which it takes no settings of devices.
    return bool(tf.config.list_physical_devices("GPU"))

  @property
  def only_on_gpus(self) -> bool:
    """Whether the graph runs on a GPU, and on no other platform."""
    return self.on_gpu and _GPUS.issuperset(self.platforms)

  def sizes(self) -> contextlib.AbstractContextManager[Any]:
    """Where to make the ops that compute sizes: on the host, if the others may be on a GPU."""
    on_host = self.on_gpu and self.dtensor_mesh is None
    return tf.device(self.device(HOST)) if on_host else contextlib.nullcontext()

  def device(self, place: Place) -> str | None:
    """The TensorFlow device of a place."""
    platform, _, index = place.partition(":")
    for key in (place, platform):
      if key in self.device_map:
        return self.device_map[key]
    return "/device:CPU:0" if place == HOST else f"/device:{platform.upper()}:{index}"

  def branch(self, platforms: Sequence[Sequence[str] | None]) -> set[int | None]:
    """The entries for the platforms of the destination: for each, the first that names it or is a
    default; None if there is none."""
    chosen = [
      [i for i, names in enumerate(platforms) if names is None or here in names]
      for here in self.platforms or _here()
    ]
    return {indices[0] if indices else None for indices in chosen}

  def missing(self, place: Place) -> str | None:
    """The device of a place that this machine's TensorFlow does not have; None when it does, or
    when the graph runs elsewhere."""
    device = self.device(place)
    if device is None or self.platforms:
      return None
    spec = tf.DeviceSpec.from_string(device)
    return None if any(_fits(spec, d.name) for d in tf.config.list_logical_devices()) else device


# This machine.
HERE = Destination()
# The CPU of any machine.
ON_HOST = Destination(platforms=("cpu",))


def _here() -> tuple[str, ...]:
  if tf.config.list_logical_devices("TPU"):
    return ("tpu",)
  gpu = "rocm" if tf.test.is_built_with_rocm() else "cuda"
  return (gpu,) if tf.config.list_logical_devices("GPU") else ("cpu",)


def _fits(spec: Any, name: str) -> bool:
  device = tf.DeviceSpec.from_string(name)
  return all(
    getattr(spec, part) in (None, getattr(device, part))
    for part in ("job", "replica", "task", "device_type", "device_index")
  )
