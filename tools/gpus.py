"""Which GPUs the processes of `jax2tf serve` and `jax2tf batch` use. Imports no TensorFlow, which
takes all memory of every GPU that it sees."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

AUTO, CPU, GPU = "auto", "cpu", "gpu"
DEVICES = (AUTO, CPU, GPU)
DEVICE_HELP = (
  "auto uses the GPUs of this machine, one for each process in turn; cpu hides them; gpu fails "
  "without one."
)
_VISIBLE, _GROWTH = "CUDA_VISIBLE_DEVICES", "TF_FORCE_GPU_ALLOW_GROWTH"


def visible(variables: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
  """The names of the GPUs, as CUDA_VISIBLE_DEVICES has them; all of NVIDIA's if it is not set.

  Args:
    variables: the environment.
    devices: the folder with the files of the system's devices.
  """
  named = variables.get(_VISIBLE)
  if named is None:
    numbers = (re.fullmatch(r"nvidia(\d+)", file.name) for file in devices.glob("nvidia*"))
    return sorted((match[1] for match in numbers if match), key=int)
  names: list[str] = []
  for name in map(str.strip, named.split(",")):
    if name in ("", "-1"):  # CUDA ignores what follows
      break
    names.append(name)
  return names


def chosen(device: str, variables: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
  """The GPUs for an option `--device`: none for "cpu", those that are visible otherwise.

  Raises:
    ValueError: it is "gpu", and there is none.
  """
  if device == CPU:
    return []
  names = visible(variables, devices)
  if device == GPU and not names:
    why = f"{_VISIBLE}={variables[_VISIBLE]}" if _VISIBLE in variables else "no /dev/nvidia0"
    raise ValueError(
      f"--device gpu: there is no GPU here ({why}); leave it out, or name GPUs by {_VISIBLE}"
    )
  return names


def environment(device: str, gpus: Sequence[str]) -> dict[str, str]:
  """The variables by which a process sees these GPUs alone, and none for "cpu". TensorFlow then
  takes their memory as it needs it, unless the user says otherwise, so that processes can share
  one."""
  growth = {_GROWTH: os.environ.get(_GROWTH, "true")}
  if device == CPU:
    return growth | {_VISIBLE: "-1"}
  return growth | ({_VISIBLE: ",".join(gpus)} if gpus else {})


def share(processes: int, n_gpus: int) -> float:
  """The part of a GPU that each process gets: a whole one if there are enough."""
  return 1 / math.ceil(processes / n_gpus) if n_gpus else 0


def required() -> None:
  """Raises RuntimeError if TensorFlow sees no GPU."""
  import tensorflow as tf  # noqa: PLC0415  (the process has imported it)

  if not tf.config.list_physical_devices("GPU"):
    raise RuntimeError(
      "--device gpu: TensorFlow cannot use the GPU; install CUDA's libraries: pip install "
      "'tensorflow[and-cuda]'"
    )
