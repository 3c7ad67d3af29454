"""What of a module JAX has no ops for, found before anything is traced: all of it, in one error."""

from __future__ import annotations

from jax2tf import errors
from jax2tf.errors import ArtifactError
from jax2tf.stablehlo.graph import Module, Op, Value, callees, circle, reachable, walk
from jax2tf.stablehlo.rules import ACROSS_DEVICES, COMPOSITES, Refusal, rule_of

_COLLECTIVES = frozenset({"collective_permute", "partition_id", "replica_id", "manual_computation"})
_HOST = frozenset({"infeed", "outfeed", "send", "recv"})
_CALLBACKS = ("callback", "CallPythonCallback", "py_host", "CustomSPMDPartitioning")
_TO_HOST = Refusal(
  "it exchanges data with the host while the program runs",
  "export the function without it, and do that part outside",
)
_CALLBACK = Refusal(
  "it calls a Python function of the process that wrote the artifact, which is not in it",
  "export the function without the callback: do that part before or after it",
)


def check(module: Module) -> None:
  """Refuses what no rule takes.

  Raises:
    LoweringError: lists every such op, with its place in the user's code if the artifact has it.
    ArtifactError: functions call each other in a circle, which has no end.
  """
  gaps = []
  if (name := circle(module)) is not None:
    raise ArtifactError(f"the function {name} of the module calls itself")
  for function in reachable(module, COMPOSITES):
    for op in walk(function.block):
      refusal = _refusal(module, op)
      if refusal is not None:
        gaps.append(refusal_at(op, refusal))
  if gaps:
    raise errors.artifact_error(gaps)


def refusal_at(op: Op, refusal: Refusal) -> errors.UnsupportedEquation:
  """A refusal with the op and its place."""
  name = f"{op.dialect}.{op.name}"
  if op.name == "custom_call":
    name = f"{name} {op.get('call_target_name')}"
  advice = refusal.advice or "export the function without this op, or tell us about the artifact"
  return errors.UnsupportedEquation(name, refusal.reason, advice, op.where or "an unnamed place")


def _refusal(module: Module, op: Op) -> Refusal | None:
  refusal = _refusal_of_name(module, op)
  if refusal is not None:
    return refusal
  types = (_refusal_of_type(value) for value in (*op.operands, *op.results))
  return next((found for found in types if found is not None), None) or _refusal_of_rule(op)


def _refusal_of_name(module: Module, op: Op) -> Refusal | None:
  """Why no op of this name is taken."""
  if op.name in _COLLECTIVES:
    return ACROSS_DEVICES
  if op.name in _HOST:
    return _TO_HOST
  if op.name == "constant":
    return None if "value" in op.attributes else Refusal("MLIR gives no elements of it")
  if op.name in ("call", "composite") and callees(op)[0] not in module.functions:
    return Refusal(f"the module has no function {callees(op)[0]}")
  is_known = op.name == "custom_call" or rule_of(op) is not None
  return None if is_known else Refusal("JAX has no such operation")


def _refusal_of_rule(op: Op) -> Refusal | None:
  """What a rule says of the op."""
  if op.name == "constant":
    return None
  rule = rule_of(op)
  if rule is not None:
    return rule.check(op) if rule.check is not None else None
  target = op.attributes["call_target_name"]
  if any(word in target for word in _CALLBACKS):
    return _CALLBACK
  return Refusal(
    "it calls code outside of the artifact",
    "export the function for platforms=['cpu'], or without this call",
  )


def _refusal_of_type(value: Value) -> Refusal | None:
  kind = value.type
  if kind is None and value.text not in ("!stablehlo.token", "!mhlo.token"):
    return None if value.text.startswith("tuple<") else Refusal(f"a value of type {value.text}")
  if kind is not None and kind.dtype is None:
    return Refusal(f"JAX has no arrays of type {value.text}")
  return None
