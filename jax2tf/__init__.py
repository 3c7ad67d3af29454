"""jax2tf: a JAX function goes in, a TensorFlow function made of ordinary TensorFlow ops comes out."""

from typing import Any

from jax2tf import lowering as _lowering  # noqa: F401  (registers the lowering rules)
from jax2tf.api import DisabledSafetyCheck, PolyShape, convert, dtype_of_val, eval_polymorphic_shape, split_to_logical_devices
from jax2tf.context import RuleContext
from jax2tf.drop_in import install
from jax2tf.errors import LoweringError
from jax2tf.registry import lowers

__all__ = [
  "DisabledSafetyCheck",
  "LoweringError",
  "PolyShape",
  "RuleContext",
  "call_tf",
  "convert",
  "dtype_of_val",
  "eval_polymorphic_shape",
  "install",
  "lowers",
  "split_to_logical_devices",
]


def __getattr__(name: str) -> Any:
  """`call_tf`, which is JAX's own and imported when somebody asks for it."""
  if name == "call_tf":
    from jax.experimental.jax2tf import call_tf  # noqa: PLC0415

    return call_tf
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
