"""Functions that are files: of `jax.export`, and StableHLO modules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf import stablehlo
from jax2tf.converters import stages
from jax2tf.converters.bundle.notation import Spec
from jax2tf.converters.saved_model.adapted import Adapted
from jax2tf.tools.cli._loading import UsageError
from jax2tf.tools.cli._verb import Named


@dataclass(frozen=True)
class Artifact:
  """A file as a function of named inputs.

  Attributes:
    inputs: {name: dtype and shape in jaxpr notation}, of the leaves of its arguments.
    adapted: the function of no parameters and these inputs.
    function: the one of the file.
  """

  inputs: dict[str, str]
  adapted: Adapted
  function: stablehlo.Function


def is_named(name: str) -> bool:
  """Whether an argument MODULE:FUNCTION names a file."""
  return ":" not in name and Path(name).is_file()


def check_alone(named: Named, inputs: Sequence[str]) -> None:
  """Raises UsageError for options of a function beside a file, which has all of these."""
  given = {
    "--input": inputs,
    "--params": named.params,
    "--state": named.state,
    "--library": named.library,
    "--batched": named.batched,
  }
  if flags := [flag for flag, value in given.items() if value]:
    raise UsageError(
      f"{flags[0]} is for MODULE:FUNCTION, and {named.function} is a file; leave it out"
    )


def load(path: str) -> Artifact:
  """The function of a file.

  Raises:
    UsageError: it takes typed keys, which a TensorFlow signature has not.
    ArtifactError, LoweringError: as `stablehlo.load`.
  """
  with stages.stage("load the function and its parameters"):
    function = stablehlo.load(path, untrusted=True)
  for aval in function.in_avals:
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
      raise UsageError(
        f"{path} takes a typed PRNG key, {aval.dtype}; export a function that takes its words, and "
        "calls jax.random.wrap_key_data"
      )

  def fun(params: Any, *leaves: Any) -> Any:
    del params
    args, kwargs = jax.tree.unflatten(function.in_tree, leaves)
    return function(*args, **kwargs)

  names = _names(function.argument_names, len(function.in_avals))
  specs = [str(Spec(np.dtype(a.dtype), tuple(map(_size, a.shape)))) for a in function.in_avals]
  return Artifact(dict(zip(names, specs, strict=True)), Adapted(fun, {}, None), function)


def _size(size: Any) -> int | str:
  return size if isinstance(size, int) else str(size)


def _names(given: Sequence[str], count: int) -> list[str]:
  """Names of inputs: those of the artifact as words, params['w'] -> params_w; or x0, x1."""
  names: list[str] = []
  for index in range(count):
    word = re.sub(r"\W+", "_", given[index]).strip("_") if index < len(given) else ""
    name = word if word and not word[0].isdigit() else f"x{index}"
    names.append(name if name not in names else f"{name}_{index}")
  return names
