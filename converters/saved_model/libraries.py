"""Models of Flax, Haiku and Equinox as functions of arrays.

Each model becomes one pytree of arrays and a function `call(tree, *inputs) -> (tree, outputs)`.
Arrays that a call changes are state; all others are parameters. A parameter is trainable if the
library says so. Each library is imported on first use.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import tree_util

from jax2tf.messages import Argument, ArgumentError, ArgumentTypeError, Text

from .adapted import Whole

# Arguments of Flax, Haiku and Equinox models that choose between training and inference, and
# whether True means training.
_MODES = {
  "train": True,
  "training": True,
  "is_training": True,
  "deterministic": False,
  "use_running_average": False,
  "inference": False,
}

# Library: the module of its models, their classes there, the package to install, and the function
# that takes them.
_LIBRARIES = {
  "nnx": ("flax.nnx", ("Module",), "flax", "from_flax_nnx"),
  "linen": ("flax.linen", ("Module",), "flax", "from_flax_linen"),
  "haiku": ("haiku", ("Transformed", "TransformedWithState"), "dm-haiku", "from_haiku"),
  "equinox": ("equinox", ("Module",), "equinox", "from_equinox"),
}


def nnx(
  model: Any,
  *,
  training: bool = False,
  call: str = "__call__",
  arguments: Mapping[str, Any] | None = None,
) -> Whole:
  """A Flax nnx module as a function of its arrays."""
  flax_nnx = _checked("nnx", model)
  model = flax_nnx.clone(model)  # the modes are attributes of the copy
  (model.train if training else model.eval)()
  graph, variables = flax_nnx.split(model)
  trainable = _paths_of(flax_nnx, variables, flax_nnx.Param)
  # a recurrent cell draws a key for its zeros
  drawn = set() if training else _paths_of(flax_nnx, variables, flax_nnx.RngState)
  method = _method(model, call)
  keywords = _given(method, training, arguments)

  def whole(tree: Any, *inputs: Any) -> Any:
    now = tree_util.tree_map(lambda x: x, variables)
    flax_nnx.replace_by_pure_dict(now, tree)
    merged = flax_nnx.merge(graph, now)
    outputs = getattr(merged, call)(*inputs, **keywords)
    return _like(tree, flax_nnx.to_pure_dict(flax_nnx.state(merged))), outputs

  tree = flax_nnx.to_pure_dict(variables)
  return Whole(
    type(model).__name__,
    whole,
    tree,
    trainable.__contains__,
    _takes(method, keywords),
    drawn.__contains__,
  )


def linen(
  module: Any,
  variables: Any,
  *,
  training: bool = False,
  rngs: Mapping[str, Any] | None = None,
  mutable: Sequence[str] | None = None,
  call: str = "__call__",
  arguments: Mapping[str, Any] | None = None,
) -> Whole:
  """A Flax linen module and its variables as a function of arrays."""
  flax_linen = _checked("linen", module)
  collections = dict(flax_linen.unbox(variables))
  if (
    any(not isinstance(collection, Mapping) for collection in collections.values())
    or not collections
  ):
    raise ArgumentTypeError(
      _choice("linen"),
      problem="variables are what module.init gives, a dict of collections: {'params': {...}}",
    )
  may_change = [name for name in collections if name != "params"] if training else []
  may_change = may_change if mutable is None else list(mutable)
  bound, method = _method(module, call), getattr(type(module), call)
  keywords = _given(bound, training, arguments)

  def whole(tree: Any, *inputs: Any) -> Any:
    now = dict(tree)
    after, used = _split(now.pop("rngs", {}))
    outputs = module.apply(
      now, *inputs, rngs=used or None, mutable=may_change or False, method=method, **keywords
    )
    outputs, changed = outputs if may_change else (outputs, {})
    return _like(tree, now | dict(changed) | {"rngs": after}), outputs

  tree = collections | ({"rngs": dict(rngs)} if rngs else {})
  return Whole(
    type(module).__name__,
    whole,
    tree,
    lambda path: path.startswith("params/"),
    _takes(bound, keywords),
  )


def haiku(
  transformed: Any,
  params: Any,
  state: Any = None,
  *,
  training: bool = False,
  rng: Any = None,
  arguments: Mapping[str, Any] | None = None,
) -> Whole:
  """A Haiku transform as a function of arrays."""
  hk = _checked("haiku", transformed)
  with_state = isinstance(transformed, hk.TransformedWithState)
  if with_state == (state is None):
    expected = (
      "the state that its init gives beside the parameters"
      if with_state
      else "no state; hk.transform_with_state makes one that has"
    )
    raise ArgumentTypeError(
      _choice("haiku"), problem=f"this {type(transformed).__name__} takes {expected}"
    )
  keywords = _given(transformed.apply, training, arguments)
  # `init` takes a key and the inputs, `apply` the parameters, the state, the key (not after
  # hk.without_apply_rng) and the inputs.
  takes = {
    name: len(inspect.signature(getattr(transformed, name)).parameters)
    for name in ("init", "apply")
  }
  with_key = takes["apply"] - with_state > takes["init"]
  if rng is not None and not with_key:
    raise ArgumentTypeError(
      _choice("haiku"),
      problem="rng is given, and hk.without_apply_rng made a function that takes none",
      advice="leave out one of the two",
    )

  def whole(tree: Any, *inputs: Any) -> Any:
    after, used = _split({"rng": tree["rng"]} if "rng" in tree else {})
    key = [used.get("rng")] * with_key
    if not with_state:
      return {"params": tree["params"], **after}, transformed.apply(
        tree["params"], *key, *inputs, **keywords
      )
    outputs, changed = transformed.apply(tree["params"], tree["state"], *key, *inputs, **keywords)
    return {"params": tree["params"], "state": changed, **after}, outputs

  tree = {
    "params": params,
    **({"state": state} if with_state else {}),
    **({} if rng is None else {"rng": rng}),
  }
  return Whole(
    "haiku",
    whole,
    tree,
    lambda path: path.startswith("params/"),
    _takes(transformed.apply, keywords)[1 + with_state + with_key :],
  )


def equinox(
  model: Any,
  state: Any = None,
  *,
  training: bool = False,
  rng: Any = None,
  batched: bool = False,
  call: str = "__call__",
  arguments: Mapping[str, Any] | None = None,
) -> Whole:
  """An Equinox module as a function of its arrays."""
  eqx = _checked("equinox", model)
  model = eqx.nn.inference_mode(model, value=not training)
  arrays, static = eqx.partition(model, lambda x: isinstance(x, jax.Array | np.ndarray))
  method = _method(model, call)
  keywords = _given(method, training, arguments)

  def one(merged: Any, key: Any, remembered: Any, *inputs: Any) -> Any:
    keys = {} if key is None else {"key": key}
    result = getattr(merged, call)(
      *inputs, *([] if state is None else [remembered]), **keys, **keywords
    )
    return result if state is not None else (result, None)

  def whole(tree: Any, *inputs: Any) -> Any:
    after, used = _split({"rng": tree["rng"]} if "rng" in tree else {})
    merged, key, remembered = eqx.combine(tree["model"], static), used.get("rng"), tree.get("state")
    if not batched:
      outputs, remembered = one(merged, key, remembered, *inputs)
    else:
      keys = None if key is None else jax.random.split(key, inputs[0].shape[0])
      over = [None, None if key is None else 0, None, *[0] * len(inputs)]
      outputs, remembered = jax.vmap(one, in_axes=over, out_axes=(0, None), axis_name="batch")(
        merged, keys, remembered, *inputs
      )
    return {
      "model": tree["model"],
      **({} if state is None else {"state": remembered}),
      **after,
    }, outputs

  takes = [p for p in _takes(method, keywords) if p.name != "key"]
  tree = {
    "model": arrays,
    **({} if state is None else {"state": state}),
    **({} if rng is None else {"rng": rng}),
  }
  return Whole(
    type(model).__name__,
    whole,
    tree,
    lambda path: path.startswith("model/"),
    takes[: len(takes) - (state is not None)],
  )


def library_of(model: Any) -> str | None:
  """The name of the library that defines the model, or None. Imports no library."""
  return next(
    (
      name
      for name, (module, *_) in _LIBRARIES.items()
      if module in sys.modules and _is_of(name, model)
    ),
    None,
  )


def _is_of(library: str, model: Any) -> bool:
  module, classes, *_ = _LIBRARIES[library]
  imported = importlib.import_module(module)
  return isinstance(model, tuple(getattr(imported, name) for name in classes))


def _checked(library: str, model: Any) -> Any:
  """Imports the library, and checks that this is one of its models."""
  module, classes, package, _ = _LIBRARIES[library]
  try:
    imported = importlib.import_module(module)
  except ImportError as error:
    raise ImportError(
      f"a model of {module} needs {module.partition('.')[0]}: pip install {package}"
    ) from error
  if not _is_of(library, model):
    what = (
      f"a class, {model.__name__}; make one"
      if isinstance(model, type)
      else f"of type {type(model).__name__}"
    )
    other = library_of(model)
    of_other = f", which is a model of {other}" if other else ""
    raise ArgumentTypeError(
      _choice(library),
      problem=f"it takes a {module}.{classes[0]}, and this is {what}{of_other}",
      advice=Text("use ", _choice(other)) if other else "",
    )
  return imported


def _choice(library: str) -> Argument:
  """The library in messages: Python has a function for each, the command a flag."""
  return Argument("library", library, function=_LIBRARIES[library][-1])


def _method(model: Any, call: str) -> Callable[..., Any]:
  if not callable(method := getattr(model, call, None)):
    known = [
      name
      for name, value in vars(type(model)).items()
      if callable(value) and (name == "__call__" or not name.startswith("_"))
    ]
    raise ArgumentError(
      "call",
      call,
      problem=f"{type(model).__name__} has no such method",
      advice=f"it has {', '.join(known)}",
    )
  return method


def _given(
  call: Callable[..., Any], training: bool, arguments: Mapping[str, Any] | None
) -> dict[str, Any]:
  """The keyword arguments of a call: `arguments`, and those that set the mode."""
  modes = {
    name: training == means
    for name, means in _MODES.items()
    if name in inspect.signature(call).parameters
  }
  return modes | dict(arguments or {})


def _takes(call: Callable[..., Any], keywords: Mapping[str, Any]) -> list[inspect.Parameter]:
  parameters = inspect.signature(call).parameters.values()
  return [
    p.replace(annotation=p.empty)
    for p in parameters
    if p.name not in keywords and p.kind is not p.KEYWORD_ONLY
  ]


def _split(keys: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
  """(keys for the next call, keys for this one)."""
  both = {name: jax.random.split(key) for name, key in keys.items()}
  return {name: pair[0] for name, pair in both.items()}, {
    name: pair[1] for name, pair in both.items()
  }


def _paths_of(flax_nnx: Any, variables: Any, kind: type) -> set[str]:
  return {
    "/".join(map(str, path))
    for path, variable in flax_nnx.to_flat_state(variables)
    if isinstance(variable, kind)
  }


def _like(tree: Any, after: Any) -> Any:
  """Nested dicts without the entries that a call added, such as sown values."""
  return (
    {name: _like(value, after[name]) for name, value in tree.items()}
    if isinstance(tree, Mapping)
    else after
  )
