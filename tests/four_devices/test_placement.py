"""Where the ops run: the device of every op, read from the graph, and the devices of the
results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax.experimental import compute_on as compute_on_module
from jax.sharding import SingleDeviceSharding

import jax2tf
from jax2tf._tf_compat.partitions import partitioned
from tests.four_devices.graphs import graph_of

CPU = jax.devices()
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)

# Ops that carry values about, in any place.
PLUMBING = {"Placeholder", "Const", "NoOp", "Identity", "IdentityN", "PreventGradient"}


def devices(graph: Any) -> dict[str, set[str]]:
  """Op type -> the devices of its ops, "" for those that TensorFlow places."""
  found: dict[str, set[str]] = {}
  for op in graph.get_operations():
    if op.type not in PLUMBING:
      found.setdefault(op.type, set()).add(op.device.removeprefix("/device:"))
  return found


def runs_as_in_jax(fun: Callable[..., Any]) -> None:
  converted = jax2tf.convert(fun)
  expected, pull = jax.vjp(fun, X)
  for call in (
    converted,
    tf.function(converted, autograph=False),
    tf.function(converted, autograph=False, jit_compile=True),
  ):
    x = tf.constant(X)
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = call(x)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(y, x), pull(jnp.ones_like(expected))[0], rtol=1e-6)


def test_computation_follows_data() -> None:
  def fun(x: jax.Array) -> jax.Array:
    y = jnp.sin(x)
    z = jnp.cos(jax.device_put(y, CPU[1])) * 2
    return jnp.tanh(jax.device_put(z, CPU[2]))

  assert devices(graph_of(fun, X)) == {
    "Sin": {""},
    "Cos": {"CPU:1"},
    "Mul": {"CPU:1"},
    "Tanh": {"CPU:2"},
  }
  assert fun(X).devices() == {CPU[2]}
  runs_as_in_jax(fun)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_put_without_a_target_stays(gradient: bool) -> None:
  def fun(x: jax.Array) -> jax.Array:
    return jnp.sin(jax.device_put(jax.device_put(x, CPU[1]))).sum()

  found = devices(graph_of(fun, X, gradient=gradient))
  assert found["Sin"] == {"CPU:1"}
  runs_as_in_jax(fun)


def test_callbacks_on_other_devices(capsys: Any) -> None:
  def fun(x: jax.Array) -> jax.Array:
    jax.debug.print("{}", x[0, 0])
    y = jax.device_put(x, CPU[1]) * 2
    jax.debug.print("{}", y[0, 0])
    return y * jax.pure_callback(
      np.sign, jax.ShapeDtypeStruct((), np.float32), lax.stop_gradient(y[1, 2])
    )

  for call in (jax2tf.convert(fun), tf.function(jax2tf.convert(fun), autograph=False)):
    np.testing.assert_allclose(call(X), fun(X), rtol=1e-6)
    jax.effects_barrier()
    assert capsys.readouterr().out == "-2.0\n-4.0\n" * 2


def test_the_backward_pass_stays_with_the_residuals() -> None:
  def fun(x: jax.Array) -> jax.Array:
    return jnp.exp(jax.device_put(jnp.sin(x), CPU[3])).sum()

  found = devices(graph_of(fun, X, gradient=True))
  assert found["Exp"] == {"CPU:3"}
  assert found["Sum"] == {"CPU:3"}
  assert found["Cos"] == {""}  # the derivative of what nobody placed
  assert found["Mul"] == {"CPU:3", ""}


def test_the_ops_run_there() -> None:
  fun = jax2tf.convert(
    lambda x: jnp.tanh(jax.device_put(jnp.cos(jax.device_put(x, CPU[1])), CPU[2]))
  )

  @tf.function(autograph=False)
  def gradient(x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = fun(x)
    return tape.gradient(y, x)

  ran = {
    (node.name.split("/")[0], node.op): node.device[-5:]
    for node in partitioned(lambda: gradient(tf.constant(X)))
  }
  forward, backward = "jax2tf_lambda_", "jax2tf_vjp"
  # all of cos
  assert ran[forward, "Sin"] == ran[backward, "Neg"] == ran[backward, "Mul"] == "CPU:1"
  assert ran[forward, "Sub"] == "CPU:2"  # 1 - tanh ** 2


def test_a_transfer_is_an_identity_on_the_device() -> None:
  graph = graph_of(lambda x: jax.device_put(x, CPU[1]), X)
  assert [op.device for op in graph.get_operations() if op.type == "Identity" and op.device] == [
    "/device:CPU:1"
  ]


def test_device_put_of_a_tree_with_a_device_for_each_leaf() -> None:
  def fun(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    a, b = jax.device_put((x, x), (CPU[1], SingleDeviceSharding(CPU[2])))
    return jnp.sin(a), jnp.cos(b)

  assert devices(graph_of(fun, X)) == {"Sin": {"CPU:1"}, "Cos": {"CPU:2"}}


def test_default_device_binds_what_is_inside_the_scope_alone() -> None:
  def fun(x: jax.Array) -> jax.Array:
    with jax.default_device(CPU[2]):
      y = jnp.cos(x)
      with jax.default_device(CPU[3]):
        y = jnp.tanh(y)
    return jnp.sin(y)

  assert devices(graph_of(fun, X)) == {"Cos": {"CPU:2"}, "Tanh": {"CPU:3"}, "Sin": {""}}
  backward = devices(graph_of(fun, X, gradient=True))
  assert backward["Cos"] == {"CPU:2", ""}  # cos, and the derivative of sin
  assert backward["Sin"] == {"CPU:2", ""}  # the derivative of cos, and sin
  runs_as_in_jax(fun)


def test_default_device_does_not_move_what_was_put_elsewhere() -> None:
  def fun(x: jax.Array) -> jax.Array:
    y = jax.device_put(x, CPU[1])
    with jax.default_device(CPU[2]):
      return jnp.sin(y) * jnp.cos(x).sum()

  assert devices(graph_of(fun, X)) == {
    "Sin": {"CPU:1"},
    "Mul": {"CPU:1"},
    "Cos": {"CPU:2"},
    "Sum": {"CPU:2"},
  }


def test_default_device_around_the_call_is_not_the_functions() -> None:
  with jax.default_device(CPU[2]):
    assert devices(graph_of(jnp.sin, X)) == {"Sin": {""}}


def computed_on_host(f: Callable[..., Any]) -> Callable[..., Any]:
  if hasattr(compute_on_module, "compute_on2") or jax.version.__version_info__ < (0, 12):
    return compute_on_module.compute_on("device_host")(jax.jit(f))
  return compute_on_module.compute_on(
    f, compute_type="device_host", out_memory_spaces=jax.memory.Space.Device
  )


def test_compute_on_the_host() -> None:
  def fun(x: jax.Array) -> jax.Array:
    return jnp.sin(computed_on_host(lambda x: jnp.exp(x))(jnp.cos(x)))

  assert devices(graph_of(fun, X)) == {"Cos": {""}, "Exp": {"CPU:0"}, "Sin": {""}}
  assert devices(graph_of(fun, X, device_map={"host": "CPU:3"}))["Exp"] == {"CPU:3"}
  backward = devices(graph_of(fun, X, gradient=True, device_map={"host": "CPU:3"}))
  assert backward["Mul"] == {"CPU:3", ""}  # by exp, and by the derivatives of sin and cos
  np.testing.assert_allclose(jax2tf.convert(fun)(X), np.sin(np.exp(np.cos(X))), rtol=1e-6)


def test_inside_loops_branches_and_checkpoint() -> None:
  def step(c: jax.Array, _: None) -> tuple[jax.Array, None]:
    return jnp.sin(jax.device_put(c, CPU[1])), None

  def fun(x: jax.Array) -> jax.Array:
    y = lax.scan(step, x, None, length=50)[0]  # as a loop
    y = lax.cond(y.sum() > 0, lambda y: jnp.cos(jax.device_put(y, CPU[2])), lambda y: y, y)
    return jax.checkpoint(lambda y: jnp.exp(jax.device_put(y, CPU[3])))(y)

  graph = graph_of(fun, X)
  found = {
    op.type: op.device.removeprefix("/device:")
    for function in graph._functions.values()
    for op in function.graph.get_operations()
    if op.type in ("Sin", "Cos")
  }
  assert found == {"Sin": "CPU:1", "Cos": "CPU:2"}
  assert devices(graph)["Exp"] == {"CPU:3"}
  runs_as_in_jax(fun)


def test_a_jitted_function_follows_its_argument() -> None:
  def fun(x: jax.Array) -> jax.Array:
    return jax.jit(lambda x: jnp.tanh(jnp.sin(x)))(jax.device_put(x, CPU[2])) + 1

  assert devices(graph_of(fun, X)) == {"Sin": {"CPU:2"}, "Tanh": {"CPU:2"}, "AddV2": {"CPU:2"}}


def test_operands_on_two_devices_are_refused_in_the_words_of_jax() -> None:
  def fun(x: jax.Array) -> jax.Array:
    return jax.device_put(x, CPU[1]) + jax.device_put(x, CPU[2])

  with pytest.raises(ValueError, match="Received incompatible devices"):
    fun(X)
  with pytest.raises(
    ValueError,
    match=r"Received incompatible devices for 'add': .* cpu:1 and cpu:2, at .*test_placement.py",
  ):
    jax2tf.convert(fun)(X)


def test_tf_device_around_the_call_holds_for_the_rest() -> None:
  converted = jax2tf.convert(
    lambda x: jnp.cos(jax.device_put(jnp.sin(x), CPU[1])), with_gradient=False
  )

  @tf.function(autograph=False)
  def around(x: tf.Tensor) -> tf.Tensor:
    with tf.device("CPU:3"):
      return converted(x)

  graph = around.get_concrete_function(tf.TensorSpec([2])).graph
  assert devices(graph) == {"Sin": {"CPU:3"}, "Cos": {"CPU:1"}}


def test_device_map() -> None:
  def fun(x: jax.Array) -> jax.Array:
    return jnp.cos(jax.device_put(jnp.sin(x), CPU[1]))

  for key in (CPU[1], "cpu:1", "cpu"):
    assert devices(graph_of(fun, X, device_map={key: "/device:CPU:3"})) == {
      "Sin": {""},
      "Cos": {"CPU:3"},
    }
  assert devices(graph_of(fun, X, device_map={CPU[1]: None})) == {"Sin": {""}, "Cos": {""}}


@pytest.mark.parametrize(
  "device_map",
  [{CPU[1]: "GPU:0"}, {"cpu:1": "/device:CPU:7"}, {"cpu": "/job:worker/task:3/device:CPU:0"}],
)
@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: tf.function(f, autograph=False)])
def test_a_device_that_tensorflow_does_not_have(device_map: Any, wrap: Any) -> None:
  def fun(x: jax.Array) -> jax.Array:
    return jnp.cos(jax.device_put(x, CPU[1]))

  with pytest.raises(
    ValueError,
    match=r"(?s)'fun' runs on devices .* only CPU:0, .*cpu:1 \(.* at "
    r".*test_placement.py:\d+.*device_map",
  ):
    wrap(jax2tf.convert(fun, device_map=device_map))(X)


def test_a_graph_for_another_machine_may_name_its_devices() -> None:
  def fun(x: jax.Array) -> jax.Array:
    return jnp.cos(jax.device_put(x, CPU[1]))

  assert devices(graph_of(fun, X, device_map={"cpu:1": "GPU:5"}, platforms=["cuda"])) == {
    "Cos": {"GPU:5"}
  }


def test_a_saved_model_keeps_the_devices(tmp_path: Any) -> None:
  def fun(x: jax.Array) -> jax.Array:
    return jnp.cos(jax.device_put(jnp.sin(x), CPU[1])) * 3

  module = tf.Module()
  module.f = tf.function(
    jax2tf.convert(fun), autograph=False, input_signature=[tf.TensorSpec([2, 3])]
  )
  tf.saved_model.save(module, str(tmp_path))
  loaded = tf.saved_model.load(str(tmp_path))
  [concrete] = loaded.f.concrete_functions
  found = devices(concrete.graph)
  # The derivatives of sin (unplaced) and of cos (placed) are there as well, cut off from
  # TensorFlow's own gradients where they are.
  both = {"", "CPU:1"}
  assert found == {"Sin": both, "Cos": both, "StopGradient": both, "Mul": {"CPU:1"}} | {
    k: found[k] for k in ("Neg",) if k in found
  }
  x = tf.constant(X)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = loaded.f(x)
  np.testing.assert_allclose(y, fun(X), rtol=1e-6)
  expected = jax.vjp(fun, X)[1](jnp.ones_like(X))[0]
  np.testing.assert_allclose(tape.gradient(y, x), expected, rtol=1e-6)


def test_keys_and_integers_are_put_as_well() -> None:
  def fun(seed: jax.Array) -> jax.Array:
    return jax.random.normal(jax.device_put(jax.random.key(seed), CPU[2]), (3,))

  np.testing.assert_array_equal(jax2tf.convert(fun)(np.int32(7)), fun(np.int32(7)))
