"""Ops that no target has are refused with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from jax import numpy as jnp

import jax2tf
from jax2tf.converters import onnx, tflite
from jax2tf.converters.export.source import ExportError

REFUSED: dict[str, tuple[Callable[..., Any], str, str]] = {
  "random": (
    jax2tf.call_tf(lambda seed: tf.random.stateless_uniform([4], seed)),
    "i32[2]",
    "take a key as an input, and draw them by jax.random",
  ),
  "eigenvalues": (jnp.linalg.eigvals, "f32[4,4]", r"jnp\.linalg\.eigh"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("target", ["onnx", "tflite"])
def test_the_error_says_what_to_do(tmp_path: Path, name: str, target: str) -> None:
  fun, spec, advice = REFUSED[name]
  with pytest.raises(ExportError, match=advice) as refused:
    {"onnx": onnx, "tflite": tflite}[target].save(
      lambda _, x: fun(x), {}, tmp_path / f"m.{target}", inputs={"x": spec}
    )
  assert advice.replace("\\", "") in refused.value.gaps[0].reason
  assert not list(tmp_path.iterdir())
