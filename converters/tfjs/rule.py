"""Tools for replacements in TF.js: held dtypes, unchanged ops, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..export import replay
from ..export.replay import Replacement
from . import dtypes as ints

REFUSED = "_jax2tf_refused"  # attribute that marks a stand-in for a refused op: its type, and why
TOO_WIDE = "a number of 64 bits, of which TF.js would see 32"


def held(dtype: tf.DType) -> tf.DType:
  """The TF.js dtype that holds it."""
  return ints.HELD.get(dtype, dtype)


def held_by_numpy(dtype: np.dtype[Any]) -> np.dtype[Any]:
  """The same, for NumPy dtypes."""
  return np.dtype(held(tf.as_dtype(dtype)).as_numpy_dtype)


def refused(op: tf.Operation, why: str) -> list[tf.Tensor]:
  """Stand-ins for the results of a refused op. The first has the mark."""
  results = []
  for y in op.outputs:
    dtype = held(y.dtype) if held(y.dtype) in (tf.float32, tf.int32, tf.bool) else tf.float32
    sizes = [1 if d is None else d for d in y.shape] if y.shape.rank is not None else []
    attributes = {
      "dtype": tf.compat.v1.AttrValue(type=dtype.as_datatype_enum),
      "shape": tf.compat.v1.AttrValue(shape=y.shape.as_proto()),
      REFUSED: tf.compat.v1.AttrValue(s=f"{op.type}:{why}".encode()),
    }
    results += (
      replay.graph()
      .create_op("PlaceholderWithDefault", [tf.zeros(sizes, dtype)], [dtype], attrs=attributes)
      .outputs
    )
  return results


def same(op: tf.Operation, *operands: Any) -> list[tf.Tensor]:
  """The op unchanged, on held dtypes."""
  return replay.again(op, operands, ints.HELD)


def strange(op: tf.Operation) -> tf.DType | None:
  """A dtype of the op that TF.js cannot hold, or None."""
  tensors = [*op.inputs, *op.outputs]
  return next(
    (x.dtype for x in tensors if held(x.dtype) not in (tf.float32, tf.int32, tf.bool, tf.variant)),
    None,
  )


def guarded(replacement: Replacement) -> Replacement:
  """Refuses the op if TF.js cannot hold one of its dtypes, and otherwise calls `replacement`."""

  def checked(op: tf.Operation, *operands: Any) -> Sequence[Any]:
    if (dtype := strange(op)) is not None:
      return refused(op, f"{op.type} of {dtype.name}")
    return replacement(op, *operands)

  return checked


def one(function: Callable[..., tf.Tensor]) -> Replacement:
  """A replacement from `function(op, *operands)` with one result."""
  return guarded(lambda op, *operands: [function(op, *operands)])


def is_wide(op: tf.Operation) -> bool:
  """Whether an operand may have values that need more than 32 bits."""
  return any(x.dtype in ints.WIDE and not ints.is_exact(x) for x in op.inputs)
