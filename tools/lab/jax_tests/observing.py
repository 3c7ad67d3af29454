"""Stands for the functions of JAX that a test calls, and compares their calls.

Observed are functions made by `jax.jit`, `jax.vmap`, `jax.grad` and the like, and the public
functions of JAX's modules, when they are called with concrete arguments outside of a trace.
"""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from typing import Any

import jax

from jax2tf.tools.lab.jax_tests import leaves, recording, subjects
from jax2tf.tools.lab.jax_tests.subjects import Subject

Fun = Callable[..., Any]

_CALLABLES = ("PjitFunction", "custom_jvp", "custom_vjp")
_MODULES = """
jax.numpy jax.numpy.linalg jax.numpy.fft jax.lax jax.lax.linalg jax.nn jax.random jax.image jax.ops
jax.scipy.special jax.scipy.linalg jax.scipy.signal jax.scipy.ndimage jax.scipy.fft
jax.scipy.integrate jax.scipy.interpolate jax.scipy.optimize jax.scipy.spatial.transform
jax.scipy.sparse.linalg jax.scipy.cluster.vq jax.scipy.stats jax.scipy.stats.norm
jax.scipy.stats.beta jax.scipy.stats.gamma jax.scipy.stats.multivariate_normal
jax.experimental.ode jax.experimental.jet jax.experimental.rnn jax.experimental.sparse.linalg
"""
# They make constants, move or describe values: many calls, which say little.
_PLAIN = """
array asarray arange zeros ones full zeros_like ones_like full_like empty empty_like eye
identity copy array_repr array_str shape ndim size dtype result_type promote_types issubdtype
isdtype can_cast finfo iinfo isscalar iscomplexobj isrealobj broadcast_shapes set_printoptions
get_printoptions printoptions save savez load array_equal allclose frombuffer fromfile fromiter
fromstring from_dlpack get_array_wrap astype device_put issparse block_until_ready dtype_of
key PRNGKey key_impl key_data wrap_key_data clone default_prng_impl create_token after_all
optimization_barrier padtype_to_pads
conv_dimension_numbers conv_shape_tuple conv_general_shape_tuple conv_general_permutations
get_scaled_dot_general_config
"""
# They take functions, or make functions and primitives.
_OF_FUNCTIONS = """
composite fromfunction vectorize frompyfunc ufunc poly1d initializers custom_jvp custom_vjp
standard_primitive naryop unop broadcasting_shape_rule register_primitive ops_with_index
"""
# They need several devices, or leave their numbers to the platform.
_OF_DEVICES = """
axis_index axis_size psum pmean pmax pmin ppermute all_gather all_to_all psum_scatter pshuffle
pswapaxes pcast pvary with_sharding_constraint infeed outfeed rng_bit_generator rng_uniform
"""
_LEFT_OUT = {name for names in (_PLAIN, _OF_FUNCTIONS, _OF_DEVICES) for name in names.split()}
_TRANSFORMATIONS = {
  "jit": "jit",
  "vmap": "transformation",
  "grad": "grad",
  "value_and_grad": "transformation",
  "jacfwd": "transformation",
  "jacrev": "transformation",
  "hessian": "transformation",
  "checkpoint": "transformation",
}


class Observed:
  """Stands for a callable of JAX."""

  def __init__(self, real: Fun, hook: str, name: str, source: Fun | None = None, **options: Any):
    """
    Args:
      real: the callable.
      hook: jit, grad, transformation or call.
      name: for the rows.
      source: of a grad, the function that it differentiates.
      **options: of a grad, its keyword arguments.
    """
    functools.update_wrapper(self, real, updated=())
    self._real, self._hook, self._name = real, hook, name
    self._source, self._options = source, options

  def __getattr__(self, name: str) -> Any:
    if name in ("_real", "_hook"):
      raise AttributeError(name)
    return getattr(self._real, name)

  def __get__(self, instance: Any, owner: Any) -> Any:
    return self if instance is None else types.MethodType(self, instance)

  def __repr__(self) -> str:
    return repr(self._real)

  def __reduce__(self) -> Any:
    return self._real.__reduce__()

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """The result of JAX, which is compared."""
    if leaves.has_tracer((args, kwargs)) or recording.CURRENT.is_idle():
      return self._real(*args, **kwargs)
    with recording.CURRENT.busy():
      try:
        subject, result = self._computed(args, kwargs)
      except subjects.UntraceableError as error:
        recording.CURRENT.untraceable(self._name, error)
        return self._real(*args, **kwargs)
      if all(map(leaves.is_value, jax.tree.leaves(result))):
        recording.CURRENT.compare(self._name, subject, jax.block_until_ready(result))
        if self._hook == "grad":
          self._differentiate(args, kwargs)
    return result

  def _computed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Subject, Any]:
    """The call and JAX's result; of a public function, integers of NumPy may be sizes."""
    subject = Subject(self._real, args, kwargs, sizes=self._hook == "call")
    return subject, self._real(*args, **kwargs) if self._hook == "jit" else subject.expected()

  def _differentiate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Compares a tape around the function of a `jax.grad`."""
    if self._source is None or self._options.get("has_aux") or self._options.get("holomorphic"):
      return
    source, argnums = self._source, self._options.get("argnums", 0)
    at = [argnums] if isinstance(argnums, int) else list(argnums)
    if any(not -len(args) <= i < len(args) for i in at):
      return

    def of(*xs: Any) -> Any:
      operands = list(args)
      for i, x in zip(at, xs, strict=True):
        operands[i] = x
      return source(*operands, **kwargs)

    of.__name__ = recording.name_of(source)
    recording.CURRENT.differentiate(of, [args[i] for i in at])


def _observing(transformation: Fun, hook: str) -> Fun:
  """A transformation whose functions are observed."""

  @functools.wraps(transformation)
  def made(*args: Any, **kwargs: Any) -> Any:
    if not args:
      return lambda fun: made(fun, **kwargs)
    real = transformation(*args, **kwargs)
    if not callable(args[0]) or not callable(real):
      return real
    options = dict(kwargs, argnums=args[1]) if hook == "grad" and len(args) > 1 else kwargs
    name = f"{transformation.__name__}({recording.name_of(args[0])})"
    return Observed(real, hook, name, args[0], **options)

  return made


def _observable(name: str, value: Any) -> bool:
  kind = type(value)
  if name.startswith("_") or name in _LEFT_OUT or not callable(value) or kind is Observed:
    return False
  if kind is not types.FunctionType and kind.__name__ not in _CALLABLES:
    return False
  return (getattr(value, "__module__", "") or "").startswith("jax")


def install() -> None:
  """Replaces the attributes of JAX's public modules, before a test module is imported."""
  for name in _MODULES.split():
    try:
      module = importlib.import_module(name)
    except ImportError:  # another version of JAX has it
      continue
    for attribute in dir(module):
      value = getattr(module, attribute)
      if _observable(attribute, value):
        full_name = f"{name}.{attribute}".removeprefix("jax.")
        setattr(module, attribute, Observed(value, "call", full_name))
  for name, hook in _TRANSFORMATIONS.items():
    setattr(jax, name, _observing(getattr(jax, name), hook))
  jax.remat = jax.checkpoint
