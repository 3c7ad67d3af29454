"""The colour of each runtime in every chart of docs/, from the colour-blind safe palette of Okabe
and Ito."""

from __future__ import annotations

_ORANGE, _SKY, _GREEN, _BLUE, _RED, _PINK = (
  "#e69f00",
  "#56b4e9",
  "#009e73",
  "#0072b2",
  "#d55e00",
  "#cc79a7",
)

COLOURS = {
  "jax": "#000000",
  "hand": "#7f7f7f",  # TensorFlow, written by hand
  "ours": _BLUE,
  "saved_model": _BLUE,
  "native": _SKY,
  "c": "#8c510a",
  "onnx": _RED,
  "tflite": _ORANGE,
  "tfjs": _GREEN,
  "chromium": _PINK,
  "openvino": "#6a3d9a",
}
