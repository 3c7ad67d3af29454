"""Which ops have a kernel on a device, and which of their operands and results the kernel keeps in
host memory, by TensorFlow's registry."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from jax2tf._tf_compat import kernels as _registry

# The device types in the registry that stand for a device; the first one that is there does.
DEVICES = {
  "gpu": ("GPU",),
  # pip's TensorFlow 2.21 has no XLA_TPU_JIT; XLA's own ops are the same for every device.
  "tpu": ("XLA_TPU_JIT", "XLA_GPU_JIT", "XLA_CPU_JIT"),
}
# What TensorFlow keeps in host memory wherever no kernel says otherwise: arguments, results, loop
# variables, and what goes into a branch and comes out of it (MTypeFromDType).
ON_HOST = (tf.int32, tf.string, tf.resource)


@dataclass(frozen=True)
class Memory:
  """Where a kernel has its operands and results: for each one, whether in host memory."""

  operands: tuple[bool, ...]
  results: tuple[bool, ...]


class Kernels:
  """The kernels of one device, "gpu" or "tpu".

  Attributes:
    device_type: in TensorFlow's registry.
    is_xla: whether these are the ops that XLA can compile.
  """

  def __init__(self, device: str):
    # an op that every device has
    device_types = {kernel.device_type for kernel in _registry.kernels_of("AddV2")}
    self.device_type = next(kind for kind in DEVICES[device] if kind in device_types)
    self.is_xla = self.device_type.endswith("_JIT")
    # where a device has no kernel TensorFlow takes that of DEFAULT, but not where XLA compiles
    self._device_types = (self.device_type,) if self.is_xla else (self.device_type, "DEFAULT")

  def _kernel(self, op: tf.Operation) -> Any | None:
    """The KernelDef that TensorFlow takes for an op, or None."""
    for device_type in self._device_types:
      matching = [kernel for kernel in self._of_type(op.type, device_type) if _matches(kernel, op)]
      if matching:
        return max(matching, key=lambda kernel: kernel.priority)
    return None

  def dtypes_with_kernel(self, op: tf.Operation) -> list[str]:
    """The dtypes of an op's first attribute of that kind for which it has kernels."""
    attribute = next((a.name for a in op.op_def.attr if a.type == "type"), "")
    constraints = (
      constraint
      for device_type in self._device_types
      for kernel in self._of_type(op.type, device_type)
      for constraint in kernel.constraint
      if constraint.name == attribute
    )
    dtypes = {tf.as_dtype(number).name for one in constraints for number in _allowed(one)}
    return sorted(dtypes)

  def _of_type(self, op: str, device_type: str) -> list[Any]:
    return [k for k in _registry.kernels_of(op) if k.device_type == device_type]

  def memory(self, op: tf.Operation) -> Memory | None:
    """Where the kernel of an op has its operands and results; None if there is no kernel."""
    if is_pinned(op):
      return Memory((True,) * len(op.inputs), (True,) * len(op.outputs))
    kernel = self._kernel(op)
    if kernel is None:
      return None
    on_host = frozenset(kernel.host_memory_arg)
    definition = op.op_def
    return Memory(
      _places(op, definition.input_arg, on_host, [x.dtype for x in op.inputs]),
      _places(op, definition.output_arg, on_host, [y.dtype for y in op.outputs]),
    )


def is_pinned(op: tf.Operation) -> bool:
  """Whether an op is to run on the host, whatever the device of the graph."""
  return tf.DeviceSpec.from_string(op.device).device_type == "CPU"


def _matches(kernel: Any, op: tf.Operation) -> bool:
  """Whether a kernel is for the dtypes, and the label, that an op has."""
  return kernel.label == _label(op) and all(
    _values(op, constraint.name) <= _allowed(constraint) for constraint in kernel.constraint
  )


def _label(op: tf.Operation) -> str:
  try:
    return op.get_attr("_kernel").decode()
  except ValueError:
    return ""


def _values(op: tf.Operation, attribute: str) -> frozenset[Any]:
  """The dtypes, as numbers, or the texts of an attribute that is one or several."""
  value = op.get_attr(attribute)
  values: Iterable[Any] = value if isinstance(value, list | tuple) else (value,)
  return frozenset(
    each if isinstance(each, bytes) else tf.as_dtype(each).as_datatype_enum for each in values
  )


def _allowed(constraint: Any) -> frozenset[Any]:
  # GatherNd has kernels for some values of a text: bad_indices_policy
  return frozenset([*constraint.allowed_values.list.type, *constraint.allowed_values.list.s])


def _places(
  op: tf.Operation, arguments: Sequence[Any], on_host: frozenset[str], dtypes: Sequence[tf.DType]
) -> tuple[bool, ...]:
  """For each tensor of the arguments of an OpDef, whether it is in host memory."""
  # TensorFlow has some dtypes on the host whatever a kernel says (DataTypeAlwaysOnHost)
  return tuple(
    name in on_host or dtype in (tf.string, tf.resource)
    for name, dtype in zip(argument_names(op, arguments), dtypes, strict=True)
  )


def argument_names(op: tf.Operation, arguments: Iterable[Any]) -> list[str]:
  """For each operand, or result, of an op the name of its argument, of these ArgDefs."""
  return [argument.name for argument in arguments for _ in range(_length(op, argument))]


def _length(op: tf.Operation, argument: Any) -> int:
  """The number of tensors of an argument, an ArgDef, of an op."""
  if argument.number_attr:
    return op.get_attr(argument.number_attr)
  return len(op.get_attr(argument.type_list_attr)) if argument.type_list_attr else 1


@functools.cache
def kernels(device: str) -> Kernels:
  """The kernels of a device."""
  return Kernels(device)
