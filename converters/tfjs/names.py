"""Which TensorFlow ops TF.js 4.22 runs, right, on cpu, wasm and webgl."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
  return frozenset(text.split())


# Ops that move elements and do not look at them.
MOVES = _names("""
  BroadcastArgs BroadcastTo ConcatV2 ExpandDims Fill GatherNd GatherV2 MirrorPad OnesLike Pack Pad PadV2 Rank Reshape
  ReverseV2 Select SelectV2 Shape ShapeN Size Slice Split SplitV Squeeze StridedSlice TensorScatterUpdate Tile Transpose Unpack
  ZerosLike
""")
# Ops of floats, int32 and bool that the converter of TF.js knows and that are right on cpu, wasm and webgl.
RUNS = _names("""
  Acos Acosh All Any Asin Asinh Atan Atan2 Atanh AvgPool AvgPool3D BatchMatMul BatchMatMulV2 BatchToSpaceND BiasAdd Ceil Conv2D
  Conv2DBackpropInput Conv3D Cos Cosh Cumprod DepthToSpace DepthwiseConv2dNative Dilation2D DivNoNan Elu Erf Exp Expm1 Floor
  FloorMod IsFinite IsInf IsNan LeakyRelu LinSpace Log LogSoftmax LogicalAnd LogicalNot LogicalOr MatMul MatrixBandPart MaxPool
  MaxPool3D Mean NoOp OneHot Placeholder Prod RealDiv Reciprocal Relu Round Rsqrt Selu Sigmoid Sin Sinh Softmax Softplus
  SpaceToBatchND Sqrt SquaredDifference Tan Tanh
""")
CONTROL = _names("""
  If StatelessIf While StatelessWhile
""")
SUPPORTED = (
  MOVES
  | RUNS
  | CONTROL
  | _names("""
  Abs Add AddV2 ArgMax ArgMin Cast Const Cumsum Equal FloorDiv Greater GreaterEqual Identity Less LessEqual Max Maximum Min Minimum
  Mul Neg NotEqual Pow Range ScatterNd Sign Square Sub Sum TopKV2
""")
)
