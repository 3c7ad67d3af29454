"""A real model with real weights: all-MiniLM-L6-v2 against JAX, before and after a SavedModel, with
its gradient."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf.converters import saved_model
from jax2tf.examples import minilm, minilm_text
from tests.support.case import op_types

CONSTRAINTS = [f"s <= {minilm_text.MAX_TOKENS}"]

# The first components of what sentence-transformers 6.2.0 (PyTorch) makes of these sentences; the
# encoder in JAX was within 3e-7 of it on all 384.
SENTENCE_TRANSFORMERS = {
  "The cat sits on the mat.": [0.1341771, -0.0329003, -0.0248038, 0.041439, -0.0363476, 0.0418142],
  "A feline rests on a rug.": [0.0720825, 0.0217562, 0.0392307, 0.1191547, -0.0402175, 0.0717227],
  "": [-0.1188383, 0.0482987, -0.0025481, -0.0110112, 0.0519508, 0.0102917],
  "Ünïcödé naïve café, 東京 12:30!": [
    0.0555795,
    0.03381,
    0.0296982,
    -0.0429869,
    -0.0480757,
    -0.0173476,
  ],
  " ".join(f"word{i}" for i in range(400)): [
    0.0030427,
    -0.0704274,
    -0.0507796,
    -0.0239285,
    0.0183033,
    0.0051423,
  ],
}


@pytest.fixture(scope="module")
def params() -> Any:
  return jax.device_put(minilm.parameters())


@pytest.fixture(scope="module")
def model(params: Any) -> saved_model.Model:
  model = saved_model.Model(params, polymorphic_constraints=CONSTRAINTS)
  return model.add(
    minilm.encode,
    inputs={"input_ids": "i32[b,s]", "attention_mask": "i32[b,s]"},
    outputs=["embedding"],
  )


@pytest.fixture(scope="module")
def directory(model: saved_model.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
  return model.save(tmp_path_factory.mktemp("minilm"))


def _tokens(rng: np.random.Generator, b: int, s: int) -> tuple[np.ndarray, np.ndarray]:
  lengths = rng.integers(1, s + 1, b)
  mask = (np.arange(s) < lengths[:, None]).astype(np.int32)
  return rng.integers(0, 30522, (b, s), dtype=np.int32) * mask, mask


def test_the_jax_encoder_is_the_published_one(params: Any) -> None:
  embeddings = jax.jit(minilm.encode)(params, *minilm_text.tokenize(list(SENTENCE_TRANSFORMERS)))
  np.testing.assert_allclose(
    embeddings[:, :6], list(SENTENCE_TRANSFORMERS.values()), rtol=0, atol=1e-6
  )


def test_values_over_a_hundred_sizes(
  params: Any, model: saved_model.Model, directory: Path
) -> None:
  """Within 1e-5 of JAX, converted and reloaded, at 100 random (batch, length) pairs."""
  encode = jax.jit(minilm.encode)
  loaded = tf.saved_model.load(str(directory))
  rng = np.random.default_rng(0)
  worst: collections.Counter[str] = collections.Counter()
  for _ in range(100):
    # As many lengths of 1-2 as of 64-127.
    b, s = int(rng.integers(1, 5)), int(2 ** rng.uniform(0, 7))
    tokens = _tokens(rng, b, s)
    # JAX gets tokens that its mask hides, and repeated sentences, so that it need not compile for
    # each of the hundred.
    padded = [
      np.pad(np.resize(x, (4, s)), [(0, 0), (0, 2 ** int(np.ceil(np.log2(s))) - s)]) for x in tokens
    ]
    expected = np.asarray(encode(params, *padded))[:b]
    ids, mask = map(tf.constant, tokens)
    for name, signature in {
      "converted": model.signatures["serving_default"],
      "reloaded": loaded.signatures["serving_default"],
    }.items():
      found = (
        signature(ids, mask)
        if name == "converted"
        else signature(input_ids=ids, attention_mask=mask)
      )["embedding"]
      assert found.dtype == tf.float32
      assert found.shape == expected.shape
      worst[name] = max(worst[name], float(np.abs(found - expected).max()))
  assert max(worst.values()) <= 1e-5, worst


def test_the_longest_sentence(params: Any, model: saved_model.Model) -> None:
  tokens = _tokens(np.random.default_rng(1), 1, 256)
  expected = jax.jit(minilm.encode)(params, *tokens)
  assert (
    np.abs(
      model.signatures["serving_default"](*map(tf.constant, tokens))["embedding"] - expected
    ).max()
    <= 1e-5
  )


def test_one_token_too_many_is_an_error(model: saved_model.Model) -> None:
  tokens = tf.ones([1, 257], tf.int32)
  with pytest.raises(tf.errors.InvalidArgumentError, match="Input shapes do not match"):
    model.signatures["serving_default"](tokens, tokens)


def test_ordinary_ops_only(model: saved_model.Model) -> None:
  ops = op_types(model.signatures["serving_default"].get_concrete_function().graph)
  assert not [op for op in ops if op.startswith("Xla")]
  assert ops.count("Const") < len(ops) / 2


def _loss(params: Any, input_ids: Any, attention_mask: Any, target: Any) -> Any:
  """How far the embeddings are from where they should be."""
  return jnp.mean(jnp.square(minilm.encode(params, input_ids, attention_mask) - target))


@pytest.fixture(scope="module")
def batch() -> list[Any]:
  """Tokens and target."""
  rng = np.random.default_rng(2)
  return [*_tokens(rng, 3, 17), rng.standard_normal((3, 384)).astype(np.float32)]


@pytest.fixture(scope="module")
def by_jax(params: Any, batch: list[Any]) -> tuple[Any, Any]:
  """The loss of the batch, and its gradient."""
  return jax.jit(jax.value_and_grad(_loss))(params, *batch)


@pytest.fixture(scope="module")
def loss_and_gradient(params: Any) -> tf.types.experimental.ConcreteFunction:
  """The same as a graph function of a batch."""
  variables = jax.tree.map(tf.Variable, params)
  loss = jax2tf.convert(
    _loss, polymorphic_shapes=[None, "b, s", "b, s", "b, _"], polymorphic_constraints=CONSTRAINTS
  )

  def function(*args: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
      value = loss(variables, *args)
    return value, tape.gradient(value, variables)

  specs = [tf.TensorSpec([None, None], tf.int32)] * 2 + [tf.TensorSpec([None, 384], tf.float32)]
  return tf.function(function, autograph=False).get_concrete_function(*specs)


def test_gradient_of_all_parameters(
  loss_and_gradient: Any, batch: list[Any], by_jax: tuple[Any, Any]
) -> None:
  """Each parameter's within 1e-4 of jax.grad, relative to its own size."""
  expected_value, expected = by_jax
  value, found = loss_and_gradient(*map(tf.constant, batch))
  np.testing.assert_allclose(value, expected_value, rtol=1e-5)
  found = {
    jax.tree_util.keystr(path, simple=True, separator="/"): g
    for path, g in jax.tree_util.tree_leaves_with_path(found)
  }
  expected = {
    jax.tree_util.keystr(path, simple=True, separator="/"): g
    for path, g in jax.tree_util.tree_leaves_with_path(expected)
  }
  assert found.keys() == expected.keys()
  sizes = {name: np.linalg.norm(g) for name, g in expected.items()}
  # Softmax ignores what is added to all scores, so the derivative by the key's bias is zero, and
  # all that comes out is rounding: it is measured by the query's.
  sizes = {name: sizes[name.replace("key/bias", "query/bias")] for name in sizes}
  relative = {
    name: np.linalg.norm(tf.convert_to_tensor(found[name]) - expected[name]) / sizes[name]
    for name in sizes
  }
  assert max(relative.values()) <= 1e-4, max(relative.items(), key=lambda item: item[1])


def test_the_gradient_recomputes_nothing(
  params: Any, loss_and_gradient: Any, batch: list[Any]
) -> None:
  """No more products of matrices than JAX has, and no Xla op."""
  ops = op_types(loss_and_gradient.graph)
  jaxpr = jax.make_jaxpr(jax.value_and_grad(_loss))(params, *batch)
  assert (
    0
    < sum(
      ops.count(op) for op in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum")
    )
    <= _products(jaxpr.jaxpr)
  )
  assert not [op for op in ops if op.startswith("Xla")]


def test_natively(params: Any, batch: list[Any], by_jax: tuple[Any, Any]) -> None:
  """Values and gradients of the whole encoder from XlaCallModule ops, in a graph of any batch and
  length, equal to jax.jit's."""
  options = {
    "polymorphic_shapes": [None, "b, s", "b, s", "b, _"],
    "polymorphic_constraints": CONSTRAINTS,
    "native_serialization": True,
  }
  loss = jax2tf.convert(_loss, **options)
  variables = jax.tree.map(tf.Variable, params)

  @tf.function(
    autograph=False,
    input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2 + [tf.TensorSpec([None, 384])],
  )
  def function(*args: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
      value = loss(variables, *args)
    return value, tape.gradient(value, variables)

  expected_value, expected = by_jax
  value, found = function(*map(tf.constant, batch))
  np.testing.assert_allclose(value, expected_value, rtol=1e-6)
  largest = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(expected))
  for g, e in zip(
    jax.tree.leaves(jax.tree.map(tf.convert_to_tensor, found)),
    jax.tree.leaves(expected),
    strict=True,
  ):
    # XLA of JAX and of TensorFlow sum in different orders
    np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-6 * largest)


def _products(jaxpr: Any) -> int:
  """The dot_general equations of a jaxpr and of those inside it."""
  inner = sum(
    _products(j)
    for eqn in jaxpr.eqns
    for j in jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "eqns"))
    if hasattr(j, "eqns")
  )
  return inner + sum(eqn.primitive.name == "dot_general" for eqn in jaxpr.eqns)
