"""Every rule takes the parameters that its primitive binds in this JAX, by name: of JAX's own
primitives, as traces show them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Primitive

import jax2tf.conversion  # noqa: F401  (registers the rules)
from jax2tf import _jax_compat, registry
from jax2tf.lowering import calls, conv, reductions, windows
from tests.support.primitive_traces import PRIMITIVES, bound

# A rule that takes **params -> the function that gets them, by name; or the primitive whose own
# `impl` does.
PASSED_ON = {
  "conv_general_dilated": conv._conv,
  **dict.fromkeys(
    [
      *("reduce_window", "reduce_window_max", "reduce_window_min", "reduce_window_sum"),
      *("select_and_gather_add", "select_and_scatter", "select_and_scatter_add"),
    ],
    windows.window_axes,
  ),
  **dict.fromkeys(["psum", "pmax", "pmin"], reductions._mapped_axes),
  "ragged_dot_general": _jax_compat.ragged_dot_general_impl,
  "scaled_dot": _jax_compat.scaled_dot_impl,
  "debug_callback": _jax_compat.debug_callback_p.impl,
  "debug_print": _jax_compat.debug_print_p.impl,
}
# What the definition of a rule binds.
BOUND_HERE = {"op", "combine"}
# What a rule takes and no primitive binds: of variants and fused idioms of ours, or of a function
# that several rules share.
OURS = {
  *{
    ("conv_general_dilated", "reversed_kernel"),
    ("scan", "counters"),
    ("reduce_window_max", "plain"),
    ("reduce_window_sum", "mean"),
  },
  *{
    (p, f"{which}_dilation")
    for p in ("select_and_scatter", "select_and_scatter_add")
    for which in ("base", "window")
  },
  *{
    ("eval_jaxpr", "jaxpr"),
    ("eval_jaxpr", "name"),
    ("closed_call", "jaxpr"),
    ("closed_call", "name"),
  },
  *{("layout_constraint", "dst_layout"), ("relayout", "layout")},
}
OTHER_JAX = {
  ("composite", "jaxpr"): (0, 10),
  ("composite", "call_jaxpr"): (0, 12),
  ("scan", "num_consts"): (0, 10),
  ("scan", "num_carry"): (0, 10),
  ("scan", "ft_in"): (0, 12),
  ("scan", "ft_out"): (0, 12),
  ("top_k", "is_stable"): (0, 12),
}
# Operands of the functions in PASSED_ON.
POSITIONAL = {
  (name, p.name)
  for name, function in PASSED_ON.items()
  for p in inspect.signature(function).parameters.values()
  if p.kind is not p.KEYWORD_ONLY
}
# Primitives of JAX that have a rule and are in no trace.
NEVER_TRACED = {
  "stage": "JAX binds it outside of traces only",
  "from_edtype": "for extended dtypes that convert to numbers; keys, the only ones of JAX, do not",
  "call": "JAX 0.10: of `jax.core.call`, which no function of JAX uses",
  "call_hi_primitive": "JAX 0.10: of no function; JAX 0.12 traces it for custom_root",
  "to_edtype": "for extended dtypes that convert from numbers; keys, the only ones of JAX, do not",
}


@functools.cache
def seen() -> dict[Primitive, set[frozenset[str]]]:
  return {p: sets for p, sets in bound().items() if registry.rule_for(p) and p in PRIMITIVES}


def rule_of(primitive: Primitive) -> Callable[..., Any]:
  rule = registry.rule_for(primitive)
  assert rule is not None
  return rule


def misfits(name: str, rule: Callable[..., Any], params: frozenset[str]) -> set[str]:
  """The names that the primitive binds and the rule does not take, and those that it requires and
  the primitive does not bind."""
  given = params - registry.PLACEMENT_PARAMS
  required, optional = taken(name, rule)
  return (given - required - optional) | (required - given)


def taken(name: str, rule: Callable[..., Any]) -> tuple[set[str], set[str]]:
  """(names that a rule requires, names that it may have)."""
  if isinstance(rule, functools.partial) and rule.func is calls._function:
    function, ignored = rule.args
    return {function}, set(ignored)
  parameters = inspect.signature(rule).parameters.values()
  named = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in BOUND_HERE]
  required = {p.name for p in named if p.default is p.empty}
  optional = {p.name for p in named} - required
  if any(p.kind is p.VAR_KEYWORD for p in parameters):
    passed_on = inspect.signature(PASSED_ON[name]).parameters.values()
    optional |= {p.name for p in passed_on}
    required |= {p.name for p in passed_on if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
  return required, optional - required


def without(name: str, rule: Callable[..., Any], other: str) -> Callable[..., Any]:
  """A copy of a rule that calls one parameter by another name."""
  signature = inspect.signature(rule)
  renamed = [p.replace(name=other) if p.name == name else p for p in signature.parameters.values()]
  copy = functools.partial(rule)
  copy.__signature__ = signature.replace(parameters=renamed)  # type: ignore[attr-defined]
  return copy


def test_rules_take_the_parameters_that_their_primitives_bind() -> None:
  found = {
    f"{primitive}: {sorted(wrong)}"
    for primitive, sets in seen().items()
    for params in sets
    if (wrong := misfits(primitive.name, rule_of(primitive), params))
  }
  assert not found, "a parameter was renamed, added or removed: change the rule"


def test_rules_take_nothing_else() -> None:
  """Parameters with defaults, of which one that JAX renames would keep its default in silence."""
  unbound = set()
  for primitive, sets in seen().items():
    _, optional = taken(primitive.name, rule_of(primitive))
    unbound |= {(primitive.name, name) for name in optional - frozenset().union(*sets)}
  of_another = {
    name for name, version in OTHER_JAX.items() if version != jax.version.__version_info__[:2]
  }
  assert unbound - OURS - POSITIONAL == of_another


def test_a_renamed_parameter_is_found() -> None:
  """Each parameter of each rule, renamed in a copy of the rule."""
  tried = 0
  for primitive, sets in seen().items():
    rule = rule_of(primitive)
    if isinstance(rule, functools.partial):
      continue
    for parameter in inspect.signature(rule).parameters.values():
      if parameter.kind is parameter.KEYWORD_ONLY and any(
        parameter.name in params for params in sets
      ):
        copy = without(parameter.name, rule, "renamed")
        assert any(misfits(primitive.name, copy, params) for params in sets), (primitive, parameter)
        tried += 1
  assert tried > 150


def test_a_parameter_renamed_by_jax_is_found() -> None:
  """As JAX 0.12 renamed `jaxpr` of composite: each parameter of each primitive that a rule takes,
  under another name."""
  for primitive, sets in seen().items():
    for params in sets:
      for name in params - registry.PLACEMENT_PARAMS:
        assert misfits(primitive.name, rule_of(primitive), params - {name} | {"renamed"}), (
          primitive,
          name,
        )


def test_every_primitive_with_a_rule_is_traced() -> None:
  with_rule = {p.name for p in PRIMITIVES if registry.rule_for(p) is not None}
  unreached = with_rule - {p.name for p in seen()}
  assert unreached <= NEVER_TRACED.keys(), (
    "give it a trace in primitive_traces.py, or a reason here"
  )
