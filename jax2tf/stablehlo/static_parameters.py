"""Which parameters of a module's functions are sizes: JAX needs them as numbers, or as symbolic
dimensions, while it traces."""

from __future__ import annotations

from jax2tf.stablehlo.graph import Block, Function, Module, Op, Value, callees, walk

# The operands that are sizes: from the first one on, or those of a list.
_SIZES: dict[str, tuple[int, ...]] = {
  "dynamic_broadcast_in_dim": (1,),
  "dynamic_iota": (0,),
  "dynamic_reshape": (1,),
  "dynamic_pad": (2, 3, 4),
  "dynamic_gather": (2,),
  "dynamic_conv": (2,),
  "real_dynamic_slice": (1, 2, 3),
  "set_dimension_size": (1,),
  "case": (0,),
  "if": (0,),
}


def of(module: Module) -> dict[str, frozenset[int]]:
  """Of each function the positions of the parameters on which a size, the number of rounds of a
  loop, or the choice of a branch depends."""
  needed: dict[str, frozenset[int]] = {name: frozenset() for name in module.functions}
  settled = False
  while not settled:
    settled = True
    for name, function in module.functions.items():
      found = _of(function, needed)
      if found != needed[name]:
        needed[name], settled = found, False
  return needed


def _of(function: Function, needed: dict[str, frozenset[int]]) -> frozenset[int]:
  origins = _origins(function.block)
  seen: set[Value] = set()
  pending: list[Value] = []
  for op in walk(function.block):
    pending += _wanted(op, needed)
  while pending:
    value = pending.pop()
    if value in seen:
      continue
    seen.add(value)
    pending += origins.get(value, [])
    if value.owner is not None and _is_scalar_or_vector(value):
      pending += [each for each in value.owner.operands if _is_scalar_or_vector(each)]
  return frozenset(
    index for index, argument in enumerate(function.block.arguments) if argument in seen
  )


def _wanted(op: Op, needed: dict[str, frozenset[int]]) -> list[Value]:
  if op.name == "while":
    return [value for value in _compared(op.blocks[0]) if _is_scalar_or_vector(value)]
  if op.name == "call":
    return [op.operands[index] for index in needed.get(callees(op)[0], ())]
  if op.name == "custom_call":
    return [value for value in op.operands if _is_scalar_or_vector(value)]
  positions = _SIZES.get(op.name, ())
  return [op.operands[index] for index in positions if index < len(op.operands)]


def _compared(condition: Block) -> list[Value]:
  return [operand for op in condition.ops if op.name == "compare" for operand in op.operands]


def _origins(block: Block) -> dict[Value, list[Value]]:
  """What the arguments of a loop's regions are at the beginning."""
  origins: dict[Value, list[Value]] = {}
  for op in walk(block):
    if op.name == "while":
      for inner in op.blocks:
        for argument, operand in zip(inner.arguments, op.operands, strict=True):
          origins[argument] = [operand]
  return origins


def _is_scalar_or_vector(value: Value) -> bool:
  """Whether a value may be sizes: an integer or boolean, or a vector of some."""
  kind = value.type
  return (
    kind is not None
    and len(kind.shape) <= 1
    and kind.dtype is not None
    and kind.dtype.kind in "iub"
  )
