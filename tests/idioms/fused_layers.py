"""Layers of libraries that an idiom takes, and some that none takes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as linen
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax2tf import program
from jax2tf.idioms.fused import pooling, with_composite_ops

RNG = np.random.default_rng(0)
X, IMAGE, TOKENS = (
  RNG.standard_normal(shape, np.float32) for shape in ((4, 5, 8), (2, 6, 6, 3), (2, 5, 2, 4))
)
FEATURES_FIRST = IMAGE.transpose(0, 3, 1, 2)
KEY = jax.random.key(0)
PADDED = np.arange(5) < np.array([[5], [3]])  # which tokens count
MASK = PADDED[:, None, None, :]

# They have the names of JAX's primitives.
_POOLS = {pooling.max_pool_p: "max_pool", pooling.mean_pool_p: "mean_pool"}
# What the idiom of a layer becomes in the jaxpr: a primitive.
PRIMITIVES = {"gelu by erf": "gelu", "layer_norm": "normalize", "attention": "masked"}
LIBRARIES = {"jax.nn": jax.nn, "linen": linen, "nnx": nnx, "haiku": hk, "equinox": eqx.nn}
ACTIVATIONS = (
  "relu",
  "relu6",
  "leaky_relu",
  "elu",
  "selu",
  "silu",
  "hard_swish",
  "gelu",
  "softmax",
  "log_softmax",
)
# A function and its arguments.
Cell = tuple[Callable[..., Any], tuple[Any, ...]]


def of_haiku(module: Callable[..., Any], **options: Any) -> Callable[..., Any]:
  """A module of Haiku as a function, which makes its parameters itself."""

  def call(*args: Any) -> Any:
    pair = hk.without_apply_rng(
      hk.transform_with_state(lambda *args, **options: module()(*args, **options))
    )
    with jax.ensure_compile_time_eval():
      params, state = pair.init(KEY, *map(jnp.ones_like, args), **dict.fromkeys(options, True))
    return pair.apply(params, state, *args, **options)[0]

  return call


def of_linen(*modules: Any) -> Callable[..., Any]:
  def call(x: Any) -> Any:
    with jax.ensure_compile_time_eval():
      variables = linen.Sequential(modules).init(KEY, jnp.ones(x.shape))
    return linen.Sequential(modules).apply(variables, x)

  return call


def of_nnx(*make: Callable[[nnx.Rngs], Any]) -> Callable[..., Any]:
  def call(*args: Any) -> Any:
    with jax.ensure_compile_time_eval():
      layers = [layer(nnx.Rngs(0)) for layer in make]
    return nnx.Sequential(*layers)(*args)

  return call


def _haiku_conv_norm() -> Callable[..., Any]:
  layers = hk.Conv2D(4, 3), hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)
  return lambda x, is_training: layers[1](layers[0](x), is_training)


def _equinox_conv_norm(x: Any) -> Any:
  with jax.ensure_compile_time_eval():
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", mode="ema")
    conv = eqx.nn.Conv2d(3, 4, 3, key=KEY)
  return jax.vmap(lambda x: norm(conv(x), state, inference=True)[0], axis_name="batch")(x)


def _linen_attention(x: Any) -> Any:
  layer = linen.MultiHeadDotProductAttention(2)
  with jax.ensure_compile_time_eval():
    variables = layer.init(KEY, jnp.ones(x.shape))
  return layer.apply(variables, x, mask=linen.make_causal_mask(jnp.ones(x.shape[:2])))


def _nnx_attention(x: Any) -> Any:
  with jax.ensure_compile_time_eval():
    layer = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
  return layer(x, mask=nnx.make_causal_mask(jnp.ones(x.shape[:2])))


def _equinox_attention(x: Any) -> Any:
  with jax.ensure_compile_time_eval():
    layer = eqx.nn.MultiheadAttention(2, 8, key=KEY)
  return jax.vmap(lambda x: layer(x, x, x, jnp.tril(jnp.ones((5, 5), bool))))(x)


def _haiku_attention() -> Callable[..., Any]:
  layer = hk.MultiHeadAttention(2, 4, w_init=hk.initializers.Constant(0.1))
  return lambda x, mask: layer(x, x, x, mask)


def primitives(fun: Callable[..., Any], *args: Any) -> list[str]:
  """The primitives of a function with fused idioms, well-formed as JAX checks it."""
  jaxpr = with_composite_ops(jax.make_jaxpr(fun)(*args))
  with jax.enable_checks(True):
    program.program_of(jaxpr)
  return [_POOLS.get(eqn.primitive, eqn.primitive.name) for eqn in jaxpr.eqns]


LAYERS: dict[str, dict[str, Cell]] = {
  **{
    name: {
      library: (getattr(module, name), (X,))
      for library, module in LIBRARIES.items()
      if hasattr(module, name)
    }
    for name in ACTIVATIONS
  },
  "gelu by erf": {
    library: (functools.partial(LIBRARIES[library].gelu, approximate=False), (X,))
    for library in ("jax.nn", "linen", "nnx")
  },
  "relu in an MLP": {
    "linen": (of_linen(linen.Dense(8), linen.relu), (X,)),
    "nnx": (of_nnx(lambda rngs: nnx.Linear(8, 8, rngs=rngs), lambda rngs: nnx.relu), (X,)),
    "haiku": (of_haiku(lambda: hk.nets.MLP([8, 8])), (X,)),
    "equinox": (lambda x: jax.vmap(eqx.nn.MLP(8, 8, 8, 1, key=KEY))(x[0]), (X,)),
  },
  "layer_norm": {
    "jax.nn": (jax.nn.standardize, (X,)),
    "linen": (of_linen(linen.LayerNorm()), (X,)),
    "nnx": (of_nnx(lambda rngs: nnx.LayerNorm(8, rngs=rngs)), (X,)),
    "haiku": (of_haiku(lambda: hk.LayerNorm(-1, True, True)), (X,)),
    "equinox": (lambda x: jax.vmap(jax.vmap(eqx.nn.LayerNorm(8)))(x), (X,)),
  },
  "batch_norm": {
    "linen": (of_linen(linen.Conv(4, (3, 3)), linen.BatchNorm(use_running_average=True)), (IMAGE,)),
    "nnx": (
      of_nnx(
        lambda rngs: nnx.Conv(3, 4, (3, 3), rngs=rngs),
        lambda rngs: nnx.BatchNorm(4, use_running_average=True, rngs=rngs),
      ),
      (IMAGE,),
    ),
    "haiku": (of_haiku(_haiku_conv_norm, is_training=False), (IMAGE,)),
    "equinox": (_equinox_conv_norm, (FEATURES_FIRST,)),
  },
  "max_pool": {
    **{
      library: (lambda x, of=LIBRARIES[library]: of.max_pool(x, (2, 2), (2, 2)), (IMAGE,))
      for library in ("linen", "nnx")
    },
    "haiku": (lambda x: hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "SAME"), (IMAGE,)),
    "equinox": (jax.vmap(eqx.nn.MaxPool2d(2, 2)), (FEATURES_FIRST,)),
  },
  "mean_pool": {
    **{
      library: (lambda x, of=LIBRARIES[library]: of.avg_pool(x, (2, 2), (2, 2)), (IMAGE,))
      for library in ("linen", "nnx")
    },
    "haiku": (lambda x: hk.avg_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), (IMAGE,)),
    "equinox": (jax.vmap(eqx.nn.AvgPool2d(2, 2)), (FEATURES_FIRST,)),
  },
  "attention": {
    "jax.nn": (
      lambda x, mask: jax.nn.dot_product_attention(x, x, x, mask=mask, is_causal=True),
      (TOKENS, MASK),
    ),
    "linen": (_linen_attention, (X,)),
    "nnx": (_nnx_attention, (X,)),
    "haiku": (of_haiku(_haiku_attention), (X[:2], MASK)),
    "equinox": (_equinox_attention, (X,)),
  },
}
# {layer: the name of the idiom, a function, its arguments}
NOT_TAKEN: dict[str, tuple[str, Callable[..., Any], tuple[Any, ...]]] = {
  "`eqx.nn.PReLU`": (
    # the slope is a parameter, LeakyRelu's is a number
    "leaky_relu",
    jax.vmap(eqx.nn.PReLU()),
    (X,),
  ),
  '`hk.avg_pool` with "SAME", `linen.avg_pool(count_include_pad=False)`': (
    # divides by the number of elements that are in the window
    "mean_pool",
    lambda x: (
      hk.avg_pool(x, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
      linen.avg_pool(x, (3, 3), (2, 2), "SAME", count_include_pad=False),
    ),
    (IMAGE,),
  ),
  "`RMSNorm`, `GroupNorm`": (
    # TensorFlow has no op for them
    "layer_norm",
    lambda x: (
      of_linen(linen.RMSNorm())(x),
      of_linen(linen.GroupNorm(2))(x),
      jax.vmap(jax.vmap(eqx.nn.RMSNorm(8)))(x),
    ),
    (X,),
  ),
  "BatchNorm in training": (
    # its statistics are another use of the convolution's result
    "batch_norm",
    of_haiku(_haiku_conv_norm, is_training=True),
    (IMAGE,),
  ),
  "attention with a number above -1e30 at masked places, or a mask for each head": (
    # such a number does not take in every score; Grappler fuses no such mask
    "attention",
    lambda x: (
      jax.nn.softmax(jnp.where(MASK, jnp.einsum("bqhd,bkhd->bhqk", x, x) / 2, -1e9)),
      jax.nn.softmax(
        jnp.where(
          np.eye(5, dtype=bool) | np.array([[[True]], [[False]]]),
          jnp.einsum("bqhd,bkhd->bhqk", x, x) / 2,
          -1e30,
        )
      ),
    ),
    (TOKENS,),
  ),
  "float16, bfloat16, but for `max_pool`": (
    # TensorFlow's op rounds once less
    "mean_pool",
    lambda x: (linen.avg_pool(x, (2, 2), (2, 2)), jax.nn.gelu(x), jax.nn.softmax(x)),
    (IMAGE.astype(np.float16),),
  ),
}


def said(name: str) -> str:
  """The name of an idiom, and what is particular, as "`gelu` by erf"."""
  idiom, space, rest = name.partition(" ")
  return f"`{idiom}`{space}{rest}"
