"""Three models on every target, in an environment with the installed wheel:
docs/reports/targets.md.

Usage: python -m jax2tf.tools.lab.three_models. It builds the wheel from the checkout and
installs it elsewhere, with the extras of the targets and the packages that the user's program
imports, and no others. `three_models_user` is the program of a user.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import tensorflow as tf

from jax2tf.converters.verify.report import machine
from jax2tf.tools.lab import pages
from tests.support import wheels

_REQUIREMENTS = ("jax2tf[keras,onnx,openvino,tflite,tfjs]", "flax")


def main() -> None:
  """Measures all models, and writes docs/reports/data/three-models.json and the page."""
  with tempfile.TemporaryDirectory(prefix="jax2tf-wheel-") as folder:
    place = Path(folder)
    python = wheels.installed(wheels.built(place), place / "venv", *_REQUIREMENTS)
    shutil.copy(Path(__file__).with_name("three_models_user.py"), place / "user.py")
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
      [str(python), "user.py", str(place)],
      cwd=place,
      env=variables | {"TF_CPP_MIN_LOG_LEVEL": "3"},
      check=True,
      stdout=subprocess.PIPE,
      text=True,
    )
  rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
  about = f"TensorFlow {tf.__version__}. {machine()}"
  pages.keep("targets", "three-models", {"machine": about, "rows": rows})


if __name__ == "__main__":
  main()
