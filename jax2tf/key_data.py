"""Lowers primitives that move or compare typed PRNG keys: they move or compare the uint32 words of
each key."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
import tensorflow as tf
from jax.extend.core import Primitive

from jax2tf import _jax_compat
from jax2tf.context import RuleContext
from jax2tf.dtypes import is_key
from jax2tf.jaxprs import ClosedJaxpr, Eqn
from jax2tf.registry import lowers, takes_keys

# Keys are equal if all of their words are.
_OF_ALL_WORDS = {P.eq_p: jnp.all, P.ne_p: jnp.any}

# A function from the physical data of the operands to that of the results.
on_key_data_p = Primitive("on_key_data")
on_key_data_p.multiple_results = True
on_key_data_p.def_abstract_eval(lambda *_, jaxpr, avals_out: avals_out)


@lowers(on_key_data_p, on_keys=True)
def _on_key_data(
  ctx: RuleContext, *operands: tf.Tensor, jaxpr: ClosedJaxpr, avals_out: Sequence[Any]
) -> list[tf.Tensor]:
  """key<fry>[b] u32[b,2], f32[b] ... -> what the jaxpr gives."""
  return ctx.lower(jaxpr, *operands)


def on_words(eqn: Eqn) -> Eqn:
  """The equation; of a primitive that moves or compares keys, the same primitive for each uint32
  word of the keys."""
  avals_in, avals_out = ([v.aval for v in vs] for vs in (eqn.invars, eqn.outvars))
  if takes_keys(eqn.primitive) or not any(
    hasattr(a, "dtype") and is_key(a.dtype) for a in (*avals_in, *avals_out)
  ):
    return eqn

  def words(avals: Sequence[Any]) -> list[int | None]:
    return [-1 if is_key(aval.dtype) else None for aval in avals]

  bind = functools.partial(eqn.primitive.bind, **eqn.params)
  if eqn.primitive in _OF_ALL_WORDS:
    combine = _OF_ALL_WORDS[eqn.primitive]
    fun = lambda *data: combine(jax.vmap(bind, -1, -1)(*data), axis=-1)  # noqa: E731
  else:
    axes_out = words(avals_out) if eqn.primitive.multiple_results else words(avals_out)[0]
    fun = jax.vmap(bind, words(avals_in), axes_out)
  physical = [_jax_compat.physical_aval(aval) for aval in avals_in]
  with eqn.ctx.manager:
    jaxpr = jax.make_jaxpr(fun)(*[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in physical])
  return eqn.replace(
    primitive=on_key_data_p, params={"jaxpr": jaxpr, "avals_out": tuple(avals_out)}
  )
