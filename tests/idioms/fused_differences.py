"""What fused idioms compute otherwise than JAX: for each idiom and kind of input, value and
gradient. docs/developers/fused-idioms.md shows the table.

`python -m tests.idioms.fused_differences` measures it and writes tests/golden/fused_differences.md.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

import jax2tf
from tests.idioms.fused_layers import said

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "fused_differences.md"

Plain = Callable[[Any], Any]
# Of rows and, where a layer comes first, its weights: ones of its own, because Grappler fuses no
# product that has two uses, and zeros.
Form = Callable[[Any, Any, Any], Any]
Table = dict[tuple[str, str], dict[str, str]]

_N = 32  # numbers in a row, which is also an image of 4 x 4 x 2, or 4 tokens with 2 heads of 4
_ORDINARY = [
  0,
  -0.0,
  1e-4,
  -1e-4,
  0.5,
  -0.5,
  1,
  -1,
  2,
  -2,
  3,
  -3,
  5.9999,
  6,
  6.0001,
  -6,
  9,
  -9,
  20,
  -20,
  80,
  -80,
]
_SAME = "≈"


def inputs(dtype: Any) -> dict[str, np.ndarray]:
  """{kind: rows}; a row of NaN or infinities has one of it, or nothing else."""
  rng = np.random.default_rng(0)
  ordinary = np.concatenate([_ORDINARY, rng.standard_normal(2 * _N - len(_ORDINARY))]).reshape(
    2, _N
  )
  kinds = {
    "ordinary": ordinary,
    "1e13 to 1e18": 10 ** rng.uniform(13, 18, (2, _N)) * rng.choice([-1, 1], (2, _N)),
    "mean 1e4": 1e4 + rng.standard_normal((2, _N)),
    "subnormal": np.finfo(dtype).smallest_normal * rng.uniform(-1, 1, (2, _N)),
  }
  for name in ("NaN", "inf", "-inf"):
    one = ordinary.copy()
    one[0, 5] = one[1, -1] = float(name)
    kinds[name] = np.concatenate([one, np.full((1, _N), float(name))])
  return {kind: rows.astype(dtype) for kind, rows in kinds.items()}


def _alone(f: Plain) -> Form:
  return lambda x, ones, zeros: f(x)


def _dense(f: Plain) -> Form:
  """Of a product in which each number meets zeros only."""
  return lambda x, ones, zeros: f(jnp.pad(x[:, :, None], ((0, 0), (0, 0), (0, 15))) @ ones + zeros)


def _conv(x: Any, kernel: Any) -> Any:
  return lax.conv_general_dilated(
    x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
  )


def _convolved(f: Plain) -> Form:
  return lambda x, ones, zeros: f(_conv(x.reshape(-1, 4, 8, 1), ones[None, None, :1]) + zeros)


def _normalized(x: Any) -> Any:
  return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def _batch_norm(mean: float, x: Any) -> Any:
  y = _conv(x.reshape(-1, 4, 4, 2), jnp.ones((1, 1, 2, 4), x.dtype) / 2)
  scale = jnp.linspace(0.5, 2, 4, dtype=x.dtype)
  return (y - jnp.full(4, mean, x.dtype)) * (lax.rsqrt(scale + 1e-5) * scale) + scale


def _attention(x: Any) -> Any:
  tokens = x.reshape(-1, 4, 2, 4)
  scores = jnp.einsum("bqhd,bkhd->bhqk", tokens, jnp.tanh(tokens)) * 0.5
  return jax.nn.softmax(jnp.where(jnp.arange(4) < 3, scores, -1e30))


_ACTIVATIONS: dict[str, Plain] = {
  **{
    name: getattr(jax.nn, name) for name in ("relu", "relu6", "elu", "selu", "silu", "hard_swish")
  },
  "leaky_relu": functools.partial(jax.nn.leaky_relu, negative_slope=0.25),
  "gelu": functools.partial(jax.nn.gelu, approximate=True),
  "gelu by erf": functools.partial(jax.nn.gelu, approximate=False),
}
# By the name of the idiom, and what is particular.
PLAIN: dict[str, Plain] = {
  **_ACTIVATIONS,
  "softmax": jax.nn.softmax,
  "log_softmax": jax.nn.log_softmax,
  "attention": _attention,
  "layer_norm": _normalized,
  "layer_norm by squares": jax.nn.standardize,
  "batch_norm": functools.partial(_batch_norm, 0.0),
  "max_pool": lambda x: linen.max_pool(x.reshape(-1, 4, 4, 2), (2, 2), (2, 2)),
  "mean_pool": lambda x: linen.avg_pool(x.reshape(-1, 4, 4, 2), (2, 2), (2, 2)),
}
_AFTER = {"product": _dense, "convolution": _convolved}
# Where one column needs other parameters.
_INSTEAD = {("batch_norm", "mean 1e4"): _alone(functools.partial(_batch_norm, 1e4))}


def table() -> list[str]:
  """The lines of the table, one for all idioms of which the same differs."""
  idioms = collections.defaultdict(list)
  for (name, way), cells in _measured().items():
    idioms[way, *cells.values()].append(name)
  columns = "idiom", "", *inputs(np.float32)
  lines = [columns, ["---"] * len(columns)]
  lines += [
    (", ".join(map(said, names)), *cells)
    for cells, names in sorted(idioms.items(), key=lambda row: row[0][0], reverse=True)
  ]
  return [f"| {' | '.join(line)} |" for line in lines]


def _measured() -> Table:
  """{(form, way): {kind: what differs}}; Grappler fuses nothing of float64, and no gradient with
  the layer before."""
  plain = {name: _alone(f) for name, f in PLAIN.items()}
  single, double = _of_dtype(np.float32, plain), _of_dtype(np.float64, plain)
  found = {
    row: {kind: _both(cell, double[row][kind]) for kind, cell in cells.items()}
    for row, cells in single.items()
  }
  for layer, of in _AFTER.items():
    for (name, way), cells in _of_dtype(
      np.float32, {name: of(f) for name, f in _ACTIVATIONS.items()}, ways=("value",)
    ).items():
      if cells != single[name, way]:
        found[f"{name} after a {layer}", way] = cells
  return found


def _both(single: str, double: str) -> str:
  return single if single == double else f"{single}; f64: {double}"


def _of_dtype(
  dtype: Any, named: Mapping[str, Form], ways: Sequence[str] = ("value", "gradient")
) -> Table:
  kinds = inputs(dtype)
  calls = {
    (name, kind): _INSTEAD.get((name, kind), form) for name, form in named.items() for kind in kinds
  }
  forms = list(dict.fromkeys(calls.values()))  # each once, of all rows
  x, zeros, weights = (
    np.concatenate(list(kinds.values())),
    np.zeros(16, dtype),
    [np.ones((16, 16), dtype) for _ in forms],
  )
  with jax.enable_x64(dtype == np.float64):
    expected = jax.jit(
      lambda x, zeros, weights: [
        _in_jax(form, ways, x, w, zeros) for form, w in zip(forms, weights, strict=True)
      ]
    )
    wanted = expected(x, zeros, weights)
    converted = [
      jax2tf.convert(form, idioms="fused", with_gradient="gradient" in ways) for form in forms
    ]

    @tf.function(autograph=False)
    def fused(x: tf.Tensor, zeros: tf.Tensor, weights: list[tf.Tensor]) -> list[Any]:
      return [_in_tf(call, ways, x, w, zeros) for call, w in zip(converted, weights, strict=True)]

    found = fused(tf.constant(x), tf.constant(zeros), [*map(tf.constant, weights)])
  starts = dict(zip(kinds, np.cumsum([0, *map(len, kinds.values())]), strict=False))
  cells: Table = collections.defaultdict(dict)
  for (name, kind), form in calls.items():
    at, rows = forms.index(form), slice(starts[kind], starts[kind] + len(kinds[kind]))
    for way, f, e in zip(ways, found[at], wanted[at], strict=True):
      cells[name, way][kind] = _cell(np.asarray(f)[rows], np.asarray(e)[rows])
  return cells


def _in_jax(form: Form, ways: Sequence[str], x: Any, ones: Any, zeros: Any) -> list[Any]:
  if "gradient" not in ways:
    return [form(x, ones, zeros)]
  y, pullback = jax.vjp(lambda x: form(x, ones, zeros), x)
  return [y, *pullback(_cotangent(y.shape, x.dtype))]


def _in_tf(
  call: Form, ways: Sequence[str], x: tf.Tensor, ones: tf.Tensor, zeros: tf.Tensor
) -> list[Any]:
  if "gradient" not in ways:
    return [call(x, ones, zeros)]
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = call(x, ones, zeros)
  return [y, tape.gradient(y, x, tf.constant(_cotangent(y.shape, x.dtype.as_numpy_dtype)))]


def _cotangent(shape: Sequence[int], dtype: Any) -> np.ndarray:
  return np.cos(np.arange(np.prod(shape))).reshape(shape).astype(dtype)


_KINDS = {"NaN": np.isnan, "inf": np.isposinf, "-inf": np.isneginf, "number": np.isfinite}


def _cell(found: np.ndarray, expected: np.ndarray) -> str:
  """What differs: kinds of numbers, JAX's first, and by how much the largest number of a row, or 1,
  is missed."""
  said = [
    f"{a} → {b}"
    for a, of_jax in _KINDS.items()
    for b, of_ours in _KINDS.items()
    if a != b and (of_jax(expected) & of_ours(found)).any()
  ]
  both = np.isfinite(found) & np.isfinite(expected)
  largest = np.max(
    np.abs(expected), axis=tuple(range(1, expected.ndim)), keepdims=True, where=both, initial=1
  )
  error = np.max(
    np.abs(np.subtract(found, expected, where=both, out=np.zeros_like(expected))) / largest,
    initial=0,
  )
  error /= np.finfo(expected.dtype).eps
  if error > 64:
    said.append("to 1e5 eps" if error <= 1e5 else "another number")
  return ", ".join(said) or _SAME


if __name__ == "__main__":
  GOLDEN.write_text("\n".join([*table(), ""]), encoding="utf-8")
