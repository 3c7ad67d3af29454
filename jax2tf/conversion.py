"""Runs one traced function in TensorFlow: in the current graph, or eagerly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.extend.core.primitives as P
import tensorflow as tf

from jax2tf import _jax_compat, _tf_compat, custom_gradient, interpreter, native
from jax2tf import lowering as _lowering  # noqa: F401  (registers the lowering rules)
from jax2tf.caches import BoundedCache
from jax2tf.context import scope_name
from jax2tf.derivative_jaxprs import Derivative, derivative, derivatives_of, differentiable
from jax2tf.dims import DimensionValues
from jax2tf.dtypes import physical
from jax2tf.errors import UnsupportedEquation, lowering_error, warn_user
from jax2tf.expansions import meshes
from jax2tf.graph_context import GraphContext
from jax2tf.interpreter import GraphEmitter
from jax2tf.jaxprs import ClosedJaxpr, Eqn
from jax2tf.placement.devices import Destination
from jax2tf.placement.precision import exceeds_tf32, has_tf32
from jax2tf.placement.propagation import places_named_by
from jax2tf.placement.shardings import has_sharding
from jax2tf.program import (
  Emitter,
  Prepare,
  Program,
  Stage,
  Subject,
  lowered_equations,
  passed,
  prepare,
)
from jax2tf.trace import TracedFunction, is_tensorflows

_MOST_EAGER_FUNCTIONS = 256


class Conversion:
  """A traced function, ready to be lowered.

  Inside a tf.function, its ops join the caller's graph. Eagerly, the first call builds a separate
  tf.function, so that later calls cost one op.

  Args:
    traced: the function.
    orders: of derivatives that a SavedModel holds; 0 for a function that is not differentiable.
    destination: where the graph will run.
    composites: names of the idioms that use TensorFlow's composite ops.
    target: the reader of native modules; None for ordinary ops.
    on_one_device: whether programs for several devices become programs for one.
  """

  def __init__(
    self,
    traced: TracedFunction,
    orders: int,
    destination: Destination,
    composites: frozenset[str] = frozenset(),
    target: native.Target | None = None,
    on_one_device: bool = True,
  ):
    self._target = target
    self._destination = destination
    self._subject = Subject(
      traced.name,
      destination,
      composites,
      is_native=target is not None,
      on_one_device=on_one_device,
    )
    self._prepare: Prepare = (
      prepare if target is None else functools.partial(native.prepare, target)
    )
    jaxpr = passed(Stage.TRACED, traced.jaxpr, self._subject)
    self._jaxpr = passed(Stage.DIFFERENTIATED, jaxpr, self._subject) if orders else jaxpr
    self._program = self._prepare(self._jaxpr, self._subject)
    if target is None:
      _check_placement(traced, self._program.jaxpr, destination)
    self._on_several_devices = target is not None and native.runs_on_several_devices(traced.jaxpr)
    self.traced = traced
    self._dimensions = traced.dimensions
    self._orders = orders
    self._derivatives: BoundedCache[Any, Derivative] = derivatives_of(traced.name)
    # Of the function itself, and of the passes of its derivatives.
    self._eager_functions: BoundedCache[Program, Any] = derivatives_of(
      traced.name, _MOST_EAGER_FUNCTIONS
    )
    self.dtypes = [physical(aval)[1] for aval in traced.arguments]

  def __call__(self, leaves: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The flat results for flat arguments of the traced dtypes.

    Raises:
      ValueError: a static shape does not fit the polymorphic shapes; in JAX's words.
    """
    signature = self.traced.signature
    _, avals = signature.split_operands(self.traced.jaxpr.in_avals)
    values = [
      tf.cast(variable.read_value(), physical(aval)[1])
      for variable, aval in zip(signature.captured, avals, strict=True)
    ]
    operands = [*leaves, *values]
    if _tf_compat.current_graph() is None:
      return self._eagerly(operands)
    dimensions, assertions = interpreter.dimension_values(
      lambda lower: self._dimensions.values(operands, lower), self._destination
    )
    # All ops of the function depend on these assertions.
    with tf.control_dependencies(assertions):
      avals = self.traced.jaxpr.in_avals
      named = [
        _argument(x, aval, i) for i, (x, aval) in enumerate(zip(operands, avals, strict=True))
      ]
      operands = [self._at_the_boundary(x, f"argument {i}") for i, x in enumerate(named)]
    with tf.name_scope(f"jax2tf_{scope_name(self.traced.name)}_"):
      results = self._differentiable(
        self._run(dimensions), operands, differentiable(self.traced.jaxpr.in_avals)
      )
    return [
      tf.identity(self._at_the_boundary(y, f"result {i}"), "jax2tf_out")
      for i, y in enumerate(results)
    ]

  def _at_the_boundary(self, x: tf.Tensor, what: str) -> tf.Tensor:
    return _at_the_boundary(x, f"{what} of '{self.traced.name}'")

  def _run(self, dimensions: DimensionValues) -> Emitter:
    """Emits programs into the graph under construction."""
    emitter = GraphEmitter(GraphContext(dimensions, self._destination))
    return emitter if self._target is None else native.Native(emitter, self._target)

  def _differentiable(
    self, run: Emitter, operands: Sequence[tf.Tensor], wrt: Sequence[int]
  ) -> list[tf.Tensor]:
    if not self._orders:
      reason = (
        "The jax2tf-converted function does not support gradients. Use `with_gradient` "
        "parameter to enable gradients"
      )
      has_effects = bool(self.traced.jaxpr.effects)
      return _tf_compat.without_derivatives(
        lambda: run(self._program, *operands), [operands[i] for i in wrt], reason, has_effects
      )
    if is_tensorflows(self.traced.jaxpr):
      return run(self._program, *operands)
    derivative_of_wrt = self._derivatives.get(tuple(wrt), lambda: self._derivative(wrt))
    return custom_gradient.call(derivative_of_wrt, run, *operands)

  def _derivative(self, wrt: Sequence[int]) -> Derivative:
    return derivative(self._jaxpr, self._program, self._subject, wrt, self._prepare, self._orders)

  def _eagerly(self, operands: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    if self._on_several_devices:
      raise ValueError(
        "A lowered function with sharded arguments or results must be used under a `tf.function` "
        f"context: '{self.traced.name}' runs on several devices"
      )
    self._dimensions.check([x.shape for x in operands])
    sizes = [
      tf.compat.dimension_value(operands[argument].shape[axis])
      for _, argument, axis in self._dimensions.sizes
    ]
    run = _Eager(self._run_eagerly, [tf.constant(s, tf.int32) for s in sizes])
    # Eagerly, unlike in a graph, the arguments that a tape watches are known here.
    wrt = [
      i for i in differentiable(self.traced.jaxpr.in_avals) if _tf_compat.is_watched(operands[i])
    ]
    return self._differentiable(run, operands, wrt) if wrt else run(self._program, *operands)

  def _run_eagerly(
    self, sizes: list[tf.Tensor], program: Program, *operands: tf.Tensor
  ) -> list[tf.Tensor]:
    function = self._eager_functions.get(program, lambda: self._eager_function(program))
    return list(function(*sizes, *operands))

  def _eager_function(self, program: Program) -> Any:
    """(sizes, operands) -> results, one graph for all values of the dimension variables."""
    n_sizes = len(self._dimensions.sizes)
    size_specs = [tf.TensorSpec([], tf.int32)] * n_sizes
    avals = map(physical, program.jaxpr.in_avals)
    specs = [
      tf.TensorSpec([d if isinstance(d, int) else None for d in shape], dtype)
      for shape, dtype in avals
    ]

    @tf.function(autograph=False, input_signature=[*size_specs, *specs])  # type: ignore[untyped-decorator]
    def function(*args: tf.Tensor) -> list[tf.Tensor]:
      sizes, operands = args[:n_sizes], args[n_sizes:]
      dimensions, _ = interpreter.dimension_values(
        lambda lower: self._dimensions.values_of(sizes, lower), self._destination
      )
      return self._run(dimensions)(program, *operands)

    return function.get_concrete_function()


# TF 2.21: XLA's code has two values of these dtypes in a byte, TensorFlow's tensors have one, and
# nothing converts between the two.
_PACKED = {tf.as_dtype("int4"): "int8", tf.as_dtype("uint4"): "uint8"}


def _at_the_boundary(x: tf.Tensor, what: str) -> tf.Tensor:
  """An argument or result of a converted function. XLA does not compile it where it would garble
  it.

  Args:
    x: a tensor of a graph; `what` names it in the error.

  Raises:
    NotImplementedError: it has 4 bits, in a tf.function with jit_compile=True.
  """
  if x.dtype not in _PACKED:
    return x
  dtype, wide = x.dtype.name, _PACKED[x.dtype]
  if _tf_compat.is_compiled_by_xla():
    raise NotImplementedError(
      f"{what} is {dtype} inside a tf.function with jit_compile=True: TensorFlow and XLA lay out "
      f"{dtype} differently, so XLA would read or return other numbers. Take and return {wide}, "
      "with casts inside the JAX function, or leave out jit_compile=True"
    )
  # Whether XLA will compile a graph is not always known, for instance that of a loaded model. TF
  # 2.21: Copy has no XLA kernel, and the error says so with the name of the op.
  name = f"jit_compile_garbles_{dtype}_take_and_return_{wide}_with_casts_inside_the_JAX_function"
  return tf.raw_ops.Copy(input=x, tensor_name="", debug_ops_spec=[], name=name)


def _argument(operand: tf.Tensor, aval: Any, number: int) -> tf.Tensor:
  """The argument in the graph. A size of the specification that TensorFlow does not know is checked
  when the graph runs."""
  name = f"jax2tf_arg_{number}"
  sizes = [d if isinstance(d, int) else None for d in physical(aval)[0]]
  unknown = (size for size, known in zip(sizes, operand.shape, strict=True) if known is None)
  if all(size is None for size in unknown):
    return tf.identity(operand, name)
  return tf.ensure_shape(operand, sizes, name)


def _check_placement(traced: TracedFunction, jaxpr: ClosedJaxpr, destination: Destination) -> None:
  """Raises ValueError for devices that TensorFlow lacks; warns about precision and shardings that
  the graph drops."""
  lowered = list(lowered_equations(jaxpr, destination))
  if has_tf32(destination) and (
    above := dict.fromkeys(where() for eqn, where in lowered if exceeds_tf32(eqn))
  ):
    warn_user(
      f"'{traced.name}' multiplies with more precision than TensorFloat-32 (at "
      f"{'; '.join(above)}), and TensorFlow uses TensorFloat-32 on a GPU: call "
      "tf.config.experimental.enable_tensor_float_32_execution(False), which holds for the whole "
      "process, here and where the graph runs"
    )
  missing = {
    f"  {place} ({device} in TensorFlow) at {where()}"
    for eqn, where in lowered
    for place in places_named_by(eqn)
    if (device := destination.missing(place))
  }
  if missing:
    devices = ", ".join(d.name.removeprefix("/device:") for d in tf.config.list_logical_devices())
    raise ValueError(
      f"'{traced.name}' runs on devices that TensorFlow does not have here, only {devices}:\n"
      + "\n".join(sorted(missing))
      + (
        "\n  name others with device_map, or with platforms the machine on which the graph will run"
      )
    )
  if destination.dtensor_mesh is not None and (
    gaps := [
      UnsupportedEquation("scan", *_STACKS, where()) for eqn, where in lowered if _stacks(eqn)
    ]
  ):
    raise lowering_error(traced.name, gaps)
  # A program on one device is what the user asks for.
  if destination.annotates_shardings or meshes.has_programs(traced.jaxpr):
    return
  if spread := dict.fromkeys(where() for eqn, where in lowered if has_sharding(eqn)):
    warn_user(
      f"the sharding annotations of '{traced.name}' (at {'; '.join(spread)}) have no effect in "
      "the graph: convert with keep_shardings=True "
      "for XlaSharding ops, with dtensor_mesh, or natively"
    )


# TF 2.21: "'tf.TensorListStack' op does not implement layout propagation".
_STACKS = (
  "DTensor has no layout for stacked scan outputs",
  "write each step's row into the carry, or convert without dtensor_mesh",
)


def _stacks(eqn: Eqn) -> bool:
  """Whether an equation is a scan that stacks the outputs of its steps."""
  if eqn.primitive is not P.scan_p:
    return False
  n_carry = _jax_compat.scan_split(
    *(eqn.params.get(name) for name in ("num_consts", "num_carry", "ft_in"))
  )[1]
  return len(eqn.outvars) > n_carry


@dataclass(frozen=True)
class _Eager:
  """Calls the function of a program."""

  call: Callable[..., list[tf.Tensor]]
  sizes: list[tf.Tensor]

  def __call__(self, program: Program, *operands: tf.Tensor) -> list[tf.Tensor]:
    return self.call(self.sizes, program, *operands)

  def in_current_graph(self) -> _Eager:
    return self

  def alias(self, tensor: tf.Tensor, source: tf.Tensor) -> None:
    """Nothing is known of a tensor outside of the function that made it."""

  def with_value_numbering(self) -> None:
    return None
