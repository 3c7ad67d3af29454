"""Parses in a child process: MLIR's parser ends the process for some inputs."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from typing import IO

from jax2tf.errors import ArtifactError
from jax2tf.stablehlo import limits
from jax2tf.stablehlo.artifacts import Artifact, Source

_SECONDS = 600  # by the clock, on a machine that has other work


def seconds(size: int) -> int:
  """Of the processor, for a module of these bytes: one of a gigabyte takes some 100, and for a
  damaged one MLIR may never end."""
  return 10 + size // 2**23


def checked(artifact: Artifact, name: str) -> Artifact:
  """The artifact with MLIR bytecode that this process can read safely.

  Raises:
    ArtifactError: the child cannot read the module, or ended.
  """
  vjp = artifact.vjp
  if isinstance(vjp, Artifact):
    vjp = checked(vjp, f"the VJP of {name}")
  assert isinstance(artifact.module, Source)  # as `load` has read it
  module = Source(_canonical(artifact.module, name))
  return dataclasses.replace(artifact, module=module, vjp=vjp)


def _canonical(module: Source, name: str) -> bytes:
  # Files in place of pipes, whose ends join what came in pieces.
  with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as written:
    contents = module.take()
    given.write(contents.encode() if isinstance(contents, str) else contents)
    del contents
    limit = seconds(given.tell())
    given.seek(0)
    code = _parse_in_child(given, written, limit)
    written.seek(0)
    answer = written.read()
  if code == 0:
    return answer
  if code == 1 and answer:
    raise ArtifactError(
      f"{name} has no StableHLO module that can be read: {answer.decode(errors='replace')}"
    )
  reason = (
    f"that MLIR does not parse within {limit} seconds"
    if code is None or limits.has_ended(code)
    else f"that ends MLIR's parser (exit code {code})"
  )
  raise ArtifactError(f"{name} has a module {reason}; it is damaged, or meant to harm")


def _parse_in_child(given: IO[bytes], written: IO[bytes], limit: int) -> int | None:
  """The exit code of a child that reads one file and writes another; None if it did not end."""
  try:
    child = subprocess.run(
      [sys.executable, "-m", "jax2tf.stablehlo.child", str(limit)],
      stdin=given,
      stdout=written,
      stderr=subprocess.DEVNULL,
      timeout=_SECONDS,
      check=False,
      env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
  except subprocess.TimeoutExpired:
    return None
  return child.returncode
