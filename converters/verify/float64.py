"""Evaluates the equations of a function in float64, whatever narrower dtypes they name.

The function is traced as it is, and its equations are then computed in float64. `jax.enable_x64`
alone would not do: the function may name float32, and JAX draws other random numbers in float64.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal, jaxprs_in_params

from . import references, steps

# Equations that only call their jaxpr, the first one among their parameters.
CALLS = {
  "jit",
  "pjit",
  "closed_call",
  "core_call",
  "checkpoint",
  "remat",
  "custom_jvp_call",
  "custom_vjp_call",
  "custom_vjp_call_jaxpr",
}
# They keep their dtypes: what they compute depends on the bits, or a function of Python computes
# it.
_AS_IT_IS = {"bitcast_convert_type", "nextafter", "pure_callback", "io_callback"}
# How far the operands of a rounding are moved, in units in the last place of float32. Kernels that
# add in another order differ by a few; more of them find the steps that are rare.
MOVED = 16
_is_moving: ContextVar[bool] = ContextVar("is_moving", default=False)
_SUMS = {"reduce_sum", "cumsum", "cumlogsumexp", "reduce_window_sum", "reduce_prod", "cumprod"}


@dataclass(frozen=True)
class Wide:
  """A traced function that computes in float64.

  Attributes:
    run: (constants, leaves of the arguments) -> leaves of the result.
    constants: arrays that the function closes over.
    terms: the number of terms of its longest sum.
    steps: for each leaf of the result, whether it depends on a rounding; see `steps`.
    run_moved: as `run`, with the operand of each rounding moved by up to `MOVED` units in the last
      place of float32.
  """

  run: Callable[..., Any]
  constants: Sequence[Any]
  terms: int
  steps: Sequence[bool]
  run_moved: Callable[..., Any]

  @classmethod
  def of(cls, fun: Callable[..., Any], *args: Any) -> Wide:
    """Traces `fun` for arguments of these shapes.

    Raises:
      JAXTypeError: JAX cannot trace `fun`.
    """
    closed = jax.make_jaxpr(fun)(*args)
    dtypes = [aval.dtype for aval in closed.in_avals]

    def run(constants: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
      cast = [
        x if _is_key(x) else x.astype(_wide_dtype(dtype))
        for x, dtype in zip(leaves, dtypes, strict=True)
      ]
      # Here XLA can widen one constant after the other; a model closes over its parameters.
      return _evaluated(closed.jaxpr, [_wide(x) for x in constants], cast)

    def run_moved(constants: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
      with _moving():
        return run(constants, leaves)

    return cls(
      references.compiled(run),
      closed.consts,
      longest_sum(closed.jaxpr),
      steps.of_results(closed.jaxpr, CALLS),
      references.compiled(run_moved),
    )

  def __call__(self, *args: Any) -> list[Any]:
    """The leaves of the result; those of floating point and complex numbers in double precision."""
    return self._called(self.run, args)

  def moved(self, *args: Any) -> list[Any]:
    """The same with the operands of roundings moved."""
    return self._called(self.run_moved, args)

  def _called(self, run: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    with jax.enable_x64(True):
      leaves = [x if isinstance(x, jax.Array) else np.asarray(x) for x in jax.tree.leaves(args)]
      return [x if _is_key(x) else np.asarray(x) for x in run(self.constants, leaves)]


@contextlib.contextmanager
def _moving() -> Iterator[None]:
  """Equations that are traced inside move the operands of roundings."""
  token = _is_moving.set(True)
  try:
    yield
  finally:
    _is_moving.reset(token)


def _moved(x: Any) -> Any:
  """f64[...] moved by up to `MOVED` units in the last place of float32. The fraction of a large
  product says how far: it needs no key, so that bodies of loops may have it."""
  hashed = jnp.sin(x * 91919.131) * 43758.5453
  share = 2 * (hashed - jnp.floor(hashed)) - 1
  return x * (1 + MOVED * float(np.finfo(np.float32).eps) * share)


def longest_sum(jaxpr: Jaxpr) -> int:
  """The number of terms of the longest sum in a jaxpr: in a product, a convolution, a window, or
  along axes."""
  return max((terms for eqn in _equations(jaxpr) for terms in _terms(eqn)), default=1)


def _equations(jaxpr: Jaxpr) -> Iterator[Any]:
  for eqn in jaxpr.eqns:
    yield eqn
    for inner in jaxprs_in_params(eqn.params):
      yield from _equations(inner)


def _terms(eqn: Any) -> Iterator[int]:
  name, params = eqn.primitive.name, eqn.params
  shapes = [getattr(x.aval, "shape", ()) for x in eqn.invars]
  if name == "dot_general":
    (contracted, _), _ = params["dimension_numbers"]
    yield math.prod(shapes[0][axis] for axis in contracted)
  elif name == "conv_general_dilated":
    out = params["dimension_numbers"].rhs_spec[0]
    yield math.prod(size for axis, size in enumerate(shapes[1]) if axis != out)
  elif name in _SUMS:
    axes = params.get("axes", (params["axis"],) if "axis" in params else ())
    yield math.prod([*(shapes[0][axis] for axis in axes), *params.get("window_dimensions", ())])
  elif name.startswith("scatter") and len(shapes) > 2:
    yield math.prod(shapes[2])  # all updates may be of one element


def _evaluated(jaxpr: Jaxpr, constants: Sequence[Any], args: Sequence[Any]) -> list[Any]:
  """The results of the equations in float64. `constants` and `args` are wide already."""
  known: dict[Any, Any] = dict(
    zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *args], strict=True)
  )

  def of(atom: Any) -> Any:
    return _wide(atom.val) if isinstance(atom, Literal) else known[atom]

  for eqn in jaxpr.eqns:
    if not eqn.outvars:  # such as a print
      continue
    results = _results(eqn, [of(x) for x in eqn.invars])
    known.update(zip(eqn.outvars, results, strict=True))
  return [of(x) for x in jaxpr.outvars]


def _results(eqn: Any, operands: Sequence[Any]) -> Sequence[Any]:
  if eqn.primitive.name in CALLS:
    called = next(value for value in eqn.params.values() if hasattr(value, "eqns"))
    return _evaluated(*_opened(called), operands)
  if _is_moving.get() and steps.is_rounding(eqn) and _is_wide(operands[0]):
    operands = [_moved(operands[0]), *operands[1:]]
  if eqn.primitive.name not in _AS_IT_IS:
    try:
      return _bound(
        eqn, operands, {name: _wide_parameter(value) for name, value in eqn.params.items()}
      )
    # no form in float64, for example a kernel or a callback: each such primitive has its own error
    except Exception:
      pass
  narrow = [
    x.astype(v.aval.dtype) if _is_wide(x) else x for x, v in zip(operands, eqn.invars, strict=True)
  ]
  return [_wide(y) for y in _bound(eqn, narrow, eqn.params)]


def _bound(eqn: Any, operands: Sequence[Any], params: dict[str, Any]) -> Sequence[Any]:
  results = eqn.primitive.bind(*operands, **params)
  return results if eqn.primitive.multiple_results else [results]


def _opened(jaxpr: Any) -> tuple[Jaxpr, Sequence[Any]]:
  """A jaxpr that may be closed, and its constants in float64."""
  return getattr(jaxpr, "jaxpr", jaxpr), [_wide(x) for x in getattr(jaxpr, "consts", ())]


def _wide_parameter(value: Any) -> Any:
  """A parameter of an equation with float64 in place of narrower dtypes, also within jaxprs."""
  if isinstance(value, tuple) and hasattr(value, "_fields"):
    return type(value)(*map(_wide_parameter, value))
  if type(value) in (tuple, list):
    return type(value)(map(_wide_parameter, value))
  if hasattr(value, "eqns"):
    return _wide_jaxpr(value)
  if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
    return _wide_dtype(np.dtype(value))
  return value


def _wide_jaxpr(value: Any) -> Any:
  jaxpr, constants = _opened(value)
  avals: list[Any] = [v.aval for v in jaxpr.invars]
  specs = [jax.ShapeDtypeStruct(aval.shape, _wide_dtype(aval.dtype)) for aval in avals]
  closed = jax.make_jaxpr(lambda *args: _evaluated(jaxpr, constants, args))(*specs)
  if hasattr(value, "jaxpr"):
    return closed
  if closed.consts:
    raise NotImplementedError  # an open jaxpr holds no arrays
  return closed.jaxpr


def _wide_dtype(dtype: Any) -> Any:
  if jnp.issubdtype(dtype, jax.dtypes.extended):
    return dtype
  if dtype in (np.dtype(np.float32), np.dtype(np.float16), np.dtype(jnp.bfloat16)):
    return np.dtype(np.float64)
  return np.dtype(np.complex128) if dtype == np.dtype(np.complex64) else dtype


def _wide(x: Any) -> Any:
  dtype = getattr(x, "dtype", None)
  if dtype is None or _is_key(x):
    return np.float64(x) if isinstance(x, float) else x
  wide = _wide_dtype(dtype)
  return (
    x
    if wide == dtype
    else x.astype(wide)
    if isinstance(x, jax.Array)
    else np.asarray(x).astype(wide)
  )


def _is_wide(x: Any) -> bool:
  return (
    hasattr(x, "dtype")
    and not _is_key(x)
    and x.dtype in (np.dtype(np.float64), np.dtype(np.complex128))
  )


def _is_key(x: Any) -> bool:
  return jnp.issubdtype(x.dtype, jax.dtypes.extended)
