"""Named inputs and outputs: `{"x": "f32[b,784]"}` -> avals, TensorSpecs and names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import export, tree_util

Input = str | jax.ShapeDtypeStruct
_NOTATION = re.compile(r"\s*(?P<dtype>\w+)\s*\[(?P<shape>.*)\]\s*")
_KINDS = {"i": "int", "u": "uint", "f": "float", "bf": "bfloat", "c": "complex"}
_DTYPE = re.compile(r"([iuc]|b?f)(\d+)")


def parse_inputs(inputs: Mapping[str, Input], constraints: Sequence[str] = ()) -> dict[str, jax.ShapeDtypeStruct]:
  """Each input in jaxpr notation, `f32[b,4]`, as an aval; a letter means the same size in all of them.

  Raises:
    ValueError: not `dtype[dims]`, or a name that TensorFlow would change.
  """
  scope = export.SymbolicScope(constraints)
  for name in inputs:
    if not name.isidentifier():
      raise ValueError(f"input name {name!r} is not an identifier, so a SavedModel would rename it; choose letters, digits and _")
  return {name: _parse(name, spec, scope) for name, spec in inputs.items()}


def _parse(name: str, spec: Input, scope: export.SymbolicScope) -> jax.ShapeDtypeStruct:
  if not isinstance(spec, str):
    return jax.ShapeDtypeStruct(spec.shape, spec.dtype)
  match = _NOTATION.fullmatch(spec)
  try:
    dtype = jnp.dtype(_DTYPE.sub(lambda m: _KINDS[m[1]] + m[2], match["dtype"]))  # type: ignore[index]
  except TypeError:
    raise ValueError(f"input {name!r} is {spec!r}; write its dtype and shape as in 'f32[b,784]'") from None
  return jax.ShapeDtypeStruct(export.symbolic_shape(match["shape"], scope=scope), dtype)  # type: ignore[index]


def polymorphic_shape(aval: jax.ShapeDtypeStruct) -> str:
  """f32[b,2*b + 1] -> "b, 2*b + 1", for `jax2tf.convert`."""
  return ", ".join(map(str, aval.shape))


def tensor_spec(name: str, aval: jax.ShapeDtypeStruct) -> tf.TensorSpec:
  """The TensorFlow type of an input: a symbolic size is unknown."""
  return tf.TensorSpec([d if isinstance(d, int) else None for d in aval.shape], np.dtype(aval.dtype), name)


def leaf_names(tree: Any, separator: str) -> list[str]:
  """The path of each leaf, as `encoder/layer/0/bias`; empty for a tree that is one leaf."""
  return [tree_util.keystr(path, simple=True, separator=separator) for path, _ in tree_util.tree_flatten_with_path(tree)[0]]


def output_names(result: Any, outputs: Sequence[str] | None) -> list[str]:
  """Names for the leaves of a result: those given, or their paths; a single unnamed one is "output".

  Raises:
    ValueError: the wrong number of names, or a name twice.
  """
  found = [re.sub(r"\W", "_", name) for name in leaf_names(result, "_")]
  found = [f"output_{name}" if name[:1].isdigit() else name or "output" for name in found]
  names = list(outputs) if outputs is not None else found
  if len(names) != len(found):
    raise ValueError(f"{len(names)} names for {len(found)} results; outputs = {names} should name: {', '.join(found)}")
  if len(set(names)) != len(names):
    raise ValueError(f"two results would have one name: {', '.join(names)}; give each its own in `outputs`")
  return names
