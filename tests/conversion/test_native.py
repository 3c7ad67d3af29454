"""Native lowering: values and gradients of JAX from XlaCallModule ops, for the reader that is
named."""

from __future__ import annotations

import collections
import random
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

import jax2tf
from jax2tf import _tf_compat, native, traits
from jax2tf.jaxprs import contains
from tests.support.archives import npz
from tests.support.case import close
from tests.support.conformance import harnesses
from tests.support.measure import nodes

INSTALLED = ".".join(tf.__version__.split(".")[:2])
X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
WEIGHTS = np.random.default_rng(1).standard_normal((3, 3, 1, 2)).astype(np.float32)


def definite(x):
  """A positive definite matrix."""
  return x @ x.T + 5 * jnp.eye(x.shape[0])


def conv(x):
  return lax.conv_general_dilated(
    x[None, :, :, None], WEIGHTS, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )


@jax.custom_vjp
def clipped(x):
  return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g * x, -1, 1),))

# name -> (function, constraints, XlaCallModule ops in its graph)
FUNCTIONS = {
  "sin_matmul": (lambda x: jnp.sin(x) @ x.T, [], 1),
  "scan": (lambda x: lax.scan(lambda c, y: (jnp.sin(c) + y, c), x[0], x), [], 1),
  "cond": (lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), [], 1),
  "sort": (lambda x: (jnp.sort(x), jnp.argsort(x)), [], 1),
  "top_k": (lambda x: lax.top_k(x, 2), ["c >= 2"], 1),
  "erf": (lambda x: (lax.erf(x), jnp.sinh(x), jax.nn.gelu(x, approximate=False)), [], 1),
  "random": (lambda x: jax.random.normal(jax.random.key(0), x.shape) * x, [], 1),
  "conv": (conv, [], 1),
  "cumsum_and_sizes": (lambda x: jnp.cumsum(x, 0) * x.shape[0], [], 1),
  "no_residuals": (lambda x: jnp.sum(x) * jnp.ones(3), [], 1),
  "custom_vjp": (lambda x: clipped(x) * x, [], 1),
  "integers": (lambda x: ((x * 3).astype(jnp.int32), x > 0, x), [], 1),
  # LAPACK between modules: its own rules, also behind a call and in a loop
  "cholesky": (lambda x: jnp.sin(jnp.linalg.cholesky(definite(jnp.cos(x)))), [], 4),
  "solve_in_jit": (
    lambda x: jax.jit(lambda y: jnp.linalg.solve(definite(y), y))(jnp.tanh(x)) * 2,
    [],
    None,
  ),
  "cholesky_in_scan": (
    lambda x: lax.scan(
      lambda c, _: (jnp.linalg.cholesky(definite(c)), c.sum()), x @ x.T, None, length=2
    ),
    [],
    None,
  ),
}


def modules(graph):
  """The XlaCallModule ops of a graph and of its functions."""
  return [node for node in nodes(graph) if node.op == "XlaCallModule"]


def text(node):
  """The StableHLO of a module."""
  with mlir.make_ir_context() as context:
    return str(stablehlo.deserialize_portable_artifact(context, node.attr["module"].s))


def loss(f):
  return lambda x: sum(
    jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(x)) if jnp.issubdtype(y.dtype, jnp.inexact)
  )


def gradient(converted):
  def pull(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = converted(x)
    return tape.gradient(y, x)

  return pull


UNKNOWN = [tf.TensorSpec([None, None])]
WAYS = {
  "eager": lambda f: f,
  "graph": lambda f: tf.function(f, autograph=False, input_signature=UNKNOWN),
  "xla": lambda f: tf.function(f, autograph=False, jit_compile=True),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_of_any_size(name, way):
  f, constraints, _ = FUNCTIONS[name]
  options = {
    "polymorphic_shapes": ["b, c"],
    "polymorphic_constraints": constraints,
    "native_serialization": True,
  }
  values = WAYS[way](jax2tf.convert(f, **options))
  gradients = WAYS[way](gradient(jax2tf.convert(loss(f), **options)))
  for x in (X, X[:3, :2]):
    # XLA is the same; a factorisation is another one.
    rtol = 3e-5 if "cholesky" in name or "solve" in name else 1e-6
    close(values(tf.constant(x)), jax.jit(f)(x), rtol=rtol, of_the_largest=True)
    close(
      gradients(tf.constant(x)), jax.jit(jax.grad(loss(f)))(x), rtol=10 * rtol, of_the_largest=True
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_op(name):
  f, constraints, count = FUNCTIONS[name]
  converted = jax2tf.convert(
    f, polymorphic_shapes=["b, c"], polymorphic_constraints=constraints, native_serialization=True
  )
  found = modules(WAYS["graph"](converted).get_concrete_function().graph)
  if count:
    assert len(found) == count
  assert not any("lapack" in text(node) or "stablehlo.composite" in text(node) for node in found)
  version = f"StableHLO_v{_tf_compat.stablehlo_version()}".encode()
  artifacts = [node.attr["module"].s for node in found]
  assert all(artifact.startswith(b"ML\xefR") and version in artifact for artifact in artifacts)


def test_second_order_and_tangents():
  f, _, _ = FUNCTIONS["custom_vjp"]
  converted = jax2tf.convert(loss(f), native_serialization=True)
  close(
    gradient(gradient(converted))(tf.constant(X)),
    jax.grad(lambda x: jax.grad(loss(f))(x).sum())(X),
    rtol=1e-5,
  )
  x = tf.constant(X)
  with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
    y = jax2tf.convert(jnp.sin, native_serialization=True)(x)
  close(accumulator.jvp(y), jnp.cos(X))


def test_residuals_are_not_computed_twice():
  f = jax.value_and_grad(lambda x: jnp.sum(jnp.sin(x @ x.T) @ x))
  converted = jax2tf.convert(lambda x: jnp.sum(jnp.sin(x @ x.T) @ x), native_serialization=True)
  found = modules(
    tf.function(gradient(converted), autograph=False)
    .get_concrete_function(tf.TensorSpec(X.shape))
    .graph
  )
  assert len(found) == 2
  products = sum(text(node).count("stablehlo.dot_general") for node in found)
  assert products <= str(jax.make_jaxpr(f)(X)).count("dot_general")


def test_static_shapes_and_constraints():
  converted = jax2tf.convert(
    lambda x: x[:2] * 2,
    polymorphic_shapes=["b, 4"],
    polymorphic_constraints=["b >= 2"],
    native_serialization=True,
  )
  concrete = tf.function(converted, autograph=False).get_concrete_function(tf.TensorSpec([None, 4]))
  assert concrete.structured_outputs.shape == (2, 4)
  with pytest.raises(tf.errors.InvalidArgumentError, match="b >= 2"):
    concrete(tf.ones([1, 4]))
  for call in (converted, tf.function(converted, jit_compile=True)):
    with pytest.raises(ValueError, match="b >= 2"):
      call(tf.ones([1, 4]))


# -------------------------------------------------------------------------------------------
# readers


@pytest.mark.parametrize(
  ("reader", "version"),
  [
    (None, native._OF_TENSORFLOW.get(INSTALLED, _tf_compat.stablehlo_version())),
    ("1.0.0", "1.0.0"),
    ("2.16", "0.17.7"),
    ("2.16.1", "0.17.7"),
    ("0.9.0", "0.9.0"),
  ],
)
def test_the_module_is_written_for_its_reader(reader, version):
  f, constraints, _ = FUNCTIONS["top_k"]
  options = {
    "polymorphic_shapes": ["b, c"],
    "polymorphic_constraints": constraints,
    "native_serialization": True,
  }
  converted = jax2tf.convert(f, **options, stablehlo_version=reader)
  (node,) = modules(WAYS["graph"](converted).get_concrete_function().graph)
  assert f"StableHLO_v{version}".encode() in node.attr["module"].s
  close(converted(X), jax.jit(f)(X))


@pytest.mark.parametrize("version", ["2.1", "99.0.0", "0.8.0", "newest", "1.0"])
def test_readers_that_are_not_known(version):
  with pytest.raises(
    ValueError,
    match=f"stablehlo_version = '{version}'; give a TensorFlow release .*, or a StableHLO version",
  ):
    jax2tf.convert(jnp.sin, native_serialization=True, stablehlo_version=version)


def test_what_a_reader_has_no_words_for():
  def user(x):
    return jnp.tan(x * 2)

  converted = jax2tf.convert(user, native_serialization=True, stablehlo_version="0.9.0")
  words = (
    r"StableHLO 0\.9\.0, which the reader understands, cannot express this function: 'tan' "
    r"at .*test_native.py:\d+:\d+ \(.*user\)"
  )
  with pytest.raises(NotImplementedError, match=words):
    converted(X)


RELOAD = """
import sys
sys.modules["jax"] = None
import numpy as np, tensorflow as tf
loaded = tf.saved_model.load(sys.argv[1])
x = tf.constant(np.load(sys.argv[1] + "/x.npy"))
with tf.GradientTape() as tape:
  tape.watch(x)
  y = loaded.f(x)
np.savez(sys.argv[1] + "/y.npz", y=y, g=tape.gradient(y, x))
"""


def test_after_a_saved_model_without_jax(tmp_path, without_jax):
  f = lambda x: jnp.sin(jnp.linalg.cholesky(definite(x))) @ jnp.tanh(x)  # noqa: E731
  module = tf.Module()
  module.f = WAYS["graph"](
    jax2tf.convert(f, polymorphic_shapes=["b, c"], native_serialization=True)
  )
  tf.saved_model.save(
    module, str(tmp_path), options=tf.saved_model.SaveOptions(experimental_custom_gradients=True)
  )
  np.save(tmp_path / "x.npy", X)
  subprocess.run(
    [without_jax, "-c", RELOAD, str(tmp_path)], check=True, capture_output=True, timeout=300
  )
  found = npz(tmp_path / "y.npz")
  np.testing.assert_allclose(found["y"], jax.jit(f)(X), rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(found["g"], jax.grad(lambda x: f(x).sum())(X), rtol=1e-4, atol=1e-4)


# -------------------------------------------------------------------------------------------
# platforms


def test_platforms():
  options = {"native_serialization": True, "native_serialization_platforms": ["cuda"]}
  (node,) = modules(
    tf.function(jax2tf.convert(jnp.sin, **options)).get_concrete_function(tf.TensorSpec([3])).graph
  )
  assert list(node.attr["platforms"].list.s) == [b"CUDA"]
  with pytest.raises(
    tf.errors.NotFoundError,
    match="The current platform CPU is not among the platforms required by the module",
  ):
    jax2tf.convert(jnp.sin, **options)(X)
  unchecked = jax2tf.convert(
    jnp.sin, **options, native_serialization_disabled_checks=[jax2tf.DisabledSafetyCheck.platform()]
  )
  close(unchecked(X), jnp.sin(X))


def test_one_module_for_several_platforms():
  def f(x):
    return lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)

  converted = jax2tf.convert(
    f, native_serialization=True, native_serialization_platforms=("cpu", "cuda", "tpu")
  )
  (node,) = modules(tf.function(converted).get_concrete_function(tf.TensorSpec([3])).graph)
  assert list(node.attr["platforms"].list.s) == [b"CPU", b"CUDA", b"TPU"]
  close(converted(X), jnp.sin(X))


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
def test_a_module_for_another_machine(platform):
  """Exported on this CPU."""
  f = lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos) @ x.T  # noqa: E731
  converted = jax2tf.convert(
    f,
    polymorphic_shapes=["b, c"],
    native_serialization=True,
    native_serialization_platforms=[platform],
  )
  (node,) = modules(WAYS["graph"](converted).get_concrete_function().graph)
  assert list(node.attr["platforms"].list.s) == [platform.upper().encode()]
  assert list(node.attr["disabled_checks"].list.s) == []
  assert "stablehlo.cosine" in text(node)


def test_custom_calls_without_a_promise():
  """JAX refuses targets that may change, unless told otherwise; the op then holds the same
  exception."""
  target = "annotate_device_placement_of_mine"

  def f(x):
    return jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

  options = {"native_serialization": True, "with_gradient": False}
  with pytest.raises(
    ValueError,
    match="Cannot serialize code with custom calls whose targets have no compatibility guarantees",
  ):
    jax2tf.convert(f, **options)(X)
  converted = jax2tf.convert(
    f,
    **options,
    native_serialization_disabled_checks=[jax2tf.DisabledSafetyCheck.custom_call(target)],
  )
  (node,) = modules(tf.function(converted).get_concrete_function(tf.TensorSpec(X.shape)).graph)
  assert list(node.attr["disabled_checks"].list.s) == [f"custom_call:{target}".encode()]
  assert f"@{target}" in text(node)


def test_lapack_is_for_cpu_only():
  """A GPU has handlers of its own, so nothing is split off."""
  converted = jax2tf.convert(
    lambda x: jnp.linalg.cholesky(definite(x)),
    native_serialization=True,
    native_serialization_platforms=["tpu"],
  )
  assert (
    len(modules(tf.function(converted).get_concrete_function(tf.TensorSpec([3, 3])).graph)) == 1
  )


def test_every_lapack_primitive_is_known():
  """One case of each group of JAX's harnesses: where a module names LAPACK, the table does."""
  groups = collections.defaultdict(list)
  for name, harness in harnesses.load().items():
    if not name.endswith("@x64"):
      groups[harness.group_name].append(harness)
  for group, cases in sorted(groups.items()):
    harness = random.Random(group).choice(cases)
    try:
      args = harness.dyn_args_maker(np.random.RandomState(0))
      jitted = jax.jit(lambda *args, harness=harness: harness.dyn_fun(*args))
      module = export.export(jitted, platforms=["cpu"])(*args).mlir_module()
    except Exception:  # JAX has no such export
      continue
    assert ("@lapack" in module) <= contains(jax.make_jaxpr(jitted)(*args).jaxpr, traits.LAPACK), (
      group
    )
