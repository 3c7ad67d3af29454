"""`jax2tf/lowering/_kernels.py`: no rewrite of Grappler leaves an op without a kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from tensorflow.python.framework import kernels

import jax2tf
from jax2tf.lowering._kernels import NO_KERNEL
from tests.support.case import DTYPES, NARROW, Case, as_numpy, run, unmerged

# Grappler's rewrites that create an op and ask for no kernel, of arithmetic_optimizer.cc and
# constant_folding.cc: stage -> (the ops that it takes, the ops that it makes). The others name
# their dtypes or look for a kernel: UnaryOpsComposition, ReplaceMulWithBroadcastByTile,
# ReplaceDivisionOfOnesByReciprocal, ReorderCastLikeAndValuePreserving, and those of remapper.cc.
REWRITES = {
  "AddOpsRewrite": (("AddV2",), ("AddN", "AddV2")),
  "SimplifyAggregation": (("AddV2",), ("Mul",)),
  "HoistCommonFactorOutOfAggregation": (("AddV2", "Mul"), ("AddV2", "Mul")),
  "RemoveNegation of a sum": (("AddV2", "Neg"), ("Sub",)),
  "RemoveNegation of a difference": (("Sub", "Neg"), ("AddV2",)),
  "RemoveLogicalNot": (("Less",), ("GreaterEqual", "LessEqual", "Greater")),
  "RemoveLogicalNot of Equal": (("Equal",), ("NotEqual",)),
  "ReplaceMulWithSquare": (("Mul",), ("Square",)),
  "FuseSquaredDiff": (("Square", "Sub"), ("SquaredDifference",)),
  "SqrtDivToRsqrtMul": (("RealDiv", "Sqrt"), ("Mul", "Rsqrt")),
  "LogSoftmax": (("Log", "Softmax"), ("LogSoftmax",)),
  "ConvertLog1p": (("Log", "AddV2"), ("Log1p",)),
  "ConvertExpm1": (("Sub", "Exp"), ("Expm1",)),
  "ConvertPow": (("Pow",), ("Square", "Mul", "Sqrt", "Rsqrt", "Reciprocal")),
  "OptimizeMaxOrMinOfMonotonic": (("Max", "Neg"), ("Min",)),
  "OptimizeMaxOrMinOfMonotonic of ArgMax": (("ArgMax", "Neg"), ("ArgMin",)),
  "ReplacePackWithTileReshape": (("Pack",), ("Tile", "Reshape")),
  "RemoveStackSliceSameAxis": (("Pack", "StridedSlice"), ("ExpandDims", "Identity")),
  "FoldConjugateIntoTranspose": (("Conj", "Transpose"), ("ConjugateTranspose",)),
  "RemoveIdentityTranspose": (("ConjugateTranspose",), ("Conj",)),
  "ReplaceSubtractionFromZeroByNegation": (("Sub",), ("Neg",)),
  "ReplaceOperationWithSnapshot": (("Mul",), ("Snapshot",)),
  "ReplaceOperationWithBroadcastTo": (("AddV2",), ("BroadcastTo",)),
  "ReduceDivToReciprocalMul": (("RealDiv",), ("Reciprocal", "Mul")),
  "SimplifySelect": (("SelectV2",), ("BroadcastTo", "Identity")),
  "SimplifyPack": (("Pack",), ("ExpandDims",)),
  "SimplifyReduction": (("Sum",), ("Reshape", "Identity")),
}
# What the rules never emit: powers of integers, and ConjugateTranspose of real numbers.
NEVER = {"ConvertPow", "RemoveIdentityTranspose"}
ALL = [tf.as_dtype(name) for name in (*DTYPES, "int32", "float32", *NARROW)]
# These are registered for all dtypes, and some then raise.
CALLS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
  "Tile": lambda x: tf.tile(x, [2]),
  "Reshape": lambda x: tf.reshape(x, [1, 2]),
  "Identity": tf.identity,
  "ExpandDims": lambda x: tf.expand_dims(x, 0),
}


@functools.cache
def dtypes_of(op: str) -> frozenset[tf.DType]:
  """The dtypes for which an op has a CPU kernel."""
  if op in CALLS:
    return frozenset(dtype for dtype in ALL if _runs(CALLS[op], dtype))
  registered = kernels.get_registered_kernels_for_op(op).kernel
  constraints = [c for k in registered if k.device_type == "CPU" for c in k.constraint]
  types = {kind for c in constraints if c.name == "T" for kind in c.allowed_values.list.type}
  assert types, f"{op} has kernels for all dtypes: it needs a line in CALLS"
  return frozenset(dtype for dtype in ALL if dtype.as_datatype_enum in types)


def _runs(call: Callable[[tf.Tensor], tf.Tensor], dtype: tf.DType) -> bool:
  try:
    call(tf.constant(np.zeros(2, dtype.as_numpy_dtype), dtype))
  except (tf.errors.OpError, TypeError):
    return False
  return True


def test_the_dtypes_without_a_kernel():
  """NO_KERNEL has all ops that Grappler makes of ops with a kernel where the new one has none."""
  found: dict[str, set[tf.DType]] = {}
  for stage, (taken, made) in REWRITES.items():
    if stage not in NEVER:
      both = frozenset.intersection(*map(dtypes_of, taken))
      for op in made:
        found.setdefault(op, set()).update(both - dtypes_of(op))
  lacking = {op: dtypes for op, dtypes in found.items() if dtypes}
  assert lacking == {op: {*dtypes} for op, dtypes in NO_KERNEL.items()}


# Forms that become the ops of NO_KERNEL, also after ops in between have disappeared.
FORMS = {
  "square of a difference": lambda x, y: (x - y) ** 2,
  "product of two equal differences": lambda x, y: (x - y) * (x - y),
  "product of equal differences": lambda x, y: lax.mul(x - y, lax.sub(x, y)),
  "square of a sum with a negative": lambda x, y: jnp.square(x + -y),
  "square of a difference from a constant": lambda x, y: jnp.square(1 - x) + jnp.square(x - 1) + y,
  "square of a reshaped difference": lambda x, y: (x - y).reshape(4, 1) ** 2,
  "square of a difference of another function": lambda x, y: jnp.square(jax.jit(lax.sub)(x, y)),
  "square of a product with 1": lambda x, y: jnp.square((x - y) * jnp.ones_like(x)),
  "square of a sum with 0": lambda x, y: jnp.square((x - y) + jnp.zeros_like(x)),
  "square of a selected difference": lambda x, y: jnp.where(jnp.ones(4, bool), x - y, x) ** 2,
  "cube of a difference": lambda x, y: (x - y) ** 3,
  "sum of squares of differences": lambda x, y: jnp.sum((x[:, None] - y) ** 2, 1, dtype=x.dtype),
  "squares in a loop": lambda x, y: lax.fori_loop(0, 3, lambda i, z: (z - y) ** 2, x),
  "square of a negative": lambda x, y: (-x) ** 2 + y,
  "difference from computed zeros": lambda x, y: x * jnp.zeros_like(x) - y,
  "difference from zeros": lambda x, y: (jnp.zeros_like(x) - y) + x,
  "equal values in a stack": lambda x, y: jnp.stack([x + y, y + x]),
  "a value twice in a stack": lambda x, y: jnp.stack([x, x]) + y,
  "a value at each step of a loop": lambda x, y: lax.scan(lambda z, _: (z, z), x, None, 2)[1] + y,
}
OF_INTEGERS = {
  "square of a remainder": lambda x, y: lax.rem(x, y) ** 2,
  "square of a modulus": lambda x, y: (x % y) ** 2,
  "square of a quotient": lambda x, y: (-(-x // y)) ** 2,
  "square of a number of zeros": lambda x, y: lax.clz(x) ** 2 + y,
}


@pytest.mark.parametrize("dtype", [*DTYPES[1:], "int32", *NARROW])
def test_the_forms_that_grappler_merges(dtype):
  """One graph of all forms, each of its own arguments: Grappler merges no op with two consumers."""
  forms = FORMS | (OF_INTEGERS if "int" in dtype else {})
  # A sum of float8 rounds in any order.
  rtol = 0 if "int" in dtype else 0.3 if dtype in NARROW else 2e-2

  def function(xs, ys):
    return {name: form(x, y) for (name, form), x, y in zip(forms.items(), xs, ys, strict=True)}

  with jax.enable_x64(dtype in ("int64", "uint64", "float64", "complex128")):
    x, y = (np.asarray(jnp.asarray(z).astype(dtype)) for z in ([5, 6, 7, 3], [2, 1, 3, 4]))
    xs, ys = [x] * len(forms), [y] * len(forms)
    expected = jax.jit(function)(xs, ys)
    converted = tf.function(jax2tf.convert(function, with_gradient=False), autograph=False)
    found = converted(*jax.tree.map(tf.constant, (xs, ys)))
  for name in forms:
    actual, wanted = (as_numpy(of[name]).astype(np.complex128) for of in (found, expected))
    np.testing.assert_allclose(actual, wanted, rtol=rtol, err_msg=name)


MERGED = {
  "difference": lambda x, y: x - y,
  "negative": lambda x, y: x + -y,
  "stack": lambda x, y: tf.stack([x, x]),
  "difference in a branch": lambda x, y: tf.cond(y[0] > 0, lambda: x - y, lambda: x),
}


@pytest.mark.parametrize("form", MERGED.values(), ids=MERGED)
def test_unmerged_finds_what_the_rules_must_not_emit(form):
  one = tf.constant([1])
  spec = tf.TensorSpec([2], tf.uint16 if form(one, one).shape.rank == 2 else tf.int8)
  assert unmerged(tf.function(form, autograph=False).get_concrete_function(spec, spec).graph)


KEY = jax.random.key_data(jax.random.key(3))
X = np.arange(1, 8, dtype=np.float32)
INTEGERS = np.arange(1, 8, dtype=np.int32)


def randint(words, *args, **options):
  return jax.random.randint(jax.random.wrap_key_data(words), *args, **options)


def choice(words, x):
  return jax.random.choice(jax.random.wrap_key_data(words), x, (4,))


def crop(words, x):
  return lax.dynamic_slice(x, (randint(words, (), 0, x.shape[0] - 1),), (2,))


def below(words, high):
  return randint(words, (4, 2), 0, high)


def below_u8(words, high):
  return randint(words, (4, 2), 0, high, dtype=jnp.uint8)


def between(words, low, high):
  return randint(words, (4, 2), low, high)


CASES = [
  Case("randint below a size", lambda k, x: below(k, x.shape[0]), [KEY, INTEGERS], [None, "b"]),
  Case("randint below a value", below, [KEY, np.int32(7)]),
  Case("randint between arrays", between, [KEY, np.array([0, 1]), np.array([1, 20])]),
  Case("randint of u8", below_u8, [KEY, np.uint8(7)]),
  Case("choice", choice, [KEY, X], [None, "b"], grad=False),
  Case("random crop", crop, [KEY, INTEGERS], [None, "b + 1"]),
]
test_case, saved = run(CASES)
