"""Dtypes and shapes in jaxpr notation: `f32[b,max(a, 2)]`. Only this module reads or writes the
notation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  (gives NumPy the dtypes of JAX: np.dtype("bfloat16"))
import numpy as np

from jax2tf.messages import Argument, ArgumentError

_NOTATION = re.compile(r"\s*(?P<dtype>\w+)\s*\[(?P<dims>.*)\]\s*")
_KINDS = {"i": "int", "u": "uint", "f": "float", "bf": "bfloat", "c": "complex"}
_LETTERS = {kind: letter for letter, kind in _KINDS.items()}
_STRING = np.dtype(object)


@dataclass(frozen=True)
class Spec:
  """A dtype and a shape.

  Attributes:
    dtype: a NumPy dtype; the object dtype stands for TensorFlow's strings.
    dims: a size, an expression such as "2*b + 1", or "?" for an unknown size, for each dimension;
      None if the rank is unknown.
  """

  dtype: np.dtype[Any]
  dims: tuple[int | str, ...] | None

  @classmethod
  def parse(cls, text: str, name: str = "", argument: str = "inputs") -> Spec:
    """Parses "f32[b,784]". `argument[name]` is where it stands, for errors.

    Raises:
      ValueError: the text is not `dtype[dims]`.
    """
    match = _NOTATION.fullmatch(text)
    try:
      if match is None:
        raise TypeError
      return cls(_dtype(match["dtype"]), _dims(match["dims"]))
    except TypeError:
      if not name:
        raise ValueError(f"{text!r} is no dtype and shape as in 'f32[b,784]'") from None
      raise ArgumentError(
        Argument(argument, text, key=name), advice="write its dtype and shape as in 'f32[b,784]'"
      ) from None

  @classmethod
  def of(cls, array: Any) -> Spec:
    """The spec of anything with a shape and a dtype, of NumPy, JAX or TensorFlow."""
    dtype = np.dtype(getattr(array.dtype, "as_numpy_dtype", array.dtype))
    rank_is_unknown = getattr(array.shape, "rank", 0) is None  # a tf.TensorShape
    return cls(dtype, None if rank_is_unknown else tuple(map(_dim, array.shape)))

  def __str__(self) -> str:
    name = (
      "string"
      if self.dtype == _STRING
      else re.sub(r"^([a-z]+)(?=\d+$)", lambda m: _LETTERS.get(m[1], m[1]), self.dtype.name)
    )
    return f"{name}[{'...' if self.dims is None else ','.join(map(str, self.dims))}]"

  @property
  def is_string(self) -> bool:
    return self.dtype == _STRING

  @property
  def sizes(self) -> tuple[int | None, ...] | None:
    """The sizes for TensorFlow: dimensions that are not numbers become None."""
    return (
      None if self.dims is None else tuple(d if isinstance(d, int) else None for d in self.dims)
    )

  @property
  def texts(self) -> tuple[str, ...]:
    """The dimensions as text: ("b", "784"), or ("...",) for an unknown rank."""
    return ("...",) if self.dims is None else tuple(map(str, self.dims))


def _dim(size: Any) -> int | str:
  if size is None:
    return "?"
  return int(size) if isinstance(size, int | np.integer) else str(size)


def _dtype(name: str) -> np.dtype[Any]:
  if name == "string":
    return _STRING
  full = re.sub(r"([iuc]|b?f)(?=\d+)", lambda m: _KINDS[m[1]], name)
  dtype = np.dtype(full)
  if dtype.name != full:  # NumPy reads "float" as float64
    raise TypeError
  return dtype


def _dims(text: str) -> tuple[int | str, ...] | None:
  """b, max(a, 2) -> ("b", "max(a, 2)"). Commas inside parentheses do not separate dimensions."""
  if text.strip() == "...":
    return None
  parts, depth = [""], 0
  for letter in text:
    depth += {"(": 1, ")": -1}.get(letter, 0)
    if letter == "," and not depth:
      parts.append("")
    else:
      parts[-1] += letter
  dims = [dim.strip() for dim in parts]
  if not dims[-1]:  # no dimensions, or a trailing comma
    dims.pop()
  if not all(dims):
    raise TypeError
  return tuple(int(dim) if dim.isdecimal() else dim for dim in dims)


def dimensions(specs: Mapping[str, str]) -> list[str]:
  """The dimension variables of these inputs.

  Raises:
    ValueError: a spec is not `dtype[dims]`.
  """
  parsed = [Spec.parse(text, name) for name, text in specs.items()]
  return variables(str(dim) for spec in parsed for dim in spec.dims or ())


def variables(texts: Iterable[str]) -> list[str]:
  """The variables in expressions of dimensions, without function names: "floordiv(b, 2)" -> b."""
  return sorted({name for text in texts for name in re.findall(r"\b[A-Za-z_]\w*\b(?!\s*\()", text)})
