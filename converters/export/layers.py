"""Where two files first differ: the values inside of both, by the names of their ops.

Exporters keep the names of TensorFlow's ops, which begin with the name scopes of the user's
function: modules of Flax, and `jax.named_scope`. A value is compared if both files have its name
and its number of elements. Of several values that may be meant, the nearest one is: LiteRT gives
the result of fused ops the names of all of them, which the other file then must have, and channels
of images may be at another place.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Layer:
  """A value that two files have.

  Attributes:
    name: of the op; what is before its last "/" is the name scope.
    shape: in the first file.
    largest: the largest magnitude in the first file.
    difference: the largest difference.
  """

  name: str
  shape: tuple[int, ...]
  largest: float
  difference: float

  @property
  def relative(self) -> float:
    """The largest difference relative to the largest magnitude."""
    return self.difference / self.largest if self.largest else float(self.difference > 0) * np.inf


def compared(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]) -> Sequence[Layer]:
  """The common values in the order of the first file.

  Args:
    before, after: {name of an op or tensor: its value}, in order of execution.
  """
  others: dict[str, list[np.ndarray]] = collections.defaultdict(list)
  for full, value in after.items():
    parts = _parts(full)
    for name in dict.fromkeys(name for part in parts for name in part):
      others[name].append(value)
  return list(_compared(before, others))


def _compared(
  before: Mapping[str, np.ndarray], others: Mapping[str, Sequence[np.ndarray]]
) -> Iterator[Layer]:
  for full, value in before.items():
    known = [next((name for name in part if name in others), "") for part in _parts(full)]
    namesakes = [other for name in known for other in others.get(name, ())]
    meant = [form for other in namesakes for form in _forms(value, other)]
    if meant and all(known):
      finite = np.abs(np.float64(value[np.isfinite(np.float64(value))]))
      yield Layer(
        known[0],
        value.shape,
        float(np.max(finite, initial=0)),
        min(_difference(value, other) for other in meant),
      )


def _difference(value: np.ndarray, other: np.ndarray) -> float:
  """The largest one; infinite where one has NaN or an infinity that the other has not."""
  one, two = np.float64(value), np.float64(other)
  is_same = (one == two) | (np.isnan(one) & np.isnan(two))
  with np.errstate(invalid="ignore"):
    differences = np.where(is_same, 0, np.abs(one - two))
  return float(np.max(np.nan_to_num(differences, nan=np.inf), initial=0))


def first_difference(
  layers: Sequence[Layer], outputs: Collection[str], tolerance: float
) -> Layer | None:
  """The first value whose relative difference is larger than the tolerance; None if all outputs
  agree, because LiteRT may give a value the name of another one.

  Args:
    layers: the values.
    outputs: the names of the outputs.
    tolerance: of the relative difference.
  """
  different = [layer for layer in layers if layer.relative > tolerance]
  is_outside = any(layer.name in outputs for layer in different)
  return different[0] if is_outside else None


def _parts(full: str) -> Sequence[Sequence[str]]:
  """The ops whose result a tensor is, "a/Relu;a/Conv2D1" in LiteRT, or "a/Relu:0" in ONNX: each
  with its possible names, with and without the number that made it unique."""
  names = [re.sub(r":\d+$", "", part) for part in full.split(";")]
  return [(name, re.sub(r"(?<=[A-Za-z])\d+$", "", name)) for name in names]


def _forms(value: np.ndarray, other: np.ndarray) -> Iterator[np.ndarray]:
  """The other value in the shape of the first one, in each way that may be meant."""
  is_number = all(x.dtype.kind in "biufV" for x in (value, other))
  if not is_number or value.size != other.size:
    return
  if value.ndim == other.ndim >= 3:
    forms = [other, np.moveaxis(other, 1, -1), np.moveaxis(other, -1, 1)]
    yield from (form for form in forms if form.shape == value.shape)
  else:
    yield other.reshape(value.shape)
