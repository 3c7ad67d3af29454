"""Programs in C, linked with the libraries in TensorFlow's wheel."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import tensorflow as tf

RUN_SAVED_MODEL = Path(__file__).resolve().parent.parent / "c" / "run_saved_model.c"
COMPILER = shutil.which("gcc") or shutil.which("cc")
_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")


def missing() -> str:
  """What a program needs and this environment lacks; empty if nothing."""
  wheel = Path(tf.sysconfig.get_lib())
  if COMPILER is None:
    return "needs a C compiler, and there is no gcc or cc on PATH"
  if absent := [name for name in _LIBRARIES if not (wheel / name).exists()]:
    return (
      "needs the C API, and the TensorFlow of this environment has no "
      f"{' and no '.join(absent)} in {wheel}"
    )
  return ""


def compiled(source: Path, program: Path, *options: str) -> Path:
  """Writes the program of a source file. `options` are the compiler's."""
  wheel = tf.sysconfig.get_lib()
  # libtensorflow_cc has 1.1 GB of symbols: GNU's default linker reads them in 12 s, gold in 2 s.
  linker = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
  libraries = [f"-L{wheel}", *(f"-l:{name}" for name in _LIBRARIES), f"-Wl,-rpath,{wheel}"]
  headers = ["-isystem", tf.sysconfig.get_include()]
  output = [str(source), "-o", str(program)]
  command = [str(COMPILER), "-std=c11", *options, *headers, *output, *linker, *libraries]
  subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
  return program
