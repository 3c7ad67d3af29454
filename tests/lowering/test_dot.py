"""Rows for `jax2tf/lowering/dot.py`."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from tests.support.case import Case, op_types, run


def of(*shape, dtype=np.float32):
  rng = np.random.default_rng(len(shape))
  values = rng.standard_normal(shape) * 4
  return (
    values + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else values
  ).astype(dtype)


# Sums of products of both signs: relative to the largest entry.
CLOSE = {"atol": 1e-6, "rtol": 1e-6}
EINSUMS = {
  "matmul": ("ij,jk->ik", (2, 3), (3, 4)),
  "transposed": ("ji,kj->ik", (3, 2), (4, 3)),
  "vector": ("j,j->", (3,), (3,)),
  "matvec": ("ij,j->i", (2, 3), (3,)),
  "vecmat": ("j,jk->k", (3,), (3, 4)),
  "outer": ("i,j->ij", (2,), (3,)),
  "batched": ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)),
  "batched_transposed": ("bij,bkj->bik", (5, 2, 3), (5, 4, 3)),
  "dense": ("bsd,de->bse", (2, 3, 4), (4, 5)),
  "heads": ("bsd,dhk->bhsk", (2, 3, 4), (4, 2, 5)),
  "attention": ("bshd,bthd->bhst", (2, 3, 4, 5), (2, 6, 4, 5)),
  "two_contractions": ("bshd,hde->bse", (2, 3, 4, 5), (4, 5, 6)),
  "swapped_contractions": ("ijk,kjl->il", (2, 3, 4), (4, 3, 5)),
  "batch_of_products": ("bi,bi->bi", (2, 3), (2, 3)),
  "batch_outer": ("bi,bj->bij", (2, 3), (2, 4)),
  "scaled": ("bij,b->bij", (2, 3, 4), (2,)),
  "one_query": ("bthd,bshd->bhts", (2, 1, 4, 5), (2, 6, 4, 5)),
  "one_group": ("btkgh,bskh->bktgs", (2, 3, 4, 1, 5), (2, 6, 4, 5)),
  "one_query_and_group": ("bktgs,bskh->btkgh", (2, 4, 1, 1, 6), (2, 6, 4, 5)),
  "one_row_behind": ("ji,jk->ik", (3, 1), (3, 4)),
  "one_contracted": ("abc,cbd->ad", (2, 3, 1), (1, 3, 4)),
  "one_of_each": ("ab,cb->ac", (1, 1), (1, 1)),
  "last_dimension_in_the_batch": ("xyb,byz->zxb", (2, 3, 4), (4, 3, 5)),
  "empty": ("ij,jk->ik", (2, 0), (0, 4)),
  "no_rows": ("ij,jk->ik", (0, 3), (3, 4)),
}
DTYPES = [
  np.float64,
  np.complex64,
  np.complex128,
  np.float16,
  ml_dtypes.bfloat16,
  np.int8,
  np.int16,
  np.int32,
  np.int64,
  np.uint8,
  np.uint16,
  np.uint32,
  np.uint64,
]


def poly_of(spec, *shapes):
  return [
    ", ".join("1" if size == 1 else f"d{name}" for name, size in zip(names, shape, strict=True))
    for names, shape in zip(spec.split("->")[0].split(","), shapes, strict=True)
  ]


def dot(x, y, **options):
  return lax.dot_general(x, y, (((1,), (0,)), ((), ())), **options)


def halves(*shape):
  """Multiples of a half of both signs: float8 has them, and every sum of products is exact in
  f16."""
  return (np.random.default_rng(len(shape)).integers(-7, 8, shape) / 2).astype(np.float32)


def products(x, y):
  """x @ y with every result that the operands do not convert to first, and those that they do."""
  floats = [np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2]
  later = [np.int8, np.int32, np.uint16, np.bool_]
  sooner = [(np.int8, np.float16), (np.int32, np.uint32), (np.float16, ml_dtypes.bfloat16)]
  mixed = (
    dot(x.astype(np.int8), y, preferred_element_type=np.int32),
    dot(x, y.astype(np.float16), preferred_element_type=np.int32),
  )
  return [
    *(dot(x.astype(t), y.astype(t), preferred_element_type=out) for t in floats for out in later),
    *(dot(x.astype(t), y.astype(t), preferred_element_type=out) for t, out in sooner),
    *mixed,
    dot(x, y, preferred_element_type=np.float16),
    dot(x.astype(np.complex64), y.astype(np.complex64) * (1 + 2j), preferred_element_type=np.int32),
    jnp.einsum("ij,jk->ik", x, y, preferred_element_type=np.int32),
    jnp.matmul(x[None], y[None], preferred_element_type=np.int32),
  ]


CASES = [
  *[
    Case(
      name,
      lambda x, y, spec=spec: jnp.einsum(spec, x, y),
      [of(*a), of(*b)],
      poly=None if 0 in (*a, *b) else poly_of(spec, a, b),
      **CLOSE,
    )
    for name, (spec, a, b) in EINSUMS.items()
  ],
  *[
    Case(
      f"dtype_{np.dtype(t).name}",
      dot,
      [of(3, 5, dtype=t), of(5, 4, dtype=t)],
      x64=np.dtype(t).itemsize >= 8,
      skip={"saved": "the same ops"},
      atol=1e-2 if np.dtype(t).itemsize == 2 else 1e-6,
    )
    for t in DTYPES
  ],
  Case("bool", dot, [of(3, 5) > 3, of(5, 4) > 3]),
  Case("int_wraps", dot, [np.full((2, 3), 2**30, np.int32), np.full((3, 2), 7, np.int32)]),
  Case("uint32_wraps", dot, [np.full((2, 3), 2**31 + 1, np.uint32), np.full((3, 2), 7, np.uint32)]),
  Case(
    "int8_to_int32",
    lambda x, y: dot(x, y, preferred_element_type=np.int32),
    [of(3, 5, dtype=np.int8) * 9, of(5, 4, dtype=np.int8) * 9],
  ),
  Case(
    "bf16_to_f32",
    lambda x, y: dot(x, y, preferred_element_type=np.float32),
    [of(3, 5, dtype=ml_dtypes.bfloat16), of(5, 4, dtype=ml_dtypes.bfloat16)],
    **CLOSE,
  ),
  Case(
    "precision_highest",
    lambda x, y: dot(x, y, precision=lax.Precision.HIGHEST),
    [of(3, 5), of(5, 4)],
    **CLOSE,
  ),
  Case(
    "algorithm_f32",
    lambda x, y: dot(x, y, precision=lax.DotAlgorithmPreset.F32_F32_F32),
    [of(3, 5), of(5, 4)],
    **CLOSE,
  ),
  Case(
    "nothing_and_bias",
    lambda x, y, b: x @ y + b,
    [of(2, 0), of(0, 4), of(4)],
    skip={"eager": "as in a graph"},
  ),
  Case(
    "nothing_and_bias_symbolic",
    lambda x, y, b: (x[:, 1:] @ y[1:] + b, x @ y[:, 4:] + b[4:]),
    [of(2, 1), of(1, 4), of(4)],
    poly=["a, k", "k, n", "n"],
    skip=dict.fromkeys(["eager", "graph", "xla", "saved"], "the row before"),
  ),
  Case(
    "nan_and_inf",
    dot,
    [np.array([[np.nan, 1], [np.inf, 2], [0, -np.inf]], np.float32), np.ones((2, 2), np.float32)],
  ),
  Case(
    "complex_transposed",
    lambda x, y: jnp.einsum("ji,kj->ik", x, y),
    [of(3, 2, dtype=np.complex64), of(4, 3, dtype=np.complex64)],
    **CLOSE,
  ),
  Case(
    "products_of_another_dtype",
    products,
    [halves(3, 5), halves(5, 4)],
    poly=["a, b", "b, c"],
    rtol=2e-3,
  ),
  Case(
    "large_times_small_as_f16",
    lambda x, y: dot(x, y, preferred_element_type=np.float16),
    [of(3, 5) * 1e5, of(5, 4) / 1e5],
    atol=1e-2,
  ),
  Case(
    "f16_rounds_before_i32",
    lambda x, y: dot(x, y, preferred_element_type=np.int32),
    [np.full((2, 2), 45.25, np.float16)] * 2,
    grad=False,
  ),
  Case(
    "algorithm_with_i32",
    lambda x, y: dot(
      x, y, precision=lax.DotAlgorithmPreset.F32_F32_F32, preferred_element_type=np.int32
    ),
    [halves(3, 5), halves(5, 4)],
    grad=False,
  ),
  Case(
    "ragged_dot_as_i32",
    lambda x, y, sizes: lax.ragged_dot(x, y, sizes, preferred_element_type=np.int32),
    [halves(6, 3), halves(2, 3, 4), np.array([2, 4], np.int32)],
    grad=False,
  ),
  Case("ragged_dot", lax.ragged_dot, [of(6, 3), of(2, 3, 4), np.array([2, 4], np.int32)], **CLOSE),
]
test_case, saved = run(CASES)


@pytest.mark.parametrize(
  ("name", "transposes"),
  [("one_query", 1), ("one_query_and_group", 1), ("one_row_behind", 0), ("attention", 2)],
)
def test_dimensions_of_size_one_move_without_a_transpose(name, transposes):
  spec, *shapes = EINSUMS[name]
  fun = jax2tf.convert(
    lambda x, y: jnp.einsum(spec, x, y),
    polymorphic_shapes=poly_of(spec, *shapes),
    with_gradient=False,
  )
  specs = [tf.TensorSpec([size if size == 1 else None for size in shape]) for shape in shapes]
  assert (
    op_types(tf.function(fun, autograph=False).get_concrete_function(*specs).graph).count(
      "Transpose"
    )
    == transposes
  )
