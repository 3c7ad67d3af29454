"""What jax2tf replaces inside TensorFlow and JAX: each has the signature that it was written for,
and is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax._src import config
from tensorflow.python.eager import backprop, execute
from tensorflow.python.ops import control_flow_state
from tensorflow.python.ops.parallel_for import pfor
from tensorflow.python.saved_model import save

import jax2tf
from jax2tf import _jax_compat
from jax2tf._tf_compat import patches
from jax2tf.placement import default_device

ZEROS_FNS = "the zeros_fn and zeros_like_fn of backprop._default_vspace"
REPLACED: dict[str, tuple[Any, list[str]]] = {
  "backprop._default_vspace.zeros_fn": (backprop._default_vspace.zeros_fn, ["shape", "dtype"]),
  "backprop._default_vspace.zeros_like_fn": (backprop._default_vspace.zeros_like_fn, ["t"]),
  "control_flow_state.ZerosLike": (control_flow_state.ZerosLike, ["op", "index"]),
  "the pfor converter of IdentityN": (pfor._pfor_converter_registry["IdentityN"], ["pfor_input"]),
  "the pfor converter of StatelessCase": (
    pfor._pfor_converter_registry["StatelessCase"],
    ["pfor_input"],
  ),
  "save._trace_gradient_functions": (save._trace_gradient_functions, ["graph", "saveable_view"]),
  "save._verify_ops": (save._verify_ops, ["graph_def", "namespace_whitelist"]),
  "execute.execute": (
    execute.execute,
    ["op_name", "num_outputs", "inputs", "attrs", "ctx", "name"],
  ),
}
X = np.arange(3, dtype=np.float32)


@pytest.mark.parametrize("name", REPLACED)
def test_signatures(name):
  function, written_for = REPLACED[name]
  assert hasattr(function, "__wrapped__"), (
    f"{name} is TensorFlow's own: jax2tf/_tf_compat/patches.py has not replaced it"
  )
  found = [*inspect.signature(function.__wrapped__).parameters]
  assert found == written_for, (
    f"TensorFlow {tf.__version__}: {name} takes {found}; jax2tf/_tf_compat/patches.py replaces it "
    f"for {written_for}"
  )


def test_the_converter_has_the_step_that_gets_our_edit() -> None:
  finish = tf.lite.TFLiteConverter._optimize_tflite_model
  assert [*inspect.signature(finish).parameters] == [
    "self",
    "model",
    "quant_mode",
    "debug_options",
    "quant_io",
  ], f"TensorFlow {tf.__version__} has changed what jax2tf._tf_compat.edit_models replaces"


def called(name: str) -> str:
  return (
    f"TensorFlow {tf.__version__} calls {name} no more, which jax2tf/_tf_compat/patches.py "
    "replaces: find what it calls in its place"
  )


@tf.custom_gradient
def two(x: tf.Tensor) -> Any:
  """x, x; the gradient says in `seen` whether the cotangent of the second is missing."""

  def pull(*cotangents: tf.Tensor) -> tf.Tensor:
    seen.append(patches.is_missing(cotangents[1]))
    return cotangents[0]

  return (tf.identity(x), tf.identity(x)), pull


seen: list[bool] = []


def by_tape(x: tf.Tensor) -> Any:
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = two(x)[0]
  return tape.gradient(y, x)


ZEROS: dict[str, tuple[Callable[[], Any], str]] = {
  "an eager tape": (lambda: by_tape(tf.constant(X)), ZEROS_FNS),
  "a tape of unknown sizes": (
    lambda: tf.function(by_tape, autograph=False).get_concrete_function(tf.TensorSpec([None])),
    ZEROS_FNS,
  ),
  "tf.gradients": (
    lambda: tf.function(
      lambda x: tf.gradients(two(x)[0], x), autograph=False
    ).get_concrete_function(tf.TensorSpec([3])),
    "control_flow_state.ZerosLike",
  ),
}


@pytest.mark.parametrize("where", ZEROS)
def test_zeros_for_no_cotangent_are_known(where):
  differentiate, name = ZEROS[where]
  seen.clear()
  differentiate()
  assert seen == [True], called(name)


@pytest.mark.parametrize("op", ["IdentityN", "PreventGradient"])
def test_pfor_converts(op, monkeypatch):
  calls = []
  converter = pfor._pfor_converter_registry[op]
  monkeypatch.setitem(
    pfor._pfor_converter_registry, op, lambda pfor_input: calls.append(op) or converter(pfor_input)
  )
  converted = jax2tf.convert(jnp.sin, with_gradient=op == "IdentityN")
  np.testing.assert_allclose(tf.vectorized_map(converted, tf.constant(X)), np.sin(X), rtol=1e-6)
  assert calls, called(f"the pfor converter of {op}")


def test_saving_traces_gradient_functions(monkeypatch, tmp_path):
  calls = []
  replaced = save._trace_gradient_functions
  monkeypatch.setattr(
    save, "_trace_gradient_functions", lambda *args: calls.append("replaced") or replaced(*args)
  )
  monkeypatch.setattr(patches, "_save_gradient", lambda *args: calls.append("ours"))
  for fun, ours in ((jax2tf.convert(jnp.sin), True), (lambda x: two(x)[0], False)):
    calls.clear()
    module = tf.Module()
    module.f = tf.function(fun, autograph=False, input_signature=[tf.TensorSpec([3])])
    tf.saved_model.save(
      module,
      str(tmp_path / str(ours)),
      options=tf.saved_model.SaveOptions(experimental_custom_gradients=True),
    )
    assert "replaced" in calls, called("save._trace_gradient_functions")
    assert ("ours" in calls) is ours, (
      "gradient functions that are not of jax2tf are saved as TensorFlow saves them"
    )


def test_jax_still_calls_the_hook_of_default_device(monkeypatch):
  """Without it, what is traced under `jax.default_device` would run anywhere, silently."""
  ours = config.default_device._update_thread_local_hook
  assert ours is _jax_compat._default_device_changed, (
    "another package has replaced the hook of jax.default_device"
  )
  calls = []
  monkeypatch.setattr(_jax_compat, "_replaced_hook", lambda *args: calls.append(args))
  device = jax.devices()[0]
  with jax.default_device(device):
    pass
  assert calls == [(device,), (None,)], (
    "JAX calls the hook with other arguments, or not when a default_device begins and ends"
  )
  with default_device.recorded(lambda device: "somewhere"):
    jaxpr = jax.make_jaxpr(lambda x: jax.default_device(device)(lax.sin)(x) + 1.0)(1.0)
  noted = {eqn.primitive.name: default_device.default_device_of(eqn) for eqn in jaxpr.eqns}
  assert noted == {"sin": "somewhere", "add": None}, (
    "XLA metadata no longer reach the equations: see jax2tf/placement/default_device.py"
  )
