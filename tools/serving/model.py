"""Checks requests against the signatures of a SavedModel and runs them in batches.

It imports neither Ray nor JAX.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np

from jax2tf.converters.bundle import files, manifest, rows
from jax2tf.converters.bundle.notation import Spec
from jax2tf.tools import outside, quiet
from jax2tf.tools.serving.generation.writer import Writer

with quiet.startup(lean=True):
  import tensorflow as tf
  from tensorflow.core.protobuf import meta_graph_pb2

Arrays = Mapping[str, np.ndarray]


class RefusedError(Exception):
  """A rejected request: a gRPC status, and a sentence for the client."""

  def __init__(self, code: grpc.StatusCode, reason: str):
    super().__init__(reason)
    self.code = code
    self.reason = reason[:2000]  # gRPC sends it in a header, of at most 8 KiB


def invalid(reason: str) -> RefusedError:
  return RefusedError(grpc.StatusCode.INVALID_ARGUMENT, reason)


class Memory:
  """A budget of bytes for parsed requests. A request waits, still unparsed, while too few bytes are
  left."""

  def __init__(self, size: int):
    self._free = size
    self._changed = asyncio.Condition()

  @contextlib.asynccontextmanager
  async def hold(self, size: int) -> AsyncIterator[None]:
    """Waits until `size` bytes are left, and reserves them during the block."""
    async with self._changed:
      await self._changed.wait_for(lambda: self._free >= size)
      self._free -= size
    try:
      yield
    finally:
      async with self._changed:
        self._free += size
        self._changed.notify_all()


@dataclass(frozen=True)
class Signature:
  """A signature of a SavedModel.

  Attributes:
    name: "serving_default", for example.
    function: takes keyword arguments and returns a dict of tensors.
    inputs, outputs: name -> dtype and shape; a size that varies is None.
    defaults: the values of optional inputs.
    dimensions: the dimensions of each input in JAX, ("b", "784"); empty for a model without a
      manifest.
    batched: whether dimension 0 of all inputs and outputs is the same symbolic size, which occurs
      nowhere else. Then rows of several requests can form one batch.
    stateful: whether a call changes the results of later calls.
  """

  name: str
  function: tf.types.experimental.ConcreteFunction
  inputs: Mapping[str, tf.TensorSpec]
  outputs: Mapping[str, tf.TensorSpec]
  defaults: Arrays
  dimensions: Mapping[str, tuple[str, ...]]
  batched: bool
  stateful: bool

  def check(self, sent: Mapping[str, tf.TensorSpec]) -> None:
    """Raises RefusedError for a name, dtype or shape that the signature does not have, or a
    dimension variable with two values."""
    inputs = {**{name: spec_of(array) for name, array in self.defaults.items()}, **sent}
    if inputs.keys() != self.inputs.keys():
      missing, unknown = self.inputs.keys() - inputs.keys(), inputs.keys() - self.inputs.keys()
      faults = [
        f"{word} {', '.join(map(repr, sorted(names)))}"
        for word, names in (("misses", missing), ("has", unknown))
        if names
      ]
      raise invalid(
        f"the request {' and '.join(faults)}; signature {self.name!r} takes {_written(self.inputs)}"
      )
    for name, actual in inputs.items():
      spec = self.inputs[name]
      if actual.dtype != spec.dtype or not spec.shape.is_compatible_with(actual.shape):
        raise invalid(
          f"input {name!r} is {type_of(actual)}; signature {self.name!r} takes "
          f"{_written(self.inputs)}"
        )
    sizes: dict[str, tuple[str, int]] = {}
    for name, dims in self.dimensions.items():
      symbols = [
        (dim, size)
        for dim, size in zip(dims, inputs[name].shape, strict=True)
        if dim.isidentifier()
      ]
      for dim, size in symbols:
        first, expected = sizes.setdefault(dim, (name, size))
        if size != expected:
          raise invalid(
            f"dimension {dim} is {expected} in input {first!r} and {size} in input {name!r}; make "
            "them equal"
          )


@dataclass(frozen=True)
class Call:
  """A checked request for a signature."""

  signature: Signature
  inputs: Arrays

  @property
  def rows(self) -> int:
    return next(iter(self.inputs.values())).shape[0] if self.signature.batched else 1

  @property
  def group(self) -> tuple[object, ...]:
    """Requests with equal keys may run in one batch."""
    # most models reject a request without rows; in a batch it would pass
    if not self.signature.batched or not self.rows:
      return (id(self),)
    return (id(self.signature), *sorted((name, x.shape[1:]) for name, x in self.inputs.items()))


def run(calls: Sequence[Call], max_rows: int) -> list[Arrays | RefusedError]:
  """The outputs of each call, in order. A batch has at most `max_rows` rows, unless a single call
  has more."""
  outcomes: dict[int, Arrays | RefusedError] = {}
  for indices in _chunks(calls, max_rows):
    together = [calls[i] for i in indices]
    for i, outcome in zip(indices, _run_together(together), strict=True):
      outcomes[i] = outcome
  return [outcomes[i] for i in range(len(calls))]


def _chunks(calls: Sequence[Call], max_rows: int) -> Iterator[list[int]]:
  groups: dict[tuple[object, ...], list[int]] = {}
  for i, call in enumerate(calls):
    groups.setdefault(call.group, []).append(i)
  for indices in groups.values():
    chunk: list[int] = []
    for i in indices:
      if chunk and sum(calls[j].rows for j in chunk) + calls[i].rows > max_rows:
        yield chunk
        chunk = []
      chunk.append(i)
    yield chunk


def _run_together(calls: Sequence[Call]) -> list[Arrays | RefusedError]:
  signature = calls[0].signature
  if len(calls) > 1:
    try:
      outputs = _run_one(
        signature,
        {name: np.concatenate([call.inputs[name] for call in calls]) for name in signature.inputs},
      )
    except RefusedError:
      pass  # one of them is bad, or the batch is too large: running each alone finds out
    else:
      ends = np.cumsum([call.rows for call in calls])[:-1]
      parts = {name: np.split(array, ends) for name, array in outputs.items()}
      return [{name: part[i] for name, part in parts.items()} for i in range(len(calls))]
  return [_outcome(call) for call in calls]


def _outcome(call: Call) -> Arrays | RefusedError:
  try:
    return _run_one(call.signature, call.inputs)
  except RefusedError as refusal:
    return refusal


def _run_one(signature: Signature, inputs: Arrays) -> Arrays:
  try:
    outputs = signature.function(
      **{name: tf.constant(x, signature.inputs[name].dtype) for name, x in inputs.items()}
    )
    return {name: tensor.numpy() for name, tensor in outputs.items()}
  except tf.errors.OpError as error:
    code = next(code for code in grpc.StatusCode if code.value[0] == error.error_code)
    raise RefusedError(
      code, f"signature {signature.name!r} refused the inputs: {quiet.sentence(error.message)}"
    ) from error


def spec_of(array: np.ndarray) -> tf.TensorSpec:
  return tf.TensorSpec(array.shape, tf.as_dtype(array.dtype))


def type_of(spec: tf.TensorSpec) -> str:
  dims = (
    "..." if spec.shape.rank is None else ",".join("?" if d is None else str(d) for d in spec.shape)
  )
  return f"{spec.dtype.name}[{dims}]"


def _written(specs: Mapping[str, tf.TensorSpec]) -> str:
  return ", ".join(f"{name}: {type_of(spec)}" for name, spec in sorted(specs.items()))


class Model:
  """A loaded version of a model.

  Attributes:
    version: its number.
    signatures: by name.
    signature_defs: the stored ones, for clients that request them.
    writer: what generates text; None for a model whose manifest says nothing of that.
  """

  def __init__(self, directory: Path, allow_ops: Collection[str] = ()):
    """Loads the model, unless it has ops that reach outside of it and that `allow_ops` does not
    name.

    Raises:
      ValueError: as `outside.check`. For a directory without a complete SavedModel TensorFlow has
        its own errors.
    """
    self.version = int(directory.name)
    [meta_graph] = outside.check(directory, allow_ops)
    # kept alive, because its functions do not keep its variables alive
    self._loaded = tf.saved_model.load(str(directory))
    self.signature_defs = dict(meta_graph.signature_def)
    recorded = manifest.read(directory) if (directory / files.MANIFEST).exists() else None
    records = recorded.signatures if recorded else {}
    constraints = recorded.constraints if recorded else []
    self.signatures = {
      name: _signature(name, function, self.signature_defs[name], records.get(name), constraints)
      for name, function in self._loaded.signatures.items()
    }
    generation = recorded.generation if recorded else None
    self.writer = (
      Writer(generation, directory, self._loaded.signatures, tf.constant) if generation else None
    )

  def signature(self, name: str) -> Signature:
    """The signature of that name. Raises RefusedError if the model has none."""
    name = name or "serving_default"
    if name not in self.signatures:
      reason = (
        f"signature_name is {name!r}; version {self.version} has "
        f"{', '.join(map(repr, sorted(self.signatures)))}"
      )
      raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, reason)
    return self.signatures[name]


def _signature(
  name: str,
  function: tf.types.experimental.ConcreteFunction,
  stored: meta_graph_pb2.SignatureDef,
  record: manifest.SignatureRecord | None,
  constraints: Sequence[str],
) -> Signature:
  inputs = {
    key: tf.TensorSpec(tf.TensorShape(info.tensor_shape), info.dtype)
    for key, info in stored.inputs.items()
  }
  outputs = {
    key: tf.TensorSpec(tf.TensorShape(info.tensor_shape), info.dtype)
    for key, info in stored.outputs.items()
  }
  defaults = {key: tf.make_ndarray(proto) for key, proto in stored.defaults.items()}
  dims_in = _dimensions(record.inputs) if record else {}
  dims_out = _dimensions(record.outputs) if record else {}
  stateful = record is not None and record.stateful
  batched = not stateful and bool(dims_in) and not rows.fault(dims_in, dims_out, constraints)
  return Signature(name, function, inputs, outputs, defaults, dims_in, batched, stateful)


def _dimensions(specs: Mapping[str, str]) -> dict[str, rows.Dimensions]:
  return {name: Spec.parse(text).texts for name, text in specs.items()}
