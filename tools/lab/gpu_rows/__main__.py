"""Runs the programs on this machine's GPU and writes what it finds.

    python -m jax2tf.tools.lab.gpu_rows tensorflow build/gpu.json
    JAX_PLATFORMS=cuda,cpu python -m jax2tf.tools.lab.gpu_rows jax build/gpu.json

The file has a row a program: under `tensorflow`, for its forward and gradient call, `copies`
between devices, the ops `on_host`, the number of ops `on_gpu`, milliseconds and errors with
TensorFloat-32 and without, `ms_xla` with jit_compile, and what the registry `predicted`; under
`jax`, milliseconds and errors of jax.jit.
"""

from __future__ import annotations

import json
import os
import pathlib
import time
from typing import Any

import click


@click.command
@click.argument("library", type=click.Choice(["tensorflow", "jax"]))
@click.argument("file", type=click.Path(dir_okay=False, path_type=pathlib.Path))
@click.option("--only", default="", help="Programs whose names contain this.")
@click.option("--seconds", default=0.2, help="Of each measurement.")
@click.option("--until", default=600.0, help="Start no program after so many seconds.")
def main(library: str, file: pathlib.Path, only: str, seconds: float, until: float) -> None:
  """Runs the programs on this machine's GPU in a LIBRARY, and writes what it finds to a FILE."""
  if library == "tensorflow":
    os.environ["JAX_PLATFORMS"] = "cpu"
    from jax2tf.tools.lab.gpu_rows.in_tensorflow import row  # noqa: PLC0415
  else:
    from jax2tf.tools.lab.gpu_rows.in_jax import row  # noqa: PLC0415
  from jax2tf.tools.lab.gpu_rows.programs import programs  # noqa: PLC0415

  known = json.loads(file.read_text()) if file.exists() else {}
  start = time.monotonic()
  for program in programs():
    if only not in program.name or time.monotonic() - start > until:
      continue
    found: dict[str, Any] = known.setdefault(program.name, {})
    try:
      found[library] = row(program, seconds)
    except Exception as error:  # one program of many
      found[library] = {"failed": f"{type(error).__name__}: {str(error)[:500]}"}
    print(f"{time.monotonic() - start:5.0f} s {program.name}: {found[library]}", flush=True)
    file.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
  main()
