"""Calls of the TensorFlow ops that some target has a replacement for, on what hurts;
test_replacements.py runs them in each target."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf.converters.bundle.manifest import SignatureRecord
from jax2tf.converters.bundle.notation import Spec
from jax2tf.converters.export.source import Signature, Source

F = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1, -1, 0.3, -2.5, 1e-6, 30, -7.25], np.float32)
TABLE = F.reshape(3, 4)
PLAIN = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
I = np.array([-(2**31), 2**31 - 1, -1, 0, 1, 7, -8, 12345, 65536, -300, 3, 31], np.int32)  # noqa: E741
LARGE = np.array(
  [3.4e38, 2.0**126, 2.0**125, 1e38, -1e38, 88.6, 88.8, 87, -87, np.inf, -np.inf, np.nan],
  np.float32,
)
DIVISORS = np.array([3, -7, -1, 5, -2, 7, 3, -11, 255, 7, 100000, 2], np.int32)
COUNTS = np.arange(12, dtype=np.int32) * 2
RNG = np.random.default_rng(0)
IMAGE = np.linspace(-1, 1, 2 * 4 * 4 * 2, dtype=np.float32).reshape(2, 4, 4, 2)
BOOLS = F > 0
INDICES = np.array([[1], [0], [1]], np.int32)


@dataclass(frozen=True)
class Row:
  """A call of an op.

  Attributes:
    op: its type.
    call: of the tensors.
    operands: what the model gets as inputs.
  """

  op: str
  call: Callable[..., Any]
  operands: tuple[np.ndarray, ...]


def packed(chosen: Sequence[Row]) -> tuple[Source, dict[str, np.ndarray]]:
  """One signature of all the rows, and its inputs."""
  inputs = {
    f"x{i}_{k}": array for i, row in enumerate(chosen) for k, array in enumerate(row.operands)
  }

  def call(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
    found = {}
    for i, row in enumerate(chosen):
      results = row.call(*(tensors[f"x{i}_{k}"] for k in range(len(row.operands))))
      for k, y in enumerate(results if isinstance(results, list | tuple) else [results]):
        found[f"{row.op}_{i}_{k}"] = y
    return found

  specs = {name: tf.TensorSpec(array.shape, array.dtype, name) for name, array in inputs.items()}
  function = tf.function(call, autograph=False)
  concrete = function.get_concrete_function(**specs)
  record = SignatureRecord(
    {name: str(Spec.of(array)) for name, array in inputs.items()},
    {name: str(Spec.of(y)) for name, y in concrete.structured_outputs.items()},
    preprocessed=True,  # so that the reference is called as it is
  )

  def reference(*arrays: np.ndarray) -> dict[str, np.ndarray]:
    tensors = dict(zip(inputs, map(tf.constant, arrays), strict=True))
    return {name: y.numpy() for name, y in function(**tensors).items()}

  return Source({"s": Signature("s", record, concrete, reference, None, None)}, [], "rows"), inputs


def row(op: str, *operands: Any, **attributes: Any) -> Row:
  """Of a raw op, whose operands are arrays, or Python's own numbers and lists for constants of the
  graph."""
  function = getattr(tf.raw_ops, op)
  names = list(inspect.signature(function).parameters)
  inputs = [i for i, x in enumerate(operands) if isinstance(x, np.ndarray)]

  def call(*tensors: tf.Tensor) -> Any:
    given = list(operands)
    for i, tensor in zip(inputs, tensors, strict=True):
      given[i] = tensor
    return function(**dict(zip(names, given, strict=False)), **attributes)

  return Row(op, call, tuple(operands[i] for i in inputs))


def rows() -> Iterator[Row]:
  """All of them."""
  yield from _unsigned_indices()
  yield from _of_floats()
  yield from _of_integers()
  yield from _reductions()
  yield from _others()
  yield from _matrices()
  yield from _moves()
  yield from _random_bits()
  yield from _scatters()
  yield from _layers()


def _of_floats() -> Iterator[Row]:
  for op in """
    Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Elu Erf Erfc Exp Expm1 Floor IsFinite IsInf
    IsNan Lgamma Log Log1p Neg Reciprocal Relu Relu6 Rint Round Rsqrt Sigmoid Sign Sin Sinh Sqrt
    Square Tan Tanh OnesLike ZerosLike
  """.split():  # noqa: SIM905
    yield row(op, F)
  for op in ("Exp", "Log", "Rsqrt", "Sqrt"):
    yield row(op, LARGE)
  for op in ("Selu", "Softplus", "LeakyRelu", "Erfinv"):
    yield row(op, PLAIN / 2.1)
  for op in """
    AddV2 Sub Mul RealDiv Maximum Minimum SquaredDifference Atan2 TruncateMod Less LessEqual Greater
    GreaterEqual Equal NotEqual NextAfter DivNoNan
  """.split():  # noqa: SIM905
    yield row(op, F, F[::-1].copy())
  for op in ("BesselI0e", "BesselI1e"):
    yield row(op, F)
    yield row(op, LARGE)
  yield from _of_gamma_functions()
  yield row("Pow", np.abs(PLAIN), PLAIN)
  yield row("Xlogy", PLAIN, np.abs(PLAIN))
  for op in ("FloorDiv", "FloorMod"):
    yield row(op, PLAIN, PLAIN.T.reshape(3, 4) + np.float32(0.1))


def _of_gamma_functions() -> Iterator[Row]:
  shapes = np.array([0.1, 1, 3, 25, 300, 2, np.nan, np.inf, 0, -1, 5, 5], np.float32)
  numbers = np.array([0.5, 2, 40, 25, 310, np.inf, 1, 1, 0.5, 2, -1, 0], np.float32)
  for op in ("Igamma", "Igammac", "IgammaGradA"):
    yield row(op, shapes, numbers)
  yield row("RandomGammaGrad", shapes[2:3].copy(), np.array([0.1, 1, 3, 9], np.float32))
  others = np.array([2, 0.2, 1, 30, 3, 3, 2, 2, 1, 1, 5, 5], np.float32)
  parts = np.array([0.01, 0.4, 0.9, 0.5, 0.98, np.nan, 0, 0.5, 0.5, 0.5, -0.1, 1], np.float32)
  yield row("Betainc", shapes, others, parts)
  yield row("Digamma", F)
  exponents = np.array([1.5, 2, 3, 1, 0.5, 30], np.float32)
  yield row("Zeta", exponents, np.array([0.3, 7, 1, 2, 1, 0.5], np.float32))
  orders = np.array([0, 1, 2, 5, 0.5, -1], np.float32)
  yield row("Polygamma", orders, np.array([0.3, 7, 1, 2, 1, 0.5], np.float32))


def _of_integers() -> Iterator[Row]:
  for op in "AddV2 Add Sub Mul Maximum Minimum BitwiseAnd BitwiseOr BitwiseXor Less Equal".split():  # noqa: SIM905
    yield row(op, I, I[::-1].copy())
    if op != "Add":  # none of unsigned integers
      yield row(op, I.view(np.uint32), I[::-1].copy().view(np.uint32))
  for least, most in ((0, 6), (0, 1), (-1, 1)):
    for op, clamps in _clamps(least, most):
      yield Row(op, clamps, (I,))
  for op in ("Relu", "Relu6"):
    yield row(op, I)
  for op in "FloorDiv FloorMod TruncateDiv TruncateMod".split():  # noqa: SIM905
    yield row(op, I[1:], DIVISORS[1:])
    if op != "TruncateMod":  # none of unsigned integers
      yield row(op, I.view(np.uint32), np.abs(DIVISORS).view(np.uint32))
  for op in ("LeftShift", "RightShift"):
    yield row(op, I, COUNTS)
    yield row(op, I.view(np.uint32), COUNTS.view(np.uint32))
  for op in "Abs Neg Sign Invert PopulationCount Square".split():  # noqa: SIM905
    yield row(op, I)


def _reductions() -> Iterator[Row]:
  for op in "Sum Prod Max Min Mean".split():  # noqa: SIM905
    yield row(op, TABLE if op in ("Max", "Min") else PLAIN, [1])
  for op in "Sum Prod Max Min".split():  # noqa: SIM905
    yield row(op, I.reshape(3, 4), [0], keep_dims=True)
  for op in ("All", "Any"):
    yield row(op, BOOLS.reshape(3, 4), [1])
  for op in ("ArgMax", "ArgMin"):
    yield row(op, PLAIN, 1, output_type=tf.int32)
    yield row(op, I.view(np.uint32), 0, output_type=tf.int32)
  for op in ("Cumsum", "Cumprod"):
    yield row(op, PLAIN, 1, reverse=True)
    yield row(op, I.reshape(3, 4), 0)


def _others() -> Iterator[Row]:
  yield Row("AddN", lambda x, y: tf.raw_ops.AddN(inputs=[x, y]), (PLAIN, PLAIN))
  for op in ("LogicalAnd", "LogicalOr"):
    yield row(op, BOOLS, BOOLS[::-1].copy())
  yield row("LogicalNot", BOOLS)
  yield row("ClipByValue", F, np.float32(-1), np.float32(1))
  yield row("LinSpace", np.float32(0), np.float32(1), 5)


def _clamps(least: int, most: int) -> Iterator[tuple[str, Callable[..., Any]]]:
  """Clamps of integers, of which converters make Relu6, Relu0To1 and ReluN1To1 if they are
  floats."""
  yield "Maximum", lambda x: tf.maximum(tf.minimum(x, most), least)
  yield "Minimum", lambda x: tf.minimum(tf.maximum(x, least), most)
  yield "Maximum", lambda x: tf.maximum(tf.minimum(x, tf.fill([12], most)), tf.fill([12], least))
  yield "Relu", lambda x: tf.nn.relu(tf.minimum(x, most))
  yield (
    "ClipByValue",
    lambda x: tf.raw_ops.ClipByValue(t=x, clip_value_min=least, clip_value_max=most),
  )


def _matrices() -> Iterator[Row]:
  yield row("MatMul", PLAIN, PLAIN, transpose_b=True)
  yield row("MatMul", I.reshape(3, 4), I.reshape(3, 4), transpose_a=True)
  for op in ("BatchMatMul", "BatchMatMulV2"):
    yield row(op, PLAIN[None], PLAIN[None], adj_y=True)
  deep = np.stack([PLAIN, 2 * PLAIN]).reshape(1, 2, 1, 1, *PLAIN.shape)
  yield row("BatchMatMulV2", deep, deep, adj_y=True)
  yield row("BatchMatMulV3", PLAIN[None], PLAIN[None], Tout=tf.float32, adj_y=True)
  yield Row(
    "Einsum", lambda x, y: tf.raw_ops.Einsum(inputs=[x, y], equation="ij,kj->ik"), (PLAIN, PLAIN)
  )
  yield row("MatrixBandPart", TABLE, 1, 0)
  for x in (TABLE, I.reshape(3, 4), BOOLS.reshape(3, 4)):
    yield row("MatrixDiagPartV3", x, 0, x.dtype.type(0))
  for k in (1, -2):
    yield row("MatrixDiagPartV3", IMAGE, k, 0.0)
  yield row("MatrixDiagV3", PLAIN, 0, -1, -1, 0.0)
  yield row("MatrixSetDiagV3", TABLE, PLAIN[0, :3].copy(), 0)
  yield from _factorisations()
  yield from _decompositions()


def _decompositions() -> Iterator[Row]:
  def eigenvalues(x: tf.Tensor) -> list[tf.Tensor]:
    """Vectors are determined up to a sign."""
    values, vectors = tf.raw_ops.SelfAdjointEigV2(input=x)
    return [values, tf.matmul(vectors * values[..., tf.newaxis, :], vectors, transpose_b=True)]

  def singular_values(x: tf.Tensor) -> list[tf.Tensor]:
    full = tf.raw_ops.Svd(input=x, full_matrices=True)
    values, u, v = tf.raw_ops.Svd(input=x)
    short = tf.matmul(u * values[..., tf.newaxis, :], v, transpose_b=True)
    return [values, short, *(tf.matmul(y, y, transpose_a=True) for y in (u, v, *full[1:]))]

  for m, n in ((1, 1), (3, 4), (9, 5)):
    a = RNG.standard_normal((2, m, n)).astype("f")
    for full in (False, True):
      yield row("Qr", a, full_matrices=full)
    yield Row("Svd", singular_values, (a,))
    # of rank 1, and of numbers whose squares overflow or vanish
    hostile = np.stack([np.outer(a[0, :, 0], a[0, 0]), a[0] * np.float32(1e25)])
    yield Row("Svd", lambda x: tf.raw_ops.Svd(input=x, compute_uv=False)[0], (hostile,))
    square = np.stack([a[0] @ a[0].T, np.eye(m, dtype="f"), a[1] @ a[1].T])
    yield Row("SelfAdjointEigV2", eigenvalues, (square,))
    yield Row("SelfAdjointEigV2", eigenvalues, (square[:1] * np.float32(1e-25),))


def _factorisations() -> Iterator[Row]:
  def lower_cholesky(x: tf.Tensor) -> tf.Tensor:
    """TensorFlow 2.21 has anything in the upper triangle of what is not positive definite."""
    return tf.linalg.band_part(tf.raw_ops.Cholesky(input=x), -1, 0)

  for n in (1, 3, 20):  # without a loop, and with one
    a = RNG.standard_normal((2, n, n)).astype("f")
    positive = a @ a.swapaxes(-1, -2) + np.eye(n, dtype="f")
    unread = np.triu(np.full([n, n], np.nan, "f"), 1)
    yield row("Cholesky", positive + unread)
    yield Row("Cholesky", lower_cholesky, (np.stack([positive[0], -positive[0]]),))
    regular = a / np.float32(n) + 2 * np.eye(n, dtype="f")
    b = RNG.standard_normal((3, 1, n, 2)).astype("f")
    for lower in (True, False):
      triangle = regular + (unread if lower else unread.T)
      yield row("MatrixTriangularSolve", triangle, b[0, 0], lower=lower)
      yield row("MatrixTriangularSolve", triangle, b, lower=lower, adjoint=True)
  for n in (1, 2, 5, 20):
    diagonals = RNG.standard_normal((2, 3, n)).astype("f")  # which need exchanges of rows
    b = RNG.standard_normal((2, n, 3)).astype("f")
    yield row("TridiagonalSolve", diagonals, b)
    diagonals[:, 1] += 4
    yield row("TridiagonalSolve", diagonals, b, partial_pivoting=False)


def _moves() -> Iterator[Row]:
  yield row("Fill", [2, 3], np.float32(-0.0))
  yield row("Reshape", TABLE, [4, 3])
  yield row("Reshape", TABLE[:0], [0, 2])
  for op in ("Pad", "MirrorPad"):
    yield row(op, TABLE, [[1, 0], [0, 2]], **({"mode": "REFLECT"} if op == "MirrorPad" else {}))
  yield row("PadV2", I.reshape(3, 4), [[0, 1], [1, 0]], -5)
  yield row("ReverseV2", TABLE, [0, 1])
  yield row("ReverseV2", BOOLS, [0])
  yield row("Roll", TABLE, [1], [0])
  yield row("Slice", TABLE, [1, 0], [2, 3])
  yield row("StridedSlice", BOOLS, [10], [1], [-3])
  yield row("StridedSlice", TABLE, [0, 3], [3, 0], [1, -1])
  yield row("Split", 1, TABLE, num_split=2)
  yield row("SplitV", TABLE, [1, 3], 1, num_split=2)
  yield row("Squeeze", TABLE[None])
  yield row("Tile", TABLE, [2, 1])
  yield row("Transpose", TABLE, [1, 0])
  yield row("ExpandDims", TABLE, 0)
  yield row("Unpack", TABLE, num=3)
  yield Row("Pack", lambda x, y: tf.raw_ops.Pack(values=[x, y], axis=1), (TABLE, PLAIN))
  yield Row("ConcatV2", lambda x, y: tf.raw_ops.ConcatV2(values=[x, y], axis=1), (TABLE, PLAIN))
  yield row("BroadcastTo", F[:4], [3, 4])
  yield row("BroadcastTo", BOOLS[:4], [3, 4])
  yield row("BroadcastTo", TABLE[:, :1], [3, 4])
  yield row("GatherV2", TABLE, np.array([2, 0, 1], np.int32), 1)
  yield row("GatherV2", TABLE, np.array([[3], [0], [1]], np.int32), 1, batch_dims=1)
  yield row("GatherNd", TABLE, np.array([[2, 0], [0, 1]], np.int32))
  yield row("SelectV2", BOOLS, F, I.astype(np.float32))
  yield row("SelectV2", BOOLS, BOOLS, BOOLS[::-1].copy())
  yield row("Select", BOOLS, I, COUNTS)
  yield row("OneHot", np.array([0, 3, -1], np.int32), 3, np.float32(5), np.float32(-1))
  yield row("Range", np.int32(3), np.int32(11), np.int32(2))
  yield row("Cast", F[3:], DstT=tf.int32)
  yield row("Cast", I, DstT=tf.float32)
  yield row("Cast", I.view(np.uint32), DstT=tf.float32)
  yield row("Cast", F, DstT=tf.bool)
  yield row("Bitcast", F[1:], type=tf.int32)
  yield row("Bitcast", F[1:].view(np.int32), type=tf.float32)
  yield row("TopKV2", PLAIN, 3)
  yield row("TopKV2", I.view(np.uint32), 4)
  yield row("Shape", TABLE)
  yield row("Size", TABLE)
  yield Row("ShapeN", lambda x, y: tf.raw_ops.ShapeN(input=[x, y]), (TABLE, F))
  yield row("BroadcastArgs", [3, 1], np.array([4], np.int32))
  yield row("Rank", TABLE)

  def listed(x: tf.Tensor) -> tf.Tensor:
    rows = tf.raw_ops.TensorListFromTensor(tensor=x, element_shape=[4])
    count = tf.cast(tf.raw_ops.TensorListLength(input_handle=rows), tf.float32)
    item = tf.raw_ops.TensorListGetItem(
      input_handle=rows, index=1, element_shape=[4], element_dtype=tf.float32
    )
    made = tf.raw_ops.TensorListReserve(element_shape=[4], num_elements=2, element_dtype=tf.float32)
    for i in range(2):
      made = tf.raw_ops.TensorListSetItem(input_handle=made, index=i, item=item * count)
    return tf.raw_ops.TensorListStack(
      input_handle=made, element_shape=[4], element_dtype=tf.float32, num_elements=2
    )

  for op in ("Reserve", "FromTensor", "SetItem", "GetItem", "Stack", "Length"):
    yield Row(f"TensorList{op}", listed, (PLAIN,))


def _random_bits() -> Iterator[Row]:
  def bits(words: tf.Tensor) -> tf.Tensor:
    key, counter = (tf.bitcast(part, tf.uint64) for part in (words[:1], words[1:]))
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=[2, 3], key=key, counter=counter, alg=1, dtype=tf.uint32
    )

  most = 2**32 - 1  # so that counters carry
  words = np.array([[1, 2], [most, most], [most, 7]], np.uint32)
  yield Row("StatelessRandomUniformFullIntV2", bits, (words,))


def _unsigned_indices() -> Iterator[Row]:
  def bounded(x: tf.Tensor) -> tf.Tensor:
    index = tf.expand_dims(tf.cast(x, tf.int64), 0)
    inside = tf.maximum(tf.constant(0, tf.int64), tf.minimum(index, tf.constant(5, tf.int64)))
    return tf.cast(inside, tf.int32)

  yield Row("Minimum", bounded, (np.array([0, 4, 5, 6, 2**31, 2**32 - 1], np.uint32),))


def _scatters() -> Iterator[Row]:
  yield row("ScatterNd", INDICES, PLAIN, [4, 4])
  yield row("ScatterNd", INDICES, I.reshape(3, 4), [4, 4])
  for kind in ("Update", "Add", "Sub", "Max", "Min"):
    yield row(f"TensorScatter{kind}", PLAIN[:2].copy(), INDICES[:2].copy(), PLAIN[1:].copy())
    outside = np.array([[5], [1]], np.int32)
    yield row(
      f"TensorScatter{kind}",
      PLAIN[:2].copy(),
      outside,
      PLAIN[1:].copy(),
      bad_indices_policy="IGNORE",
    )
  ids = np.array([0, 2, 2], np.int32)
  yield row("SegmentSum", PLAIN, np.array([0, 1, 1], np.int32))  # LiteRT refuses gaps
  for kind in ("Sum", "Max", "Min", "Prod"):
    yield row(f"UnsortedSegment{kind}", PLAIN, ids, 3)


def _layers() -> Iterator[Row]:
  kernel = PLAIN.ravel()[:8].reshape(2, 2, 2, 1)
  window = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
  yield row("AvgPool", IMAGE, **window)
  yield row("MaxPool", IMAGE, **window)
  yield row("Conv2D", IMAGE, kernel, strides=[1, 1, 1, 1], padding="SAME")
  yield row(
    "Conv2DBackpropInput",
    [2, 4, 4, 2],
    kernel,
    IMAGE[..., :1].copy(),
    strides=[1, 1, 1, 1],
    padding="SAME",
  )
  yield from _gradients_of_convolutions()
  yield row("DepthwiseConv2dNative", IMAGE, kernel, strides=[1, 1, 1, 1], padding="SAME")
  yield row("Conv3D", IMAGE[None], kernel[None], strides=[1, 1, 1, 1, 1], padding="VALID")
  for op in ("AvgPool3D", "MaxPool3D"):
    yield row(op, IMAGE[None], ksize=[1, 1, 2, 2, 1], strides=[1, 1, 2, 2, 1], padding="VALID")
  yield row("SpaceToBatchND", IMAGE, [2, 2], [[0, 0], [0, 0]])
  yield row("BatchToSpaceND", np.tile(IMAGE, (2, 1, 1, 1)), [2, 2], [[0, 0], [0, 0]])
  yield row("BiasAdd", IMAGE, np.float32([1, -1]))
  yield row("DepthToSpace", np.tile(IMAGE, (1, 1, 1, 2)), block_size=2)
  yield row("Softmax", PLAIN)
  yield row("LogSoftmax", PLAIN)
  channels = np.float32([0.5, 2]), np.float32([1, -1]), np.float32([0.1, -0.2]), np.float32([1, 0])

  def batch_norm(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> tf.Tensor:
    return tf.raw_ops.FusedBatchNormV3(
      x=x, scale=scale, offset=offset, mean=mean, variance=variance, is_training=False
    )[0]

  yield Row("FusedBatchNormV3", batch_norm, (IMAGE, *channels))


def _gradients_of_convolutions() -> Iterator[Row]:
  image, kernel = (
    RNG.standard_normal((2, 5, 6, 3)).astype("f"),
    RNG.standard_normal((3, 2, 3, 4)).astype("f"),
  )
  explicit = [0, 0, 1, 2, 2, 0, 0, 0]
  for stride, padding in ((1, "SAME"), (2, "VALID"), (2, "SAME"), (2, explicit)):
    pads = (
      {"padding": padding}
      if isinstance(padding, str)
      else {"padding": "EXPLICIT", "explicit_paddings": padding}
    )
    attributes = {"strides": [1, stride, stride, 1], **pads}
    for kind in ("Conv2D", "DepthwiseConv2dNative"):
      forward = getattr(tf.raw_ops, kind)(input=image, filter=kernel, **attributes)
      cotangent = RNG.standard_normal(forward.shape).astype("f")
      yield row(f"{kind}BackpropInput", list(image.shape), kernel, cotangent, **attributes)
      yield row(f"{kind}BackpropFilter", image, list(kernel.shape), cotangent, **attributes)
  for size, stride, padding in ((2, 2, "VALID"), (3, 2, "SAME"), (3, 1, "VALID")):
    attributes = {
      "ksize": [1, size, size, 1],
      "strides": [1, stride, stride, 1],
      "padding": padding,
    }
    pooled = tf.raw_ops.MaxPool(input=np.round(image), **attributes).numpy()  # of equal elements
    yield row(
      "MaxPoolGrad",
      np.round(image),
      pooled,
      RNG.standard_normal(pooled.shape).astype("f"),
      **attributes,
    )
  volume, part = IMAGE[None], IMAGE[None, :, :2, :2, :1].copy()
  strides = {"strides": [1, 1, 2, 2, 1], "padding": "SAME"}
  yield row("Conv3DBackpropFilterV2", volume, [1, 2, 2, 2, 1], part, **strides)
  yield row(
    "Conv3DBackpropInputV2", list(volume.shape), kernel[None, :2, :, :2, :1].copy(), part, **strides
  )
