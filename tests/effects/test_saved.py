"""Prints in a file: TensorFlow's own ops say them where there is no JAX, exporters leave them out;
other callbacks are refused."""

from __future__ import annotations

import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf.converters import onnx, saved_model

X = np.array([1, 2.5, 3], np.float32)


def _loop(i, c):
  jax.debug.print("{i} of {n}: {c}", i=i, n=2, c=c, ordered=True)
  return c * 2


@jax.checkpoint  # its backward pass prints as well
def _prints(x):
  jax.debug.print("x = {x} {0:.3f} {{}} {tree}", x[0], x=x, tree={"a": x, "b": 3})
  jax.debug.print("{} {} {}", x.astype(jnp.bfloat16), x.astype(jnp.complex64), jax.random.key(1))
  x = jax.lax.fori_loop(0, 2, _loop, x)
  jax.debug.print("no fields")
  jax.debug.log("to the log")
  return jnp.sin(jnp.sin(x)).sum()


TEXT = """\
x = [1 2.5 3] 1 {} {'a': [1 2.5 3], 'b': 3}
[1 2.5 3] ["(1,0)" "(2.5,0)" "(3,0)"] [0 1]
0 of 2: [1 2.5 3]
1 of 2: [2 5 6]
no fields
"""
RELOAD = f"""
import sys
import tensorflow as tf

model, x = tf.saved_model.load(sys.argv[1]), tf.constant({X.tolist()})
print("gradient", flush=True)
with tf.GradientTape() as tape:
  tape.watch(x)
  y = model.f(x)
print(tape.gradient(y, x).numpy().tolist())
"""


def _module(fun):
  module = tf.Module()
  module.f = tf.function(jax2tf.convert(fun), autograph=False, input_signature=[tf.TensorSpec([3])])
  return module


def test_prints_are_saved(tmp_path, without_jax, capsys):
  module = _module(_prints)
  tf.saved_model.save(module, str(tmp_path))
  done = subprocess.run(
    [without_jax, "-c", RELOAD, str(tmp_path)],
    check=True,
    capture_output=True,
    text=True,
    timeout=300,
  )
  text, _, rest = done.stdout.partition("gradient\n")
  assert text == ""
  gradient = rest.removeprefix(TEXT * 2)
  np.testing.assert_allclose(np.array(eval(gradient)), jax.grad(_prints)(X), rtol=1e-5)
  jax.effects_barrier()
  capsys.readouterr()
  module.f(X)
  # here it is JAX's
  assert capsys.readouterr().out.startswith(
    "x = [1.  2.5 3. ] 1.000 {} {'a': Array([1. , 2.5, 3. ]"
  )


def test_exporters_leave_prints_out(tmp_path, capfd):
  def fun(_, x):
    jax.debug.print("{}", x)
    return jax.lax.fori_loop(0, 2, _loop, x)

  with pytest.warns(
    UserWarning,
    match=r"omits prints.*\n.*debug_print at .*\(_loop\)\n.*debug_print at .*\(.*fun\)$",
  ) as warned:
    onnx.save(fun, {}, tmp_path / "f.onnx", inputs={"x": "f32[3]"})
  assert len(warned) == 1
  assert capfd.readouterr().out == ""  # nor does the reference, to which the file is compared
  with pytest.raises(
    ValueError, match=r"(?s)cannot save.*debug_callback \(print\) at .*test_saved\.py"
  ):
    onnx.save(
      lambda _, x: (jax.debug.callback(print, x), x)[1],
      {},
      tmp_path / "g.onnx",
      inputs={"x": "f32[3]"},
    )


@pytest.mark.parametrize(
  ("fun", "what"),
  [
    (lambda x: (jax.debug.callback(print, x), x)[1], r"debug_callback \(print\)"),
    (lambda x: (jax.debug.print("{x[0]}", x=x), x)[1], "debug_print"),
    (
      lambda x: jax.pure_callback(
        np.sin, jax.ShapeDtypeStruct((3,), np.float32), jax.lax.stop_gradient(x)
      ),
      r"pure_callback \(sin\)",
    ),
  ],
)
def test_what_no_file_can_hold_is_refused(fun, what, tmp_path):
  for save in (
    lambda path: tf.saved_model.save(_module(fun), path),
    lambda path: saved_model.save(lambda _, x: fun(x), {}, path, inputs={"x": "f32[3]"}),
  ):
    with pytest.raises(
      ValueError, match=rf"(?s)cannot save.*{what} at .*test_saved\.py:\d+:\d+ \("
    ):
      save(str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()
