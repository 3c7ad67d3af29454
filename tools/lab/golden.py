"""Counts the op types of ten whole models: the golden files in `tests/golden`; needs a checkout.

`make golden` rewrites the file of the installed JAX. A diff in these files is a change of users'
graphs, so review it like code.
"""

from __future__ import annotations

import collections
import json
import pathlib
from typing import Any

import jax
import numpy as np
import tensorflow as tf

import jax2tf
from tests.support.measure import op_types

GOLDEN_MODELS = (
  "linen_mlp",
  "linen_cnn_nhwc",
  "linen_resnet",
  "linen_transformer_encoder",
  "linen_lstm",
  "nnx_cnn",
  "haiku_cnn_nchw",
  "equinox_gru",
  "plain_transformer_decoder",
  "plain_dropout_with_typed_key",
)
_ROOT = pathlib.Path("tests/golden")


def golden_file() -> str:
  """The file of the installed JAX: jaxprs, and so graphs, differ between minor versions."""
  return str(_ROOT / f"jax-{'.'.join(jax.__version__.split('.')[:2])}.json")


def op_counts(model: Any) -> dict[str, int]:
  """The number of ops of each type in the inference graph of a zoo model, including its function
  library."""
  fun, params = model.build()
  variables = jax.tree.map(lambda x: tf.Variable(np.asarray(x)), params)
  converted = jax2tf.convert(fun, polymorphic_shapes=[None, model.spec], with_gradient=False)
  specs = jax.tree.map(lambda x: tf.TensorSpec([None, *x.shape[1:]], x.dtype), model.inputs(1))
  concrete = tf.function(lambda x: converted(variables, x), autograph=False).get_concrete_function(
    specs
  )
  return dict(sorted(collections.Counter(op_types(concrete.graph)).items()))


def main() -> None:
  """Writes the golden file."""
  from tests.support.models.zoo import MODELS  # noqa: PLC0415  (only a checkout has it)

  counts = {name: op_counts(MODELS[name]) for name in GOLDEN_MODELS}
  pathlib.Path(golden_file()).write_text(json.dumps(counts, indent=1) + "\n")
  print(
    f"wrote {golden_file()}: {sum(sum(c.values()) for c in counts.values())} ops in {len(counts)} "
    "models"
  )


if __name__ == "__main__":
  main()
