"""Ops that do the same to both parts of complex numbers, and those that make and take the parts."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from ..pair import REAL, Pair, Value, are_pairs, of_pairs
from ..replay import again
from .arithmetic import real

_PARTWISE = re.findall(
  r"\w+",
  """
  AddN AddV2 Add BatchToSpaceND BroadcastTo ConcatV2 Cumsum DynamicStitch ExpandDims Fill
  GatherNd GatherV2 MatrixBandPart MatrixDiagPartV3 MatrixDiagV3 MatrixSetDiagV3 MirrorPad Mean Neg
  Pack Pad PadV2 Reshape ResourceGather ReverseV2 ScatterNd Select SelectV2 Slice
  SpaceToBatchND Split SplitV Squeeze StridedSlice Sub Sum TensorListConcatV2
  TensorListFromTensor TensorListGather TensorListGetItem TensorListPushBack TensorListReserve
  TensorListResize TensorListSetItem TensorListStack EmptyTensorList
  TensorScatterAdd TensorScatterSub TensorScatterUpdate TensorStridedSliceUpdate Tile Transpose
  UnsortedSegmentSum SegmentSumV2 Unpack ZerosLike
  """,
)


@of_pairs(*_PARTWISE)
def _partwise(op: Any, *operands: Value) -> list[Value]:
  """Operands c64[...] and of other dtypes -> c64[...]."""
  parts = [
    again(op, [getattr(x, part) if isinstance(x, Pair) else x for x in operands], REAL)
    for part in ("re", "im")
  ]
  return [
    Pair(re, im) if is_pair else re for re, im, is_pair in zip(*parts, are_pairs(op), strict=True)
  ]


@of_pairs("Shape", "ShapeN", "Size", "Rank", "TensorListLength")
def _of_shape(op: Any, *operands: Pair) -> list[tf.Tensor]:
  """x c64[...] -> i32[n]."""
  return again(op, [x.re for x in operands], REAL)


@of_pairs("OnesLike")
def _ones_like(op: Any, x: Pair) -> list[Pair]:
  """x c64[...] -> c64[...]."""
  return [real(tf.ones_like(x.re))]


@of_pairs("Complex")
def _complex(op: Any, re: tf.Tensor, im: tf.Tensor) -> list[Pair]:
  """re, im f32[...] -> c64[...], broadcast."""
  if re.shape.is_fully_defined() and re.shape == im.shape:
    return [Pair(re, im)]
  # x + -0.0 is x, and unlike BroadcastArgs, which tf2onnx 1.17 lacks, a sum fits unknown sizes
  nothing = tf.constant(-0.0, re.dtype)
  return [Pair(re + tf.fill(tf.shape(im), nothing), im + tf.fill(tf.shape(re), nothing))]


@of_pairs("Real")
def _real(op: Any, x: Pair) -> list[tf.Tensor]:
  """x c64[...] -> f32[...]."""
  return [x.re]


@of_pairs("Imag")
def _imag(op: Any, x: Pair) -> list[tf.Tensor]:
  """x c64[...] -> f32[...]."""
  return [x.im]


@of_pairs("Conj")
def _conj(op: Any, x: Pair) -> list[Pair]:
  """x c64[...] -> c64[...]."""
  return [Pair(x.re, -x.im)]


@of_pairs("ConjugateTranspose")
def _conjugate_transpose(op: Any, x: Pair, permutation: tf.Tensor) -> list[Pair]:
  """x c64[n,m] -> c64[m,n], of any permutation."""
  return [Pair(tf.transpose(x.re, permutation), -tf.transpose(x.im, permutation))]


@of_pairs("Cast")
def _cast(op: Any, x: Value) -> list[Value]:
  """x f32[...] -> c64[...], and back without the imaginary part."""
  dtype = op.outputs[0].dtype
  if not isinstance(x, Pair):
    return [real(tf.cast(x, REAL[dtype]))]
  if dtype in REAL:
    return [x.map(lambda part: tf.cast(part, REAL[dtype]))]
  return [tf.cast(x.re, dtype)]


@of_pairs("Equal", "NotEqual")
def _equal(op: Any, x: Pair, y: Pair) -> list[tf.Tensor]:
  """x, y c64[...] -> bool[...]."""
  if op.type == "Equal":
    return [tf.equal(x.re, y.re) & tf.equal(x.im, y.im)]
  return [tf.not_equal(x.re, y.re) | tf.not_equal(x.im, y.im)]
