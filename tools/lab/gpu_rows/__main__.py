"""Runs the programs on this machine's GPU and writes what it finds.

    python -m jax2tf.tools.lab.gpu_rows tensorflow build/gpu.json
    JAX_PLATFORMS=cuda,cpu python -m jax2tf.tools.lab.gpu_rows jax build/gpu.json

The file has a row a program: under `tensorflow`, for its forward and gradient call, `copies`
between devices, the ops `on_host`, the number of ops `on_gpu`, milliseconds and errors with
TensorFloat-32 and without, `ms_xla` with jit_compile, and what the registry `predicted`; under
`jax`, milliseconds and errors of jax.jit.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time
from typing import Any


def main() -> None:
  """See the module."""
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("library", choices=["tensorflow", "jax"])
  parser.add_argument("file", type=pathlib.Path)
  parser.add_argument("--only", help="programs whose names contain this")
  parser.add_argument("--seconds", type=float, default=0.2, help="of each measurement")
  parser.add_argument("--until", type=float, default=600, help="start no program after seconds")
  options = parser.parse_args()
  if options.library == "tensorflow":
    os.environ["JAX_PLATFORMS"] = "cpu"
    from jax2tf.tools.lab.gpu_rows.in_tensorflow import row  # noqa: PLC0415
  else:
    from jax2tf.tools.lab.gpu_rows.in_jax import row  # noqa: PLC0415
  from jax2tf.tools.lab.gpu_rows.programs import programs  # noqa: PLC0415

  known = json.loads(options.file.read_text()) if options.file.exists() else {}
  start = time.monotonic()
  for program in programs():
    if (options.only or "") not in program.name or time.monotonic() - start > options.until:
      continue
    found: dict[str, Any] = known.setdefault(program.name, {})
    try:
      found[options.library] = row(program, options.seconds)
    except Exception as error:  # one program of many
      found[options.library] = {"failed": f"{type(error).__name__}: {str(error)[:500]}"}
    print(f"{time.monotonic() - start:5.0f} s {program.name}: {found[options.library]}", flush=True)
    options.file.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
  main()
