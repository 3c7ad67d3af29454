"""How `polymorphic_shapes` is given, and what is said of specifications that do not fit."""

from __future__ import annotations

import functools
import re
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from tests.support.case import close

X = np.arange(12, dtype=np.float32).reshape(3, 4)
UNKNOWN = tf.TensorSpec([None, 4])


def graph(fun, *specs, **options):
  """The concrete function of a converted function."""
  return tf.function(jax2tf.convert(fun, **options), autograph=False).get_concrete_function(*specs)


def poly_shape(*dims):
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    return jax2tf.PolyShape(*dims)


@pytest.mark.parametrize("dims", [("b", 4), ("b", ...), ("2*b + 1", 4), (3, 4)], ids=str)
def test_poly_shape(dims):
  text = ", ".join("..." if d is ... else str(d) for d in dims)
  shape = poly_shape(*dims)
  expected = jax2tf.eval_polymorphic_shape(jnp.sin, polymorphic_shapes=text)(X)[1]
  for shapes in (shape, [shape], (shape,), {"x": shape}):
    assert jax2tf.eval_polymorphic_shape(jnp.sin, polymorphic_shapes=shapes)(X)[1] == expected
  fun = lambda x: x * x.shape[0]  # noqa: E731
  close(jax2tf.convert(fun, polymorphic_shapes=shape)(X), fun(X))


def test_poly_shape_in_a_tree():
  function = tf.function(
    jax2tf.convert(lambda p: p["w"] * 2, polymorphic_shapes=[{"w": poly_shape("b", 4)}]),
    autograph=False,
  )
  function.get_concrete_function({"w": UNKNOWN})
  close(function({"w": X}), X * 2)
  with pytest.raises(ValueError, match="different size 5 for known dimension"):
    jax2tf.convert(jnp.sin, polymorphic_shapes=poly_shape("b", 5))(X)


def scaled(x, *rest, by=2.0, **others):
  return x * by + sum(r.sum() for r in rest) + sum(o.sum() for o in others.values())


NAMED = {
  "positional and keyword": ({"x": "b, _", "by": "b, _"}, (X,), {"by": X}),
  "by position as well": ({"x": "b, _"}, (X,), {}),
  "all by keyword": ({"x": "b, _", "by": "b, 4"}, (), {"x": X, "by": X}),
  "absent": ({"x": "b, _", "by": "b, _"}, (X,), {}),
  "any keyword": ({"z": "n, _"}, (X,), {"z": X}),
  "the rest": ({"rest": "r, _"}, (X, X, X), {}),
  "each of the rest": ({"rest": [None, "r, _"]}, (X, X, X), {}),
  "None": ({"x": None}, (X,), {}),
}


@pytest.mark.parametrize("name", NAMED)
def test_by_name(name):
  shapes, args, kwargs = NAMED[name]
  converted = jax2tf.convert(scaled, polymorphic_shapes=shapes)
  close(converted(*args, **kwargs), scaled(*args, **kwargs), rtol=1e-6)


def test_a_keyword_of_unknown_size():
  converted = jax2tf.convert(
    lambda x, *, mask: jnp.where(mask, x, 0), polymorphic_shapes={"x": "b", "mask": "b"}
  )

  @tf.function(
    autograph=False, input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None], tf.bool)]
  )
  def function(x, mask):
    return converted(x, mask=mask)

  close(function(X[0], X[0] > 1), np.where(X[0] > 1, X[0], 0))
  close(function(X[0, :3], X[0, :3] > 1), np.where(X[0, :3] > 1, X[0, :3], 0))


def test_a_tree_by_name_and_its_leaves_in_a_list():
  fun = lambda p, x: p["w"] @ x.T  # noqa: E731
  for shapes in ({"p": {"w": "a, _"}, "x": "b, _"}, [{"w": "a, _"}, "b, _"]):
    assert graph(
      fun, {"w": UNKNOWN}, UNKNOWN, polymorphic_shapes=shapes
    ).structured_outputs.shape.as_list() == [None, None]


def test_static_arguments():
  fun = lambda n, x: x * n  # noqa: E731
  for shapes in (["b, _"], [None, "b, _"], {"x": "b, _"}):
    converted = jax2tf.convert(fun, static_argnums=0, polymorphic_shapes=shapes)
    close(converted(2, X), X * 2)
  with pytest.raises(
    ValueError,
    match=r"polymorphic_shapes\[0\] = 'n' is for a static argument of '<lambda>'.*give None",
  ):
    jax2tf.convert(fun, static_argnums=0, polymorphic_shapes=["n", "b, _"])(2, X)


@pytest.mark.parametrize("spec", ["b, 4", "3, 4", "(b, 2*2)", "b, max(3, 4)"])
@pytest.mark.parametrize("options", [{}, {"native_serialization": True}], ids=["graph", "native"])
def test_a_number_for_an_unknown_size_is_checked_when_it_runs(spec, options):
  fun = lambda x: x @ x.T  # noqa: E731
  for compiled in (False, True):
    converted = jax2tf.convert(fun, polymorphic_shapes=spec, **options)
    function = tf.function(
      converted,
      autograph=False,
      jit_compile=compiled,
      input_signature=[tf.TensorSpec([None, None])],
    )
    close(function(X), fun(X))
    with pytest.raises(
      tf.errors.InvalidArgumentError,
      match=r"Shape of tensor .* \[3,3\] is not compatible with expected shape",
    ):
      function(X[:, :3])


def test_it_has_gradients_and_is_saved(tmp_path):
  fun = lambda x: jnp.sin(x).sum(1)  # noqa: E731
  module = tf.Module()
  module.call = tf.function(
    jax2tf.convert(fun, polymorphic_shapes="b, 4"),
    autograph=False,
    input_signature=[tf.TensorSpec([None, None])],
  )
  x = tf.constant(X)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = module.call(x)
  close(tape.gradient(y, x), np.cos(X))
  tf.saved_model.save(module, tmp_path)
  call = tf.saved_model.load(tmp_path).call
  close(call(X), fun(X))
  with pytest.raises(tf.errors.InvalidArgumentError, match="is not compatible with expected shape"):
    call(X[:, :3])


REFUSED = {
  "forgotten": (
    lambda: graph(jnp.sin, UNKNOWN),
    "args[0] of 'sin' has shape (None, 4), and polymorphic_shapes has None for it, which names no "
    "dimension variable for its unknown "
    'size; give it "b, _" (syntax error in symbolic shape None in dimension 0: unexpected '
    "placeholder for unknown dimension; "
    "like=(None, 4)",
  ),
  "forgotten in part": (
    lambda: graph(jnp.sin, tf.TensorSpec([None, None]), polymorphic_shapes="b, _"),
    "args[0] of 'sin' has shape (None, None), and polymorphic_shapes has 'b, _' for it, which "
    "names no dimension variable for its "
    'unknown size; give it "b, c" (',
  ),
  "forgotten keyword": (
    lambda: keyword(),
    "kwargs['x'] of '<lambda>' has shape (None, 4), and polymorphic_shapes has None for it, which "
    "names no dimension variable for its "
    'unknown size; give it polymorphic_shapes={"x": "b, _"} (',
  ),
  "two for one": (
    lambda: jax2tf.convert(lambda x: x, polymorphic_shapes=["b, _", None])(X),
    "polymorphic_shapes = ['b, _', None] has 2 specifications, and '<lambda>' is called with 1 "
    "positional argument (",
  ),
  "of no argument": (
    lambda: jax2tf.convert(lambda x: x, polymorphic_shapes={"y": "b, _"})(X),
    "polymorphic_shapes names 'y', and '<lambda>' has no such argument, only x; a dict by itself "
    "is for arguments by name: put that of "
    "the leaves of an argument in a list, as in polymorphic_shapes=[{'y': ...}]",
  ),
  "of another tree": (
    lambda: jax2tf.convert(lambda p: p["w"], polymorphic_shapes=[["b"]])({"w": X}),
    "polymorphic_shapes[0] = ['b'] does not fit args[0] of '<lambda>', which is a dict; give one "
    "string for all of it, or its structure "
    "with a string or None at each leaf (pytree structure error: different types at key path "
    "polymorphic_shapes[0]",
  ),
  "of another key": (
    lambda: jax2tf.convert(lambda *, p: p["w"], polymorphic_shapes={"p": {"v": "b, _"}})(
      p={"w": X}
    ),
    "polymorphic_shapes['p'] = {'v': 'b, _'} does not fit kwargs['p'] of '<lambda>', which is a "
    "dict; give one string",
  ),
  "too many of the rest": (
    lambda: jax2tf.convert(scaled, polymorphic_shapes={"rest": [None, "r, _"]})(X, X),
    "polymorphic_shapes['rest'] = [None, 'r, _'] has 2 specifications, and 'scaled' is called "
    "with 1 argument for *rest; give one",
  ),
  "too long": (
    lambda: jax2tf.convert(lambda x: x, polymorphic_shapes="b, 4, 5")(X),
    "Rank mismatch for args[0]: expected b, 4, 5 and called with (3, 4)",
  ),
  "of a function in C": (
    lambda: jax2tf.convert(functools.partial(max), polymorphic_shapes={"x": "b"})(X[0]),
    "polymorphic_shapes names 'x', and 'partial' has no such argument, only none",
  ),
}


def keyword():
  converted = jax2tf.convert(lambda *, x: x)
  tf.function(lambda x: converted(x=x), autograph=False).get_concrete_function(UNKNOWN)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
  call, words = REFUSED[name]
  with pytest.raises(ValueError, match=re.escape(words)):
    call()
