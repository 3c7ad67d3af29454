"""Parameters of JAX on a mesh of TensorFlow's DTensor, for functions of `convert(..., dtensor_mesh=mesh)`. Experimental."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import NamedSharding, PartitionSpec

from jax2tf.placement.dtensors import layout


def variables(params: Any, mesh: Any) -> Any:
  """A dtensor.DVariable for each array of a tree, laid out as its NamedSharding says; all others are whole on each device.

  Args:
    params: a pytree of arrays.
    mesh: a dtensor.Mesh, whose axes have the names and sizes of those of JAX's mesh.

  Raises:
    ValueError: a sharding that DTensor has no layout for.
  """

  def put(array: Any) -> Any:
    return tf.experimental.dtensor.DVariable(tensor(array, mesh))

  return jax.tree.map(put, params)


def tensor(array: Any, mesh: Any, *axes: str | None) -> tf.Tensor:
  """An array as a DTensor: its dimensions over the named axes, or as its NamedSharding says, or whole on each device."""
  values = tf.constant(np.asarray(array))
  whole = tf.experimental.dtensor.Layout.replicated(mesh, values.shape.rank)
  sharding = getattr(array, "sharding", None)
  if axes:
    axes = (*axes, *[None] * (values.shape.rank - len(axes)))
    wanted = tf.experimental.dtensor.Layout([axis or tf.experimental.dtensor.UNSHARDED for axis in axes], mesh)
  elif isinstance(sharding, NamedSharding) and sharding.spec != PartitionSpec():
    wanted = layout(sharding, values.shape.rank, mesh)
  else:
    wanted = whole
  return tf.experimental.dtensor.relayout(tf.experimental.dtensor.copy_to_mesh(values, whole), wanted)
