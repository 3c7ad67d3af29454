"""AutoGraph leaves our functions and JAX's as they are: it would rewrite all that an autographed
tf.function or Dataset.map calls.

A rule for the packages, as TensorFlow has one for Keras and NumPy, and not `do_not_convert` for
each public function, so that none is forgotten.
"""

from __future__ import annotations

from tensorflow.python.autograph.core import config as _config

_PACKAGES = ("jax2tf", "jax")

_config.CONVERSION_RULES = (*map(_config.DoNotConvert, _PACKAGES), *_config.CONVERSION_RULES)
