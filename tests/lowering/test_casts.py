"""Rows for `jax2tf/lowering/casts.py`."""

from __future__ import annotations

import functools
import types

import jax
import jax.experimental
import jax.extend.core.primitives as P
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from jax._src.dtypes import ExtendedDType

import jax2tf
from tests.support.case import HOSTILE_F32, HOSTILE_I32, Case, run

QUICK = {"saved": "dtype sweep", "eager": "dtype sweep"}
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
BOUNDS = np.array(
  [
    0,
    -0.0,
    0.9,
    -0.9,
    127.5,
    128,
    -128.9,
    -129,
    255.5,
    256,
    32768,
    -32769,
    65536,
    2147483520,
    2147483648,
    -2147483648,
    -2147483904,
    4294967040,
    4294967296,
    9.223372e18,
    9.223373e18,
    -9.3e18,
    1.844674e19,
    1.85e19,
    1e30,
    -1e30,
    np.inf,
    -np.inf,
    np.nan,
  ]
)
HALFWAY = np.concatenate(
  [HOSTILE_F32, np.float32([65519, 65520, 6.1e-5, 6.104e-5, 1.00048828, 449, 1e5])]
)


def quantized(x):
  """f32[b] -> f32[b, 1]: rounded, with the derivative of x ** 2."""
  of_integers = jax.experimental.primal_tangent_dtype(jnp.int8, jnp.float32)

  @jax.custom_vjp
  def rounded(x):
    return x.astype(jnp.int8).astype(of_integers)

  def backward(x, cotangent):
    return (2 * x * cotangent,)

  @jax.custom_vjp
  def doubled(x):
    return 2 * x.astype(jnp.int8).astype(jnp.float32)

  rounded.defvjp(lambda x: (rounded(x), x), backward)
  doubled.defvjp(lambda x: (doubled(x), None), lambda _, cotangent: (2 * cotangent,))
  return doubled(jnp.flip(rounded(x))[:, None])


def quantized_in_a_branch(x, here):
  return lax.cond(here, quantized, lambda x: x[:, None], x)


def to(*dtypes):
  def fun(x):
    # The primitive itself: lax.convert_element_type warns about complex numbers.
    return [
      P.convert_element_type_p.bind(x, new_dtype=jnp.dtype(dtype), weak_type=False, sharding=None)
      for dtype in dtypes
    ]

  return fun


def reduced(x):
  return [
    lax.reduce_precision(x, e, m) for e, m in ((5, 10), (8, 7), (5, 2), (4, 3), (8, 23), (3, 0))
  ]


def narrow_floats(x):
  return [x.astype(t).astype(jnp.float32) for t in (jnp.float8_e4m3fn, jnp.float8_e5m2)]


def narrow_integers(x):
  return [x.astype(t).astype(jnp.int32) for t in (jnp.int4, jnp.uint4)]


def through_keys(data):
  keys = jax.random.wrap_key_data(data)
  return jax.random.key_data(keys)


with np.errstate(all="ignore"):
  CASES = [
    *(
      Case(
        f"{dtype} to integers saturates",
        to(*INTEGERS, "bool"),
        [BOUNDS.astype(dtype)],
        grad=False,
        x64=True,
        skip=QUICK if dtype != "float32" else {},
      )
      for dtype in FLOATS
    ),
    Case(
      "complex to integers",
      to(*INTEGERS, "bool"),
      [BOUNDS.astype(np.complex64) + 1j],
      grad=False,
      x64=True,
      skip=QUICK,
    ),
    Case(
      "int32 wraps",
      to("int8", "int16", "uint8", "uint32", "bool", "float32", "bfloat16", "complex64"),
      [HOSTILE_I32],
      poly="b",
    ),
    *(
      Case(
        f"{dtype} to all",
        to(*INTEGERS, *FLOATS, "bool", "complex128"),
        [np.arange(-3, 9).astype(dtype) * np.array(37, dtype)],
        x64=True,
        skip=QUICK,
      )
      for dtype in (*INTEGERS, "bool")
    ),
    Case("float32 to floats", to(*FLOATS, "complex64"), [HOSTILE_F32], x64=True),
    Case(
      "float64 to floats",
      to(*FLOATS),
      [np.array([1 + 2**-8, 1 + 2**-8 + 2**-40, 1e300, -np.inf, np.nan, 65519.9, 65520.0])],
      x64=True,
    ),
    Case(
      "complex to real", to("float32", "float16"), [np.array([1 + 2j, -3j, np.inf], np.complex64)]
    ),
    Case("float32 to complex", to("complex64"), [np.arange(3.0, dtype=np.float32)]),
    Case(
      "float8",
      narrow_floats,
      [np.array([0, 1, -1.06, 448, 465, 480, 57344, 61440, 1e-3, np.inf, np.nan], np.float32)],
      grad=False,
    ),
    Case("int4 from integers", narrow_integers, [HOSTILE_I32]),
    Case(
      "int4 from floats",
      narrow_integers,
      [np.array([0.5, -7.9, 7.5, 8, 15.5, 16, -9, np.inf, -np.inf, np.nan], np.float32)],
      grad=False,
    ),
    Case(
      "float8 from int4",
      lambda x: [
        x.astype(t).astype(u).astype(np.float32)
        for t in (jnp.int4, jnp.uint4)
        for u in (jnp.float8_e4m3fn, jnp.float8_e5m2)
      ],
      [np.arange(-8, 16, dtype=np.int32)],
    ),
    Case("int4 from bool", narrow_integers, [np.array([True, False])]),
    Case("float8 from integers", narrow_floats, [np.arange(-4, 40, 5, dtype=np.int32)]),
    Case(
      "bitcast same width",
      lambda x: lax.bitcast_convert_type(x, jnp.uint32),
      [HOSTILE_F32],
      poly="b",
      grad=False,
    ),
    Case(
      "bitcast to narrower",
      lambda x: lax.bitcast_convert_type(x, jnp.uint8),
      [HOSTILE_F32],
      poly="b",
      grad=False,
    ),
    Case(
      "bitcast to wider",
      lambda x: lax.bitcast_convert_type(x, jnp.float32),
      [np.arange(24, dtype=np.int16).reshape(3, 4, 2)],
      poly="b, ...",
    ),
    Case(
      "bitcast f64",
      lambda x: lax.bitcast_convert_type(x, jnp.int32),
      [np.array([1.5, -0.0, np.pi])],
      grad=False,
      x64=True,
    ),
    Case(
      "bitcast bf16",
      lambda x: lax.bitcast_convert_type(x, jnp.int16),
      [HOSTILE_F32.astype(ml_dtypes.bfloat16)],
      grad=False,
    ),
    Case("view of bool", lambda x: x.view(jnp.uint8), [np.array([True, False])]),
    *(
      Case(
        f"reduce_precision {dtype}",
        reduced,
        [HALFWAY.astype(dtype)],
        x64=dtype == "float64",
        skip={} if dtype == "float32" else QUICK,
      )
      for dtype in FLOATS
    ),
    Case(
      "weak type only",
      functools.partial(lax.convert_element_type, new_dtype=jnp.float32),
      [np.arange(3.0, dtype=np.float32)],
    ),
    Case(
      "int8 with tangents of f32",
      quantized,
      [np.linspace(-3, 3, 12, dtype=np.float32)],
      poly="b",
      rtol=1e-5,
    ),
    Case(
      "int8 with tangents of f32, in a branch",
      quantized_in_a_branch,
      [np.linspace(-3, 3, 12, dtype=np.float32), np.array(True)],
    ),
    Case("keys", through_keys, [np.array([[1, 2], [3, 4]], np.uint32)]),
    Case("empty", to("int8", "float16"), [np.zeros((0, 2), np.float32)], grad=False),
  ]
test_case, saved = run(CASES)


class _Largest(ExtendedDType):
  """An extended dtype of numbers whose sum is the larger one."""

  name, type = "largest", jax.dtypes.extended
  _rules = types.SimpleNamespace(
    physical_element_aval=lambda _: jax.core.ShapedArray((), np.dtype("float32")),
    allow_conversion=True,
    tangent_dtype=lambda dtype: dtype,
    add=lambda dtype, x, y: lax.convert_element_type(
      jnp.maximum(x.astype("float32"), y.astype("float32")), dtype
    ),
  )


def test_refuses_sums_of_extended_dtypes():
  def with_cotangents_of(dtype):
    identity = jax.custom_vjp(lambda x: x)
    identity.defvjp(
      lambda x: (x, None), lambda _, cotangent: (lax.convert_element_type(cotangent, dtype),)
    )
    return identity

  largest, numbers = with_cotangents_of(_Largest()), with_cotangents_of(np.float32)

  def twice(x):
    y = numbers(x)
    return largest(y) + largest(y)

  gradient = jax.grad(twice)
  assert jax.jit(gradient)(np.float32(3)) == 1
  with pytest.raises(
    NotImplementedError, match=r"'add_any' not implemented: .* is an extended dtype"
  ):
    jax2tf.convert(gradient)(np.float32(3))


class _Pair(ExtendedDType):
  """An extended dtype whose elements are two numbers, and no key."""

  name, type = "pair", jax.dtypes.extended
  _rules = types.SimpleNamespace(
    physical_element_aval=lambda _: jax.core.ShapedArray((2,), np.dtype("uint32")),
    allow_conversion=True,
  )


def test_refuses_extended_dtypes_of_arrays():
  def fun(x):
    return lax.convert_element_type(lax.convert_element_type(x, _Pair()).T, np.uint32)

  x = np.zeros((2, 3, 2), np.uint32)
  with pytest.raises(
    NotImplementedError,
    match=r"'transpose' not implemented: .* is an extended dtype, whose elements are arrays",
  ):
    jax2tf.convert(fun)(x)


@pytest.mark.parametrize("dtype", ["int2", "float8_e4m3fnuz"])
def test_refuses_dtypes_without_cast(dtype):
  with pytest.raises(NotImplementedError, match="TensorFlow has no cast from float32"):
    jax2tf.convert(lambda x: x.astype(dtype).astype(jnp.float32))(np.float32(1))
