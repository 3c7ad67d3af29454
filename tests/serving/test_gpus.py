"""Which GPUs the processes of a server and of a batch see."""

from __future__ import annotations

from pathlib import Path

import pytest

from jax2tf.tools import gpus
from jax2tf.tools.batch.supervisor import Processes
from jax2tf.tools.serving import supervisor
from tests.serving.serve_models import options


@pytest.fixture
def devices(tmp_path: Path) -> Path:
  for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"):
    (tmp_path / name).touch()
  return tmp_path


@pytest.mark.parametrize(
  ("variables", "names"),
  [
    ({}, ["0", "1", "10"]),
    ({"CUDA_VISIBLE_DEVICES": "2, GPU-8f"}, ["2", "GPU-8f"]),
    ({"CUDA_VISIBLE_DEVICES": "1,-1,2"}, ["1"]),  # as CUDA reads it
    ({"CUDA_VISIBLE_DEVICES": ""}, []),
  ],
)
def test_visible(variables: dict[str, str], names: list[str], devices: Path) -> None:
  assert gpus.visible(variables, devices) == names


def test_nothing_hides_gpus_unless_asked(devices: Path) -> None:
  assert gpus.chosen("auto", {}, devices) == ["0", "1", "10"]
  assert "CUDA_VISIBLE_DEVICES" not in gpus.environment("auto", [])
  assert gpus.chosen("cpu", {}, devices) == []
  assert gpus.environment("cpu", [])["CUDA_VISIBLE_DEVICES"] == "-1"


def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
  with pytest.raises(ValueError, match="no GPU here \\(no /dev/nvidia0\\)"):
    gpus.chosen("gpu", {}, tmp_path)
  with pytest.raises(RuntimeError, match="and-cuda"):
    gpus.required()


def test_memory_grows_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
  assert gpus.environment("auto", ["0"])["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
  monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "false")
  assert gpus.environment("auto", ["0"])["TF_FORCE_GPU_ALLOW_GROWTH"] == "false"


@pytest.mark.parametrize(
  ("replicas", "names", "of_clusters"),
  [
    (2, [], [(1, [], 0), (1, [], 0)]),
    (3, ["0", "1", "2"], [(2, ["0", "2"], 1), (1, ["1"], 1)]),
    (2, ["0"], [(1, ["0"], 1), (1, ["0"], 1)]),
    (5, ["0", "1"], [(3, ["0"], 1 / 3), (2, ["1"], 1 / 2)]),
  ],
)
def test_one_replica_for_each_gpu(
  replicas: int, names: list[str], of_clusters: list[tuple[int, list[str], float]], tmp_path: Path
) -> None:
  shares = supervisor.shares(options(tmp_path, replicas=replicas, gpus=names))
  assert [
    (each.replicas, each.gpus, gpus.share(each.replicas, len(each.gpus))) for each in shares
  ] == of_clusters


def test_each_worker_of_a_batch_has_its_gpu() -> None:
  processes = Processes(3, 1, "gpu", ["0", "7"])
  seen = [processes.environment(number)["CUDA_VISIBLE_DEVICES"] for number in range(3)]
  assert seen == ["0", "7", "0"]
