"""A call of JAX that is compared: its function, its arguments, and the result of jax.jit."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jax2tf.tools.lab.jax_tests import leaves

Fun = Callable[..., Any]
Named = dict[str, Any]
Test = Callable[[Any], bool]

# `observing` replaces attributes of jax.
jit, vjp, jvp, eval_shape = jax.jit, jax.vjp, jax.jvp, jax.eval_shape
_NONE = leaves.is_never_fixed
# The time of one comparison, in seconds.
PATIENCE = 60


class TooLongError(Exception):
  """A comparison that did not end in time."""


class UntraceableError(Exception):
  """JAX itself does not compute it from these arguments; its own error is the cause."""


@contextlib.contextmanager
def time_limit(seconds: float = PATIENCE) -> Iterator[None]:
  """Raises TooLongError in the main thread after some seconds."""

  def ring(*_: Any) -> None:
    raise TooLongError

  before = signal.signal(signal.SIGALRM, ring)
  signal.setitimer(signal.ITIMER_REAL, seconds)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def by_jax(fun: Fun, *args: Any, **kwargs: Any) -> Any:
  """The result of a function of JAX.

  Raises:
    UntraceableError: JAX raises.
  """
  try:
    return jax.block_until_ready(fun(*args, **kwargs))
  except TooLongError:
    raise
  except Exception as error:
    first = (str(error).splitlines() or [""])[0]
    raise UntraceableError(f"{type(error).__name__}: {first[:200]}") from error


class Arguments:
  """The leaves of (args, kwargs).

  Attributes:
    leaves: copies of them.
    tree: their structure.
    at: the positions of those that become tensors.
    plain: whether a converted function takes the others as they are.
  """

  def __init__(self, args: Sequence[Any], kwargs: Named, is_fixed: Test = _NONE):
    """`is_fixed` says of a leaf whether it is a constant of the function."""
    found, self.tree = jax.tree.flatten((tuple(args), kwargs))
    if any(map(leaves.is_ref, found)):  # a converted function takes a jax2tf.Ref in their place
      raise UntraceableError("a Ref is an argument")
    if any(map(leaves.is_foreign, found)):
      raise UntraceableError("an argument has a type that only private functions of JAX make")
    self.leaves = [leaves.own(x) for x in found]
    varying = [i for i, x in enumerate(self.leaves) if not is_fixed(x)]
    self.at = [i for i in varying if leaves.is_array(self.leaves[i])]
    passed = [i for i in varying if leaves.is_passed(self.leaves[i])]
    self.plain = len({*self.at, *passed}) == len(self.leaves)

  @property
  def arrays(self) -> list[Any]:
    """Those that become tensors."""
    return [self.leaves[i] for i in self.at]

  def rebuilt(self, arrays: Sequence[Any]) -> Any:
    """(args, kwargs) with other arrays."""
    replaced = list(self.leaves)
    for i, x in zip(self.at, arrays, strict=True):
      replaced[i] = x
    return jax.tree.unflatten(self.tree, replaced)


class Subject:
  """A function with concrete arguments.

  Attributes:
    fun: the function to convert.
    arguments: its arguments. Leaves that no converted function takes are constants of `fun`.
    jitted: `fun` as jax.jit has it.
  """

  def __init__(self, fun: Fun, args: Any, kwargs: Any, fixed: Test = _NONE, jitted: bool = False):
    """
    Args:
      fun: the function.
      args: its arguments.
      kwargs: those by name.
      fixed: says of a leaf whether it is a constant of the function.
      jitted: whether `fun` comes from jax.jit, which knows its static arguments.
    """
    whole = Arguments(args, kwargs, fixed)
    if jitted or whole.plain:
      self.fun, self.arguments = fun, whole
    else:

      def closed(*arrays: Any) -> Any:
        rebuilt, by_name = whole.rebuilt(arrays)
        return fun(*rebuilt, **by_name)

      self.fun, self.arguments = closed, Arguments(whole.arrays, {})
    self.jitted = fun if jitted else jit(self.fun)
    self._given = functools.partial(Subject, fun, fixed=fixed, jitted=jitted), whole

  def expected(self, fun: Fun | None = None, arrays: Sequence[Any] | None = None) -> Any:
    """The result of jax.jit, or of another function, of these arguments or of other arrays.

    Raises:
      UntraceableError: JAX raises.
    """
    copies = [np.array(x) for x in (self.arguments.arrays if arrays is None else arrays)]
    args, kwargs = self.arguments.rebuilt(copies)
    return by_jax(fun or self.jitted, *args, **kwargs)

  def of_others(self, change: Callable[[list[Any]], list[Any]]) -> Any:
    """JAX's result of other leaves, constants of the function included.

    Raises:
      UntraceableError: JAX raises.
    """
    make, whole = self._given
    args, kwargs = jax.tree.unflatten(whole.tree, change(whole.leaves))
    return make(args, kwargs).expected()

  def computed_again(self) -> Any:
    """JAX's result of a new trace, in which only the arrays are traced.

    A function may keep a tracer of its first trace, which fails only from the second trace on.

    Raises:
      UntraceableError: JAX raises.
    """

    def again(*arrays: Any) -> Any:
      args, kwargs = self.arguments.rebuilt(arrays)
      return self.fun(*args, **kwargs)

    return by_jax(jit(again), *[np.array(x) for x in self.arguments.arrays])

  def key(self) -> str:
    """Tells the calls in one test apart."""
    return "|".join(map(_told, self.arguments.leaves))


def _told(leaf: Any) -> str:
  shaped = leaves.is_array(leaf) or leaves.is_key(leaf)
  return f"{leaf.dtype}{list(leaf.shape)}" if shaped else repr(leaf)[:40]
