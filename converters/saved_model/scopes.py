"""Name scopes for calls of modules, of libraries that open none: Flax nnx and Equinox."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import tree_util

from jax2tf.messages import ArgumentTypeError

from . import libraries

# Two threads that give a class another `__call__` would restore that of each other.
_LOCK = threading.RLock()
# A module -> (its name in the module that holds it, the module) of all modules inside, each once.
Modules = Callable[[Any], Iterator[tuple[str, Any]]]


def with_module_scopes(fun: Callable[..., Any], model: Any) -> Callable[..., Any]:
  """Returns `fun` with a name scope for every call of a module, such as `layers_0/attention`, as in
  Flax linen and Haiku. Ops and ONNX functions then have these names. `from_flax_nnx` and
  `from_equinox` do this themselves.

  While JAX traces `fun`, the classes of the modules have another `__call__`. A module that a
  transformation of the library creates anew, as `nnx.scan` does, has no scope.

  Args:
    fun: a function that calls modules of the classes in `model`; the outermost module gets no
      scope.
    model: a flax.nnx.Module or an equinox.Module.

  Returns:
    a function with the arguments and results of `fun`.

  Raises:
    TypeError: `model` is of another kind.

  Examples:
    >>> import jax
    >>> from flax import nnx
    >>> from jax2tf.converters import saved_model
    >>> net = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jax.nn.relu)
    >>> graph, params = nnx.split(net)
    >>> fun = saved_model.with_module_scopes(lambda params, x: nnx.merge(graph, params)(x), net)
    >>> jaxpr = jax.make_jaxpr(fun)(params, jax.numpy.ones((1, 2)))
    >>> str(jaxpr.eqns[0].source_info.name_stack)
    'layers_0'
  """
  modules = _modules_of(model)
  classes = {type(module) for _, module in modules(model)} | {type(model)}

  @functools.wraps(fun)
  def scoped(*args: Any, **kwargs: Any) -> Any:
    calls = _Calls(modules)
    with _LOCK, contextlib.ExitStack() as stack:
      for each in classes:
        stack.enter_context(_scoped(each, calls))
      return fun(*args, **kwargs)

  return scoped


class _Calls:
  """The calls of modules that run now."""

  def __init__(self, modules: Modules):
    self._modules = modules
    self._names: dict[int, str] = {}
    self._running: list[Any] = []

  @contextlib.contextmanager
  def running(self, module: Any) -> Iterator[None]:
    """Runs in the scope of a module."""
    if not self._running:
      self._names = {id(inner): name for name, inner in self._modules(module)}
    # a method that a class inherits may be called for a module that runs already
    is_again = bool(self._running) and self._running[-1] is module
    name = None if is_again else self._names.get(id(module))
    self._running.append(module)
    try:
      with jax.named_scope(name) if name else contextlib.nullcontext():
        yield
    finally:
      self._running.pop()


@contextlib.contextmanager
def _scoped(of: type, calls: _Calls) -> Iterator[None]:
  """Gives a class another `__call__`."""
  call = inspect.getattr_static(of, "__call__", None)
  if call is None:
    yield
    return
  is_own = "__call__" in vars(of)

  def scoped(self: Any, *args: Any, **kwargs: Any) -> Any:
    with calls.running(self):
      return call.__get__(self, type(self))(*args, **kwargs)

  type.__setattr__(of, "__call__", functools.wraps(of.__call__)(scoped))
  try:
    yield
  finally:
    if is_own:
      type.__setattr__(of, "__call__", call)
    else:
      type.__delattr__(of, "__call__")


def _modules_of(model: Any) -> Modules:
  library = libraries.library_of(model)
  if library == "nnx":
    return _of_nnx
  if library == "equinox":
    return _of_equinox
  raise ArgumentTypeError(
    "model",
    problem=f"it is of type {type(model).__name__}",
    advice="give a flax.nnx.Module or an equinox.Module; other libraries have name scopes of their "
    "own, or no modules",
  )


def _of_nnx(root: Any) -> Iterator[tuple[str, Any]]:
  from flax import nnx  # noqa: PLC0415  (only if the model is one of its)

  # a list of modules is one itself, and is not called
  paths = {path: module for path, module in nnx.iter_modules(root) if path and callable(module)}
  for path, module in paths.items():
    outer = max((n for n in range(len(path)) if path[:n] in paths), default=0)
    yield "_".join(map(str, path[outer:])), module


def _of_equinox(root: Any) -> Iterator[tuple[str, Any]]:
  import equinox  # noqa: PLC0415

  def is_inner(x: Any) -> bool:
    return isinstance(x, equinox.Module) and x is not root

  for path, inner in tree_util.tree_leaves_with_path(root, is_leaf=is_inner):
    if is_inner(inner):
      yield tree_util.keystr(path, simple=True, separator="_"), inner
      yield from _of_equinox(inner)
