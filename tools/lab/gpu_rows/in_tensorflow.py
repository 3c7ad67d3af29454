"""The converted graphs on TensorFlow's GPU: values, times, and copies that really happen."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import tensorflow as tf

import jax2tf
import jax2tf.devices
from jax2tf._tf_compat.partitions import partitioned
from jax2tf.tools.lab.gpu_rows.comparing import error, milliseconds
from jax2tf.tools.lab.gpu_rows.programs import Program
from tests.support.models.zoo import loss_of


def row(program: Program, seconds: float) -> dict[str, Any]:
  """Measures one program; see the columns in `__main__`."""
  fun, built = program.build()
  params, x = jax.tree.map(np.asarray, built), program.inputs()
  device = "/GPU:0" if tf.config.list_logical_devices("GPU") else "/CPU:0"
  with tf.device(device):
    variables = jax.tree.map(tf.Variable, params)
    operand = jax.tree.map(tf.constant, x)
  shapes = [None, program.shapes]
  converted = jax2tf.convert(fun, polymorphic_shapes=shapes)
  forward = tf.function(lambda x: converted(variables, x), autograph=False)
  calls: dict[str, Callable[[], Any]] = {"forward": lambda: forward(operand)}
  expected = {"forward": jax.tree.leaves(jax.jit(fun)(params, x))}
  if program.differentiable:
    loss = loss_of(fun)
    gradient = _gradient(jax2tf.convert(loss, polymorphic_shapes=shapes), variables)
    calls["gradient"] = lambda: gradient(operand)
    if not program.large:
      value, gradients = jax.jit(jax.value_and_grad(loss, allow_int=True))(params, x)
      expected["gradient"] = [value, *jax.tree.leaves(gradients)]
  found: dict[str, Any] = {name: _placement(call) for name, call in calls.items()}
  concrete = forward.get_concrete_function(operand)
  found["forward"]["predicted"] = _prediction(concrete)
  for name, call in calls.items():
    for tf32, column in ((True, "tf32"), (False, "f32")):
      tf.config.experimental.enable_tensor_float_32_execution(tf32)
      found[name][f"ms_{column}"] = milliseconds(call, _wait, seconds)
      if name in expected:
        together = name == "gradient"
        found[name][f"error_{column}"] = error(_leaves(call()), expected[name], together=together)
  tf.config.experimental.enable_tensor_float_32_execution(True)
  if program.large:
    compiled = tf.function(lambda x: converted(variables, x), autograph=False, jit_compile=True)
    found["forward"]["ms_xla"] = milliseconds(lambda: compiled(operand), _wait, seconds)
  return found


def _gradient(loss: Callable[..., Any], variables: Any) -> Callable[..., Any]:
  """x -> [loss, the gradient of each variable, 0 for integers]."""

  @functools.partial(tf.function, autograph=False)
  def gradient(x: Any) -> Any:
    with tf.GradientTape() as tape:
      value = loss(variables, x)
    leaves = jax.tree.leaves(variables)
    gradients = tape.gradient(value, leaves)
    pairs = zip(gradients, leaves, strict=True)
    return [value, *(tf.zeros_like(v) if g is None else tf.identity(g) for g, v in pairs)]

  return gradient


def _leaves(results: Any) -> list[np.ndarray]:
  return [np.asarray(y) for y in jax.tree.leaves(results)]


def _wait(results: Any) -> None:
  """Returns when the last kernel has run: those of a call run one after another."""
  last = jax.tree.leaves(results)[-1]
  tf.reshape(last, [-1])[:1].numpy()


def _placement(call: Callable[[], Any]) -> dict[str, Any]:
  """Where the ops of a call ran, and what was copied between devices, from the graphs that
  TensorFlow made for each device."""
  copies: Counter[str] = Counter()
  on_host: Counter[str] = Counter()
  on_gpu = 0
  for node in partitioned(call):
    if node.op in ("_Recv", "_HostRecv"):
      ends = [node.attr[end].s.decode() for end in ("send_device", "recv_device")]
      if ends[0] != ends[1]:
        dtype = tf.as_dtype(node.attr["tensor_type"].type).name
        copies[f"{_kind(ends[0])} to {_kind(ends[1])} {dtype}"] += 1
    elif _kind(node.device) == "GPU":
      on_gpu += 1
    elif node.op not in ("Const", "_Send", "_HostSend", "NoOp", "_Arg", "_Retval", "_DeviceArg"):
      on_host[node.op] += 1
  return {"copies": dict(copies), "on_host": dict(on_host), "on_gpu": on_gpu}


def _kind(device: str) -> str:
  return "GPU" if "GPU" in device else "CPU"


def _prediction(concrete: Any) -> dict[str, int]:
  """What the registry of kernels says of the same graph."""
  found = jax2tf.devices.readiness(concrete)
  return {"missing": found.missing, "bounces": found.bounces, "waits": found.count("predicate")}
