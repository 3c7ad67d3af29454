"""saved_model.with_flags: Python's booleans as inputs of a model."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jax2tf.converters import saved_model

PARAMS = np.random.default_rng(0).standard_normal((8, 8)).astype("f")
INPUTS = {"x": "f32[2,8]", "mask": "f32[2,8]", "deterministic": "bool[]", "scale": "bool[]"}


def apply(
  params: Any, x: jax.Array, mask: jax.Array, deterministic: bool, scale: bool
) -> jax.Array:
  """Two flags that choose in Python."""
  y = x @ params if deterministic else (x * mask) @ params
  return y * 2 if scale else y


@pytest.mark.parametrize(("target", "suffix"), [("onnx", ".onnx"), ("tflite", ".tflite")])
def test_a_flag_is_an_input(target: str, suffix: str, tmp_path: Path) -> None:
  exporter = importlib.import_module(f"jax2tf.converters.{target}")
  fun = saved_model.with_flags(apply, ["deterministic", "scale"])
  path = tmp_path / f"model{suffix}"
  made = exporter.save(fun, PARAMS, path, inputs=INPUTS, outputs=["y"], samples=1)
  # one run for each combination of the flags
  (row,) = [row for row in made.report.rows if row.values == "ordinary"]
  assert row.samples == 4
  arrays = {"x": np.ones((2, 8), "f"), "mask": np.arange(16, dtype="f").reshape(2, 8)}
  for deterministic in (False, True):
    for scale in (False, True):
      flags = {"deterministic": deterministic, "scale": scale}
      expected = apply(PARAMS, **arrays, **flags)
      found = exporter.run(path, arrays | {name: np.bool_(x) for name, x in flags.items()})["y"]
      np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_python_booleans_stay_as_they_are() -> None:
  fun = saved_model.with_flags(lambda x, double=False: x * 2 if double else x, ["double"])
  assert "cond" not in str(jax.make_jaxpr(lambda x: fun(x, True) + fun(x))(1.0))


def test_a_flag_that_is_no_parameter_is_refused() -> None:
  with pytest.raises(ValueError, match=r"flags = \['train'\].*no parameter 'train'; choose from x"):
    saved_model.with_flags(lambda x: x, ["train"])
  with pytest.raises(ValueError, match="flags = 'x': a string would be taken letter by letter"):
    saved_model.with_flags(lambda x: x, "x")
