"""Compares what JAX's own unit tests compute, and writes docs/coverage.md.

Usage: python -m jax2tf.tools.lab.jax_tests --tests JAX/tests [--x64] [--files=lax_test,nn_test]

It needs a checkout, and tests/ of JAX's repository. It appends rows to a file in build/jax-tests,
continues where the last run stopped, and repeats what failed.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import pathlib
import sys
import time
from typing import Any

import click

from jax2tf.tools.lab.jax_tests import processes, report
from jax2tf.tools.lab.options import commas

_FOLDER = pathlib.Path("build/jax-tests")
# Of the public functions of arrays. Others are of devices, tracebacks, caches and JAX's own parts.
_FILES = """
lax_test lax_numpy_*test nn_test lax_scipy_*test scipy_*test fft_test image_test sparse*_test
api_test lax_vmap_*test lax_autodiff_test random_test random_impl_test optimizers_test stax_test
dtypes_test python_callback_test polynomial_test qdwh_test cholesky_update_test
"""
_TESTS = click.Path(exists=True, file_okay=False, path_type=pathlib.Path)
_AT_LEAST_0, _AT_LEAST_1 = click.IntRange(0), click.IntRange(1)


@click.command
@click.option("--tests", type=_TESTS, required=True, help="tests/ of JAX's repository.")
@click.option("--files", default="", callback=commas, help="Test files, such as lax_*test.")
@click.option("--x64/--nox64", default=False, help="Enable 64-bit types.")
@click.option("--per-test", type=_AT_LEAST_0, default=2, help="Parametrizations of a test; 0: all.")
@click.option("--calls", type=_AT_LEAST_1, default=6, help="The most calls of one test.")
@click.option("--seed", type=int, default=0, help="Chooses parametrizations and ways.")
@click.option("--minutes", type=_AT_LEAST_0, default=60, help="Stop after; 0: only the report.")
@click.option("--processes", type=_AT_LEAST_1, default=1, help="Parallel processes.")
@click.option("--record/--norecord", default=True, help="Write the report.")
def main(tests: pathlib.Path, files: list[str], minutes: int, record: bool, **options: Any) -> None:
  """Runs the missing tests and writes the report."""
  number = options.pop("processes")
  configuration = importlib.metadata.version("jax") + " x64" * options["x64"]
  name = f"jax-{configuration.replace(' ', '-')}-seed-{options['seed']}"
  sample = processes.Sample(str(_FOLDER.resolve() / name), **options)
  patterns = files or _FILES.split()
  found = [path for path in sorted(tests.resolve().glob("*_test.py")) if _is_of(path, patterns)]
  if not found:
    raise click.BadParameter(f"{tests} has none of these files", param_hint="--tests")
  start = time.monotonic()
  if minutes:
    processes.run(found, sample, 60 * minutes, number)
  names = {path.name for path in found}
  rows = [row for row in processes.rows(sample) if row["test"].partition("::")[0] in names]
  ran = {test for test in processes.done(sample) if test.partition("::")[0] in names}
  numbers = report.summary(rows, options | {"tests": len(ran)})
  if record:
    report.write(configuration, numbers)
  faults = report.faults(numbers)
  print(*faults, sep="\n")
  took = f"{(time.monotonic() - start) / 60:.0f} min"
  print(f"JAX {configuration}: {len(ran)} tests, {len(rows)} cases, {took}, {len(faults)} faults")
  sys.exit(bool(faults))


def _is_of(path: pathlib.Path, patterns: list[str]) -> bool:
  return any(fnmatch.fnmatchcase(path.stem, pattern) for pattern in patterns)


if __name__ == "__main__":
  main()
