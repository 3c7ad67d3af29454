"""Primitives that are not JAX's: lowered through the JAX functions that define them, by a rule of
the user's, or refused."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.core import ShapedArray
from jax.extend.core import Effect, Primitive
from jax.interpreters import ad, batching, mlir

import jax2tf
from jax2tf import registry
from tests.support.case import HOSTILE_F32, Case, run

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
SQUARE = np.eye(3, dtype=np.float32) * 2 + 0.25


def like_operand(x: Any, **_: Any) -> Any:
  return ShapedArray(x.shape, x.dtype)


def primitive(
  name: str, impl: Any = None, lowering: Any = None, abstract: Any = like_operand
) -> Primitive:
  """A primitive as a library defines one."""
  p = Primitive(name)
  p.def_abstract_eval(abstract)
  if impl is not None:
    p.def_impl(impl)
  if lowering is not None:
    mlir.register_lowering(p, lowering)
  return p


def lower_fun(fun: Callable[..., Any]) -> Any:
  return mlir.lower_fun(fun, multiple_results=False)


def scaled_sine(x: Any, *, factor: float) -> Any:
  return jnp.sin(x) * factor


# With a derivative of its own, which is not that of its function.
scaled_sine_p = primitive("scaled_sine", lowering=lower_fun(scaled_sine))
ad.defjvp(scaled_sine_p, lambda t, x, *, factor: t * 7)
batching.defvectorized(scaled_sine_p)

any_p = primitive(
  "any_nan",
  jnp.any,
  lower_fun(lambda x: jnp.any(jnp.isnan(x))),
  lambda x: ShapedArray((), np.dtype(bool)),
)
cholesky_p = primitive(
  "own_cholesky", lowering=lower_fun(lambda x: jnp.linalg.cholesky(x + TABLE[: x.shape[0], :3]))
)
TABLE = np.zeros((50, 3), np.float32)  # a constant that is no literal
bits_p = primitive(
  "bits",
  lowering=lower_fun(jax.random.bits),
  abstract=lambda k: ShapedArray(k.shape, np.dtype("uint32")),
)
parts_p = primitive("parts", lowering=mlir.lower_fun(lambda x: (x[0], jnp.sin(x[1:]))))
parts_p.multiple_results = True
parts_p.def_abstract_eval(
  lambda x: (
    ShapedArray(x.shape[1:], x.dtype),
    ShapedArray((x.shape[0] - 1, *x.shape[1:]), x.dtype),
  )
)
outer_p = primitive(
  "outer", lowering=lower_fun(lambda x: scaled_sine_p.bind(x, factor=2.0) + parts_p.bind(x)[0])
)


def nested(x: Any) -> Any:
  """The primitives in a loop, a branch, a vmap and a custom_jvp."""

  @jax.custom_jvp
  def guarded(x: Any) -> Any:
    return jax.lax.cond(any_p.bind(x), lambda y: y, lambda y: scaled_sine_p.bind(y, factor=0.5), x)

  guarded.defjvps(lambda t, ans, x: t * 3)
  carry, stack = jax.lax.scan(lambda c, _: (guarded(c), c), x, None, length=3)
  return carry, stack, jax.vmap(functools.partial(scaled_sine_p.bind, factor=1.5))(x)


IN_GRAPHS = {"xla": "as any jaxpr", "eager": "as any jaxpr"}
CASES = [
  Case("lower_fun", functools.partial(scaled_sine_p.bind, factor=2.0), [X], poly=["b, _"]),
  Case("nested", nested, [X[0]], skip={"eager": "as in a graph"}),
  Case("not_its_impl", any_p.bind, [HOSTILE_F32], grad=False, skip=IN_GRAPHS),
  Case("several_results", parts_p.bind, [X], poly=["b + 1, _"], grad=False, skip=IN_GRAPHS),
  Case("in_each_other", outer_p.bind, [X], grad=False, skip=IN_GRAPHS),
  Case("constants", cholesky_p.bind, [SQUARE], grad=False, skip=IN_GRAPHS),
  Case(
    "keys",
    lambda data: bits_p.bind(jax.random.wrap_key_data(data)),
    [np.array([3, 4], np.uint32)],
    grad=False,
    skip=IN_GRAPHS,
  ),
]
test_case, saved = run(CASES)


def graph(fun: Callable[..., Any], *args: Any, **options: Any) -> Any:
  return tf.function(jax2tf.convert(fun, **options), autograph=False)(*args)


def test_impl_where_there_is_no_lowering() -> None:
  """Outside of jit, impl gets constants as they are: `pick` would not know which branch to take of
  a traced one."""
  steps_p = primitive(
    "steps", lambda x, *, n: jax.lax.fori_loop(0, n, lambda i, y: y + jnp.sin(y), x)
  )
  pick_p = primitive(
    "pick", lambda x, i: [x, -x][i.item()], abstract=lambda x, i: ShapedArray(x.shape, x.dtype)
  )
  fun = lambda x: pick_p.bind(steps_p.bind(x, n=3), np.int32(1))  # noqa: E731
  np.testing.assert_allclose(graph(fun, X), fun(X), rtol=2e-6)


def test_natively() -> None:
  """`jax.export` knows the primitive itself; LAPACK inside is still lowered by its graph rule."""
  fun = lambda x: scaled_sine_p.bind(cholesky_p.bind(x), factor=2.0)  # noqa: E731
  np.testing.assert_allclose(
    graph(fun, SQUARE, native_serialization=True), jax.jit(fun)(SQUARE), rtol=2e-6
  )


def with_itself(p: Primitive) -> Primitive:
  p.def_impl(lambda x: jax.jit(p.bind)(x))
  return p


LEAKED: list[Any] = []


def leak(x: Any) -> Any:
  LEAKED.append(x)
  return x


jax.jit(leak)(X)

REFUSED = {
  "nothing": (
    primitive("nothing"),
    "its impl is not a JAX function: NotImplementedError: Evaluation rule for 'nothing' not "
    "implemented",
  ),
  "numpy": (
    primitive("numpy", lambda x: np.sin(np.asarray(x))),
    "its impl is not a JAX function: TracerArrayConversionError: ",
  ),
  "values": (
    primitive("values", lambda x: x if x.sum() > 0 else -x),
    "its impl is not a JAX function: TracerBoolConversionError: ",
  ),
  "shape": (
    primitive("shape", lambda x: x[0]),
    "its impl gives float32[3] where its abstract evaluation says float32[4,3]",
  ),
  "dtype": (
    primitive("dtype", lowering=lower_fun(lambda x: x > 0)),
    "its lowering gives bool[4,3] where its abstract evaluation says",
  ),
  "itself": (with_itself(primitive("itself")), "its impl is not a JAX function\n"),
  "leaked": (
    primitive("leaked", lambda x: x + LEAKED[0]),
    "its impl holds a tracer of another trace",
  ),
  "leaked_constant": (
    primitive("leaked_constant", lambda x: LEAKED[0]),
    "its impl holds a tracer of another trace",
  ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
  p, why = REFUSED[name]
  with pytest.raises(
    jax2tf.LoweringError,
    match=rf"rule for '{name}' not implemented: no lowering rule is registered, and "
    rf"{re.escape(why)}(?s:.*)test_own_primitives.*"
    r"\n  rewrite this line with other JAX functions, or register a rule with jax2tf.lowers",
  ):
    jax2tf.convert(lambda x: jnp.sin(p.bind(x)))(X)


def test_side_effects_are_refused() -> None:
  class Something(Effect):
    pass

  effect_p = Primitive("effect")
  effect_p.def_effectful_abstract_eval(lambda x: (ShapedArray(x.shape, x.dtype), {Something()}))
  effect_p.def_impl(jnp.sin)
  with pytest.raises(
    jax2tf.LoweringError, match="no lowering rule is registered, and it has side effects"
  ):
    jax2tf.convert(effect_p.bind)(X)


def test_effects_of_the_function_behind_a_primitive(capsys: Any) -> None:
  printing_p = primitive(
    "printing", lowering=lower_fun(lambda x: (jax.experimental.io_callback(print, None, x), x)[1])
  )
  jax2tf.convert(printing_p.bind)(np.float32(2.5))
  assert capsys.readouterr().out == "2.5\n"


def test_a_rule_of_the_users() -> None:
  """It comes before the primitive's own function; its result is checked as that of any rule."""
  cube_p = primitive("cube", lowering=lower_fun(lambda x: x**3))
  ad.defjvp(cube_p, lambda t, x: 3 * x**2 * t)
  wrong_p = primitive("wrong")

  @jax2tf.lowers(cube_p)
  def _cube(ctx: jax2tf.RuleContext, x: tf.Tensor) -> tf.Tensor:
    assert ctx.aval_out.shape == x.shape
    return tf.math.pow(x, 3, name="cubed")

  jax2tf.lowers(wrong_p)(lambda ctx, x: x[0])
  x = tf.constant(X)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = graph(cube_p.bind, x)
  np.testing.assert_allclose(y, X**3, rtol=2e-6)
  np.testing.assert_allclose(tape.gradient(y, x), 3 * X**2, rtol=2e-6)
  with pytest.raises(AssertionError, match="the lowering rule of 'wrong' gave float32"):
    graph(wrong_p.bind, x)


def test_a_primitive_with_the_name_of_a_refused_one() -> None:
  """Pallas has a `reciprocal`, which is refused as a kernel."""
  own_p = primitive("reciprocal", lowering=lower_fun(lambda x: 1 / x))
  np.testing.assert_allclose(graph(own_p.bind, X), 1 / X, rtol=1e-6)
  with pytest.raises(jax2tf.LoweringError, match=r"'reciprocal' not implemented(?!.*kernel)"):
    graph(primitive("reciprocal").bind, X)


def test_rules_that_cannot_be_registered() -> None:
  p = primitive("twice")
  jax2tf.lowers(p)(lambda ctx, x: x)
  with pytest.raises(
    ValueError, match=r"primitive 'twice' already has a lowering rule: .*test_own_primitives"
  ):
    jax2tf.lowers(p)(lambda ctx, x: -x)
  with pytest.raises(ValueError, match="primitive 'sin' already has a lowering rule"):
    jax2tf.lowers(primitive("other"), jax.lax.sin_p)(lambda ctx, x: x)
  with pytest.raises(
    TypeError,
    match=r"lowers takes primitives \(jax.extend.core.Primitive\), not <PjitFunction of <function "
    r"sin",
  ):
    jax2tf.lowers(jnp.sin)
  with pytest.raises(
    ValueError, match="no wider dtype is known for float64, string: the rule must"
  ):
    jax2tf.lowers(p, lacks=(tf.int8, tf.float64, tf.string))


def test_a_rule_may_lack_dtypes() -> None:
  """It sees the next wider dtype that it does not lack, and its results are rounded once."""
  sum_p = primitive("sum_and_half")
  sum_p.multiple_results = True
  sum_p.def_abstract_eval(lambda x, *_: (x, ShapedArray(x.shape, np.dtype("float16"))))
  seen = []

  @jax2tf.lowers(sum_p, lacks=("int4", "int8", "float8_e5m2"))
  def _sum(ctx: jax2tf.RuleContext, *operands: tf.Tensor) -> Any:
    seen.append([*(x.dtype.name for x in operands), *(aval.dtype.name for aval in ctx.avals_in)])
    seen.append([aval.dtype.name for aval in ctx.avals_out])
    return [tf.add_n(operands), tf.cast(operands[0], tf.float16)]

  def result(dtype: str, *values: float) -> Any:
    seen.clear()
    return jax2tf.convert(sum_p.bind)(*(jnp.full(2, value, dtype) for value in values))[0]

  for dtype, wide in (("int4", "int32"), ("int8", "int32"), ("float8_e5m2", "float32")):
    total = result(dtype, 7, 6, 6)
    assert seen == [[wide] * 6, [wide, "float16"]]
    # In float8, 19 is 20, but (7 + 6) + 6 is 12 + 6 and so 16.
    np.testing.assert_array_equal(total, np.full(2, jnp.asarray(19).astype(dtype)))
  result("int16", 7)
  assert seen == [["int16", "int16"], ["int16", "float16"]]


def test_a_rule_may_replace_another(monkeypatch: pytest.MonkeyPatch) -> None:
  """As a whole: what the other one lacked, and which jaxprs it lowered, no longer counts."""
  monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
  dtypes = []

  @jax2tf.lowers(jax.lax.sin_p, replace=True)
  def _sin(ctx: jax2tf.RuleContext, x: tf.Tensor) -> tf.Tensor:
    dtypes.append(x.dtype.name)
    return tf.cast(tf.fill(x.shape, 7.0), x.dtype)

  for x in (X, X.astype("bfloat16"), np.ones(2, "float8_e5m2")):
    np.testing.assert_array_equal(graph(lambda x: jnp.sin(x), x), np.full(x.shape, 7, x.dtype))
  assert dtypes == ["float32", "bfloat16", "float8_e5m2"]

  inner = {"call": jax.make_jaxpr(jnp.cos)(X)}
  call_p = primitive("replaced_call")
  jax2tf.lowers(call_p, inner=lambda params: [])(lambda ctx, x, call: -x)
  jax2tf.lowers(call_p, replace=True)(lambda ctx, x, call: ctx.lower(call, x)[0])
  np.testing.assert_allclose(graph(functools.partial(call_p.bind, **inner), X), np.cos(X), 1e-6)
  registry._RULES.pop(jax.lax.cos_p)
  with pytest.raises(jax2tf.LoweringError, match="'cos' not implemented"):
    graph(functools.partial(call_p.bind, **inner), X)
