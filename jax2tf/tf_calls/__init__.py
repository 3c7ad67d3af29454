"""`call_tf`: TensorFlow functions in JAX, under all of JAX's transformations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import tensorflow as tf
from jax import export, tree_util

from jax2tf import _jax_compat, _tf_compat, shadows
from jax2tf.api import jax_function_of
from jax2tf.caches import BoundedCache
from jax2tf.dtypes import describe, is_key, key_dtype_of, mark_keys, tf_dtype
from jax2tf.errors import warn_user
from jax2tf.pytrees import argument_paths
from jax2tf.tf_calls.function import Options, TfFunction, WithVariables, tensor_spec
from jax2tf.tf_calls.primitives import call_tf_p

_VMAP_METHODS = (
  None,
  "sequential",
  "sequential_unrolled",
  "expand_dims",
  "broadcast_all",
  "legacy_vectorized",
  "vectorized",
)
_MODES = ("auto", "inline", "callback")
_MAX_SIGNATURES = 512
_WRITES = ("Assign", "ResourceScatter", "ResourceApply")


class _Unspecified:
  def __repr__(self) -> str:
    return "UNSPECIFIED"


UNSPECIFIED = _Unspecified()


def call_tf(
  callable_tf: Callable[..., Any],
  has_side_effects: bool | None = None,
  ordered: bool = False,
  output_shape_dtype: Any = UNSPECIFIED,
  call_tf_graph: bool = False,
  *,
  vmap_method: str | None = None,
  under_jit: str = "auto",
) -> Callable[..., Any]:
  """Returns a JAX function with the values and derivatives of a TensorFlow function.

  The result works under jit, grad, jvp, vmap, scan, cond, remat and `jax2tf.convert`, in any
  combination. Eagerly, it calls the TensorFlow function. Under jit, it inlines the function as XLA
  code if that is equivalent; otherwise it uses a callback, which reads and writes tf.Variables when
  it runs.

  Args:
    callable_tf: a Python function of tensors, a tf.function or ConcreteFunction, a Keras layer or
      model, or a function of a loaded SavedModel. Under transformations, it is traced once for
      every combination of structure, shapes and dtypes.
    has_side_effects: whether a call runs even if its results are unused; None derives it from the
      ops of its graph.
    ordered: whether calls under jit run in program order.
    output_shape_dtype: a pytree of jax.ShapeDtypeStruct for the results, if TensorFlow cannot infer
      their shapes; None for no results.
    call_tf_graph: for compatibility: True forbids jit, so that only `convert` lowers the call.
      `convert` always inlines the graph.
    vmap_method: how `jax.vmap` calls the function, as in `jax.pure_callback`. "vectorized" is
      tf.vectorized_map. None chooses "vectorized" for functions without stateful ops, else
      "sequential".
    under_jit: "auto"; "callback", which runs the function in TensorFlow; or "inline", which inlines
      XLA's code and raises an error if it cannot.

  Returns:
    a JAX function of pytrees of arrays, positional and by keyword. It returns jax.Arrays in the
    structure of the results of `callable_tf`.

  Raises:
    TypeError: `callable_tf` is not callable; at a call, an argument is not an array.
    ValueError: `vmap_method` or `under_jit` is unknown; at a call, a result has an unknown shape,
      does not match `output_shape_dtype`, or is not a numeric tensor; under jit, inlining is
      impossible, or `call_tf_graph` is set; under `jax.export`, shapes are symbolic.
    LookupError: at a derivative, TensorFlow has no gradient for the function.

  Examples:
    >>> import jax, tensorflow as tf, jax2tf
    >>> cube = jax2tf.call_tf(lambda x: x**3)
    >>> jax.grad(cube)(2.0).item(), jax.jit(jax.vmap(cube))(jax.numpy.arange(3.0)).tolist()
    (12.0, [0.0, 1.0, 8.0])
  """
  if not callable(callable_tf):
    raise TypeError(
      f"Expected a callable value, got {callable_tf!r} of type {type(callable_tf).__name__}"
    )
  if vmap_method not in _VMAP_METHODS:
    raise ValueError(f"vmap_method = {vmap_method!r} is not one of {_VMAP_METHODS}")
  if under_jit not in _MODES:
    raise ValueError(f"under_jit = {under_jit!r} is not one of {_MODES}")
  options = Options(has_side_effects, ordered, vmap_method, under_jit, call_tf_graph)
  calls = _Calls(callable_tf, options, output_shape_dtype)
  wrap = functools.wraps(
    callable_tf,
    assigned=[n for n in ("__name__", "__doc__", "__qualname__") if hasattr(callable_tf, n)],
    updated=(),
  )

  if (
    (fun_jax := jax_function_of(callable_tf)) is not None
    and options == Options()
    and output_shape_dtype is UNSPECIFIED
  ):
    return jax.jit(fun_jax)

  @wrap
  def called(*args: Any, **kwargs: Any) -> Any:
    call, leaves = calls(args, kwargs)
    return call(leaves)

  return called


def functional(
  fun_tf: Callable[..., Any], *specs: Any
) -> tuple[Callable[..., Any], list[jax.Array]]:
  """Returns a TensorFlow function as a JAX function of its trainable variables, and the values of
  the variables.

  `apply(variables, *args)` computes `fun_tf(*args)` with these values in place of the values of its
  tf.Variables, which stay unchanged. It supports all of JAX's transformations; a vmap over
  variables is sequential. Other captured tensors are read at each call.

  Args:
    fun_tf: as for `call_tf`.
    specs: the arguments of `fun_tf`, as jax.ShapeDtypeStruct, tf.TensorSpec or arrays; `apply` also
      takes other shapes. A size may be None.

  Returns:
    (apply, variables): a function, and a list of jax.Arrays in the order in which `fun_tf` first
    uses them. `apply.variables` is the list of the tf.Variables; assign trained values to them.

  Raises:
    TypeError: `fun_tf` is not callable, or a spec is not an array.
    ValueError: `fun_tf` captures no trainable variable, or a variable of unknown shape; a result is
      invalid, as for `call_tf`. At a call of `apply`: the values have other shapes than the
      variables, or `fun_tf` writes variables.

  Examples:
    >>> import jax, tensorflow as tf, jax2tf
    >>> w = tf.Variable([1.0, 2.0])
    >>> apply, variables = jax2tf.functional(
    ...   lambda x: tf.reduce_sum(w * x), jax.ShapeDtypeStruct((2,), "float32")
    ... )
    >>> jax.grad(apply)(variables, jax.numpy.array([3.0, 4.0]))[0].tolist()
    [3.0, 4.0]
  """
  if not callable(fun_tf):
    raise TypeError(f"Expected a callable value, got {fun_tf!r} of type {type(fun_tf).__name__}")
  calls = _Calls(fun_tf, Options(), UNSPECIFIED)
  specs = tuple(tree_util.tree_map(_of_any_size, specs))
  function = calls(specs, {})[0].function
  variables = [v for v in function.variables if v.trainable]
  if not variables:
    raise ValueError(
      f"functional: '{function.name}' captures no trainable tf.Variable; use call_tf"
    )
  if unknown := [v.name for v in variables if not v.shape.is_fully_defined()]:
    raise ValueError(
      f"functional: the shapes of {', '.join(unknown)} are not known; set them, or trainable=False"
    )

  def apply(values: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    shapes = [tuple(jax.numpy.shape(x)) for x in values]
    if shapes != (expected := [tuple(v.shape.as_list()) for v in variables]):
      raise ValueError(
        f"functional: the variables of '{function.name}' have the shapes {expected}, not {shapes}"
      )
    call, leaves = calls(args, kwargs)
    if writes := sorted(kind for kind in call.function.stateful if kind.startswith(_WRITES)):
      raise ValueError(
        f"functional: '{function.name}' writes variables ({', '.join(writes)}); return what it "
        "writes instead"
      )
    return call(leaves, dict(zip(variables_by_reference, values, strict=True)))

  variables_by_reference = {v.ref(): v for v in variables}
  apply.variables = variables  # type: ignore[attr-defined]
  return apply, [jax.numpy.array(v.numpy()) for v in variables]


class _Calls:
  """(args, kwargs) -> (the call of the user's function with such arguments, their leaves)."""

  def __init__(self, fun: Callable[..., Any], options: Options, declared: Any):
    self._make = functools.partial(_Call, fun, options, declared)
    self._calls: BoundedCache[Any, _Call] = BoundedCache(
      _MAX_SIGNATURES, functools.partial(_warn_of_many_signatures, fun)
    )

  def __call__(self, args: Any, kwargs: Any) -> tuple[_Call, list[Any]]:
    leaves, tree = tree_util.tree_flatten((args, kwargs))
    try:
      described = tuple(map(describe, leaves))
    except (TypeError, ValueError):
      described = tuple(map(describe, leaves, argument_paths((args, kwargs))))
    key = (tree, described, bool(jax.config.jax_enable_x64))
    return self._calls.get(key, lambda: self._make(tree, described)), leaves


class _Call:
  """A call of the user's function with arguments of one structure, of some shapes and dtypes."""

  def __init__(
    self, fun: Callable[..., Any], options: Options, declared: Any, tree: Any, described: Any
  ):
    self._fun, self._tree = fun, tree
    self._dtypes = [dtype for _, dtype, _ in described]
    self._out: tuple[Any, list[Any]] | None = None
    self._declared: tuple[Any, Any] | None = (
      None if declared is UNSPECIFIED else tree_util.tree_flatten(declared)
    )
    avals = [
      _jax_compat.physical_aval(jax.core.ShapedArray(shape, dtype)) for shape, dtype, _ in described
    ]
    name = getattr(fun, "__name__", None) or getattr(fun, "name", None) or type(fun).__name__
    # The name of a wrapped graph is bytes.
    self.function = TfFunction(
      tf.compat.as_str(name), self._run, avals, options, self._declared and self._declared[0]
    )

  def __call__(self, leaves: list[Any], values: Mapping[Any, Any] | None = None) -> Any:
    """The results; `values` are those of some variables, by reference."""
    arrays = [
      jax.random.key_data(x) if is_key(d) else _array(x)
      for x, d in zip(leaves, self._dtypes, strict=True)
    ]
    function, bound = self.function, values is not None
    if substituted := values or (shadows.current() if _jax_compat.inside_trace() else {}):
      variables = [v for v in function.variables if v.ref() in substituted]
      function = function.memoised(
        (bound, *(v.ref() for v in variables)),
        lambda: WithVariables(self.function, variables, shadowed=True, substituted=bound),
      )
      arrays += [_array(substituted[v.ref()]) for v in variables]
    results = _jax_compat.bind_over_devices(call_tf_p, *arrays, function=function)
    assert self._out is not None  # a call, or its trace, has run `_run`
    tree, keys = self._out
    return tree_util.tree_unflatten(
      tree,
      [
        y if k is None else jax.random.wrap_key_data(y, impl=k)
        for y, k in zip(results, keys, strict=True)
      ],
    )

  def _run(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
    """The flat results of the user's function."""
    marked = [
      mark_keys(tf.identity(x), d) if is_key(d) else x
      for x, d in zip(tensors, self._dtypes, strict=True)
    ]
    args, kwargs = tree_util.tree_unflatten(self._tree, marked)
    with shadows.substituting({}):
      outs, tree = tree_util.tree_flatten(_tf_compat.unwrapped(self._fun(*args, **kwargs)))
    if self._declared is not None and tree != (declared := self._declared[1]):
      raise ValueError(
        "The pytree of the TensorFlow function results does not match the declared "
        f"output_shape_dtype: '{self.function.name}' returns "
        f"{tree}, declared is {declared}"
      )
    declared = [None] * len(outs) if self._declared is None else self._declared[0]
    results = [self._result(y, aval) for y, aval in zip(outs, declared, strict=True)]
    keys = [key_dtype_of(y) for y in outs]
    self._out = tree, [None if k is None else _jax_compat.key_implementation(k) for k in keys]
    return results

  def _result(self, y: Any, declared: Any) -> tf.Tensor:
    """A result as a tensor of JAX's dtype, and of the declared shape, if there is one."""
    if declared is not None and isinstance(y, tf.Tensor) and y.shape.rank is None:
      y = tf.ensure_shape(y, tensor_spec(declared).shape)
    try:
      dtype = describe(y)[1]
    except (TypeError, ValueError) as error:
      raise ValueError(
        "The called TF function returns a result that is not convertible to JAX: "
        f"'{self.function.name}' returns {y!r}. Return numeric "
        "tensors of known rank; other values, such as strings, may only be used inside the "
        "function"
      ) from error
    y = tf.convert_to_tensor(y)
    if is_key(dtype):
      return y
    y = y if y.dtype == tf_dtype(dtype) else tf.cast(y, tf_dtype(dtype))
    return y if declared is None else self.function.as_declared(y, declared)


def _of_any_size(spec: Any) -> Any:
  """A spec with a symbolic dimension for each size that TensorFlow does not know."""
  if (
    not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None or spec.shape.is_fully_defined()
  ):
    return spec
  shape, dtype, _ = describe(spec)
  names = [f"n{i}" if n is None else str(n) for i, n in enumerate(shape)]
  return jax.ShapeDtypeStruct(export.symbolic_shape(", ".join(names)), dtype)


def _warn_of_many_signatures(fun: Any) -> None:
  warn_user(
    f"'{getattr(fun, '__name__', type(fun).__name__)}' was called from JAX with more than "
    f"{_MAX_SIGNATURES} combinations of structure, "
    "shapes and dtypes; those that come back are traced again. Pad the arguments to fewer sizes"
  )


def _array(x: Any) -> Any:
  if isinstance(x, jax.Array):
    return x
  return jax.numpy.asarray(x.numpy() if isinstance(x, tf.Tensor | tf.Variable) else x)
