"""Requests that wait at the same time run as one: TensorFlow's BatchFunction in front of a signature, inside the model.

Any server of the model then batches, TF Serving without --enable_batching too. The meaning of each option is that of TensorFlow's op:
https://www.tensorflow.org/api_docs/python/tf/raw_ops/BatchFunction
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from . import manifest
from .notation import Spec, variables


@dataclass(frozen=True)
class Batching:
  """How requests are put together, along the first dimension of every input.

  Attributes:
    max_batch_size: rows that run together at most.
    max_request_size: rows of a request at most, more are refused; 0: as many as max_batch_size. It may be larger, and requests are then
      split, only with allowed_batch_sizes.
    batch_timeout_micros: how long the first request waits for others, in microseconds.
    num_batch_threads: how many batches run at once.
    allowed_batch_sizes: a batch is padded to the next of these, whose last is max_batch_size; none: no padding.
    max_enqueued_batches: with more waiting, requests are refused.
    low_priority_max_batch_size, low_priority_batch_timeout_micros, low_priority_allowed_batch_sizes, low_priority_max_enqueued_batches:
      the same for requests that the server marks as of low priority.
    mixed_priority_policy: what happens to both kinds together.
  """

  max_batch_size: int
  max_request_size: int = 0
  batch_timeout_micros: int = 1_000
  num_batch_threads: int = 2
  allowed_batch_sizes: tuple[int, ...] = ()
  max_enqueued_batches: int = 100
  low_priority_max_batch_size: int = 0
  low_priority_batch_timeout_micros: int = 0
  low_priority_allowed_batch_sizes: tuple[int, ...] = ()
  low_priority_max_enqueued_batches: int = 0
  mixed_priority_policy: Literal[
    "low_priority_padding_with_max_batch_size", "low_priority_padding_with_next_allowed_batch_size", "priority_isolation", "priority_merge"
  ] = "low_priority_padding_with_max_batch_size"

  def __post_init__(self) -> None:
    for name in ("max_batch_size", "num_batch_threads", "max_enqueued_batches"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} = {getattr(self, name)}; at least 1 is needed")
    if self.max_request_size > self.max_batch_size and not self.allowed_batch_sizes:
      raise ValueError(
        f"max_request_size = {self.max_request_size}; requests are split only with allowed_batch_sizes, which end with max_batch_size"
      )
    for prefix in ("", "low_priority_"):
      sizes, largest = getattr(self, f"{prefix}allowed_batch_sizes"), getattr(self, f"{prefix}max_batch_size")
      if sizes and (list(sizes) != sorted(set(sizes)) or sizes[-1] != largest):
        raise ValueError(f"{prefix}allowed_batch_sizes = {sizes} must grow, and end with {prefix}max_batch_size = {largest}")

  def batched(self, function: Any, name: str) -> Callable[..., dict[str, tf.Tensor]]:
    """A tf.function of one input signature, tensors -> {name: tensor}, behind a queue called `name`."""

    def call(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
      concrete = function.get_concrete_function()
      # To TensorFlow max_batch_size is that of a request once requests are split; what runs is then the last of allowed_batch_sizes.
      options = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
      del options["max_request_size"]
      options["max_batch_size"] = max(self.max_request_size, self.max_batch_size)
      results = tf.raw_ops.BatchFunction(
        in_tensors=list(tensors),
        captured_tensors=concrete.captured_inputs,
        f=concrete,
        Tout=[y.dtype for y in concrete.outputs],
        batching_queue=name,
        enable_large_batch_splitting=self.max_request_size > self.max_batch_size,
        **options,
      )
      names = sorted(concrete.structured_outputs)  # as TensorFlow orders the values of a dict
      return {output: tf.ensure_shape(y, like.shape) for output, y, like in zip(names, results, concrete.outputs, strict=True)}

    return call


def check_rows(record: manifest.SignatureRecord, name: str) -> None:
  """Raises ValueError for a signature whose rows cannot be put together: not every input and output begins with one and the same `b`."""
  shapes: Mapping[str, str] = {**record.inputs, **record.outputs}
  sizes = {tensor: [str(d) for d in Spec.parse(spec).dims or ("",)] for tensor, spec in shapes.items()}
  found = {dims[0] for tensor, dims in sizes.items() if tensor not in record.passed_through}
  others = [d for dims in sizes.values() for d in dims[1:] if found.intersection(variables([d]))]
  strange = [tensor for tensor in record.passed_through if sizes[tensor][0] != "?"]  # what TensorFlow alone sees has unknown sizes
  if len(found) != 1 or not next(iter(found)).isidentifier() or others or strange:
    listed = ", ".join(f"{tensor}: {spec}" for tensor, spec in shapes.items())
    raise ValueError(
      f"batching: signature {name!r} has {listed}; to run requests together, each must begin with one dimension variable, and no other "
      "dimension may hold it"
    )
