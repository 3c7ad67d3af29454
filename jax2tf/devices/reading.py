"""Reads, from a graph and TensorFlow's registry of kernels, what runs on a device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from jax import tree_util

from jax2tf import survey
from jax2tf.devices import flat, report
from jax2tf.devices.copies import Copies, Copy
from jax2tf.devices.flat import Node
from jax2tf.devices.kernels import DEVICES, Kernels, argument_names, kernels
from jax2tf.devices.report import Finding, Readiness
from jax2tf.messages import ArgumentError
from jax2tf.survey import Origin

_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
_ADVICE = {
  report.BOUNCE: (
    "the op takes this operand from host memory: compute it from constants, sizes and loop "
    "counters, or index with an array (jnp.take), whose indices stay on the device"
  ),
  report.SYNC: (
    "the host waits for it before it goes on: a loop with a fixed number of steps, or jnp.where in "
    "place of lax.cond, needs no such wait"
  ),
  report.INT32: (
    "TensorFlow has arithmetic of int32 in host memory on every device: what is no index may be "
    "uint32, or float32"
  ),
  report.RETURN: "the way back from the host",
  report.UPLOAD: "a value of the host, such as a loop counter; small ones cost little",
  report.RESULT: "nothing: it ends in host memory",
  report.HARMLESS: "nothing: its operands and results are in host memory anyway",
}


def readiness(
  model: Any,
  *specs: Any,
  device: str = "gpu",
  gradient: bool = False,
  signature: str = "serving_default",
) -> Readiness:
  """Reports which ops of a graph have kernels on a device, and which tensors are copied to the
  host.

  It reads TensorFlow's registry of kernels, or XLA's registry for a TPU, so it needs no device. It
  says nothing about memory, speed or precision.

  Args:
    model: a tf.ConcreteFunction; the path of a SavedModel; or a function of tensors, such as
      `jax2tf.convert` returns, whose findings have the user's lines. Its graph depends on
      `platforms=`: for a GPU, convert with platforms=["cuda"].
    specs: for a function, the tf.TensorSpecs of its arguments, in their structure.
    device: "gpu" or "tpu".
    gradient: for a function, whether to add its gradient with respect to all floating point
      arguments.
    signature: for a SavedModel, the signature to read.

  Returns:
    a Readiness.

  Raises:
    ValueError: the device or the signature is unknown.
    NotImplementedError: this TensorFlow does not list its kernels.
    OSError: there is no SavedModel.

  Examples:
    >>> import jax, jax.numpy as jnp, jax2tf, tensorflow as tf
    >>> def growth(x):
    ...   return jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: 2 * y, x)
    >>> report = jax2tf.devices.readiness(jax2tf.convert(growth), tf.TensorSpec([3]))
    >>> report.missing, report.bounces
    (0, 0)
    >>> [(finding.kind, finding.primitive, finding.loops) for finding in report.findings]
    [('predicate', 'while', 1)]
  """
  if device not in DEVICES:
    raise ArgumentError(
      "device", device, problem="there is no such device", advice=f"one of {', '.join(DEVICES)}"
    )
  return traced(model, specs, gradient, signature).readiness(device)


@dataclass(frozen=True)
class Traced:
  """A graph to read.

  Attributes:
    concrete: the concrete function of what a user gives. Of a function of trees it takes the
      leaves.
    origins: the equations of its ops, if it was converted here.
  """

  concrete: Any
  origins: Mapping[tf.Operation, Origin]

  def readiness(self, device: str) -> Readiness:
    """The readiness for a device, of DEVICES."""
    return _Reader(kernels(device), self.origins).readiness(device, self.concrete.graph)


def traced(
  model: Any, specs: Sequence[Any], gradient: bool = False, signature: str = "serving_default"
) -> Traced:
  """The graph of what a user gives; see `readiness`."""
  with survey.origins() as origins:
    return Traced(_concrete_function(model, specs, gradient, signature), origins)


def _concrete_function(model: Any, specs: Sequence[Any], gradient: bool, signature: str) -> Any:
  if isinstance(model, str | os.PathLike):
    signatures: Mapping[str, Any] = tf.saved_model.load(os.fspath(model)).signatures
    if signature not in signatures:
      raise ArgumentError(
        "signature",
        signature,
        problem=f"{os.fspath(model)} has no such signature",
        advice=f"one of {', '.join(sorted(signatures)) or 'none: it has no signatures'}",
      )
    return signatures[signature]
  if isinstance(model, tf.types.experimental.ConcreteFunction):
    return model
  # TensorFlow does not know the nodes of JAX's trees
  leaves, structure = tree_util.tree_flatten(specs)

  def function(*tensors: tf.Tensor) -> list[Any]:
    return tree_util.tree_leaves(model(*tree_util.tree_unflatten(structure, tensors)))

  graph = tf.function(_with_gradient(function) if gradient else function, autograph=False)
  return graph.get_concrete_function(*leaves)


def _with_gradient(function: Callable[..., list[Any]]) -> Callable[..., Any]:
  """tensors -> (results, gradients of their sum by the floating point tensors)."""

  def differentiable(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [x for x in tensors if x.dtype.is_floating or x.dtype.is_complex]

  def call(*tensors: tf.Tensor) -> Any:
    sources = differentiable(tensors)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
      tape.watch(sources)
      results = function(*tensors)
    return results, tape.gradient(differentiable(results), sources)

  return call


class _Reader:
  def __init__(self, device_kernels: Kernels, origins: Mapping[tf.Operation, Origin]):
    self._kernels = device_kernels
    self._origins = origins

  def readiness(self, device: str, graph: Any) -> Readiness:
    """The readiness of the graph of a concrete function."""
    nodes = flat.nodes(graph, graph.outputs, graph.control_outputs, self._kernels)
    copies = Copies(nodes)
    findings = [self._missing(node, report.NO_KERNEL) for node in copies.missing()]
    if self._kernels.is_xla:
      # XLA compiles what it has kernels for as one program, so nothing is copied inside of it
      findings += [self._missing(node, report.NO_KERNEL) for node in copies.harmless()]
    else:
      findings += [self._missing(node, report.HARMLESS) for node in copies.harmless()]
      findings += [
        self._copied(copy)
        for copy in copies.copies()
        if not (copy.kind == report.UPLOAD and copy.value[0].kind == flat.ARGUMENT)
      ]
    return Readiness(
      device, self._kernels.device_type, len(copies.running()), report.merged(findings)
    )

  def _missing(self, node: Node, kind: str) -> Finding:
    assert node.op is not None
    dtypes = dict.fromkeys(x.dtype.name for x in (*node.op.inputs, *node.op.outputs))
    advice = self._advice_for_missing(node.op) if kind == report.NO_KERNEL else _ADVICE[kind]
    return self._finding(kind, node, node.kind, ", ".join(dtypes), "", advice)

  def _copied(self, copy: Copy) -> Finding:
    kind, reader = copy.kind, copy.reader
    producer, i = copy.value
    advice = _ADVICE[kind]
    equation = self._origin(reader)
    if kind == report.BOUNCE and reader.memory is None:
      advice = "its op has no kernel on the device"
    elif kind == report.INT32 and equation and "int32" not in equation.dtypes:
      kind, advice = report.BOUNCE, "the lowering computes in int32 here: please report it"
    return self._finding(kind, reader, reader.kind, producer.dtypes[i].name, _operand(copy), advice)

  def _finding(
    self, kind: str, node: Node, op: str, dtypes: str, operand: str, advice: str
  ) -> Finding:
    origin = self._origin(node)
    return Finding(
      kind,
      op,
      dtypes,
      operand,
      node.loops,
      next((op.name for op in _ops(node)), ""),
      origin.primitive if origin else "",
      origin.where if origin else "",
      advice,
    )

  def _origin(self, node: Node) -> Origin | None:
    """The equation of an op, else that of the innermost call around it."""
    return next((self._origins[op] for op in _ops(node) if op in self._origins), None)

  def _advice_for_missing(self, op: tf.Operation) -> str:
    if op.type in _PYTHON:
      return "Python runs on the host: leave the callback out of what runs on the device"
    dtypes = self._kernels.dtypes_with_kernel(op)
    if dtypes:
      return f"{op.type} has kernels for {', '.join(dtypes)}: compute in one of these"
    return f"{op.type} has no kernel there for any dtype: compute it before or after the function"


def _ops(node: Node) -> list[tf.Operation]:
  """The op of a node, and the calls, loops and branches around it, the innermost first."""
  around = node.calls[::-1]
  return [*around] if node.op is None else [node.op, *around]


def _operand(copy: Copy) -> str:
  """The name of the operand that is copied."""
  op = copy.reader.op
  if op is None:
    return copy.reader.kind
  return argument_names(op, op.op_def.input_arg)[copy.operand]
