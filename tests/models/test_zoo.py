"""Every model of the zoo: forward and gradient at two batch sizes, from one conversion; the op
counts of ten of them."""

from __future__ import annotations

import collections
import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from tests.support.case import close, op_types, xla_ops
from tests.support.models.zoo import MODELS, loss_of

GOLDEN_MODELS = (
  "linen_mlp",
  "linen_cnn_nhwc",
  "linen_resnet",
  "linen_transformer_encoder",
  "linen_lstm",
  "nnx_cnn",
  "haiku_cnn_nchw",
  "equinox_gru",
  "plain_transformer_decoder",
  "plain_dropout_with_typed_key",
)
# Jaxprs, and so graphs, differ between minor versions of JAX.
GOLDEN = (
  pathlib.Path(__file__).parents[1]
  / "golden"
  / f"jax-{'.'.join(jax.__version__.split('.')[:2])}.json"
)


def as_arrays(tree):
  return jax.tree.map(np.asarray, tree)


def specs(tree, poly):
  return jax.tree.map(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), tree)


@pytest.fixture(scope="module")
def built(request):
  """(model, function, parameters), made once for all tests of a model."""
  model = MODELS[request.param]
  fun, params = model.build()
  return model, fun, as_arrays(params)


@pytest.mark.parametrize("built", MODELS, indirect=True)
def test_forward(built):
  model, fun, params = built
  variables = jax.tree.map(tf.Variable, params)
  converted = jax2tf.convert(fun, polymorphic_shapes=[None, model.spec])
  concrete = tf.function(lambda x: converted(variables, x), autograph=False).get_concrete_function(
    specs(model.inputs(1), model.spec)
  )
  assert not xla_ops(concrete.graph)
  for batch in model.batches:
    x = model.inputs(batch)
    expected = jax.jit(fun)(params, x)
    close(concrete(jax.tree.map(tf.constant, x)), expected, rtol=model.rtol, atol=model.rtol)
    close(converted(variables, x), expected, rtol=model.rtol, atol=model.rtol)


@pytest.mark.parametrize(
  "built", [name for name, model in MODELS.items() if model.differentiable], indirect=True
)
def test_gradient(built):
  model, fun, params = built
  variables = jax.tree.map(tf.Variable, params)
  flat = jax.tree.leaves(variables)
  loss = loss_of(fun)
  converted = jax2tf.convert(loss, polymorphic_shapes=[None, model.spec])

  @tf.function(autograph=False)
  def loss_and_gradient(x):
    with tf.GradientTape() as tape:
      y = converted(variables, x)
    return y, tape.gradient(y, flat)

  concrete = loss_and_gradient.get_concrete_function(specs(model.inputs(1), model.spec))
  assert not xla_ops(concrete.graph)
  for batch in model.batches:
    x = model.inputs(batch)
    value, grads = concrete(jax.tree.map(tf.constant, x))
    expected_value, expected = jax.jit(jax.value_and_grad(loss, allow_int=True))(params, x)
    # A mean of values of both signs, which may cancel to the precision of values about 1.
    np.testing.assert_allclose(
      value, expected_value, rtol=10 * model.rtol, atol=float(np.finfo(np.float32).eps)
    )
    pairs = [
      (g, e)
      for g, e in zip(grads, jax.tree.leaves(expected), strict=True)
      if e.dtype != jax.dtypes.float0
    ]
    # Some parameters, such as the bias of attention keys, have the gradient 0 up to rounding:
    # compare with the largest of all.
    largest = max(np.max(np.abs(e), initial=0.0) for _, e in pairs)
    for ours, theirs in pairs:
      np.testing.assert_allclose(ours, theirs, rtol=10 * model.rtol, atol=10 * model.rtol * largest)


def op_counts(model: Any, fun: Any, params: Any) -> dict[str, int]:
  """The number of ops of each type in the inference graph of a model, its functions included."""
  variables = jax.tree.map(tf.Variable, params)
  converted = jax2tf.convert(fun, polymorphic_shapes=[None, model.spec], with_gradient=False)
  function = tf.function(lambda x: converted(variables, x), autograph=False)
  graph = function.get_concrete_function(specs(model.inputs(1), model.spec)).graph
  return dict(sorted(collections.Counter(op_types(graph)).items()))


@pytest.mark.parametrize("built", GOLDEN_MODELS, indirect=True)
def test_op_counts_are_golden(built: Any, request: pytest.FixtureRequest) -> None:
  """A change of the graph is a decision: `make golden` writes the counts anew, and the diff is
  reviewed."""
  golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
  name, counts = built[0].name, op_counts(*built)
  if request.config.getoption("--update-golden"):
    known = golden | {name: counts}
    ordered = {model: known[model] for model in GOLDEN_MODELS if model in known}
    GOLDEN.write_text(json.dumps(ordered, indent=1) + "\n")
    return
  assert golden, f"no golden counts for JAX {jax.__version__}: run `make golden`"
  assert counts == golden[name]
