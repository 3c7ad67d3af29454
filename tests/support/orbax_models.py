"""A model to a SavedModel by orbax-export, unmodified; run by tests/conversion/test_drop_in.py.

python -m jax2tf.install tests/support/orbax_models.py FOLDER
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from orbax.export import ExportManager, JaxModule, ServingConfig

PARAMS = {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "b": np.ones(3, np.float32)}


def logits(params: Any, batch: Any) -> Any:
  return {"logits": jnp.tanh(batch["x"] @ params["w"] + params["b"]) * batch["x"].shape[0]}


def embedding(params: Any, batch: Any) -> Any:
  return {"embedding": jax.nn.softmax(batch["x"] @ params["w"])}


def from_text(texts: tf.Tensor) -> dict[str, tf.Tensor]:
  """Strings "1 2 3 4" to numbers."""
  return {"x": tf.reshape(tf.strings.to_number(tf.strings.split(texts, " ").values), [-1, 4])}


def with_label(outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
  return outputs | {
    "label": tf.gather(tf.constant(["low", "middle", "high"]), tf.argmax(outputs["logits"], -1))
  }


def main(folder: str) -> None:
  functions = {"logits": logits, "embedding": embedding}
  module = JaxModule(
    PARAMS,
    functions,
    trainable=True,
    input_polymorphic_shape={name: {"x": "b, ..."} for name in functions},
    jax2tf_kwargs={name: {"native_serialization": True} for name in functions},
  )
  plain = {"x": tf.TensorSpec([None, 4], tf.float32, name="x")}
  manager = ExportManager(
    module,
    [
      ServingConfig(["serving_default", "logits"], input_signature=[plain], method_key="logits"),
      ServingConfig(
        "text",
        input_signature=[tf.TensorSpec([None], tf.string, name="texts")],
        tf_preprocessor=from_text,
        tf_postprocessor=with_label,
        method_key="logits",
      ),
      ServingConfig("embedding", input_signature=[plain], method_key="embedding"),
    ],
  )
  manager.save(folder)

  loaded = tf.saved_model.load(folder)
  assert set(loaded.signatures) == {"serving_default", "logits", "text", "embedding"}
  for size in (1, 5):
    x = np.random.default_rng(size).standard_normal((size, 4)).astype(np.float32)
    expected = logits(PARAMS, {"x": x})["logits"]
    for name in ("serving_default", "logits"):
      np.testing.assert_allclose(
        loaded.signatures[name](x=tf.constant(x))["logits"], expected, rtol=1e-6
      )
    np.testing.assert_allclose(
      loaded.signatures["embedding"](x=tf.constant(x))["embedding"],
      embedding(PARAMS, {"x": x})["embedding"],
      rtol=1e-6,
    )
    texts = tf.constant([" ".join(map(repr, map(float, row))) for row in x])
    found = loaded.signatures["text"](texts=texts)
    np.testing.assert_allclose(found["logits"], expected, rtol=1e-5)
    assert [label.decode() for label in found["label"].numpy()] == [
      ("low", "middle", "high")[i] for i in np.argmax(expected, -1)
    ]

  converted = module.methods["logits"]
  with tf.GradientTape() as tape:
    y = tf.reduce_sum(converted({"x": tf.constant(x)})["logits"])
  variables = sorted(tape.watched_variables(), key=lambda v: len(v.shape))
  gradient = jax.grad(lambda params: logits(params, {"x": x})["logits"].sum())(PARAMS)
  for found, name in zip(tape.gradient(y, variables), ("b", "w"), strict=True):
    np.testing.assert_allclose(found, gradient[name], rtol=1e-5, atol=1e-5)
  print("equal")


if __name__ == "__main__":
  main(sys.argv[1])
