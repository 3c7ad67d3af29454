"""What `_precision` says of a result, and what a comparison allows because of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf.converters import saved_model, verify
from jax2tf.converters.export.source import Source
from jax2tf.converters.verify import answers as compare
from jax2tf.converters.verify.plan import Comparison
from jax2tf.converters.verify.precision import of_results

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def mixed(params: Any, x: jax.Array) -> dict[str, jax.Array]:
  """As models in mixed precision: bfloat16 within, float32 outside."""
  narrow = jax.jit(
    lambda x: jax.nn.gelu(x.astype(jnp.bfloat16) @ params["w"].astype(jnp.bfloat16))
  )(x)
  _, sums = jax.lax.scan(lambda c, row: (c + row, c), jnp.zeros(4, jnp.bfloat16), narrow)
  return {
    "narrow": narrow,
    "wide": jax.nn.softmax(narrow.astype(jnp.float32)),
    "summed": sums.astype(jnp.float32),
    "apart": jax.jit(lambda x, _: x * 2)(x, narrow),  # the other operand does not reach the result
    "half": x.astype(jnp.float16).astype(jnp.float32),
    "count": jnp.argmax(narrow, 1),
  }


def test_of_results() -> None:
  found = of_results(mixed, {"w": np.eye(4, dtype=np.float32)}, X)
  expected = {
    "narrow": "bfloat16",
    "wide": "bfloat16",
    "summed": "bfloat16",
    "apart": "float32",
    "half": "float16",
    "count": "bfloat16",
  }
  assert {
    name: dtype.name for name, dtype in ((name, x.dtype) for name, x in found.items())
  } == expected


def test_a_difference_is_measured_by_the_precision() -> None:
  expected, found = X, X * np.float32(1 + 2**-8)
  assert "differ" in compare.problem(found, expected)
  assert not compare.problem(found, expected, np.dtype(jnp.bfloat16))
  assert "differ" in compare.problem(X * np.float32(1.3), expected, np.dtype(jnp.bfloat16))


def test_mixed_precision_is_verified(tmp_path: Path) -> None:
  """XLA leaves out roundings that TensorFlow does."""
  params = {"w": np.random.default_rng(0).standard_normal((4, 4), np.float32)}

  def fun(params: Any, x: jax.Array) -> jax.Array:
    narrow = (x @ params["w"]).astype(jnp.bfloat16)
    return (narrow * narrow).astype(jnp.float32)

  directory = saved_model.save(fun, params, tmp_path, inputs={"x": "f32[b,4]"})
  report = verify.verify(directory, fun, params=params)
  assert report.ok
  assert max(row.max_rel or 0 for row in report.rows) > 2**-10, "the roundings are there"


def test_a_reference_in_tensorflow_has_the_precision_of_its_results(tmp_path: Path) -> None:
  directory = saved_model.save(
    lambda _, x: x.astype(jnp.bfloat16).astype(jnp.float32), {}, tmp_path, inputs={"x": "f32[b]"}
  )
  source = Source.of(directory)
  (signature,) = source.signatures.values()
  (run, *_) = source.runs(Comparison(samples=1))
  (expected,) = compare.reference_answers([run], ())
  assert not expected.precisions
  np.testing.assert_array_equal(
    expected.outputs["output"], signature.function(**run.inputs)["output"]
  )
