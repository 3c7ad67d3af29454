"""Loads the arguments of a command: `module:function`, parameters in files, inputs in jaxpr
notation."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from jax2tf.converters import stages
from jax2tf.converters.bundle import notation, paths
from jax2tf.converters.saved_model import libraries
from jax2tf.converters.saved_model.adapted import Adapted, adapted, with_values
from jax2tf.converters.saved_model.arguments import check_constraint
from jax2tf.tools.cli._verb import Named

# Where these libraries have the state of a model.
_STATE_OF = {
  "nnx": "the model holds its state, so leave it out",
  "linen": "--params holds the collections of the state too",
  "equinox": "name a factory that returns (model, state), as equinox.nn.make_with_state does",
}


class UsageError(ValueError):
  """An invalid command: what is wrong and how to correct it, in one line."""


def attribute(name: str) -> Any:
  """The object `package.module:function`, from the working directory or an installed package.

  Raises:
    UsageError: there is no such module or attribute.
  """
  module_name, _, path = name.partition(":")
  if not (module_name and path):
    raise UsageError(f"{name!r} is not of the form module:function, as in my_package.model:predict")
  flags.FLAGS.mark_as_parsed()  # a module that defines absl flags then reads their defaults
  if os.getcwd() not in sys.path:
    sys.path.insert(0, os.getcwd())
  if "/" in module_name or module_name.endswith(".py"):
    file = Path(module_name)
    folder = "that holds it" if file.parent == Path() else str(file.parent)
    raise UsageError(
      f"{name!r} names a file; name the module, from the folder {folder}: {file.stem}:{path}"
    )
  try:
    value = importlib.import_module(module_name)
  except ModuleNotFoundError as error:
    if f"{module_name}.".startswith(f"{error.name}."):
      raise UsageError(
        f"there is no module {error.name!r} (for {name!r}) here in {os.getcwd()} nor installed"
      ) from error
    raise UsageError(
      f"module {module_name!r} imports {error.name!r}, which is not installed"
    ) from error
  for part in path.split("."):
    if not hasattr(value, part):
      known = [
        known
        for known in getattr(value, "__dict__", None) or dir(value)
        if not known.startswith("_")
      ]
      what = (
        f"module {module_name!r}"
        if inspect.ismodule(value)
        else f"{name!r}: {type(value).__name__}"
      )
      raise UsageError(f"{what} has no {part!r}; it has {', '.join(known)[:200]}")
    value = getattr(value, part)
  return value


def function(name: str) -> Callable[..., Any]:
  """The callable with this name."""
  value = attribute(name)
  if not callable(value):
    raise UsageError(f"{name} is {type(value).__name__}, not a function")
  return value


def model(named: Named, inputs: Callable[[], Mapping[str, str]]) -> Adapted:
  """The function or model `module:object`, with its parameters and state. With `library` the object
  may be a function that makes a model.

  Raises:
    UsageError: there is no such object, or no parameters are given for a model that holds none.
  """
  with stages.stage("load the function and its parameters"):
    return _model(named, inputs)


def _model(named: Named, inputs: Callable[[], Mapping[str, str]]) -> Adapted:
  name, library, params = named.function, named.library, named.params
  value = attribute(name)
  if library and _library_of(value) is None and callable(value):
    value = _made(value, f"--library={library}: {name}")
  library = library or _library_of(value)
  if named.state is not None and library in _STATE_OF:
    raise UsageError(f"--state={named.state} is not for a model of {library}; {_STATE_OF[library]}")
  if named.batched and library != "equinox":
    raise UsageError(f"--batched is for a model of equinox, and {name} is none; leave it out")
  if library is None:
    _check_function(value, name)
    return Adapted(function(name), parameters(params), state(named.state))
  if library in ("nnx", "equinox"):
    whole = (
      libraries.nnx(value)
      if library == "nnx"
      else libraries.equinox(*_with_state(value), batched=named.batched)
    )
    whole = with_values(whole, parameters(params), f"--params={params}") if params else whole
  elif params is None:
    raise UsageError(
      f"{name} is a model of {library}, which holds no parameters; give the result of its init as "
      "--params"
    )
  elif library == "linen":
    variables = parameters(params)
    whole = libraries.linen(value, variables if "params" in variables else {"params": variables})
  else:
    whole = libraries.haiku(value, parameters(params, haiku=True), state(named.state, haiku=True))
  return adapted(whole, inputs(), named.polymorphic_constraints)


def _check_function(value: Any, name: str) -> None:
  """Raises UsageError for what makes a model, where a function of parameters and inputs is
  expected."""
  if inspect.isclass(value):
    raise UsageError(
      f"{name} is a class; name a model, or a function without arguments that makes one, with "
      "--library"
    )
  if not callable(value):
    return  # `function` says what it is
  try:
    takes = inspect.signature(value).parameters
  except (ValueError, TypeError):  # a callable implemented in C
    return
  if not takes:
    raise UsageError(
      f"{name} takes no arguments, and a function to convert takes (params, *inputs); if it makes "
      "a model, give "
      "--library nnx, linen, haiku or equinox"
    )


def _library_of(model: Any) -> str | None:
  return libraries.library_of(model) or libraries.library_of(_with_state(model)[0])


def _with_state(model: Any) -> tuple[Any, Any]:
  """(model, state) of what Equinox' `make_with_state` gives, or of a model alone."""
  return model if type(model) is tuple and len(model) == 2 else (model, None)


def _made(factory: Callable[..., Any], what: str) -> Any:
  try:
    inspect.signature(factory).bind()
  except TypeError as error:
    raise UsageError(
      f"{what} is called without arguments, and {error}; name a function without arguments"
    ) from error
  return factory()


def parameters(source: str | None, argument: str = "params", *, haiku: bool = False) -> Any:
  """The pytree of parameters, from an .npz or .safetensors file, an Orbax checkpoint, or the
  function `module:factory`.

  Names in flat files are paths, `encoder/0/kernel` or `encoder.0.kernel`. They become nested dicts,
  and lists if the keys are 0, 1, 2 ... With `haiku` they are a module and a parameter,
  `mlp/~/linear_0/w`.

  Raises:
    UsageError: there is no such file, or it cannot be read.
  """
  if source is None:
    return {}
  if ":" in source and "://" not in source and not Path(source).exists():
    return _made(function(source), f"--{argument}={source}")
  file = paths.of(source, argument)
  if not file.exists():
    raise UsageError(
      f"--{argument}={source}: there is no such file or folder; name .npz, .safetensors, an Orbax "
      "checkpoint, or module:factory"
    )
  with paths.fetched(file) as path:
    return _read(path, f"--{argument}={source}", haiku)


def _read(path: Path, given: str, haiku: bool) -> Any:
  """The pytree in a file or a checkpoint, which the user gave as `--params=source`."""
  try:
    if path.is_dir():
      return _orbax(path)
    if path.suffix == ".npz":
      # NumPy 2.4 does not close a file that is no archive
      with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return nested(dict(arrays), haiku)
    if path.suffix == ".safetensors":
      return nested(_safetensors(path), haiku)
  except UsageError:
    raise
  except Exception as error:  # each format has its own errors
    raise UsageError(f"{given} cannot be read: {error}") from error
  raise UsageError(
    f"{given}: unknown file type; name .npz, .safetensors, an Orbax checkpoint, or module:factory"
  )


def state(source: str | None, *, haiku: bool = False) -> Any:
  """The state, from the same sources as parameters; None if none is given."""
  return None if source is None else parameters(source, "state", haiku=haiku)


def _safetensors(path: Path) -> dict[str, Any]:
  try:
    from safetensors.numpy import load_file  # noqa: PLC0415  (an extra)
  except ModuleNotFoundError as error:
    raise UsageError(
      "reading .safetensors needs safetensors: pip install 'jax2tf[checkpoints]'"
    ) from error
  return dict(load_file(path))


def _orbax(path: Path) -> Any:
  try:
    import jax  # noqa: PLC0415  (seconds)
    import orbax.checkpoint  # noqa: PLC0415  (an extra)
  except ModuleNotFoundError as error:
    raise UsageError(
      "reading an Orbax checkpoint needs orbax-checkpoint: pip install 'jax2tf[checkpoints]'"
    ) from error
  checkpointer, item = orbax.checkpoint.PyTreeCheckpointer(), _orbax_item(path).absolute()
  step = checkpointer.metadata(item)
  tree = getattr(getattr(step, "item_metadata", None), "tree", None)

  def how(leaf: Any) -> Any:
    # Arrays that were on several devices, which may not be here, are read into NumPy's.
    is_spread = hasattr(getattr(leaf, "sharding", None), "partition_spec")
    return orbax.checkpoint.RestoreArgs(restore_type=np.ndarray if is_spread else None)

  arguments = None if tree is None else jax.tree.map(how, tree)
  return checkpointer.restore(item, restore_args=arguments)


def _orbax_item(path: Path) -> Path:
  """The folder that holds the arrays: the checkpoint itself, or the only tree of a step of a
  CheckpointManager, of its newest step."""
  if _is_tree(path):
    return path
  numbered = [
    (match, each)
    for each in path.iterdir()
    if each.is_dir() and (match := re.fullmatch(r"(?:.*[_-])?(\d+)", each.name))
  ]
  step = max(numbered, key=lambda pair: int(pair[0][1]))[1] if numbered else path
  if _is_tree(step):
    return step
  items = sorted(each for each in step.iterdir() if _is_tree(each))
  if len(items) > 1:
    raise UsageError(
      f"{step} holds {', '.join(each.name for each in items)}; name one, as in {items[0]}"
    )
  return items[0] if items else path


def _is_tree(path: Path) -> bool:
  """Whether Orbax wrote a tree of arrays there; `checkpoint` is the file of versions before
  `_METADATA`."""
  return any((path / name).is_file() for name in ("_METADATA", "manifest.ocdbt", "checkpoint"))


def nested(flat: dict[str, Any], haiku: bool = False) -> Any:
  """{"a/b": x} -> {"a": {"b": x}}, {"a/0": x, "a/1": y} -> {"a": [x, y]}. Names of Haiku's modules
  keep their slashes.

  Raises:
    ValueError: a name is a prefix of another one.
  """
  # Haiku's mark for modules that __init__ makes
  haiku = haiku or any("~" in name.split("/") for name in flat)
  separator = r"[/.](?=[^/.]*$)" if haiku else "/" if any("/" in name for name in flat) else r"\."
  tree: dict[str, Any] = {}
  for name, array in flat.items():
    *folders, leaf = re.split(separator, name)
    folder_of_leaf = tree
    for folder in folders:
      folder_of_leaf = folder_of_leaf.setdefault(folder, {})
      if not isinstance(folder_of_leaf, dict):
        raise ValueError(f"{name!r} is inside of {folder!r}, which is an array itself")
    if leaf in folder_of_leaf:
      raise ValueError(f"{name!r} occurs twice, or is a prefix of another name")
    folder_of_leaf[leaf] = array
  return _with_lists(tree)


def _with_lists(tree: Any) -> Any:
  if not isinstance(tree, dict):
    return tree
  children = {name: _with_lists(value) for name, value in tree.items()}
  numbers = [str(i) for i in range(len(children))]
  return [children[i] for i in numbers] if children and children.keys() == {*numbers} else children


def inputs(texts: Sequence[str], constraints: Sequence[str] = ()) -> dict[str, str]:
  """["x=f32[b,784]"] -> {"x": "f32[b,784]"}.

  Raises:
    UsageError: a text has another form, or names an input twice.
    ValueError: a constraint has a syntax error, or names a dimension that no input has.
  """
  specs: dict[str, str] = {}
  for text in texts:
    name, equals, spec = text.partition("=")
    if not (name and equals and spec):
      raise UsageError(
        f'--input={text!r} is not of the form name=dtype[shape], as in --input "x=f32[b,784]"'
      )
    if name in specs:
      raise UsageError(f"--input names {name!r} twice")
    specs[name] = spec
  for text in constraints:
    check_constraint(text, notation.dimensions(specs))
  return specs


def sizes(texts: Sequence[str]) -> dict[str, list[int]]:
  """["b=8", "b=1"] -> {"b": [8, 1]}.

  Raises:
    UsageError: a text has another form.
  """
  by_variable: dict[str, list[int]] = {}
  for text in texts:
    if not (match := re.fullmatch(r"(\w+)=(\d+)", text)):
      raise UsageError(f'--size={text!r} is not of the form variable=number, as in --size "b=8"')
    by_variable.setdefault(match[1], []).append(int(match[2]))
  return by_variable
