"""Native lowering: emits a jaxpr as one XlaCallModule op, in a StableHLO version that the reader
supports.

`jax.export` makes the module. Here composites, which older readers cannot refine, become calls of
their decompositions, and the module is serialised at the version of the TensorFlow that will read
it. LAPACK equations, for which TensorFlow's XLA has no handler on CPU, are lowered by their graph
rules between the modules.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.extend.core.primitives as P
import numpy as np
import tensorflow as tf
from jax import export
from jax.export import is_symbolic_dim
from jax.extend.core import Jaxpr, Literal, Primitive, jaxpr_as_fun
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters import mlir

from jax2tf import _jax_compat, _tf_compat, errors, jaxprs
from jax2tf._jax_compat import jit_info
from jax2tf.dtypes import as_dtype, in_bytes, physical, tf_dtype
from jax2tf.expansions.libraries import expanded
from jax2tf.interpreter import GraphEmitter
from jax2tf.jaxprs import ClosedJaxpr, Eqn, opened
from jax2tf.lines import UNKNOWN
from jax2tf.messages import ArgumentError
from jax2tf.placement.propagation import NOWHERE
from jax2tf.placement.shardings import has_sharding, operand_shardings
from jax2tf.program import Places, Program, Stage, Subject, passed
from jax2tf.registry import IN_TENSORFLOW
from jax2tf.traits import CALLBACKS, LAPACK

# The StableHLO version that releases of TensorFlow report (last patches; each has read our modules:
# docs/reports/targets.md). 2.17 reports 1.1.1, and reads scatters with batching dimensions, but its
# XLA refuses them.
_OF_TENSORFLOW = {
  "2.14": "0.14.8",
  "2.15": "0.14.24",
  "2.16": "0.17.7",
  "2.17": "1.0.0",
  "2.18": "1.7.3",
  "2.19": "1.9.1",
  "2.20": "1.12.1",
  "2.21": "1.13.7",
}


def stablehlo_version(reader: str | None) -> str:
  """The StableHLO version of a reader: that of the installed TensorFlow, of a release of TensorFlow
  ("2.16"), or the one given.

  Raises:
    ValueError: no such version is known.
  """
  if reader is None:
    return _tf_compat.stablehlo_version()
  if (release := ".".join(reader.split(".")[:2])) in _OF_TENSORFLOW:
    return _OF_TENSORFLOW[release]
  numbers = _numbers(reader)
  if len(numbers) != 3 or not _numbers("0.9.0") <= numbers <= _numbers(
    stablehlo.get_current_version()
  ):
    raise ArgumentError(
      "stablehlo_version",
      reader,
      advice=f"give a TensorFlow release among {', '.join(_OF_TENSORFLOW)}, or a StableHLO version "
      f"from 0.9.0 to {stablehlo.get_current_version()}, the newest that this JAX writes",
    )
  return reader


def _numbers(version: str) -> list[int]:
  return [int(n) for n in version.split(".") if n.isdecimal()]


@dataclass(frozen=True)
class Target:
  """The reader of the modules, and the platforms that run them.

  Attributes:
    platforms: of cpu, cuda, rocm, tpu; with more than one, the module chooses when it runs.
    disabled_checks: what `jax.export` and the op leave unchecked.
    stablehlo_version: of the reader, "1.13.7".
  """

  platforms: tuple[str, ...]
  disabled_checks: tuple[export.DisabledSafetyCheck, ...]
  stablehlo_version: str


@dataclass(frozen=True)
class Native:
  """An emitter of XlaCallModule ops, one for each jaxpr, except for equations that the target does
  not support.

  Attributes:
    emitter: emits these equations as ordinary ops.
    target: who will read the modules.
  """

  emitter: GraphEmitter
  target: Target

  def __call__(self, program: Program, *operands: tf.Tensor) -> list[tf.Tensor]:
    """The results of a program of which no caller is known."""
    return self.emitter.with_effects(program, lambda: self.lower(UNKNOWN, program.jaxpr, *operands))

  def in_current_graph(self) -> Native:
    """The same for the graph under construction now."""
    return replace(self, emitter=self.emitter.in_current_graph())

  def alias(self, tensor: tf.Tensor, source: tf.Tensor) -> None:
    """Says that a tensor is the identity of another one."""
    self.emitter.alias(tensor, source)

  def with_value_numbering(self) -> None:
    """A module gives all of its results."""

  def lower(
    self, caller: str, jaxpr: ClosedJaxpr, *operands: tf.Tensor, places: Places = ()
  ) -> list[tf.Tensor]:
    """As `GraphEmitter.lower`. Equations that no module can hold go to their graph rules; all
    between two of these is one module."""
    del places  # JAX has them
    kinds = (*(LAPACK if "cpu" in self.target.platforms else ()), *CALLBACKS, *IN_TENSORFLOW)
    parts = _parts(opened(jaxpr), kinds)
    if not any(is_outside for is_outside, _ in parts):
      return self._module(jaxpr, operands)
    env, read = self.emitter.environment(jaxpr, operands), self.emitter.read
    for is_outside, part in parts:
      if is_outside:
        for eqn in part.eqns:  # the inside of a call, a loop or a branch is lowered natively
          inner = self.emitter.lower if eqn.primitive in kinds else self.lower
          env.update(
            zip(
              eqn.outvars,
              self.emitter.equation(eqn, read(env, eqn.invars), caller, inner=inner),
              strict=True,
            )
          )
      else:
        env.update(zip(part.outvars, self._module(part, read(env, part.invars)), strict=True))
    return read(env, jaxpr.outvars)

  def _module(self, jaxpr: ClosedJaxpr, operands: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    dimensions = self.emitter.graph.dimensions
    version, module = _exported(jaxpr, tuple(dimensions.variables), self.target)
    shardings = operand_shardings(jaxpr)
    outs = [None if isinstance(v, Literal) else v for v in jaxpr.outvars]
    bytes_in, bytes_out = (
      [tf_dtype(in_bytes(aval.dtype)) for aval in avals]
      for avals in (jaxpr.in_avals, jaxpr.out_avals)
    )
    operands = [tf.cast(x, dtype) for x, dtype in zip(operands, bytes_in, strict=True)]
    operands = _annotated(operands, [*map(shardings.get, jaxpr.invars)])
    if variables := dimensions.variables.values():
      # No other argument need have the sizes of all variables: a backward pass may have none of its
      # residuals.
      operands = [tf.zeros([*variables, 0], tf.int8), *operands]
    avals = [physical(aval) for aval in jaxpr.out_avals]
    results = _tf_compat.xla_call_module(
      operands,
      module=module,
      version=version,
      platforms=[platform.upper() for platform in self.target.platforms],
      shapes=[dimensions.static_shape(sizes) for sizes, _ in avals],
      dtypes=bytes_out,
      disabled_checks=[str(check) for check in self.target.disabled_checks],
    )
    results = [tf.cast(y, dtype) for y, (_, dtype) in zip(results, avals, strict=True)]
    return _annotated(results, [*map(shardings.get, outs)])


def _annotated(tensors: Sequence[tf.Tensor], shardings: Sequence[Any]) -> list[tf.Tensor]:
  """The module has the shardings of its arguments and results; TensorFlow needs them outside of it
  as well."""
  return [
    x
    if sharding is None
    else _tf_compat.xla_sharding(x, _jax_compat.hlo_sharding(sharding, x.shape.rank))
    for x, sharding in zip(tensors, shardings, strict=True)
  ]


@_jax_compat.weakly_cached
def _parts(jaxpr: Jaxpr, primitives: tuple[Primitive, ...]) -> Sequence[tuple[bool, ClosedJaxpr]]:
  """(whether it contains one of these primitives, a run of consecutive equations as a jaxpr), in
  order; the runs alternate."""
  eqns = expanded(jaxpr)
  uses = {v: position for position, eqn in enumerate(eqns) for v in jaxprs.variables(eqn.invars)}
  uses |= dict.fromkeys(jaxprs.variables(jaxpr.outvars), len(eqns))
  parts = []
  for in_graph, group in itertools.groupby(
    enumerate(eqns), key=lambda item: _holds(item[1], primitives)
  ):
    numbers, group_eqns = zip(*group, strict=True)
    results = [v for eqn in group_eqns for v in eqn.outvars if uses.get(v, -1) > numbers[-1]]
    parts.append((in_graph, jaxprs.part(jaxpr, group_eqns, results)))
  return parts


def _holds(eqn: Eqn, primitives: Sequence[Primitive]) -> bool:
  """Whether an equation, or one inside it, is of one of these primitives."""
  inner = (e for body in jaxprs.inner_jaxprs(eqn) for e in _walk(body))
  return eqn.primitive in primitives or any(e.primitive in primitives for e in inner)


def _walk(jaxpr: Any) -> Iterator[Eqn]:
  return jaxprs.walk(jaxpr, of=expanded)


def prepare(target: Target, jaxpr: ClosedJaxpr, of: Subject, places: Places = ()) -> Program:
  """The program of a jaxpr, for `jax.export`, which rewrites and places by itself.

  Raises:
    LoweringError: what `jax.export` does not refuse: LAPACK or callbacks on several devices,
      TensorFlow functions that a module only names.
  """
  jaxpr = passed(Stage.OUTERMOST, jaxpr, of)
  graphs = [
    ("call_tf", where())
    for eqn, where in jaxprs.located(jaxpr)
    if eqn.primitive.name == "call_tf" and eqn.params.get("call_tf_graph")
  ]
  if graphs:
    reason = (
      "with call_tf_graph=True the module only refers to the function, which only JAX's "
      "own jax2tf.convert supports"
    )
    raise errors.lowering_error(
      of.function,
      [
        errors.UnsupportedEquation(name, reason, "leave call_tf_graph out", where)
        for name, where in graphs
      ],
    )
  # between modules of several, nothing can be lowered to one device
  if runs_on_several_devices(jaxpr):
    _refuse_on_several(
      jaxpr,
      of.function,
      CALLBACKS,
      "it calls back into Python",
      "remove this line before conversion",
    )
    if "cpu" in target.platforms:
      advice = "convert the single-device function, or choose other native_serialization_platforms"
      _refuse_on_several(
        jaxpr, of.function, LAPACK, "TensorFlow's XLA has no handler for it on CPU", advice
      )
  return Program(jaxpr, jaxpr.eqns, NOWHERE)


def _refuse_on_several(
  jaxpr: ClosedJaxpr, function: str, primitives: Collection[Any], reason: str, advice: str
) -> None:
  gaps = [
    errors.UnsupportedEquation(
      eqn.primitive.name, f"{reason}, and the function runs on several devices", advice, where()
    )
    for eqn, where in jaxprs.located(jaxpr, of=expanded)
    if eqn.primitive in primitives
  ]
  if gaps:
    raise errors.lowering_error(function, gaps)


def runs_on_several_devices(jaxpr: ClosedJaxpr) -> bool:
  """Whether there are shardings, or a shard_map, over more than one device."""
  return any(map(has_sharding, _walk(jaxpr)))


@_jax_compat.weakly_cached
@_tf_compat.recording_again()
def _exported(jaxpr: ClosedJaxpr, variables: tuple[str, ...], target: Target) -> tuple[int, bytes]:
  """(version of the calling convention, module for the target); with variables, their sizes are
  those of a first argument."""
  specs = [jax.ShapeDtypeStruct(aval.shape, in_bytes(aval.dtype)) for aval in jaxpr.in_avals]
  inner, arguments, results = _without_call(jaxpr)
  fun: Any = functools.partial(_on_bytes, inner)
  if variables:
    scope = _scope_of(jaxpr)
    sizes = jax.ShapeDtypeStruct(
      (*export.symbolic_shape(", ".join(variables), scope=scope), 0), np.int8
    )
    specs, fun = [sizes, *specs], lambda _, *args: _on_bytes(inner, *args)
    arguments = (jit_info.UNSPECIFIED, *arguments)
  jitted = jax.jit(fun, keep_unused=True, in_shardings=arguments, out_shardings=results)
  with _jax_compat.with_plain_shardings():
    exported = export.export(
      jitted, platforms=target.platforms, disabled_checks=target.disabled_checks
    )(*specs)
    _jax_compat.forget_lowering(jitted.trace(*specs).jaxpr)
  # Version 10 of the convention adds whether shardings are in Shardy, and these are not; 9 adds
  # tokens, and there are none here.
  convention = 8 if _numbers(target.stablehlo_version) < _numbers(_OF_TENSORFLOW["2.16"]) else 9
  return convention, _serialized(exported.mlir_module(), target.stablehlo_version)


def _on_bytes(jaxpr: ClosedJaxpr, *operands: Any) -> list[Any]:
  """The results of a jaxpr; operands and results of 4 bits are bytes."""
  own = [as_dtype(x, aval.dtype) for x, aval in zip(operands, jaxpr.in_avals, strict=True)]
  return [as_dtype(y, in_bytes(y.dtype)) for y in jaxpr_as_fun(jaxpr)(*own)]


def _without_call(jaxpr: ClosedJaxpr) -> tuple[ClosedJaxpr, Any, Any]:
  """What a jaxpr that only calls a `jax.jit`-ed function calls, and how the module's arguments and
  results are sharded.

  In the call these would be custom calls, which TensorFlow's annotations around the module repeat.
  """
  if len(eqns := jaxpr.eqns) == 1 and eqns[0].primitive is P.jit_p:
    (eqn,) = eqns
    if eqn.invars == jaxpr.invars and eqn.outvars == jaxpr.outvars:
      return (
        eqn.params["jaxpr"],
        tuple(eqn.params["in_shardings"]),
        list(eqn.params["out_shardings"]),
      )
  return jaxpr, (jit_info.UNSPECIFIED,) * len(jaxpr.in_avals), jit_info.UNSPECIFIED


def _scope_of(jaxpr: ClosedJaxpr) -> Any:
  avals = [*jaxpr.in_avals, *(v.aval for eqn in jaxpr.eqns for v in eqn.outvars)]
  symbolic = (d for aval in avals for d in getattr(aval, "shape", ()) if is_symbolic_dim(d))
  dim = next(symbolic, None)
  return export.SymbolicScope() if dim is None else dim.scope


def _serialized(text: str, version: str) -> bytes:
  """The module as a portable artifact of that StableHLO version.

  Raises:
    NotImplementedError: an operation is not in that version.
  """
  context: Any = mlir.make_ir_context()
  with context:
    module = ir.Module.parse(text)
    _call_decompositions(module)
    problems: list[str] = []

    def note(diagnostic: Any) -> bool:
      op = re.search(r"'vhlo\.(\w+)_v\d+'", diagnostic.message)
      line = re.search(r'"([^"]*)"\("([^"]+)":(\d+):(\d+)', str(diagnostic.location))
      what = f"'{op[1]}'" if op else diagnostic.message
      problems.append(f"{what} at {line[2]}:{line[3]}:{line[4]} ({line[1]})" if line else what)
      return True

    if _numbers(version) < _numbers(_OLDER):
      _forget_accuracies(module)
    with context.attach_diagnostic_handler(note):
      try:
        artifact = stablehlo.serialize_portable_artifact(module, version)
        # with lines, for the error; without, because MLIR's ranges of lines are newer
        if _numbers(version) < _numbers(_OLDER):
          plain = ir.Module.parse(str(module.operation.get_asm(enable_debug_info=False)))
          artifact = stablehlo.serialize_portable_artifact(plain, version)
        return artifact
      except ValueError as error:
        raise NotImplementedError(
          f"StableHLO {version}, which the reader understands, cannot express this function: "
          f"{'; '.join(problems) or error}. "
          "Name a newer stablehlo_version if the reader has one, or lower to ordinary TensorFlow "
          "ops with native_serialization=False"
        ) from error


# Before this version XLA had one accuracy, the highest, and MLIR had lines but no ranges of lines.
_OLDER = "1.9.0"


def _forget_accuracies(module: Any) -> None:
  def visit(op: Any) -> Any:
    if "result_accuracy" in op.attributes:
      del op.attributes["result_accuracy"]
    return ir.WalkResult.ADVANCE

  module.operation.walk(visit)


def _call_decompositions(module: Any) -> None:
  """Replaces composites by calls of their own decompositions: readers older than a composite cannot
  refine its shapes."""
  composites: list[Any] = []

  def visit(op: Any) -> Any:
    if op.operation.name == "stablehlo.composite":
      composites.append(op.operation)
    return ir.WalkResult.ADVANCE

  module.operation.walk(visit)
  for op in composites:
    with ir.InsertionPoint(op), op.location:
      call = func.CallOp(
        [result.type for result in op.results], op.attributes["decomposition"], list(op.operands)
      )
    for old, new in zip(op.results, call.operation.results, strict=True):
      old.replace_all_uses_with(new)
    op.erase()
