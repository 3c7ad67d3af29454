"""Derives from a TensorFlow function its linear map, the transpose of that, and the batched
function.

Derivatives use tf.gradients inside a graph. A tape stops recording inside a converted function, and
a ForwardAccumulator ignores tf.custom_gradient (TF 2.21).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import tensorflow as tf

from jax2tf import _tf_compat
from jax2tf._tf_compat import functions
from jax2tf.tf_calls.function import (
  READING,
  REPEATABLE,
  Options,
  Run,
  TfFunction,
  VariableReads,
  WithVariables,
  is_packed,
  packed,
  tensor_spec,
)
from jax2tf.tf_calls.of_values import flat_call
from jax2tf.tf_calls.shapes import Shape
from jax2tf.tf_calls.undifferentiated import undifferentiated

Pullback = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]
# residuals -> (tensors like the results, the cotangents of these -> those of the arguments, by
# TensorFlow's convention)
Linearise = Callable[[Sequence[tf.Tensor]], tuple[list[tf.Tensor], Pullback]]


@dataclass(frozen=True, eq=False)
class Linear:
  """The derivative of a function at residuals: a linear map of tangents, and its transpose.

  Attributes:
    forward: (residuals, tangents) -> tangents of the floating point and complex results.
    backward: (residuals, cotangents of these) -> cotangents.
    n_residuals: how many residuals there are.
  """

  forward: TfFunction
  backward: TfFunction
  n_residuals: int


@dataclass(frozen=True, eq=False)
class CallDerivative:
  """How JAX differentiates a function, so that the derivative uses the values that the call read,
  drew or wrote.

  Attributes:
    reads: the values of its variables, which come behind the arguments; None where nothing is read.
    forward: (arguments, values) -> results.
    linear: the derivative; its residuals are (arguments, values).
    is_recorded: `forward` gives the residuals instead, behind the results.
  """

  reads: VariableReads | None
  forward: TfFunction
  linear: Linear
  is_recorded: bool = False


def derivative(function: TfFunction, wrt: tuple[int, ...]) -> CallDerivative:
  """The derivative with respect to the arguments in `wrt`.

  Raises:
    LookupError: it would run the function a second time, for another result.
  """
  return function.memoised(("derivative", wrt), lambda: _derivative(function, wrt))


def _derivative(function: TfFunction, wrt: tuple[int, ...]) -> CallDerivative:
  if isinstance(function, _Vmapped):
    return _of_each(function, wrt)
  is_converted = function.shadows and not function.substituted
  if repeatable := function.stateful <= REPEATABLE and not function.captures_others:
    by_repetition = _repeated(function, wrt)
    # Where `convert` reads variables, its graph has what the call computed, which saves a second
    # run.
    if not (function.stateful - READING or (by_repetition.reads and is_converted)):
      return by_repetition
  try:
    return _recorded(function, wrt)
  except (ValueError, LookupError) as error:
    if repeatable:
      return by_repetition
    kinds = ", ".join(sorted(function.stateful - REPEATABLE)) or "what it captures"
    raise LookupError(
      f"'{function.name}' has no derivative. A second run would differ in results or state "
      f"({kinds}), and the first does not provide what "
      f"the derivative needs: {error}. Take random numbers as arguments (tf.random.stateless_*), "
      "or write variables outside of what is "
      "differentiated"
    ) from error


def _repeated(function: TfFunction, wrt: tuple[int, ...]) -> CallDerivative:
  """Runs the function again, with the values that its variables had."""
  reads, known = None, {v.ref() for v in function.substituted.values()}
  if variables := [v for v in function.captured if v.ref() not in known]:
    reads = VariableReads(function.name, variables, function.options)
    function = WithVariables(function, variables, shadowed=False, substituted=True)

  def linearise(primals: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], Pullback]:
    outs = _inexact(function, primals)
    return outs, lambda cotangents: _cotangents(function, primals, wrt, outs, cotangents)

  return CallDerivative(reads, function, _linear(function, function.avals_in, wrt, linearise))


def _recorded(function: TfFunction, wrt: tuple[int, ...]) -> CallDerivative:
  """Uses the residuals that the call computed.

  Raises:
    ValueError: JAX has no such dtype, or their shapes are unknown.
  """
  forward = WithResiduals(function, wrt)
  residuals = forward.avals_out[len(function.avals_out) :]
  return CallDerivative(
    None,
    forward,
    _linear(function, residuals, wrt, forward.linearise, apart=True),
    is_recorded=True,
  )


def _of_each(function: _Vmapped, wrt: tuple[int, ...]) -> CallDerivative:
  """The derivative of the inner function, for each element of the batch."""
  inner, size = derivative(function.inner, wrt), function.size
  in_batch = (*function.batched, *[False] * (len(inner.reads.avals_out) if inner.reads else 0))
  forward = vmapped(inner.forward, in_batch, size)
  if inner.is_recorded:
    in_batch = (True,) * inner.linear.n_residuals
  tangents = tuple(function.batched[i] for i in wrt)
  jvp = vmapped(inner.linear.forward, (*in_batch, *tangents), size)
  vjp = vmapped(inner.linear.backward, (*in_batch, *(True for _ in function.inexact_results)), size)
  vjp = _summed(vjp, [k for k, is_in in enumerate(tangents) if not is_in])
  return CallDerivative(inner.reads, forward, Linear(jvp, vjp, len(in_batch)), inner.is_recorded)


def _linear(
  function: TfFunction,
  residuals: Sequence[Any],
  wrt: tuple[int, ...],
  linearise: Linearise,
  *,
  apart: bool = False,
) -> Linear:
  """The linear map and its transpose, from `linearise`. With `apart` it does not share the
  variables and shadows of the function."""
  n = len(residuals)

  def jvp(*operands: tf.Tensor) -> list[tf.Tensor]:
    outs, pullback = linearise([tf.identity(x) for x in operands[:n]])
    # The transpose of the transpose. Identities, because a converted function takes TensorFlow's
    # own zeros for a missing cotangent.
    seeds = [tf.identity(_zeros(y)) for y in outs]
    return _dense(gradients(function, pullback(seeds), seeds, operands[n:]), outs)

  def vjp(*operands: tf.Tensor) -> list[tf.Tensor]:
    _, pullback = linearise([tf.identity(x) for x in operands[:n]])
    # TensorFlow's gradients of complex values are the conjugates of JAX's.
    return [_conjugate(g) for g in pullback([_conjugate(c) for c in operands[n:]])]

  results = [function.avals_out[i] for i in function.inexact_results]
  sources = [function.avals_in[i] for i in wrt]
  options = replace(function.options, has_side_effects=False, ordered=False, vmap_method=None)

  def derived(name: str, run: Run, avals_in: Sequence[Any], avals_out: Sequence[Any]) -> TfFunction:
    return _Derived(
      None if apart else function,
      f"the {name} of {function.name}",
      run,
      (*residuals, *avals_in),
      options,
      avals_out,
    )

  return Linear(derived("jvp", jvp, sources, results), derived("vjp", vjp, results, sources), n)


class _Derived(TfFunction):
  """A derived function, which exists in graphs only; the arguments of the original come first."""

  def __init__(
    self,
    function: TfFunction | None,
    name: str,
    run: Run,
    avals_in: Sequence[Any],
    options: Options,
    avals_out: Sequence[Any] | None,
  ):
    super().__init__(name, run, avals_in, options, avals_out)
    self.captured = function.captured if function else []
    if function:
      self.shadows, self.substituted = function.shadows, function.substituted

  def run_eagerly(self, *tensors: tf.Tensor) -> Sequence[tf.Tensor]:
    """As `TfFunction.run_eagerly`."""
    return self.flat_call(list(tensors))

  @property
  def declares(self) -> bool:
    """Never: its shapes follow from those of the function."""
    return False

  @property
  def avals_out(self) -> Any:
    """Known before the graph is made: JAX asks for those of a map that it then transposes, and
    TensorFlow may only have the transpose."""
    return tuple(self._declared or ())


class WithResiduals(_Derived):
  """A function that also returns the values that the graph of its gradient captures."""

  def __init__(self, function: TfFunction, wrt: tuple[int, ...]):
    if "EagerPyFunc" in function.stateful:
      raise ValueError("its py_function keeps only its last call")
    options = function.options
    if options.vmap_method not in ("sequential", "sequential_unrolled", "vectorized"):
      options = replace(options, vmap_method=None)  # its results have no batch dimension
    super().__init__(function, function.name, self._run, function.avals_in, options, None)
    self._function, self._wrt = function, wrt
    self._apart: weakref.WeakKeyDictionary[tf.Graph, Any] = weakref.WeakKeyDictionary()
    self._names: list[str] = []  # of the results, in the graph of `concrete`, which is the first

  def compiled(self, jit_compile: bool | None) -> Any:
    """As `TfFunction.compiled`; `run` calls that of `concrete`."""
    return tf.function(self._trace, autograph=False, jit_compile=jit_compile)

  def _run(self, *primals: tf.Tensor) -> list[tf.Tensor]:
    return list(flat_call(self.concrete, {})(list(primals)))

  def _trace(self, *operands: tf.Tensor) -> list[tf.Tensor]:
    function, graph, primals = (
      self._function,
      _tf_compat.current_graph(),
      [tf.identity(x) for x in operands],
    )
    outs = function.run(*primals)
    inexact = [outs[i] for i in function.inexact_results]

    def pullback(*cotangents: tf.Tensor) -> list[tf.Tensor]:
      return _cotangents(function, primals, self._wrt, inexact, cotangents, graph)

    call, residuals = functions.gradient_apart(
      pullback, [tf.TensorSpec(y.shape, y.dtype) for y in inexact]
    )
    dtypes, unsized = (
      [x.dtype for x in residuals],
      [y for y in inexact if not y.shape.is_fully_defined()],
    )
    if any((x.dtype.is_floating or x.dtype.is_complex) and is_packed(x.dtype) for x in residuals):
      raise ValueError("it computes in 64-bit dtypes, which JAX has only with jax_enable_x64")
    self._apart[graph] = call, dtypes, [y.shape for y in inexact], [y.dtype for y in inexact]
    self._names = self._names or [x.name for x in (*outs, *residuals, *unsized)]
    return [*outs, *map(packed, residuals), *unsized]

  def _infer(self, shapes: list[Shape]) -> list[Shape]:
    """As `TfFunction._infer`. A gradient at static shapes takes fewer sizes from the graph, so its
    tensors are found by name."""
    specs = [
      tf.TensorSpec(shape, spec.dtype) for shape, spec in zip(shapes, self.specs, strict=True)
    ]
    graph = self._traced(specs).graph
    shapes_out: list[Shape] = []
    for name, y in zip(self._names, self.concrete.outputs, strict=True):
      try:
        shape = (y if y.shape.is_fully_defined() else graph.get_tensor_by_name(name)).shape
      except KeyError:
        shape = tf.TensorShape(None)
      if not y.shape.is_compatible_with(shape) or shape.rank is None:  # packed, or not there
        raise ValueError(f"the shape of '{name}', which its gradient takes, is not known")
      shapes_out.append(tuple(shape.as_list()))
    return shapes_out

  def linearise(self, residuals: Sequence[tf.Tensor]) -> tuple[list[tf.Tensor], Pullback]:
    """As of `Linearise`."""
    call, kinds, shapes, dtypes = self._apart[self.concrete.graph]
    unpacked = [
      x if x.dtype == dtype else tf.bitcast(x, dtype)
      for x, dtype in zip(residuals, kinds, strict=False)
    ]
    unsized = iter(residuals[len(unpacked) :])
    like = [
      tf.zeros(s, dtype) if s.is_fully_defined() else next(unsized)
      for s, dtype in zip(shapes, dtypes, strict=True)
    ]
    return like, lambda cotangents: list(call(unpacked, cotangents))

  @functools.cached_property
  def avals_out(self) -> Any:
    """Those of the function, and of what is kept."""
    own = self._function.avals_out
    residual_shapes = self.shapes()[len(own) :]
    if None in residual_shapes:
      raise ValueError("the shapes of what its gradient takes depend on values")
    dtypes = [y.dtype.as_numpy_dtype for y in self.concrete.outputs[len(own) :]]
    return (
      *own,
      *(
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in zip(residual_shapes, dtypes, strict=True)
      ),
    )


class _Vmapped(_Derived):
  """A function that is called for each element of the `batched` arguments."""

  def __init__(self, inner: TfFunction, batched: tuple[bool, ...], size: int):
    self.inner, self.batched, self.size = inner, batched, size
    avals = [
      _with_batch(a, size) if is_in else a for a, is_in in zip(inner.avals_in, batched, strict=True)
    ]
    results = [_with_batch(a, size) for a in inner.avals_out]
    super().__init__(inner, f"the vmap of {inner.name}", self._run, avals, inner.options, results)
    self._one, self._method = inner.run, inner.options.vmap_method
    # each element calls the copy of the graph that takes values
    if any(batched[i] for i in inner.substituted):
      self.substituted, self._method = {}, "sequential"
      self._one = lambda *elements: list(
        flat_call(inner.concrete, inner.substituted)(list(elements))
      )

  def _run(self, *operands: tf.Tensor) -> list[tf.Tensor]:
    method = self._method
    if method in ("expand_dims", "broadcast_all", "legacy_vectorized"):
      return self._at_once(operands, method)
    if isinstance(self.size, int) and not self.size:
      return [tf.zeros(a.shape, a.dtype) for a in self.avals_out]

    def one(elements: Sequence[tf.Tensor]) -> list[tf.Tensor]:
      rows = iter(elements)
      return self._one(
        *[next(rows) if is_in else x for x, is_in in zip(operands, self.batched, strict=True)]
      )

    stacked = [x for x, is_in in zip(operands, self.batched, strict=True) if is_in]
    if method == "vectorized":
      return list(tf.vectorized_map(one, stacked))
    if (
      method is None
      and not self.inner.stateful - {"ReadVariableOp"}
      and (vectorized := _vectorized(one, stacked)) is not None
    ):
      return list(vectorized)
    signature = [tensor_spec(a) for a in self.inner.avals_out]
    return (
      list(tf.map_fn(one, stacked, fn_output_signature=signature, parallel_iterations=1))
      if signature
      else []
    )

  def _at_once(self, operands: Sequence[tf.Tensor], method: str) -> list[tf.Tensor]:
    rows = next(tf.shape(x)[:1] for x, is_in in zip(operands, self.batched, strict=True) if is_in)
    whole = []
    for x, is_in in zip(operands, self.batched, strict=True):
      if is_in or method == "legacy_vectorized":
        whole.append(x)
      else:
        whole.append(
          tf.broadcast_to(x, tf.concat([rows, tf.shape(x)], 0))
          if method == "broadcast_all"
          else x[None]
        )
    return self.inner.run(*whole)


def vmapped(function: TfFunction, batched: tuple[bool, ...], size: int) -> TfFunction:
  """The function over a batch of `size`, in front of the arguments that are `batched` and of all
  results."""
  return function.memoised(("vmap", batched, size), lambda: _Vmapped(function, batched, size))


def _summed(function: TfFunction, over: Sequence[int]) -> TfFunction:
  """The function with some of its results summed over their batch: cotangents of what the elements
  of a batch share."""
  if not over:
    return function
  avals = [
    jax.ShapeDtypeStruct(a.shape[1:], a.dtype) if i in over else a
    for i, a in enumerate(function.avals_out)
  ]

  def run(*operands: tf.Tensor) -> list[tf.Tensor]:
    return [tf.reduce_sum(y, 0) if i in over else y for i, y in enumerate(function.run(*operands))]

  return _Derived(function, function.name, run, function.avals_in, function.options, avals)


def _vectorized(function: Callable[..., Any], stacked: Any) -> Any:
  """tf.vectorized_map without its log lines; None where it fails, as TF 2.21 does for derivatives
  of loops and branches."""
  logger = tf.get_logger()
  level = logger.level
  logger.setLevel("CRITICAL")
  try:
    return tf.vectorized_map(function, stacked)
  except (TypeError, ValueError):
    return None
  finally:
    logger.setLevel(level)


def gradients(
  function: TfFunction,
  ys: Sequence[Any],
  xs: Sequence[Any],
  seeds: Sequence[Any],
  graph: Any = None,
) -> list[Any]:
  """tf.gradients, whose refusals are LookupErrors; of another graph than that under construction if
  one is given."""
  try:
    cotangents = functions.gradients_of(ys, xs, [tf.identity(s) for s in seeds], graph)
  except LookupError as error:
    raise LookupError(f"TensorFlow cannot differentiate '{function.name}': {error}") from error
  if blocked := undifferentiated(ys, xs):
    raise LookupError(
      f"TensorFlow cannot differentiate '{function.name}': {blocked} has no gradient. Give it one "
      "with tf.custom_gradient, or put "
      "tf.stop_gradient around its result"
    )
  return [g if g is None else tf.convert_to_tensor(g) for g in cotangents]


def _inexact(function: TfFunction, primals: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  results = function.run(*primals)
  return [results[i] for i in function.inexact_results]


def _cotangents(
  function: TfFunction, primals: Any, wrt: Any, outs: Any, cotangents: Any, graph: Any = None
) -> list[tf.Tensor]:
  """The cotangents of the primals in `wrt`, or of the variables that these stand for."""
  sources = [function.shadows.get(i, primals[i]) for i in wrt]
  if graph is not None:  # which identifies a variable by its captured handle
    sources = [graph.capture(x.handle) if isinstance(x, tf.Variable) else x for x in sources]
  return _dense(gradients(function, outs, sources, cotangents, graph), [primals[i] for i in wrt])


def _dense(cotangents: Sequence[Any], like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
  return [
    _zeros(x) if g is None else tf.cast(g, x.dtype) for g, x in zip(cotangents, like, strict=True)
  ]


def _zeros(like: tf.Tensor) -> tf.Tensor:
  return tf.zeros(like.shape, like.dtype) if like.shape.is_fully_defined() else tf.zeros_like(like)


def _conjugate(x: tf.Tensor) -> tf.Tensor:
  return tf.math.conj(x) if x.dtype.is_complex else x


def _with_batch(aval: Any, size: int) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct((size, *aval.shape), aval.dtype)
