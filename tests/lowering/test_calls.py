"""Rows for `jax2tf/lowering/calls.py` and `placement.py`."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import checkify

from tests.support.case import Case, run

X = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)


@jax.custom_jvp
def with_jvp(x):
  return jnp.sin(x)


@with_jvp.defjvp
def _with_jvp(primals, tangents):
  return with_jvp(*primals), 7 * tangents[0]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def with_vjp(scale, x):
  return x * scale


with_vjp.defvjp(lambda scale, x: (x * scale, x), lambda scale, x, g: (g * scale * x,))


@jax.custom_batching.custom_vmap
def with_vmap(x):
  return x + 1


@with_vmap.def_vmap
def _with_vmap(size, batched, x):
  return x + 2, True


@functools.partial(jax.lax.composite, name="my.composed", version=1)
def composed(x, y):
  return jnp.sin(x) * y, [x + y]


def checked(x):
  checkify.check(x.sum() > 1e6, "sum is {s}", s=x.sum())
  return x


CASES = [
  Case("jit", jax.jit(lambda x: jnp.sin(x) + 1), [X], poly="b, _"),
  Case(
    "jit_nested_and_repeated",
    lambda x: jax.jit(jnp.sin)(jax.jit(lambda y: jax.jit(jnp.sin)(y))(x)),
    [X],
    poly="b, _",
  ),
  Case("jit_donated", jax.jit(lambda x: x * 2, donate_argnums=0), [X]),
  Case("inlined", jax.jit(lambda x: x * 2, inline=True), [X]),
  Case("checkpoint", jax.checkpoint(lambda x: jnp.sin(jnp.sin(x))), [X], poly="b, _"),
  Case(
    "checkpoint_policy",
    jax.checkpoint(
      lambda x: jnp.sin(checkpoint_name(jnp.sin(x), "keep")),
      policy=jax.checkpoint_policies.save_only_these_names("keep"),
    ),
    [X],
  ),
  Case("custom_jvp", with_jvp, [X], poly="b, _"),
  Case("custom_vjp", lambda x: with_vjp(3.0, x), [X], poly="b, _"),
  Case("custom_vjp_optimize_remat", lambda x: jax.checkpoint(lambda x: with_vjp(3.0, x))(x), [X]),
  Case("custom_vmap", with_vmap, [X], grad=False),
  Case("custom_vmap_vmapped", jax.vmap(with_vmap), [X], grad=False),
  Case(
    "linear_call",
    lambda x: jax.custom_derivatives.linear_call(lambda r, x: x / r, lambda r, y: y / r, 2.0, x),
    [X],
  ),
  Case("composite", lambda x: composed(x, 2.0), [X], poly="b, _", grad=False),
  Case("composite_in_jit", jax.jit(lambda x: composed(x, x)[0] + 1), [X], grad=False),
  Case("stop_gradient", lambda x: jax.lax.stop_gradient(x) * x, [X]),
  Case("optimization_barrier", lambda x: jax.lax.optimization_barrier((x, x + 1)), [X]),
  Case("device_put", lambda x: jax.device_put(x) + 1, [X]),
  Case("named_scope", lambda x: jax.named_call(jnp.sin, name="weird <name>/x")(x), [X]),
  Case("closure_of_arrays", functools.partial(jnp.dot, b=np.ones((3, 3), np.float32)), [X]),
  Case("checkify", lambda x: checkify.checkify(checked)(x)[1], [X]),
  Case("grad_inside", jax.grad(lambda x: jnp.sum(jnp.sin(x) ** 2)), [X]),
  Case("hessian_inside", jax.hessian(lambda x: jnp.sum(jnp.sin(x) ** 3)), [X[0]]),
  # 1 - tanh(x)**2 cancels
  Case("jvp_inside", lambda x: jax.jvp(jnp.tanh, (x,), (x,)), [X], poly="b, _", rtol=1e-5),
]
test_case, saved = run(CASES)
