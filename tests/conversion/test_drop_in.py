"""Code that imports jax.experimental.jax2tf gets this package, unmodified."""

from __future__ import annotations

import functools
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax.experimental import jax2tf as jaxs

import jax2tf
from jax2tf import drop_in
from tests.support import keras_models
from tests.support.archives import npz

ROOT = Path(__file__).resolve().parents[2]
X = np.arange(6, dtype=np.float32).reshape(2, 3)
NATIVE = functools.partial(jax2tf.convert, native_serialization=True)


def with_shapes(*shapes, fun=lambda *args: args, args=(X,), **options):
  return lambda package: package.convert(fun, polymorphic_shapes=list(shapes), **options)(*args)


def traced(shape, **options):
  """A call with an unknown first dimension."""
  return lambda package: tf.function(
    package.convert(lambda x: x, **options), autograph=False
  ).get_concrete_function(tf.TensorSpec(shape))


def nested(package):
  return package.convert(lambda x: x + package.convert(jnp.sin)(1.0))(2.0)


def differentiated(converted, x=X):
  with tf.GradientTape() as tape:
    tape.watch(x := tf.convert_to_tensor(x))
    y = converted(x)
  return tape.gradient(y, x)


in_graph = functools.partial(tf.function, autograph=False)
NO_GRADIENT = (
  r"Gradient explicitly disabled.*The jax2tf-converted function does not support "
  r"gradients. Use `with_gradient` parameter"
)


def disabled(package, wrap=lambda f: f):
  return differentiated(wrap(package.convert(jnp.tan, with_gradient=False)))


def forever(x):
  return lax.while_loop(lambda y: jnp.sum(y) < 9, lambda y: y * 2, x)


# What programs that were written for jax.experimental.jax2tf catch: the words are in both packages'
# messages, the types agree.
REFUSED = {
  "not callable": (lambda package: package.convert(5.0), "Expected a callable value, got 5.0"),
  "evaluated, not callable": (
    lambda package: package.eval_polymorphic_shape(5.0)(X),
    "Expected a callable value, got 5.0",
  ),
  "no array": (lambda package: package.convert(jnp.sin)(object()), "is not a valid JAX type"),
  "no dtype": (
    lambda package: package.dtype_of_val("text"),
    "Argument .*'text' of type .*str.* is not a valid JAX type",
  ),
  "string": (
    lambda package: package.convert(jnp.sin)(tf.constant("text")),
    "is not a valid JAX array type. Only arrays of numeric types are supported by JAX",
  ),
  "large int": (lambda package: package.convert(jnp.sin)(2**40), "int"),
  "no array returned": (
    lambda package: package.convert(lambda x: "text")(X),
    "which is not a valid JAX type",
  ),
  "under jit": (
    lambda package: jax.jit(package.convert(jnp.sin))(X),
    "convert must be used outside all JAX transformations",
  ),
  "under convert": (nested, "convert must be used outside all JAX transformations"),
  "platforms": (
    lambda package: package.convert(jnp.sin, native_serialization_platforms=["gpu"]),
    "native_serialization_platforms must be a sequence containing a subset of",
  ),
  "spec of another type": (with_shapes(3), "polymorphic shape spec should be None or a string"),
  "spec of another tree": (with_shapes(["b"]), "pytree structure error: different types"),
  "too many specs": (
    with_shapes("b, _", None),
    "pytree structure error: different lengths of tuple",
  ),
  "no spec": (
    traced([None, 3]),
    re.escape("unexpected placeholder for unknown dimension; like=(None, 3)"),
  ),
  "placeholder": (
    traced([None, 3], polymorphic_shapes="_, b"),
    "syntax error in symbolic shape '_, b' in dimension 0",
  ),
  "unknown rank": (traced(None), "Cannot iterate over a shape with unknown rank"),
  "another size": (with_shapes("b, 4"), "different size 4 for known dimension"),
  "another rank": (with_shapes("b"), r"\(|,"),
  "grammar": (
    with_shapes("b+, 3"),
    "syntax error in symbolic shape 'b\\+, 3' in dimension 0: expecting one of",
  ),
  "constraint": (
    with_shapes("a, b", polymorphic_constraints=["a b"]),
    "Constraint parsing error: must contain one of",
  ),
  "unsolvable": (
    with_shapes("a+b, 3"),
    "Cannot solve for values of dimension variables {.*}.*Unprocessed specifications",
  ),
  "unsolvable by JAX, and sizes that do not fit": (
    with_shapes("b*b, b*d*d, d", args=[np.zeros((4, 36, 3), np.float32)]),
    "Cannot solve for values of dimension variables {'b'}",
  ),
  "comparison": (
    with_shapes("a, b", fun=lambda x: x.shape[0] + 1 >= x.shape[1]),
    r"comparison 'a \+ 1' >= 'b' is inconclusive",
  ),
  "constant": (
    with_shapes("a, b", fun=lambda x: int(x.shape[0])),
    "used in a context that requires a constant",
  ),
  "division": (
    with_shapes("a, 3", fun=lambda x: x.reshape(2, -1)),
    re.escape("Cannot divide evenly the sizes of shapes (a, 3) and (2, -1)"),
  ),
  "broadcast": (
    with_shapes("a, 3", fun=lambda x: x + X),
    re.escape("add got incompatible shapes for broadcasting: (a, 3), (2, 3)"),
  ),
  "contraction": (
    with_shapes("a, 3", fun=lambda x: X.T @ x),
    "requires contracting dimensions to have the same shape",
  ),
  "scan": (
    with_shapes("a, 3", fun=lambda x: lax.associative_scan(jnp.add, x)),
    "associative scan over axis of non-constant size",
  ),
  "no derivative": (
    lambda package: differentiated(package.convert(forever)),
    "Reverse-mode differentiation does not work for lax.while_loop",
  ),
  "disabled gradient": (disabled, NO_GRADIENT),
  "disabled gradient, graph": (functools.partial(disabled, wrap=in_graph), NO_GRADIENT),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_as_there(name):
  call, words = REFUSED[name]
  with pytest.raises(Exception, match=words) as there:
    call(jaxs)
  with pytest.raises(there.type, match=words):
    call(jax2tf)


# Conditions on sizes that are known at the call. There the module says it when it runs.
SIZES = {
  "remainder": (with_shapes("b, 2*a"), "Division had remainder 1 when computing the value of 'a'"),
  "below one": (with_shapes("b + 2, a"), "Expected value >= 1 for dimension variable 'b'"),
  "inconsistent": (
    with_shapes("a, a"),
    re.escape(
      "Found inconsistency between dimension size args[0].shape[1] (= 3) and the specification "
      "'a' (= 2)"
    ),
  ),
  "constraint": (
    with_shapes("a, b", polymorphic_constraints=["a >= b"]),
    "Input shapes do not match the symbolic shape constraint a >= b",
  ),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_refused_with_the_exceptions_of_both(name):
  """InvalidArgumentError, as from a module that runs; ValueError, as `jax.export` raises it."""
  call, words = SIZES[name]
  for error in (tf.errors.InvalidArgumentError, ValueError):
    with pytest.raises(error, match=words):
      call(jax2tf)


def specs(*shapes):
  return [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]


GIVEN = {
  "shapes": lambda package: package.eval_polymorphic_shape(
    lambda x, y: x @ y, polymorphic_shapes=["a, b", "b, c"]
  )(*specs((2, 3), (3, 4))),
  "tree of shapes": lambda package: package.eval_polymorphic_shape(
    lambda x: {"scalar": x.sum(), "row": x[0], "constant": jnp.ones((3, 10))},
    polymorphic_shapes="a, b",
  )(*specs((2, 3))),
  "dtypes": lambda package: [
    package.dtype_of_val(x)
    for x in (
      1,
      1.0,
      True,
      1j,
      np.float64(3),
      np.arange(3),
      tf.constant(2, tf.int64),
      jax.random.key(0),
    )
  ],
  "checks": lambda package: (
    str(package.DisabledSafetyCheck.platform()),
    str(package.DisabledSafetyCheck.custom_call("x")),
  ),
  "no platforms": lambda package: package.convert(jnp.sin, native_serialization_platforms=[])(
    0.0
  ).numpy(),
  "none": lambda package: package.convert(lambda x, y: (x, y))(1.0, None)[1],
  "float0": lambda package: (
    package.convert(jax.grad(lambda x: x.astype(np.float32).sum(), allow_int=True))(np.ones(2, int))
    .numpy()
    .tolist()
  ),
  "partitions": lambda package: [
    (op.type, op.get_attr("sharding"))
    for op in graph_of(
      lambda x: [package.split_to_logical_devices(x, parts) for parts in [(1, 2), (2, 2), None]],
      tf.TensorSpec((4, 4)),
    ).get_operations()
    if op.type == "XlaSharding"
  ],
}


@pytest.mark.parametrize("name", GIVEN)
def test_given_as_there(name):
  assert repr(GIVEN[name](jax2tf)) == repr(GIVEN[name](jaxs))


def graph_of(function, *specs):
  return tf.function(function, autograph=False).get_concrete_function(*specs).graph


@pytest.mark.parametrize("convert", [jax2tf.convert, NATIVE], ids=["graph", "native"])
def test_names_of_arguments_and_results_as_there(convert):
  def gradients(convert, xs, y):
    with tf.GradientTape() as tape:
      tape.watch(xs)
      results = convert(lambda xs, y: [jnp.add(x, y) for x in xs])(xs, y)
    return tape.gradient(results, xs)

  spec = tf.TensorSpec([])
  graphs = [
    graph_of(functools.partial(gradients, c), [spec, spec, spec], spec)
    for c in (convert, jaxs.convert)
  ]
  here, there = (
    {op.name for op in graph.get_operations() if re.search(r"jax2tf_(arg|out)", op.name)}
    for graph in graphs
  )
  assert here == there


def in_scopes(x):
  def positive(x):
    with jax.named_scope("inner"):
      return lax.cond(x < 1, jnp.cos, jnp.sin, x)

  with jax.named_scope("outer"):
    return lax.cond(x > 0, positive, lambda x: x * jnp.arange(20.0)[3], x)


def test_scopes_name_the_users_functions():
  """As the graph lowering of JAX 0.4.38 had it, in the bodies of branches too."""

  def back(x):
    with tf.name_scope("mine"), tf.GradientTape() as tape:
      tape.watch(x)
      y = jax2tf.convert(in_scopes)(x)
    with tf.name_scope("mine/"):
      return tape.gradient(y, x)

  graph = graph_of(back, tf.TensorSpec([]))
  bodies = [
    op.name for function in graph._functions.values() for op in function.graph.get_operations()
  ]
  names = [*bodies, *(op.name for op in graph.get_operations() if op.name not in ("x", "Identity"))]
  assert len(bodies) > 20
  assert not [
    name
    for name in bodies
    if not name.startswith(("mine/jax2tf_in_scopes_/outer/cond", "mine/jax2tf_vjp/outer/cond"))
  ]
  assert not [name for name in names if not name.startswith("mine/")]
  assert not [name for name in names if re.search(r"(?<!jax2tf_)vjp|jvp|transpose|vmap", name)]


def test_disabled_gradient_of_a_loaded_model_is_refused_at_the_call(tmp_path):
  module = tf.Module()
  module.f = tf.function(
    jax2tf.convert(forever, with_gradient=False),
    autograph=False,
    input_signature=[tf.TensorSpec([])],
  )
  tf.saved_model.save(module, str(tmp_path))
  loaded = tf.saved_model.load(str(tmp_path))
  assert loaded.f(tf.constant(2.0)) == 16.0

  def refused():
    return pytest.raises(LookupError, match=NO_GRADIENT)

  with tf.GradientTape() as tape, refused():
    tape.watch(x := tf.constant(2.0))
    loaded.f(x)
  for compiled in (False, True):
    with refused():
      in_graph(lambda x: differentiated(loaded.f, x), jit_compile=compiled)(x)


def test_disabled_gradient_under_pfor():
  converted = jax2tf.convert(jnp.sin, with_gradient=False)
  mapped = in_graph(lambda x: tf.vectorized_map(converted, x))
  np.testing.assert_allclose(mapped(tf.constant(X)), np.sin(X), rtol=1e-6)
  graph = mapped.get_concrete_function(tf.TensorSpec(X.shape)).graph
  assert not {"While", "StatelessWhile"} & {op.type for op in graph.get_operations()}
  with pytest.raises(LookupError, match=NO_GRADIENT):
    differentiated(mapped)


@pytest.mark.parametrize(
  "convert",
  [
    NATIVE,
    pytest.param(
      jax2tf.convert,
      marks=pytest.mark.xfail(strict=True, reason="XLA drops the control dependencies"),
    ),
  ],
  ids=["native", "graph"],
)
def test_rematerialisation_stays_behind_its_barrier(convert):
  """In the forward pass of what has a gradient, too: else XLA merges what is computed twice, and
  keeps it in between."""
  converted = convert(jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(jnp.sin(x))))))
  hlo = in_graph(converted, jit_compile=True).experimental_get_compiler_ir(tf.constant(3.0))(
    stage="hlo"
  )
  assert "opt-barrier" in hlo
  expected = jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(jnp.sin(jnp.sin(x))))(x)))(X)
  np.testing.assert_allclose(differentiated(converted), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  ("convert", "options", "advice"),
  [
    (jax2tf.convert, {}, "lower natively"),
    (NATIVE, {"call_tf_graph": True}, "leave call_tf_graph out"),
  ],
  ids=["graph", "native"],
)
def test_jaxs_own_call_tf_is_refused_at_the_users_line(convert, options, advice):
  called = jaxs.call_tf(tf.sin, **options)
  for call in (convert(lambda x: called(x) + 1), convert(called), in_graph(convert(called))):
    with pytest.raises(
      jax2tf.LoweringError,
      match=rf"(?s)'call_tf' not implemented.*\n  at \S*test_drop_in.py:\d+.*{advice}",
    ):
      call(X)


def run(*arguments, backend=None):
  environment = os.environ | ({"KERAS_BACKEND": backend} if backend else {})
  command = [sys.executable, *map(str, arguments)]
  return subprocess.run(
    command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
  )


def test_install_for_a_while():
  before = importlib.import_module("jax.experimental.jax2tf")
  assert before.convert is not jax2tf.convert
  with jax2tf.install():
    from jax.experimental import jax2tf as package  # noqa: PLC0415
    from jax.experimental.jax2tf import call_tf  # noqa: PLC0415
    from jax.experimental.jax2tf.jax2tf import TfVal, convert  # noqa: PLC0415

    assert package is sys.modules["jax.experimental.jax2tf"]
    assert package.convert is convert is jax2tf.convert
    assert TfVal is tf.Tensor
    assert {name for name in dir(package) if name in dir(before)} >= {
      *(
        "DisabledSafetyCheck",
        "PolyShape",
        "call_tf",
        "convert",
        "dtype_of_val",
        "eval_polymorphic_shape",
        "split_to_logical_devices",
      )
    }
    assert call_tf is jax2tf.call_tf
    np.testing.assert_allclose(call_tf(tf.sin)(jnp.ones(3)), np.sin(np.ones(3)), rtol=1e-6)
    with jax2tf.install():
      pass
    assert sys.modules["jax.experimental.jax2tf"] is package
  assert importlib.import_module("jax.experimental.jax2tf") is before
  assert sys.modules["jax.experimental"].jax2tf is before


def test_as_a_command(tmp_path):
  script = tmp_path / "script.py"
  script.write_text(
    "import sys\nfrom jax.experimental import jax2tf\nprint(jax2tf.convert.__module__, "
    "sys.argv[1:], __name__)\n"
  )
  done = run("-m", "jax2tf.install", script, "--flag", "value")
  assert done.stdout.strip() == "jax2tf.api ['--flag', 'value'] __main__", done.stderr
  said = run("-m", "jax2tf.install", tmp_path / "none.py").stderr
  assert f"there is no file '{tmp_path / 'none.py'}' in " in said
  assert "usage: python -m jax2tf.install script.py" in said


@pytest.fixture(scope="module")
def keras_folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("keras")
  assert keras.backend.backend() == "tensorflow"
  done = run("-m", "jax2tf.install", "tests/support/keras_models.py", folder, backend="jax")
  assert done.returncode == 0, done.stderr[-3000:]
  return folder


@pytest.mark.parametrize("name", keras_models.MODELS)
def test_keras_exports_with_the_jax_backend(name, keras_folder):
  """Values and gradients of a reloaded model, here, where Keras runs on TensorFlow."""
  saved = npz(keras_folder / f"{name}.npz")
  layer, x = (
    keras.layers.TFSMLayer(str(keras_folder / name), call_endpoint="serve"),
    tf.constant(saved["x"]),
  )
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = layer(x)
  np.testing.assert_allclose(y, saved["y"], rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(tape.gradient(y, x), saved["gradient"], rtol=1e-4, atol=1e-5)


def test_orbax_export(tmp_path):
  """Pre- and post-processors, several signatures and a polymorphic batch; values and gradients are
  compared there."""
  done = run("-m", "jax2tf.install", "tests/support/orbax_models.py", tmp_path / "model")
  assert done.returncode == 0, done.stderr[-3000:]
  assert done.stdout.split()[-1] == "equal"


def test_an_import_leaves_the_function_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.delitem(sys.modules, "jax2tf.install", raising=False)
  importlib.import_module("jax2tf.install")
  found = jax2tf.install
  monkeypatch.setattr(jax2tf, "install", drop_in.install)  # whatever came of it, for other tests
  assert found is drop_in.install
