"""The options of `convert`, validated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import jax
from jax import export

from jax2tf.errors import warn_user
from jax2tf.messages import Argument, ArgumentError
from jax2tf.native import Target
from jax2tf.native import stablehlo_version as stablehlo_version_of
from jax2tf.placement.devices import PLATFORMS, Destination, place_named, place_of


def check_platforms(argument: str, platforms: Any) -> None:
  if (
    not isinstance(platforms, list | tuple)
    or not platforms
    or not all(p in PLATFORMS for p in platforms)
  ):
    # the words of jax.experimental.jax2tf
    raise ValueError(
      f"{argument} must be a sequence containing a subset of {PLATFORMS}, got {platforms!r}"
    )


def is_on_one_device(meshes: str) -> bool:
  """Whether programs for several devices become programs for one; validates `meshes`."""
  if meshes not in ("one_device", "error"):
    raise ArgumentError("meshes", meshes, advice="give 'one_device' or 'error'")
  return meshes == "one_device"


_PLACE = re.compile(r"(cpu|gpu|cuda|rocm|tpu)(:\d+)?|host")
_TF_DEVICE = re.compile(r"(/job:\w+)?(/replica:\d+)?(/task:\d+)?(/device:|/)?[A-Za-z_]+:\d+")


def destination_of(
  platforms: Any, device_map: Any, keep_shardings: bool, dtensor_mesh: Any = None
) -> Destination:
  """Validates where the graph will run."""
  if platforms is not None:
    check_platforms("platforms", platforms)
  devices: dict[str, str | None] = {}
  for key, device in (device_map or {}).items():
    place = place_named(key) if isinstance(key, str) and _PLACE.fullmatch(key) else place_of(key)
    if place is None:
      raise ArgumentError(
        "device_map",
        device_map,
        problem=f"{key!r} is not a JAX device",
        advice='name one by a jax.Device, "gpu:1", "gpu" or "host"',
      )
    if device is not None and not (isinstance(device, str) and _TF_DEVICE.fullmatch(device)):
      raise ArgumentError(
        Argument("device_map", device, key=key),
        problem="it is not a TensorFlow device",
        advice='name one such as "/device:GPU:1"',
      )
    devices[place] = device
  return Destination(tuple(platforms or ()), devices, keep_shardings, dtensor_mesh)


def native_target(
  enable_xla: bool,
  native: bool,
  platforms: Sequence[str] | None,
  disabled_checks: Sequence[export.DisabledSafetyCheck],
  version: str | None,
) -> Target | None:
  """The reader of the native modules; None for the graph lowering."""
  if platforms:
    check_platforms("native_serialization_platforms", platforms)
    if not native:
      warn_user(
        "using native_serialization_platforms without native_serialization has no effect: the "
        "graph lowering runs wherever TensorFlow does"
      )
  if not native:
    return None
  if not enable_xla:
    raise ValueError(
      "native_serialization is not supported with enable_xla=False; drop one of the two"
    )
  # JAX calls the backend "gpu" that it exports to as cuda or rocm.
  default = {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend())
  return Target(
    tuple(platforms or (default,)), tuple(disabled_checks), stablehlo_version_of(version)
  )
