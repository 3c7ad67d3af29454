"""Parses in a child process: MLIR's parser ends the process for some inputs."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

from jax2tf.errors import ArtifactError
from jax2tf.stablehlo.artifacts import Artifact

SECONDS = 120  # a module of a gigabyte takes some


def checked(artifact: Artifact, name: str) -> Artifact:
  """The artifact with MLIR bytecode that this process can read safely.

  Raises:
    ArtifactError: the child cannot read the module, or ended.
  """
  vjp = artifact.vjp
  if isinstance(vjp, Artifact):
    vjp = checked(vjp, f"the VJP of {name}")
  assert isinstance(artifact.module, bytes | str)  # as `load` has read it
  return dataclasses.replace(artifact, module=_canonical(artifact.module, name), vjp=vjp)


def _canonical(module: bytes | str, name: str) -> bytes:
  data = module.encode() if isinstance(module, str) else module
  command = [sys.executable, "-m", "jax2tf.stablehlo.child"]
  try:
    child = subprocess.run(
      command,
      input=data,
      capture_output=True,
      timeout=SECONDS,
      check=False,
      env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
  except subprocess.TimeoutExpired:
    raise ArtifactError(
      f"{name} has a module that MLIR did not parse within {SECONDS} seconds"
    ) from None
  if child.returncode == 0:
    return child.stdout
  if child.returncode == 1 and child.stdout:
    raise ArtifactError(
      f"{name} has no StableHLO module that can be read: {child.stdout.decode(errors='replace')}"
    )
  raise ArtifactError(
    f"{name} has a module that ends MLIR's parser (exit code {child.returncode}); it is "
    "damaged, or meant to harm"
  )
