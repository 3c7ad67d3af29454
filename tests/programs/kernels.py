"""Pallas kernels of the kinds in JAX's documentation, as they are called on an accelerator.

`PROGRAMS` has them by name; `interpret=True` lets JAX run them on CPU.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton

# JAX 0.12 has moved it.
reciprocal = getattr(pltpu, "reciprocal", None) or pl.reciprocal
_RNG = np.random.default_rng(0)
# `pltpu.emit_pipeline` asks for the kind of TPU while it is traced.
TPU = jax.sharding.AbstractMesh(
  (1,),
  ("core",),
  axis_types=(jax.sharding.AxisType.Auto,),
  abstract_device=jax.sharding.AbstractDevice(
    device_kind="TPU v5 lite", num_cores=1, platform="tpu"
  ),
)


def normal(*shape: int) -> np.ndarray:
  return _RNG.normal(size=shape).astype(np.float32)


@dataclass(frozen=True)
class Program:
  """A kernel with its call.

  Attributes:
    fun: `(*arrays, interpret)` -> results.
    args: the arrays.
    plain: the same without a kernel, where JAX cannot interpret it.
  """

  fun: Callable[..., Any]
  args: Sequence[Any]
  plain: Callable[..., Any] | None = None

  def expected(self) -> Any:
    """JAX's own results."""
    if self.plain is not None:
      return jax.jit(self.plain)(*self.args)
    return jax.jit(functools.partial(self.fun, interpret=True))(*self.args)


PROGRAMS: dict[str, Program] = {}


def program(*args: Any, plain: Callable[..., Any] | None = None) -> Callable[..., Any]:
  """Adds the program that the decorated function is."""

  def add(fun: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[fun.__name__] = Program(fun, args, plain)
    return fun

  return add


def like(x: Any, *shape: int) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(shape or x.shape, x.dtype)


def rows(*block: int | None) -> pl.BlockSpec:
  """Blocks of rows, one for each step."""
  return pl.BlockSpec(block, lambda i: (i, *[0] * (len(block) - 1)))


def whole(*shape: int) -> pl.BlockSpec:
  return pl.BlockSpec(shape, lambda *_: (0,) * len(shape))


PARALLEL = functools.partial(pltpu.CompilerParams, dimension_semantics=("parallel",))


@program(normal(64, 128), normal(128, 256))
def matmul(x, y, interpret=False):
  """Grid (i, j, k); an accumulator in scratch, initialised and stored under `pl.when`."""

  def kernel(x, y, o, total):
    @pl.when(pl.program_id(2) == 0)
    def _():
      total[...] = jnp.zeros_like(total)

    total[...] += jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
      o[...] = total[...].astype(o.dtype)

  return pl.pallas_call(
    kernel,
    grid=(x.shape[0] // 32, y.shape[1] // 128, x.shape[1] // 32),
    in_specs=[
      pl.BlockSpec((32, 32), lambda i, j, k: (i, k)),
      pl.BlockSpec((32, 128), lambda i, j, k: (k, j)),
    ],
    out_specs=pl.BlockSpec((32, 128), lambda i, j, k: (i, j)),
    out_shape=like(x, x.shape[0], y.shape[1]),
    scratch_shapes=[pltpu.VMEM((32, 128), jnp.float32)],
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
    interpret=interpret,
  )(x, y)


@program(_RNG.integers(-9, 9, (16, 64)).astype(np.int8), normal(64, 32).astype(jnp.bfloat16))
def quantized_matmul(x, w, interpret=False):
  """int8 activations and bf16 weights."""

  def kernel(x, w, o):
    o[...] = jnp.dot(x[...].astype(jnp.bfloat16), w[...]).astype(o.dtype)

  return pl.pallas_call(
    kernel,
    grid=(2,),
    in_specs=[rows(8, 64), whole(64, 32)],
    out_specs=rows(8, 32),
    out_shape=like(w, 16, 32),
    interpret=interpret,
  )(x, w)


@program(normal(16, 100))
def softmax(x, interpret=False):
  """Triton: a row for each program, masked loads and stores over the edge of the row."""

  def kernel(x, o):
    mask = jnp.arange(128) < 100
    row = pltriton.load(x.at[pl.ds(0, 128)], mask=mask, other=-jnp.inf)
    powers = jnp.exp(row - row.max())
    pltriton.store(o.at[pl.ds(0, 128)], powers / powers.sum(), mask=mask)

  return pl.pallas_call(
    kernel,
    grid=(x.shape[0],),
    in_specs=[rows(None, 128)],
    out_specs=rows(None, 128),
    out_shape=like(x),
    compiler_params=pltriton.CompilerParams(num_warps=4),
    interpret=interpret,
  )(x)


@program(normal(50, 128), normal(128), normal(128))
def layer_norm(x, weight, bias, interpret=False):
  """Blocks over the edge of the array; two results."""

  def kernel(x, weight, bias, o, mean):
    center = x[...].mean(-1, keepdims=True)
    variance = ((x[...] - center) ** 2).mean(-1, keepdims=True)
    o[...] = (x[...] - center) * lax.rsqrt(variance + 1e-5) * weight[...] + bias[...]
    mean[...] = center[:, 0]

  return pl.pallas_call(
    kernel,
    grid=(pl.cdiv(x.shape[0], 16),),
    in_specs=[rows(16, 128), whole(128), whole(128)],
    out_specs=[rows(16, 128), rows(16)],
    out_shape=[like(x), like(x, x.shape[0])],
    interpret=interpret,
  )(x, weight, bias)


@program(normal(2, 24, 128), normal(128))
def rms_norm(x, weight, interpret=False):
  """A kernel of rows under `jax.vmap`."""

  def kernel(x, weight, o):
    o[...] = x[...] * lax.rsqrt((x[...] ** 2).mean(-1, keepdims=True) + 1e-6) * weight[...]

  def one(x):
    return pl.pallas_call(
      kernel,
      grid=(3,),
      in_specs=[rows(8, 128), whole(128)],
      out_specs=rows(8, 128),
      out_shape=like(x),
      compiler_params=PARALLEL(),
      interpret=interpret,
    )(x, weight)

  return jax.vmap(one)(x)


@program(np.array([3, 1, 0, 2, 2, 3], np.int32), normal(4, 8, 128))
def gather(index, x, interpret=False):
  """Blocks chosen by prefetched scalars."""

  def kernel(index, x, o):
    o[...] = x[...] * index[pl.program_id(0)].astype(jnp.float32)

  return pl.pallas_call(
    kernel,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=index.shape,
      in_specs=[pl.BlockSpec((None, 8, 128), lambda i, index: (index[i], 0, 0))],
      out_specs=pl.BlockSpec((None, 8, 128), lambda i, index: (i, 0, 0)),
    ),
    out_shape=like(x, len(index), 8, 128),
    interpret=interpret,
  )(index, x)


# In the second step of a place JAX 0.10 has the first value of the operand, where an accelerator
# and JAX 0.12 have what the first step wrote.
@program(
  np.array([2, 0, 2], np.int32),
  normal(3, 8),
  normal(4, 8),
  plain=lambda index, update, x: x.at[index].add(update),
)
def scatter(index, update, x, interpret=False):
  """Results whose places are prefetched scalars, in the memory of an operand; two at one place."""

  def kernel(index, update, before, after):
    after[...] = before[...] + update[...]

  def place(i, index):
    return index[i], 0

  return pl.pallas_call(
    kernel,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=index.shape,
      in_specs=[pl.BlockSpec((1, 8), lambda i, _: (i, 0)), pl.BlockSpec((1, 8), place)],
      out_specs=pl.BlockSpec((1, 8), place),
    ),
    out_shape=like(x),
    input_output_aliases={2: 0},
    interpret=interpret,
  )(index, update, x)


@program(normal(32, 128), normal(32, 128))
def half_in_place(x, y, interpret=False):
  """A result in the memory of an operand, of which the kernel writes every second block."""

  def kernel(x, y, o):
    o[...] = x[...] + y[...]

  every_second = pl.BlockSpec((8, 128), lambda i: (2 * i, 0))
  return pl.pallas_call(
    kernel,
    grid=(2,),
    in_specs=[every_second] * 2,
    out_specs=every_second,
    out_shape=like(x),
    input_output_aliases={0: 0},
    interpret=interpret,
  )(x, y)


@program(normal(64, 128), np.array([5, 17], np.int32))
def dynamic_slices(x, start, interpret=False):
  """Loads and stores at computed places in a loop of the kernel; no grid."""

  def kernel(x, start, o):
    o[...] = jnp.zeros_like(o)

    def step(i, total):
      row = x[pl.ds(start[0] + i, 1), :]
      o[pl.ds(start[1] + 2 * i, 1), :] = row + total
      return total + row.sum()

    lax.fori_loop(0, 8, step, jnp.float32(0))

  return pl.pallas_call(kernel, out_shape=like(x), interpret=interpret)(x, start)


@program(normal(32, 256))
def row_sums(x, interpret=False):
  """A sum over a dimension of the grid, in the result."""

  def kernel(x, o):
    @pl.when(pl.program_id(1) == 0)
    def _():
      o[...] = jnp.zeros_like(o)

    o[...] += x[...].sum(-1, keepdims=True)

  return pl.pallas_call(
    kernel,
    grid=(x.shape[0] // 8, x.shape[1] // 128),
    in_specs=[pl.BlockSpec((8, 128), lambda i, k: (i, k))],
    out_specs=pl.BlockSpec((8, 1), lambda i, k: (i, 0)),
    out_shape=like(x, x.shape[0], 1),
    interpret=interpret,
  )(x)


@program(normal(16, 128))
def running_sum(x, interpret=False):
  """A carry in scratch over all steps: they must stay in order."""

  def kernel(x, o, carry):
    @pl.when(pl.program_id(0) == 0)
    def _():
      carry[...] = jnp.zeros_like(carry)

    carry[...] += x[...]
    o[...] = carry[...]

  return pl.pallas_call(
    kernel,
    grid=(x.shape[0],),
    in_specs=[rows(1, 128)],
    out_specs=rows(1, 128),
    out_shape=like(x),
    scratch_shapes=[pltpu.VMEM((1, 128), jnp.float32)],
    interpret=interpret,
  )(x)


@program(normal(20, 200))
def edges(x, interpret=False):
  """Blocks over the edges of both dimensions."""

  def kernel(x, o):
    o[...] = x[...] * 2 + pl.program_id(0)

  block = pl.BlockSpec((8, 128), lambda i, j: (i, j))
  return pl.pallas_call(
    kernel, grid=(3, 2), in_specs=[block], out_specs=block, out_shape=like(x), interpret=interpret
  )(x)


@program(normal(32, 128))
def halo(x, interpret=False):
  """Blocks that overlap: `pl.Element`, with a row more on both sides."""

  def kernel(x, o):
    o[...] = (x[0:8] + x[1:9] + x[2:10]) / 3

  return pl.pallas_call(
    kernel,
    grid=(x.shape[0] // 8,),
    in_specs=[pl.BlockSpec((pl.Element(10, (1, 1)), 128), lambda i: (i * 8, 0))],
    out_specs=rows(8, 128),
    out_shape=like(x),
    interpret=interpret,
  )(x)


@program(
  np.array([0, 3, 3, 10], np.int32),
  np.array([3, 0, 7, 6], np.int32),
  normal(16, 128),
  plain=lambda starts, sizes, x: x * 2,
)
def bounded_slices(starts, sizes, x, interpret=False):
  """Blocks that begin and end at prefetched rows; JAX does not interpret them."""

  def kernel(starts, sizes, x, o):
    o[...] = x[...] * 2

  def place(i, starts, sizes):
    return pl.ds(starts[i], sizes[i]), 0

  block = pl.BlockSpec((pl.BoundedSlice(8), 128), place)
  return pl.pallas_call(
    kernel,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=2, grid=starts.shape, in_specs=[block], out_specs=block
    ),
    out_shape=like(x),
    interpret=interpret,
  )(starts, sizes, x)


@program(normal(24, 128), np.int32(2))
def some_steps(x, n, interpret=False):
  """The bound of the grid is an operand; rows that no step writes stay undefined."""

  def kernel(x, o):
    o[...] = x[...] * pl.num_programs(0)

  call = pl.pallas_call(
    kernel,
    grid=(n,),
    in_specs=[rows(8, 128)],
    out_specs=rows(8, 128),
    out_shape=like(x),
    interpret=interpret,
  )
  return call(x)


@program(normal(64, 64), normal(3, 64, 128), np.array([32, 0, 32], np.int32))
def ragged_dot(x, w, sizes, interpret=False):
  """Rows in groups; the matrix of each tile is found by prefetched scalars."""

  def kernel(group, x, w, o):
    o[...] = jnp.dot(x[...], w[...], preferred_element_type=jnp.float32)

  tiles = x.shape[0] // 16
  ends = jnp.cumsum(sizes)
  group = jnp.searchsorted(ends, jnp.arange(tiles) * 16, side="right").astype(jnp.int32)
  return pl.pallas_call(
    kernel,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1,
      grid=(tiles,),
      in_specs=[
        pl.BlockSpec((16, 64), lambda i, group: (i, 0)),
        pl.BlockSpec((None, 64, 128), lambda i, group: (group[i], 0, 0)),
      ],
      out_specs=pl.BlockSpec((16, 128), lambda i, group: (i, 0)),
    ),
    out_shape=like(x, x.shape[0], 128),
    compiler_params=PARALLEL(),
    interpret=interpret,
  )(group, x, w)


@program(normal(64, 128), normal(64, 128))
def pipeline(x, y, interpret=False):
  """`pltpu.emit_pipeline` brings the blocks of arrays in HBM, by its own double buffers."""

  def kernel(x, y, o):
    def inner(x, y, o):
      o[...] = x[...] + y[...]

    block = rows(16, 128)
    pltpu.emit_pipeline(inner, grid=(4,), in_specs=[block, block], out_specs=block)(x, y, o)

  in_hbm = pl.BlockSpec(memory_space=pl.ANY)
  with jax.sharding.use_abstract_mesh(TPU):
    return pl.pallas_call(
      kernel, in_specs=[in_hbm] * 2, out_specs=in_hbm, out_shape=like(x), interpret=interpret
    )(x, y)


@program(normal(32, 128), plain=lambda x: x * 2)
def copies(x, interpret=False):
  """A DMA with a semaphore into memory of `pl.run_scoped`, which asks for its step; JAX does not
  interpret it."""

  def kernel(x, o, semaphore):
    def inner(buffer):
      block = x.at[pl.ds(pl.program_id(0) * 8, 8)]
      copy = pltpu.make_async_copy(block, buffer, semaphore)
      copy.start()
      copy.wait()
      o[...] = buffer[...] * 2

    pl.run_scoped(inner, pltpu.VMEM((8, 128), jnp.float32))

  return pl.pallas_call(
    kernel,
    grid=(4,),
    in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
    out_specs=rows(8, 128),
    out_shape=like(x),
    scratch_shapes=[pltpu.SemaphoreType.DMA],
    interpret=interpret,
  )(x)


@program(normal(8, 128), np.zeros((8, 1), np.float32))
def atomics(x, zero, interpret=False):
  """Triton's `atomic_add` to a result in the memory of an operand."""

  def kernel(x, zero, o):
    pltriton.atomic_add(o, (pl.ds(0, 8), pl.ds(0, 1)), x[...].sum(1, keepdims=True))

  return pl.pallas_call(
    kernel,
    grid=(4,),
    in_specs=[pl.BlockSpec((8, 32), lambda i: (0, i)), whole(8, 1)],
    out_specs=whole(8, 1),
    out_shape=like(zero),
    input_output_aliases={1: 0},
    interpret=interpret,
  )(x, zero)


@program(np.uint32(7), normal(16, 128))
def dropout(seed, x, interpret=False):
  """Bits from a hash of the place and the seed, which the kernel computes."""

  def kernel(seed, x, o):
    row = pl.program_id(0) * 8 + lax.broadcasted_iota(jnp.uint32, x.shape, 0)
    column = lax.broadcasted_iota(jnp.uint32, x.shape, 1)
    bits = (row * np.uint32(128) + column) ^ seed[0]
    for multiplier in (0x7FEB352D, 0x846CA68B):
      bits = (bits ^ (bits >> np.uint32(16))) * np.uint32(multiplier)
    o[...] = jnp.where(bits >> np.uint32(31) == 1, x[...] * 2, 0.0)

  return pl.pallas_call(
    kernel,
    grid=(2,),
    in_specs=[whole(1), rows(8, 128)],
    out_specs=rows(8, 128),
    out_shape=like(x),
    interpret=interpret,
  )(seed[None], x)


def dense_attention(q, k, v, causal=True):
  scores = jnp.einsum("htd,hsd->hts", q, k) / math.sqrt(q.shape[-1])
  if causal:
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[1:], bool)), scores, -1e30)
  return jnp.einsum("hts,hsd->htd", jax.nn.softmax(scores), v)


def _attention_forward(q, k, v, interpret):
  """(attention, log of the sums of exponentials), by an online softmax over blocks of keys."""
  heads, length, size = q.shape
  scale = 1 / math.sqrt(size)

  def kernel(q, k, v, o, lse, top, total, sums):
    i, j = pl.program_id(1), pl.program_id(2)

    @pl.when(j == 0)
    def _():
      top[...] = jnp.full_like(top, -1e30)
      total[...] = jnp.zeros_like(total)
      sums[...] = jnp.zeros_like(sums)

    @pl.when(j <= i)
    def _():
      scores = jnp.dot(q[...], k[...].T, preferred_element_type=jnp.float32) * scale
      query = i * 32 + lax.broadcasted_iota(jnp.int32, scores.shape, 0)
      key = j * 32 + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
      scores = jnp.where(query >= key, scores, -1e30)
      new = jnp.maximum(top[...], scores.max(-1, keepdims=True))
      powers, shrinks = jnp.exp(scores - new), jnp.exp(top[...] - new)
      total[...] = total[...] * shrinks + powers.sum(-1, keepdims=True)
      products = jnp.dot(powers.astype(v.dtype), v[...], preferred_element_type=jnp.float32)
      sums[...] = sums[...] * shrinks + products
      top[...] = new

    @pl.when(j == pl.num_programs(2) - 1)
    def _():
      o[...] = (sums[...] / total[...]).astype(o.dtype)
      lse[...] = top[...] + jnp.log(total[...])

  queries = pl.BlockSpec((None, 32, size), lambda h, i, j: (h, i, 0))
  keys = pl.BlockSpec((None, 32, size), lambda h, i, j: (h, j, 0))
  return pl.pallas_call(
    kernel,
    grid=(heads, length // 32, length // 32),
    in_specs=[queries, keys, keys],
    out_specs=[queries, pl.BlockSpec((None, 32, 1), lambda h, i, j: (h, i, 0))],
    out_shape=[like(q), jax.ShapeDtypeStruct((heads, length, 1), jnp.float32)],
    scratch_shapes=[
      pltpu.VMEM((32, 1), jnp.float32),
      pltpu.VMEM((32, 1), jnp.float32),
      pltpu.VMEM((32, size), jnp.float32),
    ],
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
    interpret=interpret,
  )(q, k, v)


def _attention_backward(q, k, v, do, lse, delta, interpret):
  scale = 1 / math.sqrt(q.shape[-1])

  def kernel(q, k, v, do, lse, delta, dq, dk, dv):
    n = q.shape[0]
    scores = jnp.dot(q[...], k[...].T, preferred_element_type=jnp.float32) * scale
    query, key = (lax.broadcasted_iota(jnp.int32, (n, n), d) for d in (0, 1))
    powers = jnp.exp(jnp.where(query >= key, scores, -1e30) - lse[...])
    dv[...] = jnp.dot(powers.T, do[...])
    of_scores = powers * (jnp.dot(do[...], v[...].T) - delta[...]) * scale
    dq[...] = jnp.dot(of_scores, k[...])
    dk[...] = jnp.dot(of_scores.T, q[...])

  head = pl.BlockSpec((None, *q.shape[1:]), lambda h: (h, 0, 0))
  column = pl.BlockSpec((None, q.shape[1], 1), lambda h: (h, 0, 0))
  return pl.pallas_call(
    kernel,
    grid=q.shape[:1],
    in_specs=[head] * 4 + [column] * 2,
    out_specs=[head] * 3,
    out_shape=[like(q)] * 3,
    interpret=interpret,
  )(q, k, v, do, lse, delta)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _flash_attention(q, k, v, interpret):
  return _attention_forward(q, k, v, interpret)[0]


def _forward(q, k, v, interpret):
  o, lse = _attention_forward(q, k, v, interpret)
  return o, (q, k, v, o, lse)


def _backward(interpret, residuals, do):
  q, k, v, o, lse = residuals
  delta = (do * o).sum(-1, keepdims=True)
  return tuple(_attention_backward(q, k, v, do, lse, delta, interpret))


_flash_attention.defvjp(_forward, _backward)


@program(normal(2, 64, 32), normal(2, 64, 32), normal(2, 64, 32), plain=dense_attention)
def flash_attention(q, k, v, interpret=False):
  """Causal, with a backward kernel as `jax.custom_vjp`; JAX does not interpret it."""
  return _flash_attention(q, k, v, interpret)


@program(normal(4, 32), normal(2, 64, 32), normal(2, 64, 32), np.array([40], np.int32))
def decode_attention(q, k, v, length, interpret=False):
  """One query for each of four heads, two of which share keys; only `length` keys are there."""

  def kernel(length, q, k, v, o):
    scores = (k[...] * q[...]).sum(-1)
    scores = jnp.where(jnp.arange(64) < length[0], scores, -1e30)
    powers = jnp.exp(scores - scores.max())
    o[...] = ((powers / powers.sum())[:, None] * v[...]).sum(0, keepdims=True)

  one = pl.BlockSpec((1, 32), lambda h, _: (h, 0))
  shared = pl.BlockSpec((None, 64, 32), lambda h, _: (h // 2, 0, 0))
  return pl.pallas_call(
    kernel,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1, grid=(4,), in_specs=[one, shared, shared], out_specs=one
    ),
    out_shape=like(q),
    interpret=interpret,
  )(length, q, k, v)


@program(
  np.array([1, 0, 1, 1], np.int32),
  normal(4, 8),
  plain=lambda flags, x: x * jnp.cumsum(flags).astype(x.dtype)[:, None],
)
def counter(flags, x, interpret=False):
  """A prefetched scalar that the kernel counts in; JAX's interpreter forgets it after each step."""

  def kernel(count, flags, x, o):
    count[0] = count[0] + flags[pl.program_id(0)]
    o[...] = x[...] * count[0].astype(jnp.float32)

  return pl.pallas_call(
    kernel,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=2,
      grid=(4,),
      in_specs=[pl.BlockSpec((1, 8), lambda i, *_: (i, 0))],
      out_specs=pl.BlockSpec((1, 8), lambda i, *_: (i, 0)),
    ),
    out_shape=like(x),
    interpret=interpret,
  )(jnp.zeros(1, jnp.int32), flags, x)


@program(np.array([[2.0], [300.0], [0.01], [7.0]], np.float32) * np.ones((1, 8), np.float32))
def square_root(x, interpret=False):
  """A `while_loop` whose number of steps differs from block to block."""

  def kernel(x, o):
    def goes_on(state):
      y, last = state
      return jnp.abs(y - last).max() > 1e-6 * y.max()

    def newton(state):
      y, _ = state
      return (y + x[...] / y) / 2, y

    y, _ = lax.while_loop(goes_on, newton, (x[...], jnp.zeros_like(x)))
    o[...] = y

  return pl.pallas_call(
    kernel,
    grid=x.shape[:1],
    in_specs=[rows(1, 8)],
    out_specs=rows(1, 8),
    out_shape=like(x),
    interpret=interpret,
  )(x)


@program(normal(16, 128))
def rolled(x, interpret=False):
  """What TPU kernels have of their own: rolls, reciprocals and hints."""

  def kernel(x, o):
    shift = pl.multiple_of(pl.program_id(0) * 8, 8)
    y = pltpu.roll(x[...], shift + 3, 1)
    o[...] = pltpu.roll(y, 1, 1, stride=2, stride_axis=0) * reciprocal(x[...] + 10)

  return pl.pallas_call(
    kernel,
    grid=(2,),
    in_specs=[rows(8, 128)],
    out_specs=rows(8, 128),
    out_shape=like(x),
    interpret=interpret,
  )(x)


@program(normal(16, 128), plain=lambda x: x)
def on_cores(x, interpret=False):
  """`pl.kernel`: each core of a mesh copies its rows."""
  del interpret  # JAX runs it on an accelerator alone

  def kernel(x, o):
    mine = pl.ds(lax.axis_index("core") * 8, 8)
    pltpu.sync_copy(x.at[mine], o.at[mine])

  return pl.kernel(kernel, out_type=like(x), mesh=_cores())(x)


@program(normal(16, 128), plain=lambda x: x + 1)
def on_cores_with_state(x, interpret=False):
  """`pl.run_state` around `pl.core_map`: the form before `pl.kernel`, in use still."""
  del interpret  # as above

  def copy(refs):
    of, to = refs

    @pl.core_map(_cores())
    def _():
      mine = pl.ds(lax.axis_index("core") * 8, 8)
      pltpu.sync_copy(of.at[mine], to.at[mine])

    to[...] += 1

  with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    return pl.run_state(copy)((x, jnp.zeros_like(x)))[1]


def _cores():
  # JAX 0.10 has the function only, which JAX 0.12 deprecates.
  mesh_of = getattr(pltpu, "TensorCoreMesh", None) or pltpu.create_tensorcore_mesh
  return mesh_of(axis_name="core", num_cores=2)
