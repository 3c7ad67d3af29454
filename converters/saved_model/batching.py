"""Batches concurrent requests inside the model, by TensorFlow's BatchFunction in front of a
signature.

Every server of the model then batches, including TF Serving without --enable_batching. The options
are those of TensorFlow's op: https://www.tensorflow.org/api_docs/python/tf/raw_ops/BatchFunction
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from ..bundle.notation import Spec, variables


@dataclass(frozen=True)
class Batching:
  """How concurrent requests are batched, along the first dimension of every input.

  Attributes:
    max_batch_size: the largest number of rows in a batch.
    max_request_size: the largest number of rows in a request; larger requests are refused. 0 means
      max_batch_size. A larger value splits requests, and needs allowed_batch_sizes.
    batch_timeout_micros: how long the first request of a batch waits for others, in microseconds.
    num_batch_threads: the number of batches that run concurrently.
    allowed_batch_sizes: a batch is padded to the next of these sizes. They increase and end with
      max_batch_size. Empty: no padding.
    max_enqueued_batches: the number of batches that may wait; further requests are refused.
    low_priority_max_batch_size, low_priority_batch_timeout_micros: the same for requests that the
      server marks as low priority.
    low_priority_allowed_batch_sizes, low_priority_max_enqueued_batches: likewise.
    mixed_priority_policy: how requests of both priorities share a batch.

  Raises:
    ValueError: an option is below its minimum, or sizes contradict each other.

  Examples:
    >>> from jax2tf.converters import saved_model
    >>> model = saved_model.Model({"w": 2.0})
    >>> batching = saved_model.Batching(max_batch_size=64, batch_timeout_micros=500)
    >>> model = model.add(
    ...   lambda params, x: params["w"] * x,
    ...   inputs={"x": "f32[b]"},
    ...   outputs=["y"],
    ...   batching=batching,
    ... )
    >>> model.save("model").as_posix()
    'model/1'
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
    "low_priority_padding_with_max_batch_size",
    "low_priority_padding_with_next_allowed_batch_size",
    "priority_isolation",
    "priority_merge",
  ] = "low_priority_padding_with_max_batch_size"

  def __post_init__(self) -> None:
    for name in ("max_batch_size", "num_batch_threads", "max_enqueued_batches"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} = {getattr(self, name)}; at least 1 is needed")
    if self.max_request_size > self.max_batch_size and not self.allowed_batch_sizes:
      raise ValueError(
        f"max_request_size = {self.max_request_size}; requests are split only with "
        "allowed_batch_sizes, which end with max_batch_size"
      )
    for prefix in ("", "low_priority_"):
      sizes, largest = (
        getattr(self, f"{prefix}allowed_batch_sizes"),
        getattr(self, f"{prefix}max_batch_size"),
      )
      if sizes and (list(sizes) != sorted(set(sizes)) or sizes[-1] != largest):
        raise ValueError(
          f"{prefix}allowed_batch_sizes = {sizes} must grow, and end with {prefix}max_batch_size "
          f"= {largest}"
        )

  def batched(self, function: Any, name: str) -> Callable[..., dict[str, tf.Tensor]]:
    """Puts a queue in front of a function; requests that wait together form one batch.

    Args:
      function: a tf.function with one input signature, tensors -> {name: tensor}.
      name: the name of the queue in the graph.

    Returns:
      a function of the same tensors, with the same results.
    """

    def call(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
      concrete = function.get_concrete_function()
      # If requests are split, BatchFunction's max_batch_size limits a request; the last of
      # allowed_batch_sizes then limits a batch.
      options = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(self).items()
      }
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
      names = sorted(concrete.structured_outputs)  # TensorFlow sorts a dict by its keys
      return {
        output: tf.ensure_shape(y, like.shape)
        for output, y, like in zip(names, results, concrete.outputs, strict=True)
      }

    return call


def check_rows(inputs: Mapping[str, str], outputs: Mapping[str, str], name: str) -> None:
  """Raises ValueError for a function that cannot be batched: some input or output does not begin
  with the same `b`.

  Args:
    inputs, outputs: {name: dtype and shape in jaxpr notation} of the JAX function.
    name: the name of the signature.
  """
  shapes = [*inputs.items(), *outputs.items()]
  sizes = [[str(d) for d in Spec.parse(spec).dims or ("",)] for _, spec in shapes]
  leading_sizes = {dims[0] for dims in sizes}
  others = [d for dims in sizes for d in dims[1:] if leading_sizes.intersection(variables([d]))]
  if len(leading_sizes) != 1 or not next(iter(leading_sizes)).isidentifier() or others:
    listed = ", ".join(f"{tensor}: {spec}" for tensor, spec in shapes)
    raise ValueError(
      f"batching: signature {name!r} has {listed}; to run requests together, each must begin with "
      "one dimension variable, and no other "
      "dimension may hold it"
    )
