"""Decoders of models of libraries. Each function imports its library when it is called, and sets
the fields of a `Decoder` that follow from the model; `fields` are the others."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .decoder import Decoder, causal

# Of flax.linen.MultiHeadDotProductAttention and flax.nnx.MultiHeadAttention.
_FLAX_RULES = {"cache_index": "start"}


def by_token(step: Callable[..., Any]) -> Callable[..., Any]:
  """Turns a step for one token, as attention layers of Flax take it, into a step for any number.

  Args:
    step: as `Decoder.step`, for tokens i32[b,1].

  Returns:
    a step that runs it for one token after another, in a `jax.lax.scan`.

  Examples:
    >>> import jax.numpy as jnp
    >>> from jax2tf.converters import generation
    >>> def one(params, tokens, positions, cache, mask):
    ...   assert tokens.shape[1] == 1
    ...   return 1.0 * tokens[..., None], cache + 1
    >>> tokens = jnp.array([[5, 6, 7]])
    >>> logits, cache = generation.by_token(one)(None, tokens, tokens, 0, tokens[..., None] > 0)
    >>> logits.shape, int(cache)
    ((1, 3, 1), 3)
  """

  def scanned(
    params: Any, tokens: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array
  ) -> tuple[jax.Array, Any]:
    def one(cache: Any, columns: Any) -> tuple[Any, jax.Array]:
      token, position, seen = (column[:, None] for column in columns)
      logits, cache = _stepped(step, params, token, position, cache, seen)
      return cache, logits[:, 0]

    if tokens.shape[1] == 1:
      return _stepped(step, params, tokens, positions, cache, mask)
    columns = tuple(jnp.moveaxis(array, 1, 0) for array in (tokens, positions, mask))
    cache, logits = jax.lax.scan(one, cache, columns)
    return jnp.moveaxis(logits, 0, 1), cache

  return scanned


def from_equinox(model: Any, **fields: Any) -> Decoder:
  """Creates the decoder of an Equinox module that takes its cache as an argument.

  Args:
    model: called as `model(tokens, positions, cache)`, with `mask` if it takes one, as
      `Decoder.step` without `params`; it returns (logits, cache).
    fields: fields of the `Decoder`: `init_cache`, `context_length` and others.

  Returns:
    the decoder.

  Raises:
    ImportError: Equinox is not installed.
    ValueError: a field does not fit.
    TypeError: a field is not a function.
  """
  equinox = importlib.import_module("equinox")
  params, rest = equinox.partition(model, equinox.is_array)

  def step(
    params: Any, tokens: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array
  ) -> Any:
    return _masked(equinox.combine(params, rest), tokens, positions, cache, mask=mask)

  return Decoder(**{"step": step, "params": params, **fields})


def from_flax_linen(module: Any, params: Any, **fields: Any) -> Decoder:
  """Creates the decoder of a Flax linen module that keeps its cache in the collection "cache", as
  `flax.linen.MultiHeadDotProductAttention(decode=True)` does, one token at a time.

  Args:
    module: called as `module.apply(variables, tokens)` -> logits. Its `init` for tokens i32[b,n]
      makes a cache of length n.
    params: the collection "params".
    fields: fields of the `Decoder`: `context_length` and others. `rules` are added to the rule for
      the index in Flax' attention.

  Returns:
    the decoder.

  Raises:
    ValueError: a field does not fit.
    TypeError: a field is not a function.
  """

  def one(params: Any, tokens: jax.Array, positions: jax.Array, cache: Any) -> Any:
    del positions
    variables = {"params": params, "cache": cache}
    logits, changed = module.apply(variables, tokens, mutable=["cache"])
    return logits, changed["cache"]

  def init_cache(batch: int, length: int) -> Any:
    tokens = jnp.zeros((batch, length), jnp.int32)
    return _zeros(jax.eval_shape(lambda: module.init(jax.random.key(0), tokens)["cache"]))

  rules = {**_FLAX_RULES, **fields.pop("rules", {})}
  return Decoder(
    **{"step": by_token(one), "params": params, "init_cache": init_cache, "rules": rules, **fields}
  )


def from_flax_nnx(model: Any, **fields: Any) -> Decoder:
  """Creates the decoder of a Flax nnx module.

  Args:
    model: called as `model(tokens, positions, cache)`, with `mask` if it takes one, as
      `Decoder.step` without `params`. Without `init_cache` among the fields it is called as
      `model(tokens)` -> logits, one token at a time, and its cache is that of its
      `nnx.MultiHeadAttention(decode=True)`.
    fields: fields of the `Decoder`: `context_length` and others.

  Returns:
    the decoder.

  Raises:
    ImportError: Flax is not installed.
    ValueError: a field does not fit.
    TypeError: a field is not a function.
  """
  nnx = importlib.import_module("flax.nnx")
  if "init_cache" not in fields:
    return _with_own_cache(nnx, model, fields)
  return _of_nnx(model, _masked, fields)


def from_gemma(model: Any, params: Any, **fields: Any) -> Decoder:
  """Creates the decoder of a model of the package `gemma`, such as `gm.nn.Gemma3_270M()`.

  Args:
    model: the linen module.
    params: its parameters.
    fields: fields of the `Decoder`: `context_length` and others.

  Returns:
    the decoder.

  Raises:
    ValueError: a field does not fit.
    TypeError: a field is not a function.
  """

  def step(
    params: Any, tokens: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array
  ) -> Any:
    out = model.apply(
      {"params": params}, tokens, positions=positions, cache=cache, attention_mask=mask
    )
    return out.logits, out.cache

  def init_cache(batch: int, length: int) -> Any:
    return model.config.init_cache(batch_size=batch, dtype=model.dtype, cache_length=length)

  rules = {"end_index": "start", "positions": "slots"}
  return Decoder(
    **{"step": step, "params": params, "init_cache": init_cache, "rules": rules, **fields}
  )


def from_tunix(model: Any, *, dtype: Any = jnp.float32, **fields: Any) -> Decoder:
  """Creates the decoder of a model of the package `tunix`, such as its Gemma 3, Llama 3 and Qwen 3.

  The attention of Tunix 0.1.7 with a sliding window reads several tokens at once rightly from
  position 0 alone. So a decoder of such a model reads one token after another (`by_token`), and is
  compared with the model without a cache.

  Args:
    model: the nnx module.
    dtype: the dtype of the cache.
    fields: fields of the `Decoder`: `context_length` and others.

  Returns:
    the decoder.

  Raises:
    ImportError: Flax is not installed.
    ValueError: a field does not fit.
    TypeError: a field is not a function.
  """
  config = model.config

  def init_cache(batch: int, length: int) -> Any:
    shape = batch, length, config.num_kv_heads, config.head_dim
    return {
      f"layer_{layer}": {
        "k": jnp.zeros(shape, dtype),
        "v": jnp.zeros(shape, dtype),
        "end_index": jnp.zeros(batch, jnp.int32),
      }
      for layer in range(config.num_layers)
    }

  def call(model: Any, tokens: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array) -> Any:
    return model(tokens, positions, cache, mask)

  rules = {"end_index": "start"}
  decoder = _of_nnx(model, call, {"init_cache": init_cache, "rules": rules, **fields})
  if getattr(config, "sliding_window_size", None) is None:
    return decoder
  at_once = decoder.step

  def whole(params: Any, tokens: jax.Array) -> jax.Array:
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32), tokens.shape)
    logits, _ = at_once(params, tokens, positions, None, causal(positions, tokens.shape[1]))
    return logits

  return dataclasses.replace(decoder, step=by_token(at_once), reference=decoder.reference or whole)


def from_bonsai(
  model: Any, new_cache: Callable[[int, int], Any], *, context_length: int, **fields: Any
) -> Decoder:
  """Creates the decoder of a language model of the package `bonsai`, such as its Qwen 3.

  Args:
    model: the nnx module, called as `model(tokens, cache=cache, segment_ids=segment_ids)`.
    new_cache: (batch, length) -> the library's empty cache, as `init_cache(config, batch, length,
      0, dtype)` of its module returns it.
    context_length: the length of the cache, a power of two, to which the library rounds.
    fields: fields of the `Decoder`.

  Returns:
    the decoder.

  Raises:
    ImportError: Flax is not installed.
    ValueError: a field does not fit.
    TypeError: a field is not a function.
  """
  nnx = importlib.import_module("flax.nnx")
  graph, params, rest = nnx.split(model, nnx.Param, ...)
  cache_graph, template = nnx.split(new_cache(1, context_length))

  def step(params: Any, tokens: jax.Array, positions: jax.Array, cache: Any) -> Any:
    del positions
    called = nnx.merge(cache_graph, _filled(nnx, template, cache))
    merged = nnx.merge(graph, params, rest)
    logits = merged(tokens, cache=called, segment_ids=jnp.ones_like(tokens))
    return logits, nnx.to_pure_dict(nnx.state(called))

  def init_cache(batch: int, length: int) -> Any:
    return nnx.to_pure_dict(nnx.state(new_cache(batch, length)))

  return Decoder(
    **{
      "step": step,
      "params": params,
      "init_cache": init_cache,
      "context_length": context_length,
      "rules": {"cur_ind": "start", "start_ind": 0},
      **fields,
    }
  )


def _of_nnx(model: Any, call: Callable[..., Any], fields: Mapping[str, Any]) -> Decoder:
  """Creates the decoder of a model that is called as `call(model, tokens, positions, cache,
  mask=mask)`."""
  nnx = importlib.import_module("flax.nnx")
  graph, params, rest = nnx.split(model, nnx.Param, ...)

  def step(
    params: Any, tokens: jax.Array, positions: jax.Array, cache: Any, mask: jax.Array
  ) -> Any:
    return call(nnx.merge(graph, params, rest), tokens, positions, cache, mask=mask)

  return Decoder(**{"step": step, "params": params, **fields})


def _with_own_cache(nnx: Any, model: Any, fields: dict[str, Any]) -> Decoder:
  """Creates the decoder of a model whose attention layers hold the cache."""
  filled = nnx.clone(model)
  for _, module in nnx.iter_modules(filled):
    if isinstance(module, nnx.MultiHeadAttention):
      module.init_cache((1, 1, module.in_features))
  graph, params, template, rest = nnx.split(filled, nnx.Param, nnx.Cache, ...)

  def one(params: Any, tokens: jax.Array, positions: jax.Array, cache: Any) -> Any:
    del positions
    merged = nnx.merge(graph, params, _filled(nnx, template, cache), rest)
    logits = merged(tokens)
    return logits, nnx.to_pure_dict(nnx.state(merged, nnx.Cache))

  def init_cache(batch: int, length: int) -> Any:
    def sized(array: jax.Array) -> jax.Array:  # [1,1,heads,head], and the index
      shape = (batch, length, *array.shape[2:]) if array.ndim else ()
      return jnp.zeros(shape, array.dtype)

    return jax.tree.map(sized, nnx.to_pure_dict(template))

  rules = {**_FLAX_RULES, **fields.pop("rules", {})}
  return Decoder(
    **{"step": by_token(one), "params": params, "init_cache": init_cache, "rules": rules, **fields}
  )


def _filled(nnx: Any, template: Any, arrays: Any) -> Any:
  """A state like the template, of these arrays."""
  state = jax.tree.map(lambda array: array, template)
  nnx.replace_by_pure_dict(state, arrays)
  return state


def _zeros(shapes: Any) -> Any:
  return jax.tree.map(lambda array: jnp.zeros(array.shape, array.dtype), shapes)


def _stepped(step: Callable[..., Any], *arguments: Any) -> Any:
  """A call of a step, with the mask if it takes one."""
  *others, mask = arguments
  return _masked(step, *others, mask=mask)


def _masked(function: Callable[..., Any], *arguments: Any, mask: jax.Array) -> Any:
  options = {"mask": mask} if "mask" in inspect.signature(function).parameters else {}
  return function(*arguments, **options)
