"""What an artifact says beside its module: how its function is called."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax2tf.stablehlo.graph import Module


@dataclass(frozen=True)
class Aval:
  """Shape and dtype of an argument or a result; sizes may be symbolic dimensions."""

  shape: tuple[Any, ...]
  dtype: Any


@dataclass(frozen=True)
class Convention:
  """How `jax.export` calls a module.

  Attributes:
    in_tree: of (args, kwargs).
    out_tree: of the result.
    platforms: more than one mean that the module takes their index as its first argument.
    kept: the positions of the arguments that the module takes.
    devices: for how many it was written.
  """

  in_tree: Any
  in_avals: tuple[Aval, ...]
  out_tree: Any
  out_avals: tuple[Aval, ...]
  platforms: tuple[str, ...]
  kept: tuple[int, ...]
  devices: int


class Source:
  """A module that is not parsed: a portable artifact, MLIR bytecode or MLIR text.

  Who parses it takes it, so that it is not in memory beside what the parser makes of it.
  """

  def __init__(self, contents: bytes | str):
    self._contents: bytes | str | None = contents

  def take(self) -> bytes | str:
    """The module, once."""
    contents, self._contents = self._contents, None
    assert contents is not None  # nobody has taken it
    return contents

  def copy(self) -> Source:
    """The same module, to be taken once more."""
    assert self._contents is not None
    return Source(self._contents)


@dataclass(frozen=True)
class Artifact:
  """A StableHLO module and how to call it.

  Attributes:
    module: its source, or what `parsing.parse` makes of it.
    convention: None for a module without one.
    vjp: the artifact of its derivative, of arguments and cotangents; None if it has none.
    platforms: of a module without a convention, those of which it may take the index, as in
      `Convention`.
    constraints: on the symbolic sizes, beside those that the module has.
  """

  name: str
  module: Source | Module
  convention: Convention | None = None
  vjp: Artifact | Callable[[], Artifact] | None = None
  platforms: tuple[str, ...] = ()
  constraints: tuple[str, ...] = ()

  def again(self) -> Artifact:
    """The artifact with a source of its own, so that this one stays as it is."""
    if isinstance(self.module, Module):
      return self
    return dataclasses.replace(self, module=self.module.copy())


def of_exported(exported: Any) -> Artifact:
  """The artifact of a `jax.export.Exported`; its derivative is made when it is needed."""
  convention = Convention(
    in_tree=exported.in_tree,
    in_avals=tuple(Aval(aval.shape, aval.dtype) for aval in exported.in_avals),
    out_tree=exported.out_tree,
    out_avals=tuple(Aval(aval.shape, aval.dtype) for aval in exported.out_avals),
    platforms=tuple(exported.platforms),
    kept=tuple(exported.module_kept_var_idx),
    devices=exported.nr_devices,
  )
  vjp = (lambda: of_exported(exported.vjp())) if exported.has_vjp() else None
  module = Source(exported.mlir_module_serialized)
  return Artifact(exported.fun_name, module, convention, vjp)
