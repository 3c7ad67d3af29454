"""The TensorFlow ops that TF.js 4.22 runs correctly on cpu, wasm and webgl."""

from __future__ import annotations

from ..export.registry import MOVES


def _names(text: str) -> frozenset[str]:
  return frozenset(text.split())


# Ops of floats, int32 and bool that TF.js' converter knows, and that are correct on cpu, wasm and
# webgl.
RUNS = _names("""
  Acos Acosh All Any Asin Asinh Atan Atan2 Atanh AvgPool AvgPool3D BatchMatMul BatchMatMulV2
  BatchToSpaceND BiasAdd Ceil Conv2D Conv2DBackpropInput Conv3D Cos Cosh Cumprod DepthToSpace
  DepthwiseConv2dNative DivNoNan Elu Erf Exp Expm1 Floor FloorMod IsFinite IsInf IsNan LeakyRelu
  LinSpace Log LogSoftmax LogicalAnd LogicalNot LogicalOr MatMul MaxPool Mean NoOp Placeholder Prod
  RealDiv Reciprocal Relu Round Rsqrt Selu Sigmoid Sin Sinh Softmax Softplus SpaceToBatchND Sqrt
  SquaredDifference Tan Tanh
""")
CONTROL = _names("""
  If StatelessIf While StatelessWhile
""")
SUPPORTED = (
  MOVES
  | RUNS
  | CONTROL
  | _names("""
  Abs Add AddV2 ArgMax ArgMin Cast Const Cumsum Equal FloorDiv Greater GreaterEqual Identity Less
  LessEqual Max Maximum Min Minimum Mul Neg NotEqual Pow Range ScatterNd Sign Square Sub Sum TopKV2
""")
)
