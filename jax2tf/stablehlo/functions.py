"""The function that `load` returns."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from jax2tf.messages import ArgumentError, ArgumentTypeError
from jax2tf.stablehlo import conventions, parsing, refusals
from jax2tf.stablehlo.artifacts import Artifact, Aval, Convention
from jax2tf.stablehlo.evaluation import Evaluator
from jax2tf.stablehlo.graph import Module, Value, reachable, walk
from jax2tf.stablehlo.sizes import PerPlatform, array

_WIDE = frozenset(map(np.dtype, (np.int64, np.uint64, np.float64, np.complex128)))
_KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


class Function:
  """A StableHLO module as a JAX function.

  It can be called, jitted, vmapped, differentiated, exported and converted. If the artifact
  contains derivatives (`exported.serialize(vjp_order=1)`), the function uses them. Otherwise, JAX
  differentiates its operations.

  Args:
    artifact: the artifact that `load` read.

  Attributes:
    name: the name of the exported function.
    in_tree: the structure of (args, kwargs).
    in_avals: the shapes and dtypes of their leaves; sizes may be symbolic dimensions.
    out_tree, out_avals: the same for the result.
    argument_names: the names of the leaves, such as "params['w']"; empty if the artifact has none.
    constraints: conditions on the symbolic sizes, as `jax.export.symbolic_shape` takes them.
    platforms: the platforms for which the artifact was written; empty if it does not say.
    notes: what the artifact does not say about the original function.

  Raises:
    UnreadableError: MLIR cannot parse the module.
    ArtifactError: its functions call themselves, directly or indirectly.
    LoweringError: it has operations that JAX lacks.
  """

  def __init__(self, artifact: Artifact):
    module = artifact.module
    if not isinstance(module, Module):
      module = parsing.parse(module.take())
    refusals.check(module)
    self.name = artifact.name or module.main.name
    convention = conventions.of(artifact, module)
    self.in_tree, self.out_tree = convention.in_tree, convention.out_tree
    self.in_avals, self.out_avals = convention.in_avals, convention.out_avals
    self.constraints = (*artifact.constraints, *conventions.constraints(module))
    self.platforms = convention.platforms
    self.argument_names = conventions.argument_names(module, convention)
    self.notes = tuple(_notes(artifact, convention))
    self._is_wide = _is_wide(module)
    self._flat = _differentiable(artifact, _Flat(self.name, module, convention))
    self.__name__ = self.__qualname__ = self.name

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    leaves, tree = jax.tree.flatten((args, kwargs))
    if tree != self.in_tree:
      raise ArgumentTypeError(
        "args",
        problem=f"the function {self.name} takes arguments of the structure {self.in_tree}, and "
        f"got {tree}",
      )
    arrays = [
      _fitting(leaf, aval, self.argument_names[index] or f"args[{index}]")
      for index, (leaf, aval) in enumerate(zip(leaves, self.in_avals, strict=True))
    ]
    return jax.tree.unflatten(self.out_tree, self.flat(*arrays))

  def flat(self, *leaves: Any) -> list[Any]:
    """Calls the function with leaves instead of pytrees.

    Args:
      leaves: the leaves of the arguments, arrays of `in_avals`.

    Returns:
      The leaves of the result, arrays of `out_avals`.
    """
    # A module with values of 64 bits has them in a program of 32 bits, too.
    with _precision(self._is_wide):
      return list(self._flat(*leaves))

  def precision(self) -> contextlib.AbstractContextManager[Any]:
    """A context in which JAX keeps the dtypes of arguments and results, if some have 64 bits."""
    return _precision(any(aval.dtype in _WIDE for aval in (*self.in_avals, *self.out_avals)))

  def __repr__(self) -> str:
    return f"<StableHLO function {self.name}>"


def _precision(is_wide: bool) -> contextlib.AbstractContextManager[Any]:
  return jax.enable_x64(True) if is_wide else contextlib.nullcontext()


class _Flat:
  """The function of flat arguments."""

  def __init__(self, name: str, module: Module, convention: Convention):
    self._module, self._convention = module, convention
    self.__name__ = self.__qualname__ = name

  def __call__(self, *leaves: Any) -> list[Any]:
    convention, main = self._convention, self._module.main
    kept = [_bare(leaves[index], convention.in_avals[index]) for index in convention.kept]
    values = iter(kept)
    operands = [
      self._operand(index, argument, attributes, values)
      for index, (argument, attributes) in enumerate(
        zip(main.block.arguments, main.argument_attributes, strict=True)
      )
    ]
    results = Evaluator(self._module).call(main.name, operands)
    arrays = [array(result) for result in results if result is not None]
    return [
      _dressed(result, aval) for result, aval in zip(arrays, convention.out_avals, strict=True)
    ]

  def _operand(self, index: int, argument: Value, attributes: Any, values: Any) -> Any:
    """An operand of the module; tokens and the index of the platform are no arguments."""
    if argument.type is None:
      return None
    is_marked = attributes.get("jax.global_constant") == "_platform_index"
    if self._convention.platforms and (is_marked or index == self._unmarked):
      return PerPlatform.indices(self._convention.platforms)
    return next(values)

  @property
  def _unmarked(self) -> int | None:
    """The position of the index of the platform in modules of an old JAX, which do not mark it."""
    arguments = self._module.main.block.arguments
    tensors = [index for index, each in enumerate(arguments) if each.type is not None]
    is_there = len(tensors) == len(self._convention.kept) + 1
    marks = (each.values() for each in self._module.main.argument_attributes)
    is_marked = any("_platform_index" in mark for mark in marks)
    return tensors[0] if is_there and not is_marked else None


def _differentiable(artifact: Artifact, flat: _Flat) -> Any:
  """The function with the derivative that the artifact contains."""
  jitted = jax.jit(flat)
  if artifact.vjp is None:
    return jitted
  derivative: list[Any] = []

  def backward(leaves: Any, cotangents: Any) -> Any:
    if not derivative:
      vjp = artifact.vjp() if callable(artifact.vjp) else artifact.vjp
      assert vjp is not None
      derivative.append(Function(vjp.again()))
    return tuple(derivative[0].flat(*leaves, *cotangents))

  with_rule = jax.custom_vjp(jitted)
  with_rule.defvjp(lambda *leaves: (jitted(*leaves), leaves), backward)
  return with_rule


def _fitting(leaf: Any, aval: Aval, name: str) -> Any:
  """The argument as an array of the dtype and shape that the module takes."""
  if aval.dtype == jax.dtypes.float0:
    return leaf
  if isinstance(leaf, bool | int | float | complex) and _holds(aval.dtype, leaf):
    value: Any = np.array(leaf).astype(aval.dtype)
  elif hasattr(leaf, "dtype") and leaf.dtype == aval.dtype:
    value = leaf
  else:
    value = jnp.asarray(leaf)
  fits = len(value.shape) == len(aval.shape) and all(
    is_symbolic_dim(wanted) or is_symbolic_dim(got) or wanted == got
    for wanted, got in zip(aval.shape, value.shape, strict=True)
  )
  if value.dtype != aval.dtype or not fits:
    wanted, got = (f"{x.dtype}[{','.join(map(str, x.shape))}]" for x in (aval, value))
    raise ArgumentError(name, problem=f"it is {got}; the function takes {wanted}")
  return value


def _holds(dtype: Any, number: Any) -> bool:
  """Whether a number of Python may become the dtype, as in JAX's own calls."""
  kinds = {bool: np.bool_, int: np.integer, float: np.floating, complex: np.complexfloating}
  wider = list(kinds.values())[list(kinds).index(type(number)) :]
  return any(jnp.issubdtype(dtype, kind) for kind in wider)


def _bare(leaf: Any, aval: Aval) -> Any:
  """An argument as the module takes it."""
  if aval.dtype == jax.dtypes.float0:
    return np.zeros(np.shape(leaf), bool)
  if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
    return jax.random.key_data(leaf)
  return leaf


def _dressed(result: Any, aval: Aval) -> Any:
  """A result of the module as the function returns it."""
  if aval.dtype == jax.dtypes.float0:
    return np.zeros(result.shape, jax.dtypes.float0)
  if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
    return jax.random.wrap_key_data(jnp.asarray(result), impl=_key_implementation(aval.dtype))
  return jnp.asarray(result)


def _key_implementation(dtype: Any) -> str:
  dtypes = {
    name: jax.eval_shape(lambda name=name: jax.random.key(0, impl=name)).dtype for name in _KEYS
  }
  return next(name for name, each in dtypes.items() if each == dtype)


def _is_wide(module: Module) -> bool:
  """Whether the module has values of 64 bits."""
  for function in reachable(module):
    values = list(function.block.arguments)
    for op in walk(function.block):
      values += op.results
    if any(value.type is not None and value.type.dtype in _WIDE for value in values):
      return True
  return False


def _notes(artifact: Artifact, convention: Convention) -> list[str]:
  notes = []
  if artifact.vjp is None:
    notes.append(
      "The artifact has no derivative of its own: custom_jvp, custom_vjp and stop_gradient of the "
      "original function are lost, and its derivatives are those of its operations. "
      "exported.serialize(vjp_order=1) keeps them."
    )
  else:
    notes.append(
      "The derivative is the artifact's own, which is one in reverse mode: jax.jvp and jax.jacfwd "
      "are refused."
    )
  dims = [size for aval in convention.in_avals for size in aval.shape]
  if dims and not any(map(is_symbolic_dim, dims)):
    notes.append(
      "All sizes of the arguments are fixed. An export with jax.export.symbolic_shape leaves them "
      "open."
    )
  if convention.devices > 1:
    notes.append(
      f"The artifact was written for {convention.devices} devices; the function runs on one, "
      "and the places of arrays are left out."
    )
  return notes
