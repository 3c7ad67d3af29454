"""What the flat operands and results of a traced function stand for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import tensorflow as tf

import jax2tf
from jax2tf.trace import Traceable


def test_operands_and_results_in_their_order():
  scale, total = tf.Variable(2.0), jax.new_ref(jnp.float32(0))
  scaled = jax2tf.call_tf(lambda x: x * scale)

  def fun(x, ref):
    ref[...] += x
    total[...] += scaled(x)
    return {"y": x}

  spec = jax.ShapeDtypeStruct((), jnp.float32)
  traced = Traceable.of(fun).on_values().trace((spec, jax2tf.Ref(spec)), {}, {})
  signature = traced.signature
  assert signature.substituted == (scale,)
  assert signature.closed_over == (jax2tf.variable_of(total),)
  leaves, captured = signature.split_operands(traced.jaxpr.invars)
  assert (len(leaves), len(captured)) == (2, 2)
  results, refs = signature.split_results(traced.jaxpr.outvars)
  assert (len(results), len(refs)) == (1, 2)
