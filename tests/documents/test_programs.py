"""The programs in C and C++ of docs/deploy, linked with the libraries in the wheels.

ONNX Runtime's wheel has no headers: `CPLUS_INCLUDE_PATH` names the folder of those of any older
release.
"""

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

from jax2tf.converters import onnx, saved_model
from tests.support import c_programs

PAGES = Path(__file__).resolve().parents[2] / "docs" / "deploy"
COMPILER = shutil.which("g++") or shutil.which("c++")


def has_headers() -> bool:
  """Whether the compiler finds those of ONNX Runtime."""
  if COMPILER is None:
    return False
  command = [COMPILER, "-fsyntax-only", "-x", "c++", "-"]
  include = b"#include <onnxruntime_cxx_api.h>\n"
  return subprocess.run(command, input=include, check=False, capture_output=True).returncode == 0


def program(page: str, language: str) -> str:
  text = (PAGES / page).read_text(encoding="utf-8")
  [source] = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
  return str(source)


def predict(params: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
  logits = x @ params
  return jax.nn.softmax(logits), logits.argmax(-1)


@pytest.mark.skipif(not has_headers(), reason="needs a C++ compiler, and ONNX Runtime's headers")
def test_the_program_in_cpp(tmp_path: Path) -> None:
  params, path = np.eye(4, 3, dtype=np.float32), tmp_path / "model.onnx"
  options: Any = {"inputs": {"x": "f32[b,4]"}, "outputs": ["p", "label"], "samples": 1}
  onnx.save(predict, params, path, **options)
  (tmp_path / "main.cpp").write_text(program("onnx-runtime.md", "cpp"))
  [library] = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
  # the name by which the program asks for it
  (tmp_path / "libonnxruntime.so.1").symlink_to(library)
  link = [str(library), f"-Wl,-rpath,{tmp_path}"]
  command = [str(COMPILER), "-std=c++17", "main.cpp", "-o", "main", *link]
  subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
  done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, check=True)
  assert done.stdout == "1\n"


@pytest.mark.skipif(bool(c_programs.missing()), reason=c_programs.missing())
@pytest.mark.one_python
def test_the_program_in_c(tmp_path: Path) -> None:
  inputs, outputs = {"x": "f32[b,4]"}, ["p", "label"]
  path = tmp_path / "models" / "net"
  saved_model.save(predict, np.eye(4, 3, dtype=np.float32), path, inputs=inputs, outputs=outputs)
  (tmp_path / "main.c").write_text(program("tensorflow-c.md", "c"))
  made = c_programs.compiled(tmp_path / "main.c", tmp_path / "main")
  done = subprocess.run([made], cwd=tmp_path, capture_output=True, text=True, check=True)
  assert done.stdout == "1\n"
