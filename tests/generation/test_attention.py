"""Attention as libraries spell it, in one spelling for engines."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.extend.core import jaxpr_as_fun

from jax2tf import normalise
from jax2tf.converters.generation import attention

HEADS, KV_HEADS, SIZE = 4, 2, 8
Function = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], jax.Array]


def _groups_apart(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
  q = q.reshape(*q.shape[:2], KV_HEADS, -1, SIZE)
  scores = jnp.einsum("bskgh,btkh->bkgst", q, k) / 3
  shares = jax.nn.softmax(jnp.where(mask[:, None, None], scores, -1e30))
  return jnp.einsum("bkgst,btkh->bskgh", shares, v).reshape(*q.shape[:2], HEADS, SIZE)


def _heads_behind_rows(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
  """As Gemma: scores [b,s,heads,t]."""
  q = q.reshape(*q.shape[:2], KV_HEADS, -1, SIZE) * 0.25
  scores = jnp.einsum("BTKGH,BSKH->BTKGS", q, k).reshape(*q.shape[:2], HEADS, -1)
  shares = jax.nn.softmax(jnp.where(mask[:, :, None], scores, -2e38))
  shares = shares.reshape(*q.shape[:2], KV_HEADS, -1, k.shape[1])
  return jnp.einsum("BTKGS,BSKH->BTKGH", shares, v).reshape(*q.shape[:2], HEADS, SIZE)


def _of_jax_nn(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
  return jax.nn.dot_product_attention(q, k, v, mask=mask[:, None])


def _repeated(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
  """With a mask that is added."""
  k, v = (jnp.repeat(x, HEADS // KV_HEADS, axis=2) for x in (k, v))
  bias = jnp.where(mask, 0.0, -1e30)[:, None]
  return jnp.einsum(
    "bnst,btnh->bsnh", jax.nn.softmax(jnp.einsum("bsnh,btnh->bnst", q, k) + bias), v
  )


def _capped(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
  k, v = (jnp.repeat(x, HEADS // KV_HEADS, axis=2) for x in (k, v))
  scores = jnp.tanh(jnp.einsum("bsnh,btnh->bnst", q, k))
  return jnp.einsum("bnst,btnh->bsnh", jax.nn.softmax(jnp.where(mask[:, None], scores, -1e30)), v)


def _mask_by_head(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
  bias = jnp.arange(HEADS, dtype=jnp.float32)[:, None, None] * mask[:, None]
  k, v = (jnp.repeat(x, HEADS // KV_HEADS, axis=2) for x in (k, v))
  scores = jnp.einsum("bsnh,btnh->bnst", q, k)
  return jnp.einsum("bnst,btnh->bsnh", jax.nn.softmax(scores + bias), v)


@functools.cache
def _specs() -> list[jax.ShapeDtypeStruct]:
  b, s, t = export.symbolic_shape("b, s, t")
  of_keys = (b, t, KV_HEADS, SIZE)
  floats = [jax.ShapeDtypeStruct(x, jnp.float32) for x in ((b, s, HEADS, SIZE), of_keys, of_keys)]
  return [*floats, jax.ShapeDtypeStruct((b, s, t), jnp.bool_)]


def _traced(fun: Function) -> Any:
  return normalise.normalised(jax.make_jaxpr(fun)(*_specs()))


@pytest.mark.parametrize("fun", [_groups_apart, _heads_behind_rows, _of_jax_nn, _repeated])
def test_each_spelling_has_one_form_and_the_same_values(fun: Function) -> None:
  jaxpr = attention.rewritten(_traced(fun))
  softmaxes = [eqn for eqn in jaxpr.eqns if eqn.primitive.name == "exp"]
  assert softmaxes[-1].invars[0].aval.shape[1] == HEADS  # [b,heads,s,t]

  rng = np.random.default_rng(0)
  shapes = (2, 3, HEADS, SIZE), (2, 5, KV_HEADS, SIZE), (2, 5, KV_HEADS, SIZE)
  arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
  mask = np.broadcast_to(np.tril(np.ones((3, 5), bool), 2), (2, 3, 5))
  exported = export.export(jax.jit(jaxpr_as_fun(jaxpr)))(*_specs())
  (found,) = exported.call(*arrays, mask)
  np.testing.assert_allclose(found, fun(*arrays, mask), atol=1e-5)  # float32, in another order

  (found_mask,) = export.export(jax.jit(jaxpr_as_fun(attention.masks(_traced(fun)))))(
    *_specs()
  ).call(*arrays, mask)
  assert found_mask.shape == (2, 1, 3, 5)
  seen = found_mask if found_mask.dtype == bool else found_mask > attention.HIDES
  assert np.array_equal(seen[:, 0], mask)


def test_an_attention_without_a_mask_hides_nothing() -> None:
  def fun(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    k, v = (jnp.repeat(x, HEADS // KV_HEADS, axis=2) for x in (k, v))
    return jnp.einsum("bnst,btnh->bsnh", jax.nn.softmax(jnp.einsum("bsnh,btnh->bnst", q, k)), v)

  (mask,) = attention.masks(_traced(fun)).outvars
  assert (mask.aval.dtype, mask.aval.shape[1]) == (np.bool_, 1)


@pytest.mark.parametrize("fun", [_capped, _mask_by_head])
def test_what_engines_compute_otherwise_stays_as_it_is(fun: Function) -> None:
  jaxpr = _traced(fun)
  assert attention.rewritten(jaxpr).eqns == jaxpr.eqns
