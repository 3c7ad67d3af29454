"""Patches of TensorFlow, each a wrapper of the original; docs/architecture.md lists them,
tests/conversion/test_patches.py guards them."""

from __future__ import annotations

import contextvars
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import RegisteredGradient as _RegisteredGradient
from tensorflow.python.eager import backprop as _backprop
from tensorflow.python.eager import execute as _execute
from tensorflow.python.framework import ops as _ops
from tensorflow.python.ops import control_flow_state as _control_flow_state
from tensorflow.python.ops.parallel_for import pfor as _pfor
from tensorflow.python.saved_model import save as _save

from jax2tf._tf_compat import EFFECTS, GRADIENT, LAST_IN_PFOR, with_derivatives
from jax2tf._tf_compat.callbacks import as_raised, replace_prints
from jax2tf._tf_compat.sharing import share_constants

# The zeros that stand for a missing cotangent, by id. TensorFlow caches eager zeros by shape and
# dtype, for this purpose only.
_missing: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def is_missing(cotangent: tf.Tensor) -> bool:
  """Whether the tensor is zeros that TensorFlow substituted for a missing cotangent."""
  return _missing.get(id(cotangent)) is cotangent


def missing(zeros: Any) -> Any:
  """Marks these zeros as missing cotangents."""
  if isinstance(zeros, tf.Tensor):
    _missing[id(zeros)] = zeros
  return zeros


def _filling(make_zeros: Callable[..., Any]) -> Callable[..., Any]:
  return functools.wraps(make_zeros)(lambda *args: missing(make_zeros(*args)))


def _replace_code(function: Any, new: Callable[[Any], Callable[..., Any]]) -> None:
  """Replaces a function of Python where others hold it, by `new` of a copy of it."""
  if not hasattr(function, "__wrapped__"):
    function.__wrapped__ = types.FunctionType(
      function.__code__, function.__globals__, function.__name__
    )
    function.__code__, function.__kwdefaults__ = (
      _calling.__code__,
      {"_new": new(function.__wrapped__)},
    )


def _calling(*args: Any, _new: Callable[..., Any]) -> Any:
  return _new(*args)


# Two places replace missing cotangents by zeros: a tape, and the gradients of the ops of a graph.
# TF 2.21: each ForwardAccumulator holds the structure in C++ that has the functions of a tape.
# Another structure deletes this one, and the process dies when an accumulator that began before
# uses it.
_replace_code(_backprop._default_vspace.zeros_fn, _filling)
_replace_code(_backprop._default_vspace.zeros_like_fn, _filling)
_control_flow_state.ZerosLike = _filling(_control_flow_state.ZerosLike)


_vectorized = _pfor._pfor_converter_registry["IdentityN"]


@functools.wraps(_vectorized)
def _vectorized_identity_n(pfor_input: Any) -> Any:
  _refuse_effects(pfor_input)
  # TF 2.21: pfor makes a plain IdentityN of it, and TensorFlow would silently differentiate the ops
  # inside.
  if not pfor_input.op.node_def.attr["_gradient_op_type"].s.startswith(GRADIENT.encode()):
    return _vectorized(pfor_input)

  def refuse(*_: tf.Tensor) -> Any:
    raise LookupError(
      "TensorFlow's pfor (tf.vectorized_map, and jacobian with one more tape around it) leaves "
      "out the derivatives of a "
      "jax2tf-converted function. Use jax.vmap before convert, or experimental_use_pfor=False"
    )

  tensors = [x.t for x in pfor_input.inputs]
  operands = [x for x in tensors if x.dtype.is_floating or x.dtype.is_complex]
  results = with_derivatives(lambda: (tensors, None), operands, refuse, refuse)
  return [_pfor.wrap(y, x.is_stacked) for y, x in zip(results, pfor_input.inputs, strict=True)]


_pfor._pfor_converter_registry["IdentityN"] = _vectorized_identity_n


# TF 2.21 has none, and would loop over the rows.
@_pfor.RegisterPFor("PreventGradient")  # type: ignore[untyped-decorator]
def _vectorized_prevent_gradient(pfor_input: Any) -> Any:
  _refuse_effects(pfor_input)
  return _pfor.wrap(
    tf.raw_ops.PreventGradient(
      input=pfor_input.stacked_input(0), message=pfor_input.get_attr("message")
    ),
    True,
  )


# TF 2.21 has none; with a number for each row, Case fails.
@_pfor.RegisterPFor("DeviceIndex")  # type: ignore[untyped-decorator]
def _vectorized_device_index(pfor_input: Any) -> Any:
  return _pfor.wrap(tf.raw_ops.DeviceIndex(device_names=pfor_input.get_attr("device_names")), False)


_vectorized_case = _pfor._pfor_converter_registry["StatelessCase"]


@functools.wraps(_vectorized_case)
def _vectorized_stateless_case(pfor_input: Any) -> Any:
  if LAST_IN_PFOR not in pfor_input.op.inputs[0].op.node_def.attr:
    return _vectorized_case(pfor_input)
  *_, last = pfor_input.get_attr("branches")
  results = _pfor._outputs_for_branch(last.name, None, pfor_input, pfor_input.inputs[1:])
  return [_pfor.wrap(y, True) for y in results]


for _case in ("Case", "StatelessCase"):
  _pfor._pfor_converter_registry[_case] = _vectorized_stateless_case


def _refuse_effects(pfor_input: Any) -> None:
  if EFFECTS in pfor_input.op.node_def.attr:
    raise ValueError(
      "TensorFlow's pfor (tf.vectorized_map) would run the prints and callbacks of a "
      "jax2tf-converted function once, for one of the rows. "
      "Use jax.vmap before convert"
    )


class _Saved:
  """A function of a graph that is being saved, whose captures and arguments are found by
  identity."""

  def __init__(self, function: Any):
    self.name, self.outer_graph = function.name, function.graph.outer_graph
    self.captured = {id(inner): outer for outer, inner in function.graph.captures}
    definition = function.cached_definition
    self._arguments = {
      id(x): f"{y.name}:0"
      for x, y in zip(function.graph.inputs, definition.signature.input_arg, strict=True)
    }
    self._results = {op: result.split(":")[0] for op, result in definition.ret.items()}

  def saved_name(self, x: tf.Tensor) -> str:
    """The name that a tensor of the function is saved with."""
    # TF 2.21: an op after which a result of its function is named, as "jax2tf_arg_0" and
    # "strided_slice" are, is saved as "jax2tf_arg_0_0".
    op, index = self._arguments.get(id(x), x.name).split(":")
    result = self._results.get(op, "")
    return f"{result if result.startswith(f'{op}_') else op}:{index}"


# The names of ops that the gradient functions of a file refer to, which must not change; names of
# other files do not conflict.
_CAPTURED: set[str] = set()

_traced = _save._trace_gradient_functions


@functools.wraps(_traced)
def _trace_gradient_functions(graph: tf.Graph, view: Any) -> None:
  """Saves the gradient functions of the functions in `graph`, and those of gradient functions;
  without ours, as TensorFlow does.

  TF 2.21 omits gradient functions of gradient functions, so a loaded model would have no second
  derivatives. It also compares each capture with every other one, which takes minutes for 500
  parameters.

  Raises:
    ValueError: a gradient function fails, or captures what a SavedModel cannot hold.
  """
  if not any(
    GRADIENT.encode() in kind
    for f in graph._functions.values()
    for kind, _ in _save._iterate_op_types(f)
  ):
    return _traced(graph, view)
  saved: dict[tf.Graph, _Saved] = {}
  names: set[str] = set()
  types: set[str] = set()
  while new := [function for name, function in graph._functions.items() if name not in names]:
    names.update(graph._functions)
    saved.update(
      (function.graph, _Saved(function)) for function in new if hasattr(function, "graph")
    )
    for function in new:
      for encoded, op in _save._iterate_op_types(function):
        if (
          gradient_type := encoded.decode()
        ) not in types and gradient_type in _ops.gradient_registry.list():
          _save_gradient(graph, view, saved, gradient_type, op)
        types.add(gradient_type)


# True while a gradient function of a file is traced; what else is traced for a file may take all
# derivatives.
_saved_gradient = contextvars.ContextVar("_saved_gradient", default=False)
is_saved_gradient = _saved_gradient.get


def _save_gradient(
  graph: tf.Graph, view: Any, saved: dict[tf.Graph, _Saved], gradient_type: str, op: tf.Operation
) -> None:
  token = _saved_gradient.set(True)
  try:
    gradient = tf.function(_ops.gradient_registry.lookup(gradient_type)).get_concrete_function(
      None, *op.inputs
    )
  except Exception as error:
    raise ValueError(
      f"Error when tracing gradients for SavedModel: that of op {op.name!r} raises "
      f"{type(error).__name__}: {error}. Fix it, or save "
      "without gradients: tf.saved_model.SaveOptions(experimental_custom_gradients=False)"
    ) from error
  finally:
    _saved_gradient.reset(token)
  with graph.as_default():
    for capture in gradient.captured_inputs:
      if capture.dtype in _save._UNCOPIABLE_DTYPES:
        continue
      outer, scope = capture, op.graph
      while (of := saved.get(scope)) is not None and not isinstance(
        outer, tf.__internal__.EagerTensor
      ):
        if outer.graph is scope:
          if id(outer) not in of.captured:
            break
          outer = of.captured[id(outer)]
        scope = of.outer_graph
      if of is not None and not isinstance(outer, tf.__internal__.EagerTensor):
        view.add_capture_and_node(capture, _save._CapturedTensor(of.saved_name(outer), of.name))
        _CAPTURED.add(of.saved_name(outer).partition(":")[0])
      elif outer in view.captured_tensor_node_ids:
        view.captured_tensor_node_ids[capture] = view.captured_tensor_node_ids[outer]
      else:
        raise ValueError(
          f"Found invalid capture {outer} when saving custom gradients: that of op {op.name!r} "
          "cannot reach it"
        )
    gradient.add_to_graph(graph)
  view.gradient_functions.append(gradient)
  view.gradient_defs.append(
    _RegisteredGradient(gradient_func=gradient.name, registered_op_type=gradient_type)
  )


_save._trace_gradient_functions = _trace_gradient_functions


_verified = _save._verify_ops


@functools.wraps(_verified)
def _verify_ops(graph_def: Any, namespace_whitelist: Any) -> None:
  """Replaces our prints by TensorFlow ops, refuses other callbacks, and shares constants.
  TensorFlow calls it before it writes a file."""
  replace_prints(graph_def)
  share_constants(graph_def, _CAPTURED)
  _verified(graph_def, namespace_whitelist)


_save._verify_ops = _verify_ops


_ran = _execute.execute


@functools.wraps(_ran)
def _executed(*args: Any, **options: Any) -> Any:
  """Runs a function, and raises the exception of a callback of ours as it was."""
  try:
    return _ran(*args, **options)
  except tf.errors.OpError as error:
    raise as_raised(error) from None


_execute.execute = _executed
