"""Typical inputs of a model, `representative_dataset`: they calibrate a quantised model, and show
how well it agrees with JAX.

All errors about the data are raised before the conversion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from jax2tf.errors import warn_user
from jax2tf.messages import Argument, ArgumentError, Aside, Message, Text

from ..bundle import manifest, progress
from ..bundle.notation import Spec
from ..saved_model import kinds

# Every fifth sample is held back from the calibration. With fewer samples all serve both purposes.
HELD_BACK = 5
_IMAGE_RANK = 3  # an 8-bit input of at least this rank holds images
_NARROW = 32  # images with fewer values than this, of 256, are not ordinary
_NAME = "representative_dataset"
_FORM = "give [{input: array}, ...], a list or another iterable of mappings"

Sample = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Dataset:
  """Samples, read from the caller's iterables.

  Attributes:
    samples: {signature: its samples}; {"": samples} before the signature is known.
  """

  samples: Mapping[str, Sequence[Sample]]

  @classmethod
  def of(cls, data: Any) -> Dataset:
    """Reads all samples.

    Args:
      data: an iterable of {input: array}, {signature: iterable}, or a function without arguments
        that returns one of these.

    Raises:
      ValueError: it has another structure, is empty, or does not end.
    """
    if isinstance(data, Dataset):
      return data
    data = data() if callable(data) and not isinstance(data, tf.data.Dataset) else data
    if not isinstance(data, Mapping):
      return cls({"": _read(data, Argument(_NAME))})
    if arrays := [
      name
      for name, value in data.items()
      if hasattr(value, "dtype") or isinstance(value, int | float)
    ]:
      raise ArgumentError(
        _NAME, problem=f"it is one mapping of arrays, with {arrays[0]!r}", advice=_FORM
      )
    return cls({name: _read(value, Argument(_NAME, key=name)) for name, value in data.items()})

  def checked(
    self, records: Mapping[str, manifest.SignatureRecord], narrow: Sequence[str] = ()
  ) -> Dataset:
    """The samples in the dtypes of the signatures.

    Args:
      records: {signature: its record}.
      narrow: inputs of images whose values may lie in a small part of their range.

    Raises:
      ValueError: inputs, dtypes or shapes are not those of the signature; values are not finite,
        are all equal, or lie in a small part of the range of images.
    """
    kinds.check_names("narrow_inputs", narrow)
    by_signature = (
      {next(iter(records)): self.samples[""]}
      if "" in self.samples and len(records) == 1
      else self.samples
    )
    if set(by_signature) != set(records):
      raise ArgumentError(
        _NAME,
        problem=f"it is not for the signatures {', '.join(records)}",
        advice="give {signature: [{input: array}, ...]}",
      )
    by_name = {
      name: [_fitting(sample, name, records[name], i) for i, sample in enumerate(data)]
      for name, data in by_signature.items()
    }
    for name, samples in by_name.items():
      _check_values(samples, name, narrow)
    return Dataset(by_name)

  def calibrating(self) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Yields (signature, inputs) of each sample that calibrates."""
    for name, samples in self.samples.items():
      chosen = [
        sample
        for i, sample in enumerate(samples)
        if len(samples) < HELD_BACK or not _is_held_back(i)
      ]
      for sample in progress.over(chosen, f"calibrate {name}"):
        yield name, dict(sample)

  def compared(self, calibrated: bool) -> dict[str, Sequence[Sample]]:
    """{signature: the samples to compare}. After a calibration those that were held back, or all if
    there are fewer than `HELD_BACK`."""
    return {
      name: [
        sample
        for i, sample in enumerate(samples)
        if not calibrated or len(samples) < HELD_BACK or _is_held_back(i)
      ]
      for name, samples in self.samples.items()
    }

  def how(self, calibrated: bool) -> str:
    """Which samples are compared, in words."""
    count = sum(len(samples) for samples in self.compared(calibrated).values())
    if not calibrated:
      return f"on {count} representative samples"
    if any(len(samples) < HELD_BACK for samples in self.samples.values()):
      return (
        f"on {count} representative samples, some of which calibrated it, because fewer than "
        f"{HELD_BACK} were given"
      )
    return f"on {count} representative samples, which were held back from the calibration"


def _is_held_back(index: int) -> bool:
  return index % HELD_BACK == HELD_BACK - 1


def _read(data: Any, argument: Argument) -> list[Sample]:
  if (
    isinstance(data, tf.data.Dataset) and data.cardinality().numpy() == tf.data.INFINITE_CARDINALITY
  ):
    raise ArgumentError(
      argument,
      problem="it is a tf.data.Dataset without an end",
      advice="give a part of it, such as dataset.take(200)",
    )
  if not isinstance(data, Iterable) or isinstance(data, str | bytes) or hasattr(data, "dtype"):
    raise ArgumentError(
      argument, problem=f"it is {_kind(data)}, not an iterable of samples", advice=_FORM
    )
  samples: list[Sample] = []
  for i, sample in enumerate(progress.over(data, argument.path)):
    if not isinstance(sample, Mapping):
      raise ArgumentError(
        argument,
        problem=f"sample {i} is {_kind(sample)}, not a mapping",
        advice=f"{_FORM}, which names the inputs",
      )
    samples.append({str(name): np.asarray(value) for name, value in sample.items()})
  if not samples:
    raise ArgumentError(
      argument,
      problem="it has no sample",
      advice="pass a list, or an iterator that is not exhausted",
    )
  return samples


def _kind(value: Any) -> str:
  described = (
    f", {value.dtype}{list(value.shape)}"
    if hasattr(value, "dtype") and hasattr(value, "shape")
    else ""
  )
  many = f" of {len(value)}" if isinstance(value, tuple | list) else ""
  return f"a {type(value).__name__}{many}{described}"


def _fitting(
  sample: Sample, signature: str, record: manifest.SignatureRecord, index: int
) -> Sample:
  if sample.keys() != record.inputs.keys():
    raise ArgumentError(
      _NAME,
      problem=f"it has a sample of {', '.join(sample)}, and signature {signature!r} takes "
      f"{', '.join(record.inputs)}",
    )
  sizes: dict[str, int] = {}
  return {
    name: _array(sample[name], Spec.parse(spec), f"sample {index}, {name!r}", sizes)
    for name, spec in record.inputs.items()
  }


def _array(array: np.ndarray, spec: Spec, what: str, sizes: dict[str, int]) -> np.ndarray:
  """The array in the dtype of its input. `sizes` has the sizes of symbolic dimensions in this
  sample."""
  actual = f"{array.dtype}{list(array.shape)}"
  if not _is_cast(array, spec.dtype):
    pixels = "give the values that the model gets, such as pixels from 0 to 255"
    raise ArgumentError(
      _NAME,
      problem=f"{what} is {actual}, and the input is {spec}",
      advice=pixels if array.dtype.kind == "f" else "",
    )
  dims = [*(spec.dims or array.shape)]
  fits = len(dims) == array.ndim and all(
    sizes.setdefault(str(dim), size) == size
    if str(dim).isidentifier()
    else not isinstance(dim, int) or dim == size
    for dim, size in zip(dims, array.shape, strict=True)
  )
  if not fits:
    raise ArgumentError(
      _NAME,
      problem=f"{what} has the shape {list(array.shape)}, and the input is {spec}",
      advice="add or remove the axis of the batch",
    )
  return array.astype(spec.dtype, copy=False)


def _is_cast(array: np.ndarray, dtype: np.dtype[Any]) -> bool:
  """Whether the values mean the same in this dtype."""
  if array.dtype == dtype:
    return True
  if jnp.issubdtype(dtype, np.inexact):
    return bool(array.dtype.kind in "iuf" or jnp.issubdtype(array.dtype, np.inexact))
  if dtype.kind not in "iu" or array.dtype.kind not in "iu":
    return False
  limits = np.iinfo(dtype)
  return not array.size or (int(array.min()) >= limits.min and int(array.max()) <= limits.max)


def _check_values(samples: Sequence[Sample], signature: str, narrow: Sequence[str]) -> None:
  """Raises ValueError for values that calibrate nothing: of one value, not finite, or of a small
  part of the range of images."""
  ranges = {}
  for name in samples[0]:
    arrays = [sample[name] for sample in samples if sample[name].size]
    if any(
      jnp.issubdtype(array.dtype, np.inexact) and not np.isfinite(array).all() for array in arrays
    ):
      raise ArgumentError(
        _NAME,
        problem=f"it has NaN or an infinity in input {name!r} of signature {signature!r}",
        advice="give finite numbers",
      )
    if sum(array.size for array in arrays) > 1:
      ranges[name] = min(array.min() for array in arrays), max(array.max() for array in arrays)
  constant = {name: least for name, (least, most) in ranges.items() if least == most}
  if ranges and constant.keys() == ranges.keys():
    values = ", ".join(f"{value} in {name!r}" for name, value in constant.items())
    raise ArgumentError(
      _NAME,
      problem=f"it has one value in all samples of signature {signature!r}, {values}",
      advice="give typical inputs that differ",
    )
  for name, value in constant.items():
    if jnp.issubdtype(samples[0][name].dtype, np.inexact) or _is_image(samples[0][name]):
      warn_user(
        Message(
          Argument(_NAME),
          problem=f"it has one value in all samples of input {name!r}, {value}, and other values "
          "would be outside of its calibrated range",
        )
      )
  for name, (least, most) in ranges.items():
    if (
      _is_image(samples[0][name])
      and int(most) - int(least) < _NARROW
      and name not in [*narrow, *constant]
    ):
      dtype = samples[0][name].dtype
      limits = np.iinfo(dtype)
      raise ArgumentError(
        _NAME,
        problem=f"it has values from {least} to {most} in input {name!r}, whose {dtype} has "
        f"{limits.min} to {limits.max}",
        advice=Text(
          "give images as the model gets them",
          Aside(", or ", Argument("narrow_inputs", [name]), " if all are so"),
        ),
      )


def _is_image(array: np.ndarray) -> bool:
  return array.ndim >= _IMAGE_RANK and array.dtype in (np.uint8, np.int8)
