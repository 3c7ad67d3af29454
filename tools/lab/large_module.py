"""Measures the memory that a large module takes while it is read, for docs/reports/artifacts.md."""

from __future__ import annotations

import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import click
import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from jax2tf import stablehlo
from jax2tf.tools.lab import pages

_SMALL = "func.func @main(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }"


def _write(path: pathlib.Path, size: int) -> None:
  """A file of `jax.export` with one constant of this size in bytes."""
  constant = np.arange(size // 4, dtype=np.float32)
  function = jax.jit(lambda x: x + jnp.asarray(constant))
  exported = export.export(function)(jax.ShapeDtypeStruct(constant.shape, constant.dtype))
  path.write_bytes(exported.serialize())


def _read(path: pathlib.Path, untrusted: bool) -> dict[str, float]:
  """What reading the file takes, in multiples of its size."""
  stablehlo.load(_SMALL, untrusted=untrusted)  # so that all modules are imported
  before = [_peak(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  began = time.perf_counter()
  stablehlo.load(path, untrusted=untrusted)
  seconds = time.perf_counter() - began
  after = [_peak(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  size = path.stat().st_size
  own, childs = ((b - a) / size for a, b in zip(before, after, strict=True))
  return {"megabytes": size // 2**20, "memory": own, "child": childs, "seconds": seconds}


def _peak(who: int) -> int:
  return resource.getrusage(who).ru_maxrss * 1024


@click.command
@click.option("--megabytes", default=1024, show_default=True, help="The size of the constant.")
@click.option("--read", type=pathlib.Path, help="Only read this file; for the other process.")
@click.option("--untrusted", is_flag=True, help="Read it as untrusted.")
@click.option("--write", type=pathlib.Path, help="Only write this file; for the other process.")
def main(
  megabytes: int, read: pathlib.Path | None, untrusted: bool, write: pathlib.Path | None
) -> None:
  """Writes a file, reads it in both ways, each in another process, and writes the report."""
  if write is not None:
    _write(write, megabytes * 2**20)
    return
  if read is not None:
    print(json.dumps(_read(read, untrusted)))
    return
  with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder, "exported.bin")
    _alone("--write", str(file), "--megabytes", str(megabytes))
    ways = {"load": (), "load, untrusted": ("--untrusted",)}
    rows = {way: json.loads(_alone("--read", str(file), *more)) for way, more in ways.items()}
  print(rows)
  if megabytes >= 1024:
    pages.keep("artifacts", "artifacts-memory", rows)


def _alone(*options: str) -> str:
  """The output of this program in another process."""
  command = [sys.executable, "-m", "jax2tf.tools.lab.large_module", *options]
  return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
  main()
