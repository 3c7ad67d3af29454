"""LiteRT models with quantised weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf.converters import saved_model, tflite
from tests.converters.test_tflite import INPUTS, MLP, RNG, mlp, runners


def test_quantization(tmp_path: Path) -> None:
  model = saved_model.Model(MLP).add(mlp, inputs=INPUTS)
  data = [{"x": RNG.standard_normal((4, 64)).astype(np.float32)} for _ in range(20)]
  report = tflite.quantization_report(model, tmp_path, representative_dataset=data, sizes={"b": 32})
  rows = {row.scheme: row for row in report.rows}
  assert [row.problem for row in report.rows] == [""] * 5
  assert rows["int4"].size < rows["dynamic_int8"].size < rows["float16"].size < rows["None"].size  # type: ignore[operator]
  for scheme, least in tflite.LEAST_COSINE.items():
    assert least < rows[scheme].cosine <= 1 + 1e-12  # type: ignore[operator]
  assert "dynamic_int8" in report.text()
  assert {p.name for p in tmp_path.iterdir()} == {
    f"{s}.tflite" for s in ("float32", *tflite.LEAST_COSINE)
  }


def test_float16_rounds_weights_alone(tmp_path: Path) -> None:
  """The converter's own scheme makes 65504 of 1e9 and of infinity, and 0 of 1e-12."""
  w = RNG.standard_normal((64, 64)).astype(np.float32)
  params = {"w": w, "wide": w * 1e6, "tiny": w * 1e-9, "bias": w[0]}

  def fun(params: Any, x: jax.Array) -> dict[str, jax.Array]:
    turned, _ = jax.lax.scan(lambda c, _: (jnp.tanh(c @ params["w"] / 8), None), x, length=3)
    scaled = {name: x @ params[name] for name in ("w", "wide", "tiny")}
    return scaled | {
      "loop": turned,
      "bias": x + params["bias"],
      "far": x + 1e9,
      "near": jnp.minimum(jnp.abs(x), 1e-12),
      "infinite": jnp.isinf(jnp.exp(200 * x)),
    }

  model = saved_model.Model(params).add(fun, inputs=INPUTS, signatures="first")
  model.add(lambda params, x: fun(params, -x), inputs=INPUTS, signatures="second")
  wide = tflite.save_model(model, tmp_path / "float32.tflite")
  made = tflite.save_model(model, tmp_path / "float16.tflite", quantization="float16")
  assert made.report.ok and wide.size - made.size > 0.9 * w.nbytes / 2  # type: ignore[operator]
  x = RNG.standard_normal((3, 64)).astype(np.float32)
  rounded = params | {"w": w.astype(np.float16).astype(np.float32)}
  for name, sign in (("first", 1), ("second", -1)):
    found = runners(made.path)(name)(x=sign * x)
    for output, expected in fun(rounded, x).items():
      np.testing.assert_allclose(
        found[output], expected, rtol=2e-5, atol=1e-5 * np.abs(expected).max(), err_msg=output
      )
  contents = made.path.read_bytes()
  for kept in (w.T.astype(np.float16), params["wide"].T, params["tiny"].T, w[0]):
    buffer = kept.tobytes()
    assert contents.count(buffer) == 1 and contents.index(buffer) % 16 == 0, (
      "weights are shared, and aligned"
    )
  assert w.T.tobytes() not in contents


def test_too_coarse_a_quantization_is_an_error(tmp_path: Path) -> None:
  with pytest.raises(tflite.ExportError, match=r"(?s)too far from the reference.*cosine"):
    tflite.save(
      mlp, MLP, tmp_path / "m.tflite", inputs=INPUTS, quantization="int4", least_cosine=0.99999
    )
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"quantization": "int2"}, r"quantization = 'int2'; give one of: float16"),
    ({"quantization": "int8"}, "representative_dataset = None"),
    ({"representative_dataset": []}, "a representative_dataset is for a scheme"),
    ({"quantization": "int8", "representative_dataset": []}, "no sample"),
    ({"quantization": "int8", "representative_dataset": [{"z": 1}]}, "a sample of z"),
    ({"quantization": "float16", "rtol": 1.0}, "least_cosine"),
    ({"least_cosine": 1.0}, "rtol and atol"),
  ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str, tmp_path: Path) -> None:
  with pytest.raises(ValueError, match=message):
    tflite.save(mlp, MLP, tmp_path / "m.tflite", inputs=INPUTS, **options)
