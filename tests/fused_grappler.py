"""What Grappler makes of the forms that the lowering emits, as docs/guide/fused.md has it: each
line is a row that runs."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

import jax2tf
from tests.case import executed_op_types

# What computes nothing.
_SILENT = {
  "_Arg",
  "_Retval",
  "Const",
  "Identity",
  "NoOp",
  "Reshape",
  "Transpose",
  "PreventGradient",
}
_SHAPES = {
  "dense": [(8, 16), (16, 16), (16,), (8, 16)],
  "dense_3d": [(2, 4, 16), (16, 16), (16,), (2, 4, 16)],
  "conv": [(2, 6, 6, 16), (3, 3, 16, 16), (16,), (16,), (2, 6, 6, 16)],
  "depthwise": [(2, 6, 6, 16), (3, 3, 1, 16), (16,), (16,), (2, 6, 6, 16)],
  "attention": [(2, 5, 2, 4)],
}


@dataclass(frozen=True)
class Line:
  """Functions of the arrays of `_SHAPES[of]`, and the ops that run for them all."""

  form: str
  runs: str
  of: str
  functions: Sequence[Callable[..., Any]]
  ops: Mapping[str, int]


def _dense(f: Callable[..., Any]) -> Callable[..., Any]:
  return lambda x, w, b, y: f(x @ w + b)


def _conv(x: Any, w: Any) -> Any:
  groups = x.shape[-1] // w.shape[2]
  return lax.conv_general_dilated(
    x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
  )


def _biased(f: Callable[..., Any]) -> Callable[..., Any]:
  return lambda x, w, b, s, y: f(_conv(x, w) + b)


def _normed(f: Callable[..., Any]) -> Callable[..., Any]:
  return lambda x, w, b, s, y: f(_conv(x, w) * s + b)


def _masked(x: Any, mask: Any = None) -> Any:
  scores = jnp.einsum("bqhd,bkhd->bhqk", x, x) * 0.5
  return scores if mask is None else jnp.where(mask, scores, -1e30)


_nn, _erf = jax.nn, functools.partial(jax.nn.gelu, approximate=False)
LINES = [
  Line(
    "MatMul, BiasAdd, and Relu, Relu6, Elu, LeakyRelu, Tanh, Sigmoid, GELU (both) or Add",
    "one `_FusedMatMul`",
    "dense",
    [
      *map(
        _dense,
        (_nn.relu, _nn.relu6, _nn.elu, _nn.leaky_relu, jnp.tanh, _nn.sigmoid, _nn.gelu, _erf),
      ),
      lambda x, w, b, y: x @ w + b + y,
    ],
    {"_FusedMatMul": 9},
  ),
  Line(
    "the same of more than two dimensions: the idioms put the Reshape last",
    "one `_FusedMatMul`",
    "dense_3d",
    [*map(_dense, (_nn.relu, _nn.gelu))],
    {"_FusedMatMul": 2},
  ),
  Line(
    "MatMul, BiasAdd, Selu",
    "`_FusedMatMul`; Selu alone",
    "dense",
    [_dense(_nn.selu)],
    {"_FusedMatMul": 1, "Selu": 1},
  ),
  Line(
    "MatMul, BiasAdd, Add, Relu",
    "not fused",
    "dense",
    [lambda x, w, b, y: _nn.relu(x @ w + b + y)],
    dict.fromkeys(("MatMul", "BiasAdd", "AddV2", "Relu"), 1),
  ),
  Line(
    "Conv2D, BiasAdd, and Relu, Relu6, Elu, LeakyRelu, Swish, HardSwish, or Add and Relu",
    "one `_FusedConv2D`",
    "conv",
    [
      *map(_biased, (_nn.relu, _nn.relu6, _nn.elu, _nn.leaky_relu, _nn.silu, _nn.hard_swish)),
      lambda x, w, b, s, y: _nn.relu(_conv(x, w) + b + y),
    ],
    {"_FusedConv2D": 7},
  ),
  Line(
    "Conv2D, BiasAdd, Tanh or Sigmoid",
    "`_FusedConv2D`; the activation alone",
    "conv",
    [*map(_biased, (jnp.tanh, _nn.sigmoid))],
    {"_FusedConv2D": 2, "Tanh": 1, "Sigmoid": 1},
  ),
  Line(
    "Conv2D, FusedBatchNorm in inference, and Relu, Relu6, Elu, LeakyRelu or Swish",
    "one `_FusedConv2D`",
    "conv",
    [*map(_normed, (_nn.relu, _nn.relu6, _nn.elu, _nn.leaky_relu, _nn.silu))],
    {"_FusedConv2D": 5},
  ),
  Line(
    "Conv2D, FusedBatchNorm, Add, Relu",
    "`_FusedConv2D` of the first two",
    "conv",
    [lambda x, w, b, s, y: _nn.relu(_conv(x, w) * s + b + y)],
    {"_FusedConv2D": 1, "AddV2": 1, "Relu": 1},
  ),
  Line(
    "Conv2D, FusedBatchNorm, Tanh: TensorFlow has no kernel for its own fusion, so the idiom "
    "multiplies the kernel",
    "Mul, `_FusedConv2D`, Tanh",
    "conv",
    [_normed(jnp.tanh)],
    {"Mul": 1, "_FusedConv2D": 1, "Tanh": 1},
  ),
  Line(
    "DepthwiseConv2d, BiasAdd, and Relu, Relu6, Elu or HardSwish",
    "one `_FusedDepthwiseConv2dNative`",
    "depthwise",
    [*map(_biased, (_nn.relu, _nn.relu6, _nn.elu, _nn.hard_swish))],
    {"_FusedDepthwiseConv2dNative": 4},
  ),
  Line(
    "DepthwiseConv2d with BatchNorm in inference, Relu6: the idiom multiplies the kernel",
    "Mul, `_FusedDepthwiseConv2dNative`",
    "depthwise",
    [_normed(_nn.relu6)],
    {"Mul": 1, "_FusedDepthwiseConv2dNative": 1},
  ),
  Line(
    "BatchMatMul, Mul by a number, Add of a mask f32[b,1,1,k] or f32[b,1,q,k]",
    "one `_MklFusedBatchMatMulV2`",
    "attention",
    [
      lambda x: _masked(x, np.arange(5) < np.array([4, 3])[:, None, None, None]),
      lambda x: _masked(x, np.tril(np.ones((5, 5), bool))),
    ],
    {"_MklFusedBatchMatMulV2": 2},
  ),
  Line(
    "BatchMatMul, Mul by a number",
    "not fused",
    "attention",
    [_masked],
    {"BatchMatMulV2": 1, "Mul": 1},
  ),
  Line("Mul of x and Sigmoid of x", "`_MklSwish`", "attention", [_nn.silu], {"_MklSwish": 1}),
]


def ran(line: Line) -> Mapping[str, int]:
  """The ops that run; each function has arrays of its own."""
  rng = np.random.default_rng(0)
  args = [
    [rng.uniform(0.5, 1, shape).astype(np.float32) for shape in _SHAPES[line.of]]
    for _ in line.functions
  ]
  converted = jax2tf.convert(
    lambda *args: [f(*of) for f, of in zip(line.functions, args, strict=True)],
    idioms="fused",
    with_gradient=False,
  )
  found = executed_op_types(
    tf.function(converted, autograph=False), *([*map(tf.constant, of)] for of in args)
  )
  return collections.Counter(op for op in found if op not in _SILENT)


def table() -> list[str]:
  """The lines of the page."""
  return [
    "| form | what runs |",
    "| --- | --- |",
    *(f"| {line.form} | {line.runs} |" for line in LINES),
  ]
