"""Computes in wider dtypes what TensorFlow has no kernels for.

TF 2.21: few ops have a CPU kernel for float8, hardly one has one for int4, and special functions
lack those for halves. On GPUs most ops compute int32 in host memory, so that arrays would be copied
there and back. A rule names the dtypes that its ops lack, and sees wider ones in their place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.extend.core import Primitive, jaxpr_as_fun

from jax2tf.dtypes import WIDER
from jax2tf.jaxprs import ClosedJaxpr, map_params
from jax2tf.traits import BODIES

# JAX's dtype -> the wider one.
_Wider = Mapping[Any, np.dtype]


def in_wider_dtypes(
  rule: Callable[..., Any],
  primitive: Primitive,
  lacks: Collection[tf.DType],
  lacks_on_gpu: Collection[tf.DType] = (),
) -> Callable[..., Any]:
  """The rule of a primitive, which sees none of the dtypes `lacks`, and no arrays of the dtypes
  `lacks_on_gpu` where the graph may run on a GPU.

  Its operands and the avals of its context have the next wider dtype that it does not lack; so have
  the operands and results of the jaxprs of loops and branches. What it returns is cast back.
  """
  if not (lacks or lacks_on_gpu):
    return rule
  wider_on_cpu, wider_on_gpu = _table(lacks), _table({*lacks, *lacks_on_gpu})

  @functools.wraps(rule)
  def wide_rule(ctx: Any, *operands: tf.Tensor, **params: Any) -> Any:
    avals = [aval for aval in (*ctx.avals_in, *ctx.avals_out) if _dtype(aval) in wider_on_gpu]
    if not avals:
      return rule(ctx, *operands, **params)
    # Scalars are counters and sizes, which TensorFlow needs in host memory.
    on_gpu = lacks_on_gpu and any(aval.shape for aval in avals) and ctx.destination.on_gpu
    wider = wider_on_gpu if on_gpu else wider_on_cpu
    if not any(_dtype(aval) in wider for aval in avals):
      return rule(ctx, *operands, **params)
    avals_in = [_wide(aval, wider) for aval in ctx.avals_in]
    avals_out = [_wide(aval, wider) for aval in ctx.avals_out]
    if primitive in BODIES:
      params = map_params(params, functools.partial(_with_wide_ends, wider=wider))
    wide_ctx = replace(ctx, avals_in=avals_in, avals_out=avals_out)
    results = rule(wide_ctx, *_cast(operands, ctx.avals_in, avals_in), **params)
    if primitive.multiple_results:
      return _cast(results, avals_out, ctx.avals_out)
    (result,) = _cast([results], avals_out, ctx.avals_out)
    return result

  return wide_rule


def _table(lacks: Collection[tf.DType]) -> _Wider:
  return {_in_jax(dtype): _in_jax(_next_wider(dtype, lacks)) for dtype in lacks}


def _next_wider(dtype: tf.DType, lacks: Collection[tf.DType]) -> tf.DType:
  while dtype in lacks:
    dtype = WIDER[dtype]
  return dtype


def _in_jax(dtype: tf.DType) -> np.dtype:
  return np.dtype(dtype.as_numpy_dtype)


def _dtype(aval: Any) -> Any:
  return getattr(aval, "dtype", None)  # a token has none


def _wide(aval: Any, wider: _Wider) -> Any:
  """The aval in a wider dtype; itself if its own is not among these."""
  dtype = wider.get(_dtype(aval))
  return aval if dtype is None else jax.ShapeDtypeStruct(aval.shape, dtype)


def _cast(
  tensors: Sequence[tf.Tensor], before: Sequence[Any], after: Sequence[Any]
) -> list[tf.Tensor]:
  """The tensors, cast where their avals before and after differ."""
  return [
    x if old is new else tf.cast(x, new.dtype)
    for x, old, new in zip(tensors, before, after, strict=True)
  ]


def _with_wide_ends(jaxpr: ClosedJaxpr, wider: _Wider) -> ClosedJaxpr:
  """The same function, of operands in wider dtypes and to results in wider dtypes."""

  def run(*operands: Any) -> list[Any]:
    own = [
      x.astype(aval.dtype) if aval.dtype in wider else x
      for x, aval in zip(operands, jaxpr.in_avals, strict=True)
    ]
    results = jaxpr_as_fun(jaxpr)(*own)
    return [y.astype(wider[y.dtype]) if y.dtype in wider else y for y in results]

  return jax.make_jaxpr(run)(*[_wide(aval, wider) for aval in jaxpr.in_avals])
