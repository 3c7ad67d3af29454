"""JAX parameters on a DTensor mesh, for functions of `convert(..., dtensor_mesh=mesh)`.
Experimental."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import NamedSharding, PartitionSpec

from jax2tf.placement.dtensors import layout

__all__ = ["tensor", "variables"]


def variables(params: Any, mesh: Any) -> Any:
  """Creates a dtensor.DVariable from every array of a pytree, in the layout of its NamedSharding.
  Arrays without a NamedSharding are replicated.

  Args:
    params: a pytree of arrays of any dtype and shape.
    mesh: a tf.experimental.dtensor.Mesh with the axis names and sizes of JAX's mesh.

  Returns:
    the pytree with variables as leaves.

  Raises:
    ValueError: DTensor has no layout for a sharding, or the mesh has other axes.

  Examples:
    >>> import numpy as np, tensorflow as tf, jax2tf.dtensor
    >>> mesh = tf.experimental.dtensor.create_mesh([("data", 1)], devices=["CPU:0"])
    >>> jax2tf.dtensor.variables({"w": np.zeros((4, 2), np.float32)}, mesh)["w"].shape
    TensorShape([4, 2])
  """

  def put(array: Any) -> Any:
    return tf.experimental.dtensor.DVariable(tensor(array, mesh))

  return jax.tree.map(put, params)


def tensor(array: Any, mesh: Any, *axes: str | None) -> tf.Tensor:
  """Creates a DTensor from an array: sharded over the named axes, otherwise by its NamedSharding,
  otherwise replicated.

  Args:
    array: a NumPy or JAX array of any dtype and shape.
    mesh: as for `variables`.
    axes: the mesh axes of the leading dimensions of the array; None for a dimension that is not
      sharded. The remaining dimensions are not sharded.

  Returns:
    the DTensor, of the same dtype and shape.

  Raises:
    ValueError: DTensor has no layout for the sharding, or the mesh has other axes.

  Examples:
    >>> import numpy as np, tensorflow as tf, jax2tf.dtensor
    >>> mesh = tf.experimental.dtensor.create_mesh([("data", 1)], devices=["CPU:0"])
    >>> rows = jax2tf.dtensor.tensor(np.zeros((4, 2), np.float32), mesh, "data")
    >>> tf.experimental.dtensor.fetch_layout(rows).sharding_specs
    ['data', 'unsharded']
  """
  values, dtensor = np.asarray(array), tf.experimental.dtensor
  sharding = getattr(array, "sharding", None)
  if axes:
    target = dtensor.Layout(
      [axis or dtensor.UNSHARDED for axis in (*axes, *[None] * (values.ndim - len(axes)))], mesh
    )
  elif isinstance(sharding, NamedSharding) and sharding.spec != PartitionSpec():
    target = layout(sharding, values.ndim, mesh)
  else:
    target = dtensor.Layout.replicated(mesh, values.ndim)
  # Each device gets its shard alone. `copy_to_mesh` would put the whole array on each.
  return dtensor.pack(
    [values[_shard(values.shape, target, location)] for location in mesh.local_device_locations()],
    target,
  )


def _shard(shape: Sequence[int], target: Any, location: Mapping[str, int]) -> tuple[slice, ...]:
  """What a device at this place of the mesh has of an array."""

  def share(size: int, axis: str) -> slice:
    if axis == tf.experimental.dtensor.UNSHARDED:
      return slice(None)
    each, left = divmod(size, target.mesh.dim_size(axis))
    if left:
      raise ValueError(
        f"a dimension of size {size} cannot be split over the {target.mesh.dim_size(axis)} "
        f"devices of {axis!r}"
      )
    return slice(location[axis] * each, (location[axis] + 1) * each)

  return tuple(map(share, shape, target.sharding_specs))
