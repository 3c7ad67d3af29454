"""The registry of lowering rules.

A rule is `(ctx, *operands, **params) -> tensor or tensors`. It is registered at its definition, by
primitive object, so a primitive that JAX renames fails at our import.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from jax.extend.core import Primitive

from jax2tf.dtypes import WIDER
from jax2tf.jaxprs import Eqn, inner_jaxprs
from jax2tf.widening import in_wider_dtypes

Rule = Callable[..., Any]

# Params for placement and accuracy, which do not change values; they are not passed to rules.
PLACEMENT_PARAMS = frozenset({"sharding", "out_sharding", "accuracy"})

# Primitives of JAX that are refused on purpose: name -> (reason, advice). By name, because JAX
# imports the modules of some only when they are used; `refusal` knows them by object.
UNSUPPORTED: dict[str, tuple[str, str]] = {}

# Primitives that the native lowering leaves to their graph rules -> a function from their params to
# the tf.Variables that they capture.
IN_TENSORFLOW: dict[Primitive, Callable[..., Sequence[tf.Variable]]] = {}

# The params of an equation -> the jaxprs among them that its rule lowers.
_Inner = Callable[[Mapping[str, Any]], Sequence[Any]]


@dataclass(frozen=True)
class _Entry:
  """A rule, and how it was registered: `lowers` describes its arguments."""

  rule: Rule
  on_keys: bool
  inner: _Inner | None


_RULES: dict[Primitive, _Entry] = {}


def lowers(
  *primitives: Primitive | None,
  lacks: Collection[Any] = (),
  lacks_on_gpu: Collection[Any] = (),
  on_keys: bool = False,
  inner: _Inner | None = None,
  replace: bool = False,
) -> Callable[[Rule], Rule]:
  """Registers a lowering rule: `(ctx, *operands, **params) -> tensor`, or a list of tensors for a
  primitive with multiple results.

  The graph lowering uses the rule; native serialization uses JAX's own rules.
  docs/developers/own-primitives.md explains how to write one.

  Args:
    primitives: the jax.extend.core.Primitives that the rule lowers. None is a primitive that the
      installed JAX does not have.
    lacks: the dtypes for which the rule's TensorFlow ops have no kernels, such as `("int4",
      tf.bfloat16)`. Operands of these dtypes are cast to a wider dtype, and the results are cast
      back, so they are rounded once. The context has the wider avals.
    lacks_on_gpu: the dtypes for which the ops have no kernels on GPUs, or compute in host memory,
      as most do for int32. Where the graph may run on a GPU, these dtypes are treated like the
      dtypes in `lacks`.
    on_keys: whether the rule takes typed PRNG keys as their physical data, key<fry>[n] as u32[n,2].
      For all other rules the interpreter adds a vmap over the physical axis.
    inner: a function from the params of an equation to the jaxprs that the rule lowers. Before the
      lowering starts, one error lists all equations in these jaxprs that have no rule. The default
      is all jaxprs among the params; pass `lambda params: []` if the rule lowers none of them.
    replace: whether the rule may replace an existing rule, such as jax2tf's own rule for a
      primitive of JAX.

  Returns:
    a decorator that registers a rule and returns it.

  Raises:
    TypeError: an argument is not a primitive.
    ValueError: a primitive already has a rule, and `replace` is not set; or there is no wider dtype
      for an entry of `lacks` or `lacks_on_gpu`.

  Examples:
    >>> import jax2tf
    >>> from jax.extend.core import Primitive
    >>> double_p = Primitive("double")
    >>> _ = double_p.def_abstract_eval(lambda operand: operand)
    >>> @jax2tf.lowers(double_p)
    ... def _double(ctx, operand):
    ...   return operand + operand
    >>> jax2tf.convert(double_p.bind)(3.0).numpy().item()
    6.0
  """
  present = [primitive for primitive in primitives if primitive is not None]
  for primitive in present:
    if not isinstance(primitive, Primitive):
      raise TypeError(f"lowers takes primitives (jax.extend.core.Primitive), not {primitive!r}")

  lacks = [tf.as_dtype(dtype) for dtype in lacks]
  lacks_on_gpu = [tf.as_dtype(dtype) for dtype in lacks_on_gpu]
  if unknown := [dtype.name for dtype in (*lacks, *lacks_on_gpu) if dtype not in WIDER]:
    raise ValueError(f"no wider dtype is known for {', '.join(unknown)}: the rule must cast itself")

  def register(rule: Rule) -> Rule:
    for primitive in present:
      if primitive in _RULES and not replace:
        known = _RULES[primitive].rule
        raise ValueError(
          f"primitive '{primitive}' already has a lowering rule: "
          f"{getattr(known, '__module__', '')} {known}; replace=True puts this one in its place"
        )
    for primitive in present:
      wide_rule = in_wider_dtypes(rule, primitive, lacks, lacks_on_gpu)
      _RULES[primitive] = _Entry(wide_rule, on_keys, inner)
    return rule

  return register


def stays_in_tensorflow(table: Mapping[Primitive, Callable[..., Sequence[tf.Variable]]]) -> None:
  """Makes the native lowering use the graph rules of these primitives: they call TensorFlow, which
  an XLA module cannot.

  Args:
    table: primitive -> a function of its params that gives the floating point and complex
      tf.Variables that it captures.
  """
  IN_TENSORFLOW.update(table)


def lower_directly(
  table: Mapping[Primitive | None, Callable[..., Any]],
  lacks: Collection[tf.DType] = (),
  lacks_on_gpu: Collection[tf.DType] = (),
) -> None:
  """Registers primitives that are one TensorFlow op on the same operands, without params."""
  for primitive, op in table.items():
    lowers(primitive, lacks=lacks, lacks_on_gpu=lacks_on_gpu)(
      lambda ctx, *operands, op=op: op(*operands)
    )


def rule_for(primitive: Primitive) -> Rule | None:
  """The lowering rule of a primitive, or None."""
  entry = _RULES.get(primitive)
  return None if entry is None else entry.rule


# jax_triton has the primitive of Triton's kernels.
_PACKAGES_OF_JAX = ("jax", "jax_triton")


@functools.cache
def is_of_jax(primitive: Primitive) -> bool:
  """Whether a module of JAX holds this primitive, and not just one of the same name."""
  modules = (
    m for name, m in list(sys.modules.items()) if name.partition(".")[0] in _PACKAGES_OF_JAX
  )
  return any(value is primitive for module in modules for value in list(vars(module).values()))


def refusal(primitive: Primitive) -> tuple[str, str] | None:
  """(reason, advice) for a primitive of JAX that is refused on purpose; None for all others, also
  for one of a library that has the same name."""
  reason_and_advice = UNSUPPORTED.get(primitive.name)
  return reason_and_advice if reason_and_advice and is_of_jax(primitive) else None


def lowered_inside(eqn: Eqn) -> Sequence[Any]:
  """The jaxprs among the params of an equation that its rule lowers; none without a rule."""
  if (entry := _RULES.get(eqn.primitive)) is None:
    return []
  return inner_jaxprs(eqn) if entry.inner is None else entry.inner(eqn.params)


def takes_keys(primitive: Primitive) -> bool:
  """Whether the rule of this primitive handles physical key data by itself."""
  entry = _RULES.get(primitive)
  return entry is not None and entry.on_keys
