"""Pallas kernels as JAX operations on arrays: `pallas_call`, and `mpmd_map` of `pl.kernel`.

A kernel need not be called with `interpret=True`, and may be for any accelerator. This comes after
differentiation: a kernel has the derivative of the user's `custom_vjp`, which may be another
kernel, and JAX has taken it. Before, JAX would differentiate the loop in its place, in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.extend import source_info_util
from jax.extend.core import Jaxpr

from jax2tf import jaxprs
from jax2tf.errors import InexpressibleError
from jax2tf.expansions import libraries
from jax2tf.expansions.retracing import as_call, first_line
from jax2tf.jaxprs import Eqn
from jax2tf.registry import is_of_jax, rule_for

# What an accelerator does in a way of its own: primitive -> (what it does, advice).
_DRAWS = (
  "draws from the generator of a TPU, whose numbers nothing else has",
  "draw with jax.random inside the kernel, or make the bits an operand",
)
_OF_HARDWARE = {
  **dict.fromkeys(("prng_seed", "prng_random_bits", "stochastic_round"), _DRAWS),
  "elementwise_inline_asm": ("is assembly", "write it with functions of jax.numpy"),
}
_PLAIN_PATH = "give the function a plain JAX path, or lower natively"
NAMES = frozenset({"pallas_call", "mpmd_map"})


@jaxprs.transformation
def on_arrays(jaxpr: Jaxpr) -> Jaxpr:
  """The same function, with calls in place of kernels, also in inner jaxprs.

  A kernel for which the user has a lowering rule stays, and so does one that has no meaning for
  arrays: `why_not` says why.
  """
  sizes = {
    eqn.outvars[0]: eqn.params["dim"] for eqn in jaxpr.eqns if eqn.primitive.name == "dim_as_value"
  }
  return jaxprs.with_equations(jaxpr, [_on_arrays(eqn, sizes) for eqn in jaxpr.eqns])


def is_kernel(eqn: Eqn) -> bool:
  """Whether an equation calls a kernel that has no lowering rule."""
  return (
    eqn.primitive.name in NAMES and rule_for(eqn.primitive) is None and is_of_jax(eqn.primitive)
  )


def why_not(eqn: Eqn) -> tuple[str, str]:
  """(reason, advice) for a kernel that stays."""
  advice = f"write this kernel in other terms, {_PLAIN_PATH}"
  try:
    _call(eqn, {})
  except InexpressibleError as error:
    return f"its kernel has no meaning for arrays: {first_line(error)}", error.advice or advice
  except Exception as error:
    reason = f"JAX cannot express its kernel by arrays: {type(error).__name__}"
    return f"{reason}: {first_line(error)}", advice
  raise AssertionError(f"a kernel stays for no reason: {eqn}")


def _has_kernels(jaxpr: Jaxpr) -> bool:
  return any(primitive.name in NAMES for primitive in jaxprs.primitives_of(jaxpr))


def _on_arrays(eqn: Any, sizes: Mapping[Any, Any]) -> Any:
  if eqn.primitive.name not in NAMES:
    # A library's function may call kernels. `run_state` becomes one without refs.
    eqn = libraries.expanded_equation(eqn)
    is_inside = any(map(_has_kernels, jaxprs.inner_jaxprs(eqn)))
    return jaxprs.map_inner(eqn, on_arrays) if is_inside else eqn
  if not is_kernel(eqn):
    return eqn
  try:
    return _call(eqn, sizes)
  except Exception:  # of JAX, which has many for a kernel; preflight says why
    return eqn


def _call(eqn: Any, sizes: Mapping[Any, Any]) -> Any:
  """A kernel as a call, `jit`, of the same function of arrays.

  Args:
    eqn: the equation.
    sizes: {variable: the symbolic size that is its value}.

  Raises:
    Exception: it has no meaning for arrays.
  """
  kernel = _kernel_of(eqn, sizes)

  def run(*operands: Any) -> Sequence[Any]:
    with source_info_util.user_context(eqn.source_info.traceback):
      return _run(kernel, *operands)

  return as_call(eqn, _name(eqn), run)


def results(eqn: Eqn, *operands: Any) -> Sequence[Any]:
  """The results of a kernel, traced in its place.

  Raises:
    Exception: it has no meaning for arrays.
  """
  with jax.named_scope(_name(eqn)):
    return _run(_kernel_of(eqn, {}), *operands)


def _name(eqn: Eqn) -> str:
  """That of the kernel's function, unless the user gives another one."""
  [kernel, *_] = eqn.params.get("jaxprs", [eqn.params.get("jaxpr")])
  return eqn.params["name"] or kernel.debug_info.func_name


def _kernel_of(eqn: Eqn, sizes: Mapping[Any, Any]) -> Any:
  from jax2tf.expansions import calls  # noqa: PLC0415  (it imports Pallas, which few functions need)

  _check(eqn)
  params = calls.parameters(eqn)
  n_bounds = params["grid_mapping"].num_dynamic_grid_bounds
  return calls.kernel_of(params, [sizes.get(v) for v in eqn.invars[:n_bounds]])


def _run(kernel: Any, *operands: Any) -> Sequence[Any]:
  from jax2tf.expansions import grids  # noqa: PLC0415  (as above)

  return grids.run(kernel, *operands)


def _check(eqn: Eqn) -> None:
  """
  Raises:
    InexpressibleError: the kernel does what has no meaning for arrays, with the user's line.
  """
  from jax2tf._jax_compat import pallas  # noqa: PLC0415  (as above)

  if pallas.takes_refs(eqn):
    raise InexpressibleError("an operand is a mutable array (jax.Ref)")
  for kernel in jaxprs.inner_jaxprs(eqn):
    for of_kernel, where in jaxprs.located(kernel):
      obstacle = _obstacle(of_kernel)
      if obstacle is not None:
        what, advice = obstacle
        raise InexpressibleError(f"'{of_kernel.primitive.name}' at {where()} {what}", advice)


def _obstacle(of_kernel: Eqn) -> tuple[str, str] | None:
  """(what an equation of a kernel does that has no meaning for arrays, advice), or None."""
  from jax2tf._jax_compat import pallas  # noqa: PLC0415  (as above)

  name = of_kernel.primitive.name
  if pallas.is_remote(of_kernel):
    return "reaches another device", "communicate by jax.lax between kernels, not inside them"
  if pallas.is_of_mosaic_gpu(of_kernel.primitive):
    return "is an instruction of Mosaic GPU", _PLAIN_PATH
  return _OF_HARDWARE.get(name) if rule_for(of_kernel.primitive) is None else None
