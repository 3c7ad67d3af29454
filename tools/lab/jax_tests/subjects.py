"""A call of JAX that is compared, as a function of its arrays."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jax2tf.tools.lab.jax_tests import leaves

Fun = Callable[..., Any]

# `observing` replaces attributes of jax.
jit, vjp, jvp, eval_shape = jax.jit, jax.vjp, jax.jvp, jax.eval_shape
# The time of one comparison, in seconds.
PATIENCE = 60


class TooLongError(Exception):
  """A comparison that did not end in time."""


class UntraceableError(Exception):
  """JAX itself does not compute it from these arguments, or leaves open what it computes."""


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


def by_jax(fun: Fun, *args: Any) -> Any:
  """The result of a function of JAX.

  Raises:
    UntraceableError: JAX raises.
  """
  try:
    return jax.block_until_ready(fun(*args))
  except TooLongError:
    raise
  except Exception as error:
    first = (str(error).splitlines() or [""])[0]
    raise UntraceableError(f"{type(error).__name__}: {first[:200]}") from error


class Subject:
  """A call. Its leaves that are no arrays are constants of the function.

  Attributes:
    fun: the function of the arrays, to convert.
    arrays: copies of them.
  """

  def __init__(self, call: Fun, args: Any, kwargs: Mapping[str, Any], sizes: bool = False):
    """
    Args:
      call: what is called.
      args: its arguments.
      kwargs: those by name.
      sizes: whether integers of NumPy may be sizes or axes, and so are constants too.

    Raises:
      UntraceableError: private functions of JAX made an argument.
    """
    found, tree = jax.tree.flatten((tuple(args), dict(kwargs)))
    if any(map(leaves.is_foreign, found)):
      raise UntraceableError("an argument is a Ref, or of a type that private functions make")
    own = [leaves.own(x) for x in found]
    at = [i for i, x in enumerate(own) if leaves.is_array(x) and not (sizes and _is_integer(x))]

    def fun(*arrays: Any) -> Any:
      replaced = list(own)
      for i, x in zip(at, arrays, strict=True):
        replaced[i] = x
      args, kwargs = jax.tree.unflatten(tree, replaced)
      return call(*args, **kwargs)

    self.fun, self.arrays = fun, [own[i] for i in at]
    self._jitted = jit(fun)
    self._leaves, self._parts = own, (call, tree, sizes)

  def expected(self) -> Any:
    """The result of jax.jit.

    Raises:
      UntraceableError: JAX raises.
    """
    return by_jax(self._jitted, *map(np.array, self.arrays))

  def retraced(self) -> Any:
    """As `expected`, of a new trace: a function may keep a tracer of its first one, and fails only
    from the second on."""
    return self._again(self._leaves)

  def op_by_op(self) -> Any:
    """As `expected`, without jax.jit."""
    with jax.disable_jit():
      return by_jax(self.fun, *map(np.array, self.arrays))

  def shaken(self) -> Any:
    """As `expected`, of arguments with other last bits, also those that are constants."""
    return self._again(leaves.shaken(self._leaves))

  def key(self) -> str:
    """Tells the calls in one test apart."""
    return "|".join(map(_told, self._leaves))

  def _again(self, own: Sequence[Any]) -> Any:
    """As `expected`, of a call with these leaves."""
    call, tree, sizes = self._parts
    args, kwargs = jax.tree.unflatten(tree, own)
    return Subject(call, args, kwargs, sizes).expected()


def _is_integer(x: Any) -> bool:
  return isinstance(x, np.integer)


def _told(leaf: Any) -> str:
  shaped = leaves.is_array(leaf) or leaves.is_key(leaf)
  return f"{leaf.dtype}{list(leaf.shape)}" if shaped else repr(leaf)[:40]
