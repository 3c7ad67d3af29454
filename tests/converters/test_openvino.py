"""OpenVINO reads SavedModels as they are written: no exporter, no TensorFlow. It reads files of
ONNX too, as generation for OpenVINO GenAI needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax2tf.converters import onnx
from jax2tf.converters.export.source import ExportError
from tests.support import runtimes


@pytest.mark.parametrize(
  "name",
  [
    "mlp",
    "transformer_encoder",  # batch and length dynamic
    "seq2seq_lstm",  # loops
    "graph_network",  # sums of rows, several to one place: OpenVINO's ScatterNd would keep the last
    "gan_generator",  # kernels turned round: OpenVINO's ReverseV2 takes one axis
  ],
)
def test_equals_jax(name: str, tmp_path: Path) -> None:
  runtimes.TARGETS["openvino"][1](runtimes.Case(name, tmp_path))


def test_a_missing_op_is_named_with_the_users_line(tmp_path: Path) -> None:
  with pytest.raises(ExportError, match=r"Bitcast \(of 'top_k'\) at .*mixture_of_experts\.py:\d+"):
    runtimes.TARGETS["openvino"][1](runtimes.Case("mixture_of_experts", tmp_path))


# In a process of its own: the import of OpenVINO forks, of which JAX warns.
_RUN = """
import sys
import numpy as np
import openvino
model, rows, found = sys.argv[1:]
core = openvino.Core()
precise = {"INFERENCE_PRECISION_HINT": "f32"}
np.save(found, core.compile_model(core.read_model(model), "CPU", precise)(np.load(rows))[0])
"""


def test_a_loop_of_onnx_that_keeps_an_array(tmp_path: Path) -> None:
  def fun(w: np.ndarray, rows: jnp.ndarray) -> jnp.ndarray:
    return lax.scan(lambda total, row: (jnp.tanh(total + row) @ w, None), jnp.zeros(4), rows)[0]

  w, rows = (
    np.eye(4, dtype=np.float32) + 0.5,
    np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4),
  )
  path = tmp_path / "model.onnx"
  onnx.save(fun, w, path, inputs={"rows": "f32[n,4]"}, samples=1)
  np.save(tmp_path / "rows.npy", rows)
  files = [path, tmp_path / "rows.npy", tmp_path / "found.npy"]
  subprocess.run([sys.executable, "-c", _RUN, *map(str, files)], check=True)
  np.testing.assert_allclose(np.load(files[-1]), fun(w, jnp.asarray(rows)), rtol=1e-5)
