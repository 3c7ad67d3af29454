"""What `jax2tf.devices.readiness` reads from a graph and TensorFlow's registry of kernels."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from jax2tf.devices import readiness, running
from jax2tf.devices.kernels import Memory, kernels

F32, I32, U32 = (tf.TensorSpec([4], dtype) for dtype in (tf.float32, tf.int32, tf.uint32))
KEY = tf.TensorSpec([2], tf.uint32)
INDEX = tf.TensorSpec([], tf.int32)


def kinds(model, *specs, **options):
  """{(kind, op, loops): count}."""
  found = readiness(model, *specs, **options).findings
  return {(finding.kind, finding.op, finding.loops): finding.count for finding in found}


def op(build):
  """The last op of a graph."""
  with tf.Graph().as_default():
    return build().op


def ones(dtype):
  return tf.ones([4], dtype)


@tf.function
def first_bits(x):
  """TF 2.21: Unpack has no GPU kernel for uint32, BitwiseNot has."""
  return tf.bitwise.invert(tf.raw_ops.Unpack(value=x, num=4, axis=0)[0])


@pytest.mark.parametrize(
  ("build", "memory"),
  [
    (lambda: ones(tf.float32) + 1, Memory((False, False), (False,))),
    (lambda: ones(tf.int32) + 1, Memory((True, True), (True,))),
    # begin, end and strides are on the host for every dtype
    (lambda: ones(tf.float32)[1:], Memory((False, True, True, True), (False,))),
    # an operand that is a list
    (lambda: tf.concat([ones(tf.float32)] * 2, 0), Memory((False, False, True), (False,))),
    # a kernel of DEFAULT
    (lambda: tf.reshape(ones(tf.int32), [2, 2]), Memory((True, True), (True,))),
    (lambda: tf.fill([2], tf.constant(1, tf.uint32)), None),
    # its kernels name the values of a text, too
    (lambda: tf.gather_nd(ones(tf.float32), [[1]]), Memory((False, False), (False,))),
    (lambda: tf.strings.join(["a", "b"]), None),
  ],
)
def test_memory(build, memory):
  assert kernels("gpu").memory(op(build)) == memory


def test_one_kernel_for_several_dtypes():
  """An attribute that is a list of dtypes has to be in the kernel's as a whole."""
  gpu = kernels("gpu")
  assert gpu.memory(op(lambda: tf.identity_n([ones(tf.float32), ones(tf.int32)])[0])) is not None


def test_arithmetic_stays_on_the_device():
  assert readiness(tf.function(lambda x: tf.exp(x) @ x), tf.TensorSpec([2, 2])).findings == ()


def test_op_without_a_kernel():
  assert kinds(first_bits, U32) == {
    ("no kernel", "Unpack", 0): 1,
    ("bounce", "Unpack", 0): 1,
    ("return", "Invert", 0): 1,
  }


def test_no_copy_where_nothing_goes_back():
  found = readiness(lambda x: tf.raw_ops.Unpack(value=x, num=4, axis=0)[0], U32)
  assert (found.missing, found.bounces, found.count("result")) == (1, 0, 1)


def test_what_grappler_folds_is_no_op():
  def fill(size):
    return tf.function(lambda x: x + tf.fill([size], tf.constant(1, tf.uint32)))

  assert readiness(fill(4), U32).is_ready
  # TF 2.21: a larger constant is computed in each call
  assert readiness(fill(2**16), tf.TensorSpec([2**16], tf.uint32)).missing == 1


def test_shapes_and_counters_are_no_bounces():
  def means(x):
    return lax.scan(lambda total, row: (total + row, total), x.sum(0), x)[1] / x.shape[0]

  converted = jax2tf.convert(means, polymorphic_shapes=["b, 2"])
  found = readiness(converted, tf.TensorSpec([None, 2]))
  assert found.is_ready
  assert not found.count("int32")


def test_index_of_the_device():
  found = kinds(jax2tf.convert(lambda x: lax.dynamic_slice(x, [jnp.argmax(x)], [2])), F32)
  assert {kind for kind, *_ in found} >= {"bounce"}


def test_predicates_are_counted_apart():
  def grow(x):
    return lax.while_loop(lambda y: y.sum() < 9.0, lambda y: y + 1.0, x)

  found = readiness(jax2tf.convert(grow), F32)
  assert found.is_ready
  assert [(one.kind, one.primitive, one.loops) for one in found.findings] == [
    ("predicate", "while", 1)
  ]


def test_own_int32_is_listed_and_not_counted():
  def rounded(x):
    return (x.astype(jnp.int32) * 3).astype(jnp.float32)

  found = readiness(jax2tf.convert(rounded), F32)
  assert found.is_ready
  assert {one.op for one in found.of("int32")} >= {"Mul", "Cast"}


def test_int32_without_kernel_on_the_host_is_harmless():
  found = readiness(tf.function(lambda n: tf.zeros([tf.raw_ops.TruncateDiv(x=n, y=2)])), INDEX)
  assert found.is_ready
  assert found.count("on the host") == 1


def test_loops_come_first_with_the_users_line():
  def noisy(x, key):
    x = x + jax.pure_callback(np.sin, x, x)

    def step(x, key):
      return x + jax.pure_callback(np.cos, x, x), None

    return lax.scan(step, x, jax.random.split(key, 50))[0]

  missing = readiness(jax2tf.convert(noisy, with_gradient=False), F32, KEY).of("no kernel")
  assert [(one.op, one.loops) for one in missing[:1]] == [("PyFunc", 1)]
  assert __file__ in missing[0].where
  assert "callback" in missing[0].advice


@pytest.mark.parametrize("index", [0, 1])
def test_branches(index):
  """What goes into a branch and comes out of it is where its dtype is."""

  def either(c, x):
    return tf.cond(c > 0, lambda: x * 2, lambda: x)

  dtype = (F32, I32)[index]
  # int32 is on the host from start to end
  assert kinds(tf.function(either), INDEX, dtype) == {}


def test_branch_for_the_device():
  def either(x):
    index = tf.raw_ops.DeviceIndex(device_names=["CPU", "GPU"])
    return tf.switch_case(index, [lambda: tf.numpy_function(np.sin, [x], tf.float32), lambda: x])

  assert readiness(either, F32).ops == 0


def test_gradient():
  forward = readiness(jax2tf.convert(jnp.sin), F32)
  both = readiness(jax2tf.convert(jnp.sin), F32, gradient=True)
  assert both.ops > forward.ops


def test_trees_of_jax():
  """TensorFlow does not know their nodes."""

  @jax.tree_util.register_dataclass
  @dataclasses.dataclass
  class Pair:
    a: Any
    b: Any

  converted = jax2tf.convert(lambda pair: Pair(pair.b, pair.a * 2))
  assert readiness(converted, Pair(F32, F32), gradient=True).is_ready


def test_what_xla_compiles_stays_on_the_device():
  compiled = tf.function(first_bits.python_function, jit_compile=True)
  assert readiness(lambda x: compiled(x), U32).findings == ()


def test_variables_stay_on_the_device():
  variable = tf.Variable(tf.ones([4]))
  assert readiness(tf.function(lambda x: x * variable), F32).findings == ()


def test_saved_model(tmp_path):
  concrete = first_bits.get_concrete_function(U32)
  tf.saved_model.save(tf.Module(), tmp_path, signatures=concrete)
  assert readiness(tmp_path).missing == 1
  with pytest.raises(jax2tf.ArgumentError, match="serving_default"):
    readiness(tmp_path, signature="other")


def test_tpu():
  found = readiness(jax2tf.convert(lambda x: jax.pure_callback(np.sin, x, x)), F32, device="tpu")
  assert found.registry == "XLA_GPU_JIT"  # pip's TensorFlow 2.21 has no kernels of a TPU
  assert [finding.op for finding in found.findings] == ["PyFunc"]


def test_unknown_device():
  with pytest.raises(jax2tf.ArgumentError, match="gpu, tpu"):
    readiness(jax2tf.convert(jnp.sin), F32, device="npu")


def test_run():
  """The CPU stands for the device. An op in a loop counts as often as it ran."""

  def steps(x):
    return tf.while_loop(lambda i, _: i < 20, lambda i, y: (i + 1, tf.sin(y)), (0, x))

  concrete = tf.function(steps, autograph=False).get_concrete_function(F32)
  taken = running.run(concrete, [np.ones(4, np.float32)], "CPU:0")
  count, milliseconds = taken.of("while/Sin")
  assert count == 20
  assert 0 < milliseconds < 1e3
  assert {*taken.devices()} == {"CPU"}
  with pytest.raises(ValueError, match="no GPU:0 here"):
    running.run(concrete, [np.ones(4, np.float32)], "GPU:0")
