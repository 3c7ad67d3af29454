"""Modules that no function of JAX writes: MLIR texts, with values worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from jax2tf import stablehlo
from jax2tf.stablehlo import parsing

_NAN = np.float32(np.nan)


def _function(body, arguments, results):
  return stablehlo.load(f"func.func @main({arguments}) -> ({results}) {{\n{body}\n}}")


def _same(got, wanted):
  """Bit for bit, but for the bits of a NaN."""
  got = np.asarray(got)
  np.testing.assert_array_equal(got, wanted)
  if got.dtype.kind == "f":
    numbers = ~np.isnan(got)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(wanted[numbers]))


_BF16 = np.arange(200).astype(jnp.bfloat16)  # MLIR prints so many as bytes
_CONSTANTS = {
  "tensor<2xbf16>": ("[1.0, -2.5]", jnp.bfloat16, [1.0, -2.5]),
  "tensor<bf16>": ("0x7FC0", jnp.bfloat16, jnp.nan),
  "tensor<200xbf16>": (f'"0x{_BF16.tobytes().hex().upper()}"', jnp.bfloat16, _BF16),
  "tensor<2xcomplex<f32>>": ("[(1.0, 2.0), (3.0, -4.0)]", np.complex64, [1 + 2j, 3 - 4j]),
  "tensor<2xcomplex<f64>>": ("(1.0, 0x7FF0000000000000)", np.complex128, [complex(1, np.inf)] * 2),
  "tensor<3xi1>": ("[true, false, true]", np.bool_, [True, False, True]),
  "tensor<9xi1>": ("true", np.bool_, [True] * 9),
  "tensor<2xi4>": ("[1, -2]", jnp.int4, [1, -2]),
  "tensor<3xui4>": ("[1, 15, 7]", jnp.uint4, [1, 15, 7]),
  "tensor<2x2xi2>": ("[[1, -2], [0, -1]]", jnp.int2, [[1, -2], [0, -1]]),
  "tensor<2xf8E4M3FN>": ("[1.0, -2.0]", jnp.float8_e4m3fn, [1.0, -2.0]),
  "tensor<2xui64>": ("[1, 18446744073709551615]", np.uint64, [1, 2**64 - 1]),
  "tensor<0xf32>": ("", np.float32, []),
  "tensor<2xf64>": ("[1.0e300, 0x7FF0000000000000]", np.float64, [1e300, np.inf]),
  "tensor<2xf32>": ("[0x7FC00000, 0xFF800000]", np.float32, [np.nan, -np.inf]),
}


@pytest.mark.parametrize("kind", _CONSTANTS)
def test_constants(kind):
  text, dtype, wanted = _CONSTANTS[kind]
  body = f"%a = stablehlo.constant dense<{text}> : {kind}\n return %a : {kind}"
  result = _function(body, "", kind)()
  assert result.dtype == dtype
  expected = np.array(wanted, dtype)
  assert np.asarray(result).tobytes() == expected.tobytes()


@pytest.mark.parametrize(
  "dtype", ["bfloat16", "complex64", "bool", "int4", "uint2", "float8_e4m3fn", "float4_e2m1fn"]
)
def test_constants_of_many_elements(dtype):
  """MLIR's printer leaves them out; those of a single value stay a single one."""
  wanted = np.resize(np.array([0, 1, 1.5, 3], np.float32), 2100).astype(dtype)
  filled = np.resize(wanted[1], 2100)
  exported = export.export(jax.jit(lambda: (wanted, filled)))()
  for result, expected in zip(stablehlo.load(exported)(), (wanted, filled), strict=True):
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(np.asarray(result), expected)


def test_a_constant_of_the_size_of_names():
  """Both are pieces of the bytecode, the names of one op together, and a few more bytes."""
  elements = np.resize(np.arange(256, dtype=np.uint8), 2100)
  for missing in range(60):
    text = f"""func.func @main() -> tensor<2100xf8E5M2> {{
      %a = stablehlo.constant dense<"0x{elements.tobytes().hex()}"> : tensor<2100xf8E5M2> loc(#a)
      return %a : tensor<2100xf8E5M2> }}
      #a = loc("{"a" * (2100 - missing)}")"""
    constant = parsing.parse(text).main.block.ops[0].attributes["value"]
    assert constant.tobytes() == elements.tobytes()


_X = np.array([1, -3, 0.0, 2, 3, -2, -0.0, _NAN], np.float32)


def _compare(direction, left, right, kind="FLOAT"):
  types = "(tensor<f32>, tensor<f32>) -> tensor<i1>"
  return f"%c = stablehlo.compare {direction}, {left}, {right}, {kind} : {types}"


def _sort(region):
  return _function(
    f"""%r = "stablehlo.sort"(%x) ({{ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      {region}
      stablehlo.return %c : tensor<i1> }})
      {{dimension = 0 : i64, is_stable = true}} : (tensor<8xf32>) -> tensor<8xf32>
    return %r : tensor<8xf32>""",
    "%x: tensor<8xf32>",
    "tensor<8xf32>",
  )


# Zeros and NaNs are told apart by TOTALORDER alone; FLOAT leaves the place of NaN open.
_ORDERS = {
  ("LT", "TOTALORDER"): [-3, -2, -0.0, 0.0, 1, 2, 3, _NAN],
  ("GT", "TOTALORDER"): [_NAN, 3, 2, 1, 0.0, -0.0, -2, -3],
  ("LT", "FLOAT"): [-3, -2, 0.0, -0.0, 1, 2, 3, _NAN],
  ("GT", "FLOAT"): [3, 2, 1, 0.0, -0.0, -2, -3, _NAN],
}


@pytest.mark.parametrize(("direction", "kind"), _ORDERS)
def test_comparators(direction, kind):
  wanted = np.array(_ORDERS[direction, kind], np.float32)
  _same(_sort(_compare(direction, "%a", "%b", kind))(_X), wanted)
  swapped = {"LT": "GT", "GT": "LT"}[direction]
  _same(_sort(_compare(swapped, "%b", "%a", kind))(_X), wanted)


def test_negative_nan_comes_first():
  x = np.copysign(_X, [1, 1, 1, 1, 1, 1, 1, -1]).astype(np.float32)
  assert np.isnan(np.asarray(_sort(_compare("LT", "%a", "%b", "TOTALORDER"))(x))[0])


def test_comparator_of_a_function_of_elements():
  squares = """%p = stablehlo.multiply %a, %a : tensor<f32>
    %q = stablehlo.multiply %b, %b : tensor<f32>
    """
  sort = _sort(squares + _compare("GT", "%p", "%q"))
  _same(
    sort(np.append(_X[:7], np.float32(0.5))),
    np.array([-3, 3, 2, -2, 1, 0.5, 0.0, -0.0], np.float32),
  )


def test_comparator_without_keys():
  """It compares a function of both elements, so all pairs are compared."""
  difference = """%p = stablehlo.subtract %a, %b : tensor<f32>
    %q = stablehlo.constant dense<0.0> : tensor<f32>
    """
  sort = _sort(difference + _compare("LT", "%p", "%q"))
  x = np.append(_X[:7], np.float32(0.5))
  _same(sort(x), np.array([-3, -2, 0.0, -0.0, 0.5, 1, 2, 3], np.float32))


def _scatter(region):
  return _function(
    f"""%r = "stablehlo.scatter"(%x, %i, %u) <{{scatter_dimension_numbers =
      #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
      scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}> (
      {{ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      {region}
      stablehlo.return %c : tensor<f32> }})
      : (tensor<4x2xf32>, tensor<4x1xi32>, tensor<4x2xf32>) -> tensor<4x2xf32>
    return %r : tensor<4x2xf32>""",
    "%x: tensor<4x2xf32>, %i: tensor<4x1xi32>, %u: tensor<4x2xf32>",
    "tensor<4x2xf32>",
  )


@pytest.mark.parametrize(
  ("region", "row"),
  [
    ("%c = stablehlo.add %b, %a : tensor<f32>", [2 + 10 + 12, 3 + 11 + 13]),
    ("%c = stablehlo.subtract %a, %b : tensor<f32>", [2 - 10 - 12, 3 - 11 - 13]),
    ("%c = stablehlo.subtract %b, %a : tensor<f32>", [12 - (10 - 2), 13 - (11 - 3)]),
    ("%c = stablehlo.add %a, %a : tensor<f32>", [8, 12]),
  ],
)
def test_scatters(region, row):
  """Rows 1 and 1 get updates one after another; indices outside are left out."""
  x, updates = (np.arange(n, n + 8, dtype=np.float32).reshape(4, 2) for n in (0, 10))
  indices = np.array([[1], [1], [-1], [5]], np.int32)
  wanted = x.copy()
  wanted[1] = row
  _same(_scatter(region)(x, indices, updates), wanted)


def test_select_and_scatter_of_integers():
  function = _function(
    """%z = stablehlo.constant dense<5> : tensor<i32>
    %r = "stablehlo.select_and_scatter"(%x, %s, %z) <{window_dimensions = array<i64: 2>,
      window_strides = array<i64: 2>, padding = dense<[[1, 1]]> : tensor<1x2xi64>}> (
      { ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %c = stablehlo.compare GE, %a, %b, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1> }, { ^bb0(%a: tensor<i32>, %b: tensor<i32>):
      %c = stablehlo.add %a, %b : tensor<i32>
      stablehlo.return %c : tensor<i32> })
      : (tensor<6xi32>, tensor<4xi32>, tensor<i32>) -> tensor<6xi32>
    return %r : tensor<6xi32>""",
    "%x: tensor<6xi32>, %s: tensor<4xi32>",
    "tensor<6xi32>",
  )
  x, source = np.array([3, 1, 1, -2, -7, -9]), np.array([10, 20, 30, 40])
  result = function(x.astype(np.int32), source.astype(np.int32))
  np.testing.assert_array_equal(result, [15, 25, 5, 35, 5, 45])


@pytest.mark.parametrize(
  ("dtype", "start", "first"), [("i32", -3, 0), ("i32", 9, 6), ("ui32", 2**32 - 1, 6)]
)
def test_starts_are_clamped(dtype, start, first):
  types = f"(tensor<8xf32>, tensor<{dtype}>) -> tensor<2xf32>"
  function = _function(
    f"%r = stablehlo.dynamic_slice %x, %i, sizes = [2] : {types}\n return %r : tensor<2xf32>",
    f"%x: tensor<8xf32>, %i: tensor<{dtype}>",
    "tensor<2xf32>",
  )
  index = np.array(start, np.uint32 if dtype == "ui32" else np.int32)
  _same(function(_X, index), _X[first : first + 2])


def test_sizes_of_arguments_get_names():
  function = _function(
    "%r = stablehlo.sine %x : tensor<?x3xf32>\n return %r : tensor<?x3xf32>",
    "%x: tensor<?x3xf32>",
    "tensor<?x3xf32>",
  )
  assert str(function.in_avals[0].shape) == "(d0, 3)"
  x = np.ones((2, 3), np.float32)
  np.testing.assert_allclose(jax.jit(function)(x), np.sin(x), rtol=1e-6)


def test_an_index_of_unknown_platforms_is_an_argument():
  function = _function(
    "%r = stablehlo.subtract %x, %i : tensor<i32>\n return %r : tensor<i32>",
    '%i: tensor<i32> {jax.global_constant = "_platform_index"}, %x: tensor<i32>',
    "tensor<i32>",
  )
  assert len(function.in_avals) == 2
  assert function(np.int32(1), np.int32(5)) == 4


def test_text_of_vhlo():
  """The dialect of portable artifacts, as text."""
  function = stablehlo.load(
    """vhlo.func_v1 @main(%x: !vhlo.tensor_v1<2x!vhlo.f32_v1>)
      -> (!vhlo.tensor_v1<2x!vhlo.f32_v1>) {
    %r = "vhlo.add_v1"(%x, %x) : (!vhlo.tensor_v1<2x!vhlo.f32_v1>, !vhlo.tensor_v1<2x!vhlo.f32_v1>)
      -> !vhlo.tensor_v1<2x!vhlo.f32_v1>
    "vhlo.return_v1"(%r) : (!vhlo.tensor_v1<2x!vhlo.f32_v1>) -> ()
    } {arg_attrs = #vhlo.array_v1<[]>, res_attrs = #vhlo.array_v1<[]>,
    sym_visibility = #vhlo.string_v1<"public">}"""
  )
  _same(function(np.ones(2, np.float32)), np.full(2, 2, np.float32))
