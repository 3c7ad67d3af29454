"""How a module is called, as far as it says so itself.

JAX writes the sizes of arguments, and the constraints on them, into the messages of the module's
shape assertions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.export import is_symbolic_dim

from jax2tf.errors import ArtifactError
from jax2tf.stablehlo.artifacts import Artifact, Aval, Convention
from jax2tf.stablehlo.graph import Module, Value


def of(artifact: Artifact, module: Module) -> Convention:
  """The convention of an artifact; of a module without one, that it takes its arguments one by
  one.

  Raises:
    ArtifactError: the convention is that of another module.
  """
  if artifact.convention is None:
    return _of_module(module, artifact.platforms)
  _check(artifact.convention, module)
  convention, conditions = artifact.convention, constraints(module)
  dims = [size for aval in convention.in_avals for size in aval.shape if is_symbolic_dim(size)]
  if not conditions or not dims:
    return convention
  scope = export.SymbolicScope(conditions)
  return dataclasses.replace(
    convention,
    in_avals=_in_scope(convention.in_avals, scope),
    out_avals=_in_scope(convention.out_avals, scope),
  )


def _check(convention: Convention, module: Module) -> None:
  """Compares what a damaged file says of arguments and results with the module."""
  block = module.main.block
  operands = [value for value in block.arguments if value.type is not None]
  results = [value for value in block.results if value.type is not None]
  taken = [convention.in_avals[index] for index in convention.kept]
  if len(operands) not in (len(taken), len(taken) + 1) or len(results) != len(convention.out_avals):
    raise ArtifactError(
      f"the artifact says that its module takes {len(taken)} arrays and gives "
      f"{len(convention.out_avals)}; it takes {len(operands)} and gives {len(results)}"
    )
  operands = operands[len(operands) - len(taken) :]  # without the index of the platform
  for what, avals, values in (
    ("argument", taken, operands),
    ("result", convention.out_avals, results),
  ):
    for number, (aval, value) in enumerate(zip(avals, values, strict=True)):
      if not _is_of(aval, value):
        said = f"{aval.dtype}[{','.join(map(str, aval.shape))}]"
        raise ArtifactError(
          f"the artifact says that {what} {number} of its module is {said}; it is {value.text}"
        )


def _is_of(aval: Aval, value: Value) -> bool:
  """Whether a value of the module may be the array; JAX has dtypes that a module lacks."""
  if aval.dtype == jax.dtypes.float0 or jnp.issubdtype(aval.dtype, jax.dtypes.extended):
    return True
  return value.may_be(aval.shape, aval.dtype)


def _in_scope(avals: Sequence[Aval], scope: Any) -> tuple[Aval, ...]:
  return tuple(Aval(_shape(map(str, aval.shape), scope), aval.dtype) for aval in avals)


def _shape(words: Iterable[str], scope: Any) -> tuple[Any, ...]:
  return tuple(export.symbolic_shape(",".join(words), scope=scope))


def _messages(module: Module) -> list[str]:
  return [
    op.attributes["error_message"]
    for op in module.main.block.ops
    if op.name == "custom_call" and "error_message" in op.attributes
  ]


def constraints(module: Module) -> list[str]:
  """The user's constraints on sizes."""
  found = (re.search(r"symbolic shape constraint (.+?)\. Expected", m) for m in _messages(module))
  return list(dict.fromkeys(match[1] for match in found if match))


def _of_module(module: Module, platforms: tuple[str, ...]) -> Convention:
  specified = _specified(module)
  names = (f"d{number}" for number in range(10**6))
  scope = export.SymbolicScope(constraints(module))

  def avals(values: Sequence[Value], shapes: list[list[str]]) -> tuple[Aval, ...]:
    rest, made = list(shapes), []
    for value in values:
      words = ["" if size is None else str(size) for size in value.shape]
      if "" in words and rest and _fits(rest[0], words):
        words = rest.pop(0)
      made.append(Aval(_shape((word or next(names) for word in words), scope), value.dtype))
    return tuple(made)

  results = [value for value in module.main.block.results if value.type is not None]
  in_avals, out_avals = avals(_arguments(module, platforms), specified), avals(results, [])
  in_tree = jax.tree.structure((tuple(range(len(in_avals))), {}))
  out_tree: Any = jax.tree.structure(tuple(range(len(out_avals))))
  if len(out_avals) == 1:
    out_tree = jax.tree.structure(0)
  kept = tuple(range(len(in_avals)))
  return Convention(in_tree, in_avals, out_tree, out_avals, platforms, kept, 1)


def _arguments(module: Module, platforms: tuple[str, ...]) -> list[Value]:
  """What a caller passes: not tokens, and not the index of the platform if the platforms are
  known. JAX 0.4.26 and older do not mark the index."""
  main = module.main
  tensors = [argument for argument in main.block.arguments if argument.type is not None]
  marked = [
    argument
    for argument, attributes in zip(main.block.arguments, main.argument_attributes, strict=True)
    if attributes.get("jax.global_constant") == "_platform_index"
  ]
  if not platforms:
    return tensors
  if not marked and len(platforms) > 1:
    return tensors[1:]
  return [argument for argument in tensors if argument not in marked]


def _specified(module: Module) -> list[list[str]]:
  """The shapes of the arguments with symbolic sizes, in their order."""
  for message in _messages(module):
    specifications = re.search(r"shapes specifications: (.*?)(?:\. Obtained|\. Please|$)", message)
    if specifications:
      shapes = re.findall(r"\.shape = \((.*?)\)(?=,\S*args|$)", specifications[1])
      return [[word.strip() for word in _split(shape)] for shape in shapes]
  return []


def _split(shape: str) -> list[str]:
  """The words of a shape; a word may have commas in brackets, as in max(a, b)."""
  return re.findall(r"(?:[^,()]|\([^()]*\))+", shape)


def _fits(words: list[str], known: list[str]) -> bool:
  """Whether a specification may be that of an argument, of which only the sizes are known."""
  if len(words) != len(known):
    return False
  return all(size in ("", word) for word, size in zip(words, known, strict=True))


def argument_names(module: Module, convention: Convention) -> tuple[str, ...]:
  """The names of the leaves, which JAX writes as the locations of the module's arguments."""
  names = [""] * len(convention.in_avals)
  inner = module.functions.get("_wrapped_jax_export_main", module.main)
  found = [
    name
    for name, argument, attributes in zip(
      inner.argument_names, inner.block.arguments, inner.argument_attributes, strict=True
    )
    if argument.type is not None and "jax.global_constant" not in attributes
  ]
  if len(found) == len(convention.kept):
    for index, name in zip(convention.kept, found, strict=True):
      names[index] = name if re.match(r"[A-Za-z_]", name) else ""
  return tuple(names)
