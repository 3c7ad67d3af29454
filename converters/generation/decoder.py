"""A language model as its user gives it: one step of a JAX function with a cache.

Every target exports the same `Decoder`. From the shapes of `init_cache` it knows which arrays hold
rows and where their batch and length axes are (`cache.py`). A target calls `on_rows`, whose cache
is a dict of the rows alone, with the leaves that follow from the positions computed inside.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jax2tf.messages import ArgumentError, ArgumentTypeError

from .cache import Layout, Rule, check_kept

_TOKENIZERS = (".json", ".model")


@dataclass(frozen=True, kw_only=True, eq=False)
class Decoder:
  """A decoder with a cache.

  `step(params, tokens, positions, cache)` takes tokens i32[b,s], their positions i32[b,s], and the
  cache; it returns logits f[b,s,V] and the new cache. It writes the rows of its tokens at their
  positions, and a token attends to the rows at positions up to its own. If it has a parameter named
  `mask`, it gets bool[b,s,C] by this keyword, which says which of the C rows every token may see.

  Attributes:
    step: the function, for any number of tokens.
    params: the pytree of its parameters.
    init_cache: (batch, length) -> the empty cache.
    context_length: the number of tokens that fit into a cache.
    decode: as `step`, for one token, if another function is better for that.
    embed: (params, tokens i32[b,s]) -> embeddings f[b,s,D], one token by itself. Then `step`,
      `decode` and no other function take the embeddings in place of the tokens, and LiteRT-LM reads
      the table from a section of its own.
    rules: {path of a cache leaf, or the end of its path: rule} for leaves that follow from the
      positions, such as the number of tokens so far: "start", the position of the first token of
      the call; "slots", 0, 1, 2 ... along the last axis; a number; or a function (positions i32[b,
      s], length) -> array. The rule is the value of the leaf before the call.
    reference: (params, tokens i32[b,s]) -> logits f[b,s,V], the model without a cache, with which
      files are compared. By default `step` with the whole text at once and an empty cache.
    stop_tokens: tokens that end an answer.
    start_token: the token that the engine adds before every text, if any.
    tokenizer: the file tokenizer.json of Hugging Face, or the .model of SentencePiece.
    chat_template: a Jinja template of `messages`, which turns a chat into a prompt.

  Raises:
    ValueError: a field does not fit the others (an `ArgumentError`). The check computes nothing.
    TypeError: `step` or `init_cache` is not a function.

  Examples:
    >>> import jax.numpy as jnp, numpy as np
    >>> from jax2tf.converters import generation
    >>> def step(params, tokens, positions, cache):
    ...   rows = params[tokens]
    ...   cache = cache.at[:, positions[0]].set(rows)
    ...   seen = jnp.arange(cache.shape[1]) <= positions[..., None]
    ...   mixed = jnp.einsum("bsc,bcd->bsd", seen.astype(rows.dtype), cache)
    ...   return mixed @ params.T, cache
    >>> decoder = generation.Decoder(
    ...   step=step,
    ...   params=np.eye(4, dtype=np.float32),
    ...   init_cache=lambda batch, length: jnp.zeros((batch, length, 4)),
    ...   context_length=8,
    ... )
    >>> decoder.vocabulary, [leaf.length_axis for leaf in decoder.cache.leaves]
    (4, [1])
  """

  step: Callable[..., Any]
  params: Any = field(repr=False)
  init_cache: Callable[[int, int], Any]
  context_length: int
  decode: Callable[..., Any] | None = None
  embed: Callable[[Any, jax.Array], jax.Array] | None = None
  rules: Mapping[str, Rule] = field(default_factory=dict)
  reference: Callable[..., Any] | None = None
  stop_tokens: Sequence[int] = ()
  start_token: int | None = None
  tokenizer: str | os.PathLike[str] | None = None
  chat_template: str | None = None

  def __post_init__(self) -> None:
    for name in ("step", "init_cache", *(["embed"] if self.embed is not None else [])):
      if not callable(getattr(self, name)):
        raise ArgumentTypeError(name, getattr(self, name), advice="give a function")
    if not isinstance(self.context_length, int) or self.context_length < 2:
      raise ArgumentError(
        "context_length",
        self.context_length,
        advice="give the number of rows of a cache, 2 or more",
      )
    self._check_tokens()
    self._check_tokenizer()
    self._check_functions()

  @functools.cached_property
  def cache(self) -> Layout:
    """The structure of the cache."""
    return Layout.of(self.init_cache, self.context_length, self.rules)

  @functools.cached_property
  def vocabulary(self) -> int:
    """The number of tokens: the size of the last axis of the logits."""
    return int(self._logits[0].shape[-1])

  @functools.cached_property
  def dtypes(self) -> frozenset[Any]:
    """The floating point dtypes of parameters, cache and logits, from which a comparison takes its
    tolerances."""
    arrays = [*jax.tree.leaves(self.params), *self.cache.leaves, *self._logits]
    dtypes = {jnp.dtype(array.dtype) for array in arrays if hasattr(array, "dtype")}
    return frozenset(dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating))

  @functools.cached_property
  def embedding(self) -> jax.ShapeDtypeStruct:
    """The shape and dtype of the embedding of one token, f[1,1,D].

    Raises:
      ValueError: there is no `embed`, or it fails or returns something else.
    """
    ids = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    try:
      found = jax.eval_shape(self._embedded, self.params, ids)
    except Exception as error:
      raise ArgumentError(
        "embed",
        problem=f"it fails for tokens i32[1,2]: {type(error).__name__}: {error}",
        advice="take (params, tokens) and return embeddings",
      ) from error
    shape: tuple[int, ...] = getattr(found, "shape", ())
    dtype: Any = getattr(found, "dtype", None)
    if len(shape) != 3 or shape[:2] != (1, 2) or not jnp.issubdtype(dtype, jnp.floating):
      raise ArgumentError(
        "embed",
        problem=f"for tokens i32[1,2] it returns {dtype}{list(shape)}",
        advice="return an embedding of each token, floats of shape [1,2,D]",
      )
    return jax.ShapeDtypeStruct((1, 1, shape[2]), dtype)

  def call(self, params: Any, tokens: jax.Array, positions: jax.Array, cache: Any) -> Any:
    """A step as the user wrote it, with `mask` if it takes one.

    Args:
      params: the parameters.
      tokens, positions: i32[b,s].
      cache: the whole cache.

    Returns:
      (logits f[b,s,V], cache).
    """
    function = self._function(tokens.shape[1])
    length = self.cache.length_of(self.cache.split(cache))
    return self._call(function, params, tokens, positions, cache, causal(positions, length))

  def on_rows(
    self,
    params: Any,
    tokens: jax.Array,
    positions: jax.Array,
    rows: Mapping[str, jax.Array],
    mask: jax.Array | None = None,
  ) -> tuple[jax.Array, dict[str, jax.Array]]:
    """A step as engines call it: the cache is the rows, and all else follows from the positions.

    Args:
      params: the parameters.
      tokens: i32[b,s], or what `embed` makes of them, f[b,s,D].
      positions: i32[b,s].
      rows: {path of a leaf: array}, of any length.
      mask: bool[b,s,C]; by default the causal mask.

    Returns:
      the logits, f[b,s,V], and the new rows by path.

    Raises:
      ValueError: the cache has carried leaves.
    """
    self.check_rows_only()
    function = self._function(tokens.shape[1])
    cache = self.cache.joined(rows, positions)
    mask = causal(positions, self.cache.length_of(rows)) if mask is None else mask
    logits, after = self._call(function, params, tokens, positions, cache, mask)
    return logits, self.cache.split(after)

  def takes_mask(self) -> bool:
    """Whether `step` takes `mask`; otherwise it hides the rows behind each position by itself."""
    return _takes_mask(self.step)

  def check_rows_only(self) -> None:
    """Checks that an engine can keep the cache.

    Raises:
      ValueError: a leaf is neither rows nor follows from the positions.
    """
    if carried := self.cache.of_kind("carried"):
      leaf = carried[0]
      raise ArgumentError(
        "init_cache",
        problem=f"cache leaf {leaf.path!r}, {leaf.dtype}{list(leaf.shape)}, has no axis of the "
        "cache's length, and an engine keeps rows only",
        advice="give it the length that init_cache is called with, or a rule, or save as a "
        "SavedModel, which keeps the whole cache",
      )

  @functools.cached_property
  def _logits(self) -> tuple[jax.ShapeDtypeStruct]:
    return (self._shapes_of(self.step, "step", 2)[0],)

  def _embedded(self, params: Any, tokens: jax.Array) -> jax.Array:
    return tokens if self.embed is None else self.embed(params, tokens)

  def _function(self, count: Any) -> Callable[..., Any]:
    return self.decode if self.decode is not None and count == 1 else self.step

  def _check_tokens(self) -> None:
    for token in self._special():
      if isinstance(token, bool) or not isinstance(token, int) or token < 0:
        raise ArgumentError(
          "stop_tokens", list(self.stop_tokens), advice="give token ids, integers from 0 on"
        )

  def _check_functions(self) -> None:
    """Checks the shapes of the cache and of all functions."""
    _ = self.cache
    _ = self.embedding if self.embed is not None else None
    for name, count in (("step", 2), ("decode", 1)):
      self._check_step(name, count)
    outside = [token for token in self._special() if not 0 <= token < self.vocabulary]
    if outside:
      name = "start_token" if outside[0] == self.start_token else "stop_tokens"
      raise ArgumentError(
        name,
        outside[0],
        problem=f"the logits have {self.vocabulary} tokens",
        advice=f"name one from 0 to {self.vocabulary - 1}",
      )

  def _special(self) -> list[int]:
    return [*self.stop_tokens, *([] if self.start_token is None else [self.start_token])]

  def _check_tokenizer(self) -> None:
    if self.tokenizer is None:
      return
    file = Path(self.tokenizer)
    if file.suffix not in _TOKENIZERS or not file.is_file():
      raise ArgumentError(
        "tokenizer",
        str(file),
        problem="there is no such file" if not file.is_file() else "it is of an unknown kind",
        advice="name tokenizer.json, or the .model of SentencePiece",
      )

  def _check_step(self, name: str, count: int) -> None:
    function = getattr(self, name)
    if function is None:
      return
    logits, cache, after = self._shapes_of(function, name, count)
    if len(logits.shape) != 3 or logits.shape[:2] != (1, count):
      raise ArgumentError(
        name,
        problem=f"for tokens i32[1,{count}] it returns logits of shape {list(logits.shape)}",
        advice=f"return logits of all tokens, of shape [1,{count},V], which is what engines read",
      )
    if not jnp.issubdtype(logits.dtype, jnp.floating):
      raise ArgumentError(name, problem=f"it returns logits of {logits.dtype}, not floats")
    check_kept(self.cache, cache, after, name)

  def _shapes_of(self, function: Callable[..., Any], name: str, count: int) -> tuple[Any, Any, Any]:
    """The shapes of (logits, cache, cache afterwards)."""
    ids = jax.ShapeDtypeStruct((1, count), jnp.int32)
    cache = jax.eval_shape(lambda: self.init_cache(1, self.context_length))

    def call(params: Any, tokens: jax.Array, positions: jax.Array, cache: Any) -> Any:
      mask = causal(positions, self.context_length)
      return self._call(function, params, tokens, positions, cache, mask)

    taken = "tokens" if self.embed is None else "embeddings"
    try:
      result = jax.eval_shape(call, self.params, ids, ids, cache)
    except ArgumentError:
      raise
    except Exception as error:
      raise ArgumentError(
        name,
        problem=f"it fails for tokens i32[1,{count}]: {type(error).__name__}: {error}",
        advice=f"take (params, {taken}, positions, cache) and return (logits, cache)",
      ) from error
    return result[0], cache, result[1]

  def _call(
    self,
    function: Callable[..., Any],
    params: Any,
    tokens: jax.Array,
    positions: jax.Array,
    cache: Any,
    mask: jax.Array,
  ) -> tuple[jax.Array, Any]:
    options = {"mask": mask} if _takes_mask(function) else {}
    taken = tokens if tokens.ndim == 3 else self._embedded(params, tokens)
    result = function(params, taken, positions, cache, **options)
    if not (isinstance(result, tuple) and len(result) == 2):
      raise ArgumentError(
        "step" if function is self.step else "decode",
        problem=f"it returns {type(result).__name__}",
        advice="return the pair (logits, cache)",
      )
    return result


def causal(positions: jax.Array, length: Any) -> jax.Array:
  """bool[b,s,length]: a token sees the rows at positions up to its own.

  Args:
    positions: i32[b,s].
    length: of the cache.
  """
  return jnp.arange(length, dtype=positions.dtype) <= positions[..., None]


def _takes_mask(function: Callable[..., Any]) -> bool:
  try:
    return "mask" in inspect.signature(function).parameters
  except ValueError:  # a builtin or an object without a signature
    return False
