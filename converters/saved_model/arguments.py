"""Named inputs and outputs: `{"x": "f32[b,784]"}` -> avals, TensorSpecs and names, also of
trees."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np
import tensorflow as tf
from jax import export, tree_util

from jax2tf import pytrees
from jax2tf.messages import Argument, ArgumentError, Text

from ..bundle.notation import Spec, variables

Given: TypeAlias = Any  # str | jax.ShapeDtypeStruct | tf.TensorSpec, which mypy does not know


@dataclass(frozen=True)
class Arguments:
  """The inputs of a JAX function, which follow its parameters, as named tensors.

  Attributes:
    names: the name of each leaf.
    avals: the aval of each leaf; dimensions may be symbolic.
    tree: the treedef of the tuple of arguments.
  """

  names: tuple[str, ...]
  avals: tuple[jax.ShapeDtypeStruct, ...]
  tree: Any

  @classmethod
  def of(
    cls, inputs: Mapping[str, Any], renamed: Mapping[str, str], scope: export.SymbolicScope
  ) -> Arguments:
    """From a spec or a pytree of specs for each argument, in order. A leaf of a pytree is named by
    its path, `batch_ids`.

    Raises:
      ValueError: a spec is not `dtype[dims]`; an input holds a class of the user; a name is used
        twice, or TensorFlow would change it; `renamed` names an unknown input.
    """
    args = tuple(inputs.values())
    leaves, tree = tree_util.tree_flatten(args, is_leaf=lambda x: x is not args and _is_no_spec(x))
    for name, arg in inputs.items():
      _check_classes(f"input {name!r}", arg)
    names = [
      "_".join(filter(None, (name, path)))
      for name, arg in inputs.items()
      for path in leaf_names(arg, "_", _is_no_spec)
    ]
    names = _renamed(names, renamed, "input_names", "input")
    for name in names:
      check_name(name)
    if len(set(names)) != len(names):
      raise ArgumentError(
        "inputs",
        list(names),
        problem="two inputs would have one name",
        advice=Text("give each its own in ", Argument("input_names")),
      )
    _check_case(names)
    return cls(
      tuple(names), tuple(_aval(*item, scope) for item in zip(names, leaves, strict=True)), tree
    )

  def polymorphic_shapes(self) -> list[Any]:
    """For `jax2tf.convert`: f32[b,2*b + 1] -> "b, 2*b + 1"."""
    return list(
      tree_util.tree_unflatten(self.tree, [", ".join(map(str, aval.shape)) for aval in self.avals])
    )

  def concerned_by(self, constraints: Sequence[str]) -> tuple[str, ...]:
    """The constraints on dimension variables of these arguments. JAX refuses constraints on other
    variables."""
    own = {*variables(str(d) for aval in self.avals for d in aval.shape)}
    return tuple(text for text in constraints if own & {*variables([text])})

  def specs(self) -> dict[str, tf.TensorSpec]:
    """{name: tf.TensorSpec}. Symbolic dimensions become None."""
    return {
      name: tf.TensorSpec(
        [d if isinstance(d, int) else None for d in aval.shape], np.dtype(aval.dtype), name
      )
      for name, aval in zip(self.names, self.avals, strict=True)
    }

  def unflatten(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
    """Rebuilds the arguments from their leaves."""
    return tree_util.tree_unflatten(self.tree, leaves)

  def notation(self) -> dict[str, str]:
    """Name -> "f32[b,784]"."""
    return {name: str(Spec.of(aval)) for name, aval in zip(self.names, self.avals, strict=True)}


def checked_results(name: str, fun: Callable[..., Any]) -> Callable[..., Any]:
  """The function `name`. Its calls raise ValueError for a result of a class that a SavedModel
  cannot return."""

  def call(*args: Any) -> Any:
    result = fun(*args)
    _check_classes(f"the result of '{name}'", result)
    return result

  return call


def _check_classes(what: str, tree: Any) -> None:
  if kind := pytrees.unknown_class(tree_util.tree_structure(tree)):
    raise ValueError(
      f"{what} holds a {kind.__name__}, and the functions of a SavedModel take and return dicts, "
      "lists and tuples of arrays; use "
      f"these, and make the {kind.__name__} from them where it is needed"
    )


def input_specs(concrete: Any) -> dict[str, tf.TensorSpec]:
  """{name of an argument of a ConcreteFunction: its spec}, in the order of its placeholders.

  TF 2.21: the names of `structured_input_signature` and of placeholders are no argument names: "X"
  becomes "x", and beside another "x" it becomes "x_1".
  """
  parameters = concrete.function_type.parameters
  return {name: parameter.type_constraint for name, parameter in parameters.items()}


def name_of(fun: Callable[..., Any]) -> str:
  """The name of a function, or of its class."""
  return getattr(fun, "__name__", type(fun).__name__)


def check_order(fun: Callable[..., Any], names: Sequence[str], leading: Sequence[str]) -> None:
  """Raises ValueError if `fun` does not take these inputs: too few, too many, or its own argument
  names in another order.

  Args:
    fun: takes the `leading` arguments and then the inputs, by position.
    names: the names of the inputs. Names that differ from those of the arguments are accepted as
      given.
    leading: words for the leading arguments, for the message.
  """
  try:
    signature = inspect.signature(fun)
  except (ValueError, TypeError):  # a callable implemented in C
    return
  name = name_of(fun)
  takes = ", ".join([*leading, *list(signature.parameters)[len(leading) :]])
  try:
    own = list(signature.bind(*leading, *names).arguments)[len(leading) :]
  except TypeError as error:
    # of a model of a library
    own = [parameter.removeprefix("jax2tf_") for parameter in signature.parameters]
    # perhaps the function of the inputs alone
    if len(own) == len(names) and own[:1] != list(leading[:1]):
      called = ", ".join([*leading, *names])
      raise ArgumentError(
        "inputs",
        list(names),
        problem=f"'{name}' takes ({', '.join(own)}), and it is called with ({called})",
        advice=f"name an input for each argument after {leading[-1]}; if it takes no "
        f"{leading[-1]}, pass lambda {called}: fun({', '.join(names)})",
      ) from None
    raise ArgumentError(
      "inputs",
      list(names),
      problem=f"'{name}' takes ({takes}): {error}",
      advice=f"name an input for each argument after {leading[-1]}",
    ) from None
  if own != list(names) and set(own) == set(names):
    raise ArgumentError(
      "inputs",
      list(names),
      problem=f"'{name}' takes ({takes}), in this order",
      advice="name the inputs in the order of the arguments",
    )


def check_name(name: str) -> None:
  """Raises ValueError for a name that a SavedModel would change or refuse. tf.function takes `self`
  for a bound object."""
  if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or keyword.iskeyword(name) or name == "self":
    raise ValueError(
      f"input name {name!r} is not an identifier that TensorFlow takes, so a SavedModel would "
      "rename or refuse it; begin with a letter "
      "(a-z), then letters, digits and _, and no word of Python"
    )


def _check_case(names: Sequence[str]) -> None:
  """Raises ValueError for names that tf.saved_model.save takes for one."""
  first: dict[str, str] = {}
  for name in names:
    if (other := first.setdefault(name.lower(), name)) != name:
      raise ValueError(
        f"{other!r} and {name!r} differ in capital letters only, and TensorFlow saves no "
        "signature that has both; rename one"
      )


def _aval(name: str, spec_or_array: Given, scope: export.SymbolicScope) -> jax.ShapeDtypeStruct:
  if _is_no_spec(spec_or_array):
    raise ArgumentError(
      Argument("inputs", spec_or_array, key=name),
      advice=f"write its dtype and shape as in {_suggested(spec_or_array)!r}",
    )
  if not isinstance(spec_or_array, str):
    dtype = (
      spec_or_array.dtype.as_numpy_dtype
      if isinstance(spec_or_array.dtype, tf.DType)
      else spec_or_array.dtype
    )
    _check_dtype(name, dtype, spec_or_array)
    return jax.ShapeDtypeStruct(spec_or_array.shape, dtype)
  spec = Spec.parse(spec_or_array, name)
  _check_dtype(name, spec.dtype, spec_or_array)
  if strange := [
    dim for dim in spec.dims or () if dim in ("None", "?") or re.fullmatch(r"-\d+", str(dim))
  ]:
    raise ArgumentError(
      Argument("inputs", spec_or_array, key=name),
      problem=f"{strange[0]} is not a size",
      advice="use a letter for a varying size, as in 'f32[b,784]'",
    )
  try:
    shape = export.symbolic_shape(
      "..." if spec.dims is None else ", ".join(map(str, spec.dims)), scope=scope
    )
  except ValueError as error:
    raise ArgumentError(Argument("inputs", spec_or_array, key=name), problem=str(error)) from error
  return jax.ShapeDtypeStruct(shape, spec.dtype)


def _check_dtype(name: str, dtype: Any, spec_or_array: Given) -> None:
  text = spec_or_array if isinstance(spec_or_array, str) else str(Spec.of(spec_or_array))
  if dtype == np.dtype(object):
    raise ArgumentError(
      Argument("inputs", text, key=name),
      problem="JAX has no strings",
      advice=Text(
        "let ",
        Argument("preprocess"),
        " take it, as one of ",
        Argument("raw_inputs"),
        ", or give it to ",
        Argument("pass_through"),
      ),
    )
  if jax.dtypes.canonicalize_dtype(dtype) != dtype:
    raise ArgumentError(
      Argument("inputs", text, key=name),
      problem="JAX narrows this dtype here",
      advice="set jax.config.update('jax_enable_x64', True), or JAX_ENABLE_X64=1 in the "
      "environment",
    )


def _is_no_spec(x: Any) -> bool:
  """Whether it is neither a spec nor a pytree of specs: None, a dtype, a shape alone, or a
  TensorSpec with unknown sizes."""
  if isinstance(x, tuple | list):
    return any(d is None or isinstance(d, int) for d in x)
  if isinstance(x, str | Mapping) or not (
    x is None or isinstance(x, int | type | tf.DType | tf.TensorShape | tf.TensorSpec)
  ):
    return False
  return not (isinstance(x, tf.TensorSpec) and x.shape.is_fully_defined())


def _suggested(spec_or_array: Any) -> str:
  """A spec to suggest in the message: (None, 4) -> "f32[b,4]"."""
  shape = getattr(spec_or_array, "shape", spec_or_array)
  sizes = tf.TensorShape(
    [d if isinstance(d, int) else None for d in shape] if isinstance(shape, tuple | list) else None
  )
  sizes = shape if isinstance(shape, tf.TensorShape) else sizes
  if sizes.rank is None:
    return "f32[b,784]"
  letters = iter("bcdefghijklmnopq")
  dtype = np.dtype(
    spec_or_array.dtype.as_numpy_dtype if isinstance(spec_or_array, tf.TensorSpec) else np.float32
  )
  return str(Spec(dtype, tuple(next(letters) if d is None else d for d in sizes)))


def tensor_specs(inputs: Mapping[str, Given], argument: str) -> dict[str, tf.TensorSpec]:
  """Specs of the inputs that an argument has, for TensorFlow functions, including "string[b]".
  Dimensions that are not numbers become None."""
  specs = {}
  for name, spec_or_array in inputs.items():
    check_name(name)
    if isinstance(spec_or_array, str):
      specs[name] = tensor_spec(Spec.parse(spec_or_array, name, argument), name)
    else:
      specs[name] = tf.TensorSpec(spec_or_array.shape, spec_or_array.dtype, name)
  return specs


def tensor_spec(spec: Spec, name: str) -> tf.TensorSpec:
  """TensorFlow's form of a spec. Dimensions that are not numbers become None."""
  return tf.TensorSpec(spec.sizes, tf.string if spec.is_string else spec.dtype, name)


def check_constraint(text: str, known: Sequence[str]) -> None:
  """Raises ValueError if the text is not a condition on the `known` dimension variables."""
  try:
    export.SymbolicScope([text])
  except ValueError as error:
    # JAX' words
    problem = str(error).rpartition("parsing error: ")[2]
    raise ArgumentError("polymorphic_constraints", text, problem=problem) from error
  if strange := [name for name in variables([text]) if name not in known]:
    only = ", ".join(known) or "fixed sizes"
    raise ArgumentError(
      "polymorphic_constraints",
      text,
      problem=f"the inputs have no variable {strange[0]!r}, only {only}",
    )


def leaf_names(
  tree: Any, separator: str, is_leaf: Callable[[Any], bool] | None = None
) -> list[str]:
  """The path of each leaf, as `encoder/layer/0/bias`; empty for a tree that is one leaf."""
  return [
    tree_util.keystr(path, simple=True, separator=separator)
    for path, _ in tree_util.tree_flatten_with_path(tree, is_leaf)[0]
  ]


def _renamed(
  names: Sequence[str], new_names: Mapping[str, str], argument: str, kind: str
) -> list[str]:
  """The names, with those of `argument` in place of some. `kind`: what they are names of, for the
  error about an unknown one."""
  if unknown := new_names.keys() - set(names):
    raise ArgumentError(
      argument,
      dict(new_names),
      problem=f"there is no {kind} {', '.join(sorted(unknown))} to rename",
      advice=f"choose from {', '.join(names)}",
    )
  return [new_names.get(name, name) for name in names]


def output_names(result: Any, outputs: Sequence[str] | Mapping[str, str] | None) -> list[str]:
  """Names for the leaves of a result: the given names, or their paths. A single leaf without a path
  is named "output".

  Raises:
    ValueError: the number of names is wrong, a name is used twice, or `outputs` renames an unknown
      output.
  """
  names_of_leaves = [re.sub(r"\W", "_", name) for name in leaf_names(result, "_")]
  names_of_leaves = [
    f"output_{name}" if name[:1].isdigit() else name or "output" for name in names_of_leaves
  ]
  if isinstance(outputs, Mapping):
    names = _renamed(names_of_leaves, outputs, "outputs", "result")
  else:
    names = list(outputs) if outputs is not None else names_of_leaves
  if len(names) != len(names_of_leaves):
    raise ArgumentError(
      "outputs",
      names,
      problem=f"{len(names)} names for {len(names_of_leaves)} results",
      advice=f"name each of: {', '.join(names_of_leaves)}",
    )
  if len(set(names)) != len(names):
    raise ArgumentError(
      "outputs", names, problem="two results would have one name", advice="give each its own"
    )
  return names


@dataclass(frozen=True)
class Added:
  """A function of a `Model`.

  Attributes:
    fun: the JAX function.
    arguments: its named arguments.
    stateful: whether it takes the state between parameters and arguments.
  """

  fun: Callable[..., Any]
  arguments: Arguments
  stateful: bool = False
