"""LiteRT-LM as a target: a .litertlm bundle, run in LiteRT with one buffer for each cache and in
the engine itself."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from jax2tf.messages import ArgumentError

from .. import tflite
from ..bundle import children
from . import litert_lm_bundle as bundle
from . import litert_lm_signatures as signatures
from . import report
from .conversations import Conversation, Generated, Runner
from .decoder import Decoder
from .target import Target

_PREFILL_LENGTHS = (16, 128, 1024)  # by default those up to half of the cache
# By how much more than logits the entries of a cache may differ, for parameters of 8 or 16 bits: of
# 26 layers in bfloat16, those of the last ones differ by 0.2.
_OF_CALLS = 5
_ONE_BUFFER = "LiteRT with one buffer for the cache"
_ADVICE = (
  "LiteRT-LM has one buffer for a cache before and after a call, so a step must not use the "
  "cache that it got after it has written rows; use the written one"
)
_PACKAGES = ("ai-edge-litert", "litert-lm-api", "litert-lm-builder", "tensorflow")


@dataclass(frozen=True, kw_only=True)
class LiteRTLM(Target):
  """An export to LiteRT-LM.

  Attributes:
    prefill_lengths: how many tokens of a prompt a call reads; one signature for each. By default
      those of 16, 128 and 1024 that are at most half of the context length.
    quantization: that of the weights, as for `tflite.save_model`.
    least_cosine: as for `tflite.save_model`.
  """

  name: ClassVar[str] = "litert-lm"
  example: ClassVar[str] = "model.litertlm"

  prefill_lengths: Sequence[int] | None = None
  quantization: str | None = None
  least_cosine: float | None = None

  def check(self, decoder: Decoder) -> None:
    for module in ("ai_edge_litert", "litert_lm", "litert_lm_builder"):
      bundle.extra(module)
    decoder.check_rows_only()
    _ = decoder.cache.layers
    if decoder.tokenizer is None:
      raise ArgumentError(
        "tokenizer",
        None,
        problem="LiteRT-LM takes text, so a bundle has a tokenizer",
        advice="give the Decoder a tokenizer.json, or the .model of SentencePiece",
      )
    if not decoder.stop_tokens:
      raise ArgumentError(
        "stop_tokens", [], problem="LiteRT-LM needs a token that ends an answer", advice="name one"
      )
    sizes = self.pieces(decoder)
    if not sizes or any(not 1 < size <= decoder.context_length for size in sizes):
      raise ArgumentError(
        "prefill_lengths",
        list(sizes),
        problem=f"the cache has {decoder.context_length} rows",
        advice="give numbers of tokens from 2 to that",
      )

  def pieces(self, decoder: Decoder) -> Sequence[int]:
    if self.prefill_lengths is not None:
      return sorted(set(self.prefill_lengths))
    half = decoder.context_length // 2
    return [size for size in _PREFILL_LENGTHS if size <= half] or [max(half, 2)]

  def rounds(self) -> bool:
    return self.quantization is not None

  def versions(self) -> dict[str, str]:
    return {package: importlib.metadata.version(package) for package in _PACKAGES}

  def write(self, decoder: Decoder, place: Path) -> Path:
    place.mkdir()
    coarsest = report.tolerance_of([*decoder.dtypes])
    is_coarse = coarsest > report.TOLERANCES["float32"] and self.quantization is None
    tolerance = _OF_CALLS * coarsest if is_coarse else None
    model = place / "model.tflite"
    # Single calls; the loop below is the comparison that counts.
    tflite.save_model(
      signatures.model_of(decoder, self.pieces(decoder)),
      model,
      samples=1,
      examples=signatures.examples(decoder),
      rtol=tolerance,
      atol=tolerance,
      quantization=self.quantization,
      least_cosine=self.least_cosine,
    )
    if embedder := _embedder(model, decoder):
      # The engine makes one embedding at a time.
      tflite.save_model(
        signatures.embedder_of(decoder),
        embedder,
        samples=1,
        examples={"token_ids": signatures.tokens_of(decoder)},
      )
    written = place / "model.litertlm"
    bundle.write(
      written,
      model,
      Path(str(decoder.tokenizer)),
      embedder=embedder,
      context_length=decoder.context_length,
      stop_tokens=decoder.stop_tokens,
      start_token=decoder.start_token,
      chat_template=decoder.chat_template,
    )
    return written

  def runners(self, decoder: Decoder, written: Path) -> Mapping[str, Runner]:
    model = written.with_name("model.tflite")
    if not model.exists():
      bundle.copy_models(written, model, _embedder(model, decoder))
    run = functools.partial(in_litert, model, decoder, self.pieces(decoder))
    return {
      _ONE_BUFFER: functools.partial(_same_with_two, run) if self.rounds() else run,
      "LiteRT-LM": functools.partial(in_engine, model, decoder),
    }

  def continued(self, path: Path, prompt: str, new: int) -> str:
    bundle.extra("litert_lm")
    with tempfile.TemporaryDirectory(prefix="jax2tf-") as cache:
      request = {"model": str(path), "cache": cache, "prompt": prompt, "new": new}
      ended = children.script(Path(__file__).with_name("litert_lm_child.py"), request)
    if ended.response is None:
      raise RuntimeError(f"LiteRT-LM ended its process: {ended.reason}")
    if ended.response["problem"]:
      raise RuntimeError(ended.response["problem"])
    return str(ended.response["text"])

  def advice(self, engine: str) -> str:
    return _ADVICE if engine == _ONE_BUFFER else ""


def _embedder(model: Path, decoder: Decoder) -> Path | None:
  """The file of the embedder, beside the model, if the decoder has one."""
  return None if decoder.embed is None else model.with_name("embedder.tflite")


def _same_with_two(
  run: Callable[..., list[Generated]], conversations: Sequence[Conversation]
) -> list[Generated]:
  """The answers with one buffer, of a file whose tokens need not be JAX's. Other tokens than those
  with two buffers are a problem."""
  with_one, with_two = run(conversations), run(conversations, one_buffer=False)
  return [
    one
    if one.turns == two.turns
    else dataclasses.replace(one, problem=f"with two buffers it generates other tokens; {_ADVICE}")
    for one, two in zip(with_one, with_two, strict=True)
  ]


def in_litert(
  model: Path,
  decoder: Decoder,
  sizes: Sequence[int],
  conversations: Sequence[Conversation],
  *,
  one_buffer: bool = True,
) -> list[Generated]:
  """Runs a .tflite file as the engine does, without the engine.

  Args:
    model: the file.
    decoder: what it was made of.
    sizes: of its prefill signatures.
    conversations: to run.
    one_buffer: use one buffer for a cache before and after a call.
  """
  embedder = _embedder(model, decoder)
  request: dict[str, Any] = {
    "model": str(model),
    "embedder": str(embedder) if embedder else "",
    "sizes": list(sizes),
    "length": decoder.context_length,
    "vocabulary": decoder.vocabulary,
    "one_buffer": one_buffer,
  }
  with tempfile.TemporaryDirectory(prefix="weights-", dir=model.parent) as folder:
    request["weights"] = str(Path(folder, "packed"))
    return _answers("litert_loop_child.py", request, conversations)


def in_engine(
  model: Path, decoder: Decoder, conversations: Sequence[Conversation]
) -> list[Generated]:
  """Runs a .tflite file in LiteRT-LM, in a bundle whose tokenizer has one character for each token.

  Args:
    model: the file, in a folder where the bundle is written.
    decoder: what it was made of.
    conversations: to run.
  """
  folder = model.with_name("check")
  folder.mkdir()
  tokenizer, checked = folder / "tokenizer.json", folder / "check.litertlm"
  bundle.one_for_one(tokenizer, decoder.vocabulary)
  bundle.write(
    checked,
    model,
    tokenizer,
    context_length=decoder.context_length,
    stop_tokens=[decoder.vocabulary],  # which no logit stands for
    embedder=_embedder(model, decoder),
  )
  request = {"model": str(checked), "cache": str(folder), "first": bundle.FIRST}
  return _answers("litert_lm_child.py", request, conversations)


def _answers(
  script: str, request: Mapping[str, Any], conversations: Sequence[Conversation]
) -> list[Generated]:
  asked = [[(list(turn.prompt), turn.new) for turn in one] for one in conversations]
  ended = children.script(
    Path(__file__).with_name(script),
    {**request, "conversations": asked},
    patience=children.PATIENCE,
  )
  if ended.response is None:
    why = "it did not answer in time" if ended.late else f"its process ended: {ended.reason}"
    return [Generated((), problem=why)] * len(conversations)
  return [
    Generated(
      tuple(map(tuple, answer["turns"])),
      tuple(answer["logits"]) if "logits" in answer else None,
      answer.get("problem", ""),
    )
    for answer in ended.response
  ]
