"""Shardings of JAX as layouts of TensorFlow's DTensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from jax.sharding import NamedSharding, PartitionSpec


def relayout(operand: tf.Tensor, sharding: Any, mesh: Any, free: Sequence[int] = ()) -> tf.Tensor:
  """The operand, in the layout of a sharding; `free` dimensions stay as they are."""
  return tf.experimental.dtensor.relayout(operand, layout(sharding, operand.shape.rank, mesh, free))


def layout(sharding: Any, rank: int, mesh: Any, free: Sequence[int] = ()) -> Any:
  """The dtensor.Layout of a NamedSharding. The axes of the two meshes must have equal names and
  sizes.

  Raises:
    ValueError: another kind of sharding; an axis that the mesh does not have, or in another size; a
      dimension over several axes.
  """
  if not isinstance(sharding, NamedSharding):
    raise ValueError(
      f"{type(sharding).__name__} names no axes, and DTensor needs those of a NamedSharding"
    )
  spec = [*sharding.spec, *[None] * (rank - len(sharding.spec))]
  unsharded = {*free, *(i for i, axes in enumerate(spec) if axes is PartitionSpec.UNCONSTRAINED)}
  axis_names = [
    tf.experimental.dtensor.MATCH
    if i in unsharded
    else _axis(() if axes is None else axes, sharding, mesh)
    for i, axes in enumerate(spec)
  ]
  return tf.experimental.dtensor.Layout(axis_names, mesh)


def _axis(axes: str | tuple[str, ...], sharding: NamedSharding, mesh: Any) -> str:
  """The axis of a dimension, in DTensor's words."""
  names = (axes,) if isinstance(axes, str) else axes
  if not names:
    return tf.experimental.dtensor.UNSHARDED
  if len(names) > 1:
    raise ValueError(
      f"{sharding.spec} spreads a dimension over {len(names)} axes, and DTensor over one"
    )
  if names[0] not in mesh.dim_names:
    raise ValueError(
      f"{sharding.spec} names the axis {names[0]!r}, and the DTensor mesh has "
      f"{', '.join(mesh.dim_names)}"
    )
  if (ours := mesh.dim_size(names[0])) != (theirs := sharding.mesh.shape[names[0]]):
    raise ValueError(
      f"the axis {names[0]!r} has {theirs} devices in JAX's mesh, and {ours} in the DTensor mesh"
    )
  return names[0]
