"""JAX's mutable arrays as tf.Variables that a converted function reads and writes: as arguments, or
closed over."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import tree_util
from jax.extend.core import Jaxpr, jaxpr_as_fun

from jax2tf import _jax_compat, _tf_compat
from jax2tf.dtypes import is_key, key_dtype_of, mark_keys
from jax2tf.errors import UnsupportedEquation, lowering_error
from jax2tf.jaxprs import ClosedJaxpr, closed, opened, replaced, variables
from jax2tf.lines import definition, user_line
from jax2tf.messages import ArgumentTypeError
from jax2tf.signature import Signature


@dataclass(frozen=True, eq=False)
class Ref:
  """Marks a tf.Variable as the argument of a converted function whose JAX function takes a
  `jax.Ref`.

  A tf.Variable without `Ref` passes its value. The wrapper is necessary because a function that
  only reads accepts both. A `Ref` may be a leaf of any argument; `polymorphic_shapes` applies to
  its variable.

  Args:
    variable: a tf.Variable of any shape, of a dtype that JAX has; without `jax_enable_x64`, of at
      most 32 bits.

  Raises:
    TypeError: at the call, `variable` is not a tf.Variable, or JAX has no such dtype.
    ValueError: at the call, two arguments hold the same variable, or a `call_tf` inside the
      function uses it.
    NotImplementedError: at the call, the graph does not order reads and writes (TF1,
      wrap_function).

  Examples:
    >>> import tensorflow as tf, jax2tf
    >>> def count(ref):
    ...   ref[...] += 1
    >>> steps = tf.Variable(0)
    >>> jax2tf.convert(count)(jax2tf.Ref(steps))
    >>> steps.numpy().item()
    1
  """

  variable: Any


# So the structure of the arguments, and the cache key of the trace, record which leaves are refs.
tree_util.register_dataclass(Ref, data_fields=["variable"], meta_fields=[])


def _is_ref(x: Any) -> bool:
  return isinstance(x, Ref)


def refs_of(arguments: Any) -> list[Ref]:
  """The refs of a tree, in order."""
  return [x for x in tree_util.tree_leaves(arguments, is_leaf=_is_ref) if _is_ref(x)]


def check(arguments: Any, name: str) -> None:
  """Raises if refs in (args, kwargs) do not hold variables, share a variable, or would be written
  in no defined order."""
  seen: dict[Any, str] = {}
  for path, x in tree_util.tree_flatten_with_path(arguments, is_leaf=_is_ref)[0]:
    if not _is_ref(x):
      continue
    argument = ("args", "kwargs")[path[0].idx] + tree_util.keystr(path[1:])
    variable = x.variable
    if not isinstance(variable, tf.Variable):
      raise TypeError(
        f"'{name}': jax2tf.Ref takes a tf.Variable, and {argument} has a "
        f"{type(variable).__name__}; pass jax2tf.Ref(variable)"
      )
    dtype = variable.dtype.as_numpy_dtype
    if (canonical := jax.dtypes.canonicalize_dtype(dtype)) != dtype:
      raise TypeError(
        f"'{name}': the variable of {argument} is {variable.dtype.name}, and JAX computes in "
        f"{canonical} without jax_enable_x64; "
        f"pass a variable of {canonical}"
      )
    if (first := seen.setdefault(variable.ref(), argument)) is not argument:
      raise ValueError(
        "only one reference to a mutable array may be passed as an argument to a function, but "
        f"when calling '{name}' "
        f"the variable {variable.name} of shape {variable.shape} appeared at both {first} and "
        f"{argument}"
      )
  if seen:
    check_order(name)


def check_order(name: str) -> None:
  """Raises where the writes of a function would have no order."""
  if not _tf_compat.orders_writes():
    raise NotImplementedError(
      f"'{name}' writes variables, and in this graph (TF1, wrap_function) TensorFlow does not "
      "order reads and writes; "
      "call it in a tf.function"
    )


def check_captured(arguments: Any, captured: Sequence[tf.Variable], name: str) -> None:
  """Raises if a TensorFlow function inside (`call_tf`) captures the variable of a ref: it would not
  see the writes of this call."""
  if captured and (
    both := {ref.variable.ref() for ref in refs_of(arguments)} & {v.ref() for v in captured}
  ):
    names = ", ".join(sorted(v.deref().name for v in both))
    raise ValueError(
      f"'{name}' takes {names} as a jax2tf.Ref, and a TensorFlow function inside uses the same "
      "variable; pass its value"
    )


def as_values(fun: Callable[..., Any]) -> Callable[..., Any]:
  """The function on values in place of refs. It returns (its results, the final values of the
  refs).

  The refs are made inside, so JAX differentiates first, and TensorFlow's repeated derivatives
  contain no writes.
  """

  @functools.wraps(fun, updated=())
  def pure(*args: Any, **kwargs: Any) -> Any:
    leaves, tree = tree_util.tree_flatten((args, kwargs), is_leaf=_is_ref)
    refs = {i: jax.new_ref(x.variable) for i, x in enumerate(leaves) if _is_ref(x)}
    args, kwargs = tree_util.tree_unflatten(tree, [refs.get(i, x) for i, x in enumerate(leaves)])
    return fun(*args, **kwargs), [jax.freeze(ref) for ref in refs.values()]

  return pure


# By the id of a mutable array: itself, and its variable.
_variables: dict[int, tuple[weakref.ref[Any], tf.Variable]] = {}


def variable_of(ref: jax.Ref) -> tf.Variable:
  """Returns the tf.Variable that replaces a `jax.Ref` in the converted functions that close over
  it.

  The first call of `variable_of` or of such a function creates the variable with the current value
  of the ref. After that, the two are independent: TensorFlow uses the variable, JAX the ref. To
  save it, make it an attribute of the object that `tf.saved_model.save` saves.

  Args:
    ref: the result of `jax.new_ref`, of any dtype and shape. For key<fry>[n], the variable holds
      the physical data, u32[n,2].

  Returns:
    a variable that is not trainable. One ref always has the same variable.

  Raises:
    TypeError: `ref` is not a `jax.Ref`.

  Examples:
    >>> import jax, jax2tf
    >>> total = jax.new_ref(jax.numpy.float32(0))
    >>> def add(x):
    ...   total[...] += x
    >>> jax2tf.convert(add)(2.5)
    >>> jax2tf.variable_of(total).numpy().item()
    2.5
  """
  if not isinstance(ref, jax.Ref):
    raise ArgumentTypeError(
      "ref",
      ref,
      problem=f"it is of type {type(ref).__name__}",
      advice="pass the result of jax.new_ref",
    )
  known = _variables.get(id(ref))
  if known is None or known[0]() is not ref:
    value = ref[...]
    words = jax.random.key_data(value) if is_key(value.dtype) else value
    with tf.init_scope():
      variable = tf.Variable(np.asarray(words), trainable=False, name="jax_ref")
    known = _variables[id(ref)] = weakref.ref(ref, functools.partial(_forget, id(ref))), variable
  return known[1]


def _forget(number: int, gone: weakref.ref[Any]) -> None:
  if _variables[number][0] is gone:
    del _variables[number]


def closed_over(jaxpr: ClosedJaxpr) -> list[jax.Ref]:
  """The mutable arrays that a function closes over."""
  return [c for c in jaxpr.consts if isinstance(c, jax.Ref)]


def of_closed_over(jaxpr: ClosedJaxpr) -> Callable[..., Any]:
  """(leaves of its arguments, values of the refs it closes over) -> (its results, the values of the
  refs after it)."""
  # `jax.checkpoint` has derivatives with refs of kind "no_grad_no_remat" only
  kinds = [jax.typeof(ref).kind for ref in closed_over(jaxpr)]

  def pure(leaves: Sequence[Any], values: Sequence[Any]) -> Any:
    new_refs = [jax.new_ref(value, kind=kind) for value, kind in zip(values, kinds, strict=True)]
    fresh = iter(new_refs)
    constants = [next(fresh) if isinstance(c, jax.Ref) else c for c in jaxpr.consts]
    return jaxpr_as_fun(closed(opened(jaxpr), constants))(*leaves), [
      jax.freeze(ref) for ref in new_refs
    ]

  return pure


def written(
  arguments: Sequence[Ref],
  jaxpr: ClosedJaxpr,
  signature: Signature,
  values: Sequence[tf.Tensor],
  results: Any,
) -> Any:
  """The results of such a function, once the variables that it writes have their new values.

  Args:
    arguments: the refs among its arguments.
    jaxpr: of the function.
    signature: of the jaxpr.
    values: the final ones of the refs.
    results: of the user.
  """
  variables = [*(ref.variable for ref in arguments), *signature.closed_over]
  writes = _writes(opened(jaxpr), signature.n_results)
  changed = [
    (variable, value)
    for variable, value, is_written in zip(variables, values, writes, strict=True)
    if is_written
  ]
  if not changed:
    return results
  changed = [
    (variable, _tf_compat.keeping_control_dependencies(value)) for variable, value in changed
  ]
  results_before_writes = tree_util.tree_map(_tf_compat.keeping_control_dependencies, results)
  # All values are computed before the first write, so a failing call writes nothing.
  with tf.control_dependencies(
    [*(value for _, value in changed), *tree_util.tree_leaves(results_before_writes)]
  ):
    ops = [variable.assign(value, read_value=False) for variable, value in changed]
  with tf.control_dependencies([op for op in ops if op is not None]):
    return tree_util.tree_map(
      lambda y, x: mark_keys(tf.identity(x), key_dtype_of(y)), results, results_before_writes
    )


@_jax_compat.weakly_cached
def _writes(jaxpr: Jaxpr, n_results: int) -> Sequence[bool]:
  """Whether each of the refs, whose final values follow the user's results, may be written."""
  frozen = {
    eqn.outvars[0]: eqn.invars[0] for eqn in jaxpr.eqns if eqn.primitive is _jax_compat.freeze_p
  }

  def may_be_written(ref: Any) -> bool:
    users = (
      eqn
      for eqn in jaxpr.eqns
      if eqn.primitive is not _jax_compat.freeze_p and any(x is ref for x in eqn.invars)
    )
    # Assume the worst of an equation that takes a ref but declares no effect on it.
    return not all(_jax_compat.only_reads(eqn, ref) for eqn in users)

  final_values = jaxpr.outvars[n_results:]
  return [value not in frozen or may_be_written(frozen[value]) for value in final_values]


def with_frozen(jaxpr: ClosedJaxpr, reads: Sequence[int]) -> tuple[ClosedJaxpr, dict[int, bool]]:
  """A jaxpr some of whose results are reads of mutable arrays, at its end: {their positions:
  whether the value is another result too}.

  It is one if the array is an argument, or closed over. Such an array is frozen, and no longer
  read.
  """
  frozen: dict[Any, Any] = {
    e.invars[0]: e.outvars[0] for e in jaxpr.eqns if e.primitive is _jax_compat.freeze_p
  }
  results: list[Any] = list(opened(jaxpr).outvars)
  read = {results[i] for i in reads}
  late = [eqn for eqn in jaxpr.eqns if not read.isdisjoint(eqn.outvars) and eqn.invars[0] in frozen]
  instead = {eqn.outvars[0]: frozen[eqn.invars[0]] for eqn in late}
  eqns = [eqn for eqn in jaxpr.eqns if eqn not in late]
  outvars = [instead[v] if i in reads and v in instead else v for i, v in enumerate(results)]
  return replaced(jaxpr, eqns=eqns, outvars=outvars), {i: results[i] in instead for i in reads}


def check_backward(function: str, jaxpr: ClosedJaxpr, operands: Sequence[int]) -> None:
  """Raises if a backward pass writes the mutable arrays whose values these operands are:
  TensorFlow's gradients write no variables."""
  values = [opened(jaxpr).invars[i] for i in operands]
  new_refs = {
    eqn.outvars[0]
    for eqn in jaxpr.eqns
    if eqn.primitive in _jax_compat.NEW_REFS and any(eqn.invars[0] is v for v in values)
  }
  reason = (
    "the gradient writes a jax.Ref of the caller, and a gradient of TensorFlow writes no variables"
  )
  advice = (
    "differentiate with JAX before convert, where jax.grad writes the Ref, or return what "
    "it writes as a cotangent"
  )
  users = [(eqn, [v for v in variables(eqn.invars) if v in new_refs]) for eqn in jaxpr.eqns]
  writers = [
    eqn for eqn, refs in users if not all(_jax_compat.only_reads(eqn, ref) for ref in refs)
  ]
  if writers:
    where = definition(jaxpr)
    raise lowering_error(
      function,
      [
        UnsupportedEquation(eqn.primitive.name, reason, advice, user_line(eqn, where))
        for eqn in writers
      ],
    )
