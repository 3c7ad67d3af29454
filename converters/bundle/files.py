"""The files of a SavedModel that several readers look for."""

from __future__ import annotations

from pathlib import Path

SAVED_MODEL = "saved_model.pb"
# TensorFlow keeps `assets.extra/` unchanged and never reads it.
MANIFEST = Path("assets.extra", "jax2tf.json")
WARM_UP = Path("assets.extra", "tf_serving_warmup_requests")
