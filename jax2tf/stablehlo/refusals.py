"""What of a module JAX has no ops for, found before anything is traced: all of it, in one error."""

from __future__ import annotations

from jax2tf import errors
from jax2tf.stablehlo.graph import Module, Op, Value, reachable, walk
from jax2tf.stablehlo.rules import COMPOSITES, CUSTOM_CALLS, OPS, Refusal

_COLLECTIVES = frozenset(
  {
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_broadcast",
    "collective_permute",
    "partition_id",
    "reduce_scatter",
    "replica_id",
    "manual_computation",
  }
)
_HOST = frozenset({"infeed", "outfeed", "send", "recv"})
_CALLBACKS = ("callback", "CallPythonCallback", "py_host", "CustomSPMDPartitioning")
_ACROSS = Refusal(
  "it communicates between devices",
  "export the function for one device: without shard_map, or with a mesh of one device",
)
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
  """
  gaps = []
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
  for value in (*op.operands, *op.results):
    refusal = _refusal_of_type(value)
    if refusal is not None:
      return refusal
  if op.name == "constant":
    return None if "value" in op.attributes else Refusal("MLIR gives no elements of it")
  if op.name == "custom_call":
    return _refusal_of_custom_call(op)
  if op.name == "call" and op.attributes["callee"] not in module.functions:
    return Refusal(f"the module has no function {op.attributes['callee']}")
  if op.name in _COLLECTIVES:
    return _ACROSS
  if op.name in _HOST:
    return _TO_HOST
  if op.name == "composite" and op.get("name") in COMPOSITES:
    check = COMPOSITES[op.attributes["name"]].check
    return check(op) if check else None
  dialect = {"mhlo": "stablehlo", "func": "stablehlo"}.get(op.dialect, op.dialect)
  rule = OPS.get(f"{dialect}.{op.name}")
  if rule is None:
    return Refusal("JAX has no such operation")
  return rule.check(op) if rule.check else None


def _refusal_of_custom_call(op: Op) -> Refusal | None:
  target = op.attributes["call_target_name"]
  rule = CUSTOM_CALLS.get(target)
  if rule is not None:
    return rule.check(op) if rule.check else None
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
