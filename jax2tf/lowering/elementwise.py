"""Elementwise."""
import jax.extend.core.primitives as P
import tensorflow as tf
from jax2tf.registry import lower_directly, lowers
from jax._src import ad_util
lower_directly({ad_util.add_any_p: tf.add, P.sin_p: tf.sin, P.add_p: tf.add, P.cos_p: tf.cos, P.neg_p: tf.negative, P.exp_p: tf.exp, P.ge_p: tf.greater_equal, P.eq_p: tf.equal})
@lowers(P.mul_p)
def _mul(ctx, x, y, *, out_dtype=None): return tf.multiply(x, y)
