"""Polymorphic shapes: solving, checking, and the values of symbolic dimensions."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export
from jax.extend.core import InconclusiveDimensionOperation

import jax2tf
from tests.support.case import close, executed_op_types


def ones(*shape):
  return np.ones(shape, np.float32)


def in_unknown_graph(converted, *args):
  """Called where no size is known."""
  specs = [tf.TensorSpec([None] * np.ndim(a), np.asarray(a).dtype) for a in args]
  return tf.function(converted, autograph=False).get_concrete_function(*specs)(
    *map(tf.constant, args)
  )


CASES = {
  "repeated": ("b, b, 2*d", lambda x: x.sum((0, 1)) * x.shape[2], [(2, 2, 4), (3, 3, 2)]),
  "offset": ("b+1", lambda x: x[:-1] * (x.shape[0] - 1), [(2,), (5,)]),
  "sum": ("a, a+b", lambda x: x.reshape(-1) * (x.shape[1] - x.shape[0]), [(2, 6), (3, 4)]),
  "floordiv": ("a", lambda x: jnp.arange(x.shape[0] // 2) + x.shape[0] % 2, [(2,), (5,)]),
  "value": ("b, _", lambda x: jnp.array(x.shape) * 2, [(1, 3), (4, 3)]),
  "mean": ("b, _", lambda x: x.sum(0) / x.shape[0], [(1, 3), (4, 3)]),
  "ellipsis": ("b, ...", lambda x: x.reshape((x.shape[0], -1)), [(2, 3, 4), (5, 3, 4)]),
}


@pytest.mark.parametrize("name", CASES)
def test_solved_dimensions(name):
  spec, fun, shapes = CASES[name]
  converted = jax2tf.convert(fun, polymorphic_shapes=[spec])
  for shape in shapes:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    close(converted(x), jax.jit(fun)(x))
    known = tf.function(converted, autograph=False).get_concrete_function(tf.TensorSpec(shape))
    close(known(tf.constant(x)), jax.jit(fun)(x))
    if "..." not in spec:
      if spec == "b, _":
        close(
          tf.function(converted).get_concrete_function(tf.TensorSpec([None, 3]))(tf.constant(x)),
          jax.jit(fun)(x),
        )
      else:
        close(in_unknown_graph(converted, x), jax.jit(fun)(x))


BAD = [
  ("b, b, 2*d", (3, 3, 5), "Division had remainder 1 when computing the value of 'd'"),
  (
    "b, b, 2*d",
    (3, 4, 4),
    r"Found inconsistency between dimension size args\[0\].shape\[1\] \(= 4\) and the "
    r"specification 'b' \(= 3\)",
  ),
  ("b+1", (1,), "Expected value >= 1 for dimension variable 'b'"),
]


@pytest.mark.parametrize(("spec", "shape", "words"), BAD)
def test_static_shapes_are_checked_in_jaxs_words(spec, shape, words):
  x = ones(*shape)
  with pytest.raises(ValueError) as theirs:
    args = export.symbolic_args_specs(jax.ShapeDtypeStruct(shape, "float32"), spec)
    export.export(jax.jit(jnp.sin))(args).call(x)
  converted = jax2tf.convert(jnp.sin, polymorphic_shapes=[spec])
  for call in (converted, tf.function(converted), tf.function(converted, jit_compile=True)):
    with pytest.raises(
      ValueError, match="Input shapes do not match the polymorphic shapes specification.*" + words
    ) as ours:
      call(x)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(("spec", "shape", "words"), BAD)
def test_unknown_shapes_are_checked_when_the_graph_runs(spec, shape, words):
  with pytest.raises(
    tf.errors.InvalidArgumentError,
    match="Input shapes do not match the polymorphic shapes specification",
  ):
    in_unknown_graph(jax2tf.convert(jnp.sin, polymorphic_shapes=[spec]), ones(*shape))


@pytest.mark.parametrize("native", [False, True])
def test_unknown_shapes_are_checked_when_xla_compiles(native, tmp_path):
  # XLA drops assertions; an op whose name has the words of the condition does not compile where it
  # does not hold.
  module = tf.Module()
  module.functions = []
  for spec, constraints, rank in [("b, b", (), 2), ("b+1", (), 1), ("b", ["mod(b, 2) == 0"], 1)]:
    # A linear function without residuals: nothing but its first op needs the condition.
    converted = jax2tf.convert(
      lambda x: 2 * x,
      polymorphic_shapes=[spec],
      polymorphic_constraints=constraints,
      native_serialization=native,
    )
    module.functions.append(
      tf.function(converted, autograph=False, input_signature=[tf.TensorSpec([None] * rank)])
    )
  tf.saved_model.save(module, str(tmp_path))

  def pullback(f, x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = f(x)
    # for cotangents that do not come from the results
    return tape.gradient(y, x, output_gradients=x)

  rows = [
    ((2, 2), (1, 3), "Found_inconsistency"),
    ((2,), (1,), "Expected_value_1"),
    ((2,), (3,), "symbolic_shape_constraint"),
  ]
  loaded = [functools.partial(pullback, f) for f in tf.saved_model.load(str(tmp_path)).functions]
  for f, (good, bad, words) in zip([*module.functions, *loaded], rows * 2, strict=True):
    compiled = tf.function(
      f, autograph=False, jit_compile=True, input_signature=[tf.TensorSpec([None] * len(good))]
    )
    close(compiled(tf.constant(ones(*good))), 2 * ones(*good))
    with pytest.raises(
      tf.errors.InvalidArgumentError, match=f"Input_shapes_do_not_match_the.*{words}"
    ):
      compiled(tf.constant(ones(*bad)))


def test_what_xla_needs_to_check_sizes_is_not_run_without_it():
  converted = jax2tf.convert(jnp.sin, polymorphic_shapes=["b, b"], with_gradient=False)
  function = tf.function(converted, autograph=False, input_signature=[tf.TensorSpec([None, None])])
  ran = executed_op_types(function, tf.constant(ones(2, 2)))
  assert "Assert" in ran and not {"Range", "Cast"} & set(ran)


def test_one_trace_serves_all_sizes_and_fixed_sizes_are_held():
  converted = jax2tf.convert(lambda x: x * 2, polymorphic_shapes=["b, 3"])
  close(converted(ones(2, 3)), 2 * ones(2, 3))
  with pytest.raises(ValueError, match="different size 3 for known dimension"):
    converted(ones(2, 4))


def test_what_cannot_be_solved():
  with pytest.raises(
    ValueError,
    match=r"Cannot solve for values of dimension variables \{'a'\}.*Unprocessed specifications",
  ):
    jax2tf.convert(jnp.sin, polymorphic_shapes=["a*a"])(ones(4))


def test_constraints_are_used_and_asserted():
  def fun(x):
    return x[:4] if x.shape[0] >= 4 else x

  with pytest.raises(InconclusiveDimensionOperation):
    jax2tf.convert(fun, polymorphic_shapes=["b"])(ones(5))
  converted = jax2tf.convert(fun, polymorphic_shapes=["b"], polymorphic_constraints=["b >= 4"])
  close(converted(ones(5)), ones(4))
  with pytest.raises(
    ValueError, match="Input shapes do not match the symbolic shape constraint b >= 4"
  ):
    converted(ones(3))
  with pytest.raises(tf.errors.InvalidArgumentError, match="b >= 4"):
    in_unknown_graph(converted, ones(3))


def test_gradients_with_symbolic_shapes():
  def fun(x, y):
    return jnp.sum((x @ y) ** 2) / x.shape[0]

  converted = jax2tf.convert(fun, polymorphic_shapes=["b, _", "_, c"])

  def grads(x, y):
    with tf.GradientTape() as tape:
      tape.watch([x, y])
      z = converted(x, y)
    return tape.gradient(z, [x, y])

  concrete = tf.function(grads, autograph=False).get_concrete_function(
    tf.TensorSpec([None, 3]), tf.TensorSpec([3, None])
  )
  for b, c in [(1, 1), (4, 5)]:
    x, y = np.random.default_rng(b).standard_normal((b, 3)).astype(np.float32), ones(3, c)
    close(
      concrete(tf.constant(x), tf.constant(y)),
      list(jax.grad(fun, (0, 1))(x, y)),
      rtol=1e-5,
      atol=1e-6,
    )
    close(
      grads(tf.constant(x), tf.constant(y)), list(jax.grad(fun, (0, 1))(x, y)), rtol=1e-5, atol=1e-6
    )


def test_jaxs_errors_about_symbolic_dimensions_come_through():
  converted = jax2tf.convert(lambda x: x + jnp.ones(4), polymorphic_shapes=["v"])
  for function in (converted, tf.function(converted)):
    with pytest.raises(
      TypeError, match=r"add got incompatible shapes for broadcasting: \(v,\), \(4,\)"
    ):
      function(ones(4))


def test_eval_polymorphic_shape():
  evaluate = jax2tf.eval_polymorphic_shape(
    lambda x, y: {"z": jnp.concatenate([x, y]), "n": x.sum()}, polymorphic_shapes=["a, _", "b, _"]
  )
  spec, shapes = evaluate(tf.TensorSpec([None, 3]), ones(7, 3))
  assert str(spec["z"].shape) == "(b + a, 3)"
  assert shapes == {"z": "(b + a, 3)", "n": "()"}
  again, _ = jax2tf.eval_polymorphic_shape(
    lambda d: d["z"] * 2, polymorphic_shapes=[{"z": shapes["z"], "n": None}]
  )({"z": tf.TensorSpec([None, 3]), "n": np.float32(0)})
  assert str(again.shape) == "(b + a, 3)"


def test_dimensions_under_x64():
  def fun(x):
    return x.reshape(-1)[: x.shape[0] * 2 // 3] * x.shape[1]

  with jax.enable_x64(True):
    x = np.arange(12.0).reshape(4, 3)
    converted = jax2tf.convert(fun, polymorphic_shapes=["b, 3"])
    close(converted(x), jax.jit(fun)(x))
    close(
      tf.function(converted).get_concrete_function(tf.TensorSpec([None, 3], tf.float64))(
        tf.constant(x)
      ),
      jax.jit(fun)(x),
    )
