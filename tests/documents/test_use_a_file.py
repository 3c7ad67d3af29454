"""The program in C++ of docs/guide/use-a-file.md, linked with the library in ONNX Runtime's wheel.
The wheel has no headers: `CPLUS_INCLUDE_PATH` names the folder of those of any older release."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime
import pytest

from jax2tf.converters import onnx

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "use-a-file.md"
COMPILER = shutil.which("g++") or shutil.which("c++")


def has_headers() -> bool:
  """Whether the compiler finds those of ONNX Runtime."""
  if COMPILER is None:
    return False
  command = [COMPILER, "-fsyntax-only", "-x", "c++", "-"]
  include = b"#include <onnxruntime_cxx_api.h>\n"
  return subprocess.run(command, input=include, check=False, capture_output=True).returncode == 0


def predict(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
  logits = x @ params
  return jax.nn.softmax(logits), logits.argmax(-1)


@pytest.mark.skipif(not has_headers(), reason="needs a C++ compiler, and ONNX Runtime's headers")
def test_the_program_in_cpp(tmp_path: Path) -> None:
  params, path = np.eye(4, 3, dtype=np.float32), tmp_path / "model.onnx"
  options: Any = {"inputs": {"x": "f32[b,4]"}, "outputs": ["p", "label"], "samples": 1}
  onnx.save(predict, params, path, **options)
  [source] = re.findall(r"^```cpp\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
  (tmp_path / "main.cpp").write_text(source)
  [library] = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
  # the name by which the program asks for it
  (tmp_path / "libonnxruntime.so.1").symlink_to(library)
  link = [str(library), f"-Wl,-rpath,{tmp_path}"]
  command = [str(COMPILER), "-std=c++17", "main.cpp", "-o", "main", *link]
  subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
  done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=True)
  assert done.stdout == "1\n"
