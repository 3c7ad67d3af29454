"""Three models on every target, in an environment with the installed wheel.

It builds the wheel from the checkout and installs it elsewhere, with the extras of the targets and
the packages that the user's program imports, and no others. `wheel_user` is the program of a user.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.support import wheels

MODELS = ("vision", "gpt", "ode")
TARGETS = ("SavedModel", "native", "LiteRT", "ONNX Runtime", "TF.js", "OpenVINO")
_REQUIREMENTS = ("jax2tf[keras,onnx,openvino,tflite,tfjs]", "flax")


def rows() -> list[str]:
  """Each model with each target."""
  return [f"{model} {target}" for model in MODELS for target in TARGETS]


def measured(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
  """Runs the program with these rows."""
  with tempfile.TemporaryDirectory(prefix="jax2tf-wheel-") as folder:
    place = Path(folder)
    python = wheels.installed(wheels.built(place), place / "venv", *_REQUIREMENTS)
    shutil.copy(Path(__file__).with_name("wheel_user.py"), place / "user.py")
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with subprocess.Popen(
      [str(python), "user.py", str(place), *names],
      cwd=place,
      env=variables | {"TF_CPP_MIN_LOG_LEVEL": "3"},
      stdout=subprocess.PIPE,
      text=True,
    ) as process:
      assert process.stdout
      for line in process.stdout:
        if line.startswith("{"):
          row = json.loads(line)
          yield row.pop("row"), row
    if process.returncode:
      raise RuntimeError(f"the program ended with {process.returncode}")
