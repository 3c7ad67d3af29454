"""`jax2tf.stablehlo.load`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
from jax import export

from jax2tf.errors import ArtifactError
from jax2tf.messages import ArgumentTypeError
from jax2tf.stablehlo import (  # noqa: F401  registers the rules
  artifacts,
  children,
  collectives,
  control_flow,
  custom_calls,
  elementwise,
  export_files,
  indexing,
  lapack,
  linear_algebra,
  parsing,
  products,
  randomness,
  reductions,
  shapes,
  sorting,
)
from jax2tf.stablehlo.functions import Function


def load(source: Any, *, untrusted: bool = False) -> Function:
  """Loads a StableHLO artifact as a JAX function.

  The function computes the values of the module; for a module that JAX wrote, these are JAX's
  values. The function can be called, jitted, vmapped, differentiated, exported and converted. Its
  `notes` list what the artifact does not say about the original function.

  Args:
    source: a `jax.export.Exported`; its bytes, as `serialize` of JAX 0.4.26 or newer returns them;
      or a StableHLO module: a portable artifact, MLIR bytecode or MLIR text. Or the path of a file
      with one of these, as a str or `os.PathLike`.
    untrusted: whether the bytes may be malicious. MLIR's parser can end the process for some bytes;
      if `untrusted` is True, it reads them in a child process first. Nothing in an artifact is
      executed in any case.

  Returns:
    A `Function` with the artifact's calling convention: pytrees, symbolic sizes with their
    constraints, and names of arguments. A module alone takes its arguments in their order, and
    returns one array, or a tuple.

  Raises:
    ArtifactError: the source is none of these, or is truncated or changed.
    LoweringError: the module has operations that JAX lacks; the error lists all of them with their
      lines.
    TypeError: the source has another type.
    FileNotFoundError: there is no file at the path.

  Examples:
    >>> import jax, jax.numpy as jnp, jax2tf
    >>> exported = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((2,), "float32"))
    >>> function = jax2tf.stablehlo.load(exported.serialize())
    >>> function(jnp.zeros(2))
    Array([0., 0.], dtype=float32)
  """
  if isinstance(source, export.Exported):
    return _function(artifacts.of_exported(source), "the jax.export.Exported")
  name, artifact = _read(source)
  if untrusted:
    artifact = children.checked(artifact, name)
  return _function(artifact, name)


def _read(source: Any) -> tuple[str, artifacts.Artifact]:
  """How a message names the source, and the artifact, of which no part is parsed."""
  name, data = _contents(source)
  if isinstance(data, bytes) and not data.startswith(parsing.BYTECODE):
    data = _text_or_bytes(data)
  if isinstance(data, str) or data.startswith(parsing.BYTECODE):
    return name, artifacts.Artifact("", artifacts.Source(data))
  try:
    return name, export_files.read(data)
  except export_files.NoExportError as error:
    raise ArtifactError(
      f"{name} is neither a file of jax.export nor a StableHLO module: {error}"
    ) from None


def _function(artifact: artifacts.Artifact, name: str) -> Function:
  try:
    return Function(artifact)
  except parsing.UnreadableError as error:
    raise ArtifactError(
      f"{name} has no StableHLO module that JAX {_version()} can read: {error}"
    ) from None


def _version() -> str:
  return jax.__version__


def _contents(source: Any) -> tuple[str, bytes | str]:
  """How a message names the source, and what is in it."""
  if isinstance(source, bytes | bytearray | memoryview):
    return "the source", bytes(source)
  if isinstance(source, str) and ("\n" in source or "func.func" in source or not source):
    return "the source", source
  if isinstance(source, str | os.PathLike):
    return f"the file {os.fspath(source)}", Path(source).read_bytes()
  raise ArgumentTypeError(
    "source",
    type(source),
    problem="it is no artifact",
    advice="pass a jax.export.Exported, bytes, MLIR text, or the path of a file",
  )


def _text_or_bytes(data: bytes) -> bytes | str:
  """MLIR text as such; other bytes as they are."""
  head = data[:4096]
  if b"\0" in head or not any(word in data for word in (b"func.func", b"module", b"vhlo.func")):
    return data
  try:
    return data.decode()
  except UnicodeDecodeError:
    return data
