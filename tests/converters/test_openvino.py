"""OpenVINO reads SavedModels as they are written: no exporter, no TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest

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
