"""A SavedModel whose signatures take the cache and return it, for `jax2tf serve` and others.

A session is a value that the caller holds, so one loaded model generates any number of texts at a
time. The manifest says how (`GenerationRecord`).
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax import tree_util

from jax2tf.messages import ArgumentError

from ..bundle import files, manifest, publish
from ..bundle.notation import Spec
from ..bundle.sessions import Session, pieces
from ..saved_model.builder import Model
from . import loops
from .conversations import Conversation, Generated, Runner
from .decoder import Decoder
from .target import Target

NAME = "saved_model"
_PIECE = 512


@dataclass(frozen=True, kw_only=True)
class SavedModel(Target):
  """The export as a version of a SavedModel, `path/<version>/`.

  Attributes:
    version: its number. By default, the next free one.
    piece: the largest number of tokens that a prompt is read by in one call. The logits of a whole
      piece are computed, so a large one takes memory.
    idioms: as for `saved_model.Model`.
  """

  name: ClassVar[str] = NAME
  example: ClassVar[str] = "model"
  folder: ClassVar[bool] = True
  whole_cache: ClassVar[bool] = True

  version: int | None = None
  piece: int = _PIECE
  idioms: str = "exact"

  def check(self, decoder: Decoder) -> None:
    if not isinstance(self.piece, int) or self.piece < 1:
      raise ArgumentError("piece", self.piece, advice="give a number of tokens, 1 or more")
    if decoder.chat_template is not None and decoder.tokenizer is None:
      raise ArgumentError(
        "chat_template",
        problem="it makes a text of messages, and there is no tokenizer that reads it",
        advice="name the tokenizer, or leave the template out",
      )

  def check_path(self, path: Path, overwrite: bool) -> None:
    publish.check_version(path, self.version, overwrite)

  def parent(self, path: Path) -> Path:
    return path

  def saved_in(self, path: Path) -> Path:
    return publish.saved_model_in(path)

  def publish(self, written: Path, path: Path, overwrite: bool) -> Path:
    return publish.publish(written, path, self.version, overwrite)

  def pieces(self, decoder: Decoder) -> Sequence[int]:
    return (min(self.piece, decoder.context_length),)

  def cut(self, decoder: Decoder) -> loops.Pieces:
    return lambda count: pieces(count, self.piece)

  def write(self, decoder: Decoder, place: Path) -> Path:
    names = _names(decoder)
    written = _model(decoder, names, self.idioms).save(place)
    tokenizer = ""
    if decoder.tokenizer is not None:
      source = Path(decoder.tokenizer)
      tokenizer = str(files.MANIFEST.with_name(f"tokenizer{source.suffix}"))
      shutil.copyfile(source, written / tokenizer)
    record = manifest.GenerationRecord(
      vocabulary=decoder.vocabulary,
      context_length=decoder.context_length,
      cache={names[path]: str(Spec.of(spec)) for path, spec in _specs(decoder).items()},
      piece=min(self.piece, decoder.context_length),
      stop_tokens=list(decoder.stop_tokens),
      start_token=decoder.start_token,
      tokenizer=tokenizer,
      chat_template=decoder.chat_template or "",
    )
    dataclasses.replace(manifest.read(written), generation=record).write(written)
    return written

  def runners(self, decoder: Decoder, written: Path) -> Mapping[str, Runner]:
    return {"TensorFlow": lambda conversations: _run(written, conversations)}

  def versions(self) -> dict[str, str]:
    return {"tensorflow": tf.__version__}


def _run(directory: Path, conversations: Sequence[Conversation]) -> list[Generated]:
  loaded = tf.saved_model.load(str(directory))
  record = manifest.read(directory).generation
  assert record is not None
  made = []
  for conversation in conversations:
    try:
      session = Session(record, loaded.signatures, tf.constant)
      made.append(loops.loop(session, conversation))
    except tf.errors.OpError as error:
      made.append(Generated((), problem=f"{type(error).__name__}: {error.message}"))
  return made


def _model(decoder: Decoder, names: Mapping[str, str], idioms: str) -> Model:
  """The three signatures."""
  layout = decoder.cache
  length = decoder.context_length
  cache = {names[path]: spec for path, spec in _specs(decoder).items()}

  def flat(tree: Any) -> dict[str, jax.Array]:
    leaves = zip(layout.leaves, tree_util.tree_leaves(tree), strict=True)
    return {names[leaf.path]: array for leaf, array in leaves}

  def init_cache(params: Any) -> Any:
    return jax.tree.map(jnp.asarray, flat(decoder.init_cache(1, length)))

  def step(params: Any, tokens: jax.Array, positions: jax.Array, *arrays: jax.Array) -> Any:
    given = dict(zip(cache, arrays, strict=True))
    leaves = [given[names[leaf.path]] for leaf in layout.leaves]
    tree = tree_util.tree_unflatten(layout.tree, leaves)
    logits, after = decoder.call(params, tokens, positions, tree)
    return {"logits": logits[:, -1].astype(jnp.float32), **flat(after)}

  model = Model(
    decoder.params, trainable=False, polymorphic_constraints=[f"s <= {length}"], idioms=idioms
  )
  model.add(init_cache, inputs={}, signatures="init_cache")
  for name, size in (("prefill", "s"), ("decode", "1")):
    tokens = {"tokens": f"i32[1,{size}]", "positions": f"i32[1,{size}]"}
    model.add(step, inputs={**tokens, **cache}, signatures=name)
  return model


def _specs(decoder: Decoder) -> dict[str, jax.ShapeDtypeStruct]:
  """{path of a leaf of the cache: shape and dtype} for one text."""
  return {
    leaf.path: jax.ShapeDtypeStruct(leaf.sized(1, decoder.context_length), leaf.dtype)
    for leaf in decoder.cache.leaves
  }


def _names(decoder: Decoder) -> dict[str, str]:
  """{path of a leaf of the cache: name of its input and output}."""
  names = {leaf.path: "cache_" + re.sub(r"\W", "_", leaf.path) for leaf in decoder.cache.leaves}
  if len({*names.values()}) < len(names):  # such as "a/b" and "a_b"
    names = {path: f"cache_{i}" for i, path in enumerate(names)}
  return names
