"""A folder for ONNX Runtime GenAI: the model, its weights, genai_config.json and the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

from jax2tf.messages import ArgumentError

from .. import extras
from ..export.source import ExportError, Source
from ..onnx.exporter import IDIOMS
from ..onnx.opsets import OLDEST
from ..onnx.runtime import WITHOUT_COPIES
from ..onnx.target import WITH_COPIES, Onnx, opened
from ..saved_model.builder import Model
from ..verify.plan import Comparison
from . import block_weights, engine_rows, tokenizers
from .conversations import Conversation, Generated, Runner
from .decoder import Decoder
from .target import Target

NAME = "onnxruntime-genai"
ENGINE = "ONNX Runtime GenAI"
SHARED, GROWING = "shared", "growing"
# {value of `quantization`: bits of a weight}
_BITS = {"int4": 4, "int8": 8}
_LEVELS = (1, 2, 3, 4)  # of MatMulNBits
_MODEL, _CONFIG = "model.onnx", "genai_config.json"
# In bytes, of the parameters: larger ones stay outside of the graph while it is translated.
_OUTSIDE = 10**7
_SIZES = {"s": [1, 5], "p": [1, 7]}  # of the symbolic dimensions; nothing is compared at them
# Options of a session in a check. A failure is raised, so it is not logged.
_QUIET = {"log_severity_level": 4}


@dataclass(frozen=True, kw_only=True)
class OnnxRuntimeGenAI(Target):
  """The export to ONNX Runtime GenAI, for one sequence at a time.

  Attributes:
    cache: "shared", one array of `context_length` rows for each leaf, which the engine passes in
      and out without a copy; or "growing", arrays of the rows so far, for which `step` has to work
      with a cache of any length. A growing cache is copied for each token, and needs no more memory
      than its rows.
    quantization: "int4" or "int8" for the constant matrices of products in blocks of 32 weights
      with a scale each; embeddings stay as they are.
    accuracy_level: of quantized products in ONNX Runtime: 4 rounds the other operand to int8, which
      is fastest; 1 computes in float32.
  """

  name: ClassVar[str] = NAME
  example: ClassVar[str] = "model"
  folder: ClassVar[bool] = True

  cache: str = SHARED
  quantization: str | None = None
  accuracy_level: int = 4

  def check(self, decoder: Decoder) -> None:
    if self.cache not in (SHARED, GROWING):
      raise ArgumentError("cache", self.cache, advice=f"give {SHARED!r} or {GROWING!r}")
    if self.quantization not in (None, *_BITS):
      known = " or ".join(map(repr, _BITS))
      raise ArgumentError(
        "quantization", self.quantization, advice=f"give {known}, or leave it out"
      )
    if self.accuracy_level not in _LEVELS:
      raise ArgumentError(
        "accuracy_level", self.accuracy_level, advice=f"give one of {', '.join(map(str, _LEVELS))}"
      )
    for module in ("onnxruntime_genai", "onnxruntime", "tf2onnx"):
      extra(module)
    decoder.check_rows_only()
    self._check_rows(decoder)
    self._check_length(decoder)
    tokenizers.check(decoder, ENGINE, NAME)

  def _check_rows(self, decoder: Decoder) -> None:
    """GenAI 0.18 allocates all keys and values of one dtype, with the `num_key_value_heads` and
    `head_size` of genai_config.json."""
    rows = engine_rows.of_decoder(decoder, by_heads=False)
    _ = decoder.cache.layers
    kinds = {(one.heads, one.size, np.dtype(one.leaf.dtype)): path for path, one in rows.items()}
    if len(kinds) > 1:
      first, second, *_ = kinds.values()
      raise ArgumentError(
        "init_cache",
        problem=f"{ENGINE} has one shape and one dtype for the keys and values of all layers, and "
        f"cache leaves {first!r} and {second!r} differ",
        advice="give all of them one shape",
      )

  def _check_length(self, decoder: Decoder) -> None:
    """A cache that grows has the rows so far, whatever their number."""
    rows = engine_rows.of_decoder(decoder, by_heads=False)
    if self.cache == GROWING and (why := engine_rows.refusal(decoder, rows)):
      raise ArgumentError(
        "cache",
        GROWING,
        problem=f"this step needs a cache of {decoder.context_length} rows: {why}",
        advice=f"give {SHARED!r}",
      )

  def pieces(self, decoder: Decoder) -> Sequence[int]:
    del decoder
    return ()

  def rounds(self) -> bool:
    return self.quantization is not None

  def write(self, decoder: Decoder, place: Path) -> Path:
    exporter = Onnx(False, Comparison(_SIZES, 1, None, None, None), OLDEST, _OUTSIDE)
    source = Source.of(self._model(decoder))
    exporter.accept(source)
    written = exporter.write(source, place, _MODEL)
    (signature,) = source.signatures.values()
    opened(written.model, written.path, signature)
    if self.quantization is not None:
      block_weights.quantize(written.path, _BITS[self.quantization], self.accuracy_level)
    (place / _CONFIG).write_text(json.dumps(self._config(decoder), indent=2) + "\n")
    tokenizers.write(decoder, place)
    return place

  def _model(self, decoder: Decoder) -> Model:
    """The step with the names that genai_config.json tells the engine."""
    grows = self.cache == GROWING
    rows = engine_rows.of_decoder(decoder, by_heads=False)
    names = {
      leaf.path: f"{kind}_{i}"
      for i, layer in enumerate(decoder.cache.layers)
      for kind, leaf in zip(("key", "value"), layer, strict=True)
    }
    step = (engine_rows.growing if grows else engine_rows.shared)(decoder, rows)

    def call(params: Any, input_ids: jax.Array, position_ids: jax.Array, past: Any) -> Any:
      arrays = {path: past[name] for path, name in names.items()}
      logits, after = step(params, input_ids, position_ids, arrays)
      return {"logits": logits, "present": {names[path]: array for path, array in after.items()}}

    length = "p" if grows else decoder.context_length
    past = {names[path]: one.spec(1, length) for path, one in rows.items()}
    model = Model(
      decoder.params,
      trainable=False,
      polymorphic_constraints=[] if grows else [f"s <= {decoder.context_length}"],
      idioms=IDIOMS,
    )
    model.add(call, inputs={"input_ids": "i32[1,s]", "position_ids": "i32[1,s]", "past": past})
    return model

  def _config(self, decoder: Decoder) -> dict[str, Any]:
    """The contents of genai_config.json.

    GenAI 0.18 makes keys and values of [batch, num_key_value_heads, length, head_size]. What stands
    before and behind the length of the decoder's leaves has these numbers, so no transpose is
    needed.
    """
    one = next(iter(engine_rows.of_decoder(decoder, by_heads=False).values()))
    tokens = {"eos_token_id": list(decoder.stop_tokens), "pad_token_id": 0}
    if decoder.start_token is not None:
      tokens["bos_token_id"] = decoder.start_token
    return {
      "model": {
        "type": "decoder",
        **tokens,
        "vocab_size": decoder.vocabulary,
        "context_length": decoder.context_length,
        "decoder": {
          "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
          "filename": _MODEL,
          "num_hidden_layers": len(decoder.cache.layers),
          "num_key_value_heads": one.heads,
          "head_size": one.size,
          "inputs": {
            "input_ids": "input_ids",
            "position_ids": "position_ids",
            "past_key_names": "past_key_%d",
            "past_value_names": "past_value_%d",
          },
          "outputs": {
            "logits": "logits",
            "present_key_names": "present_key_%d",
            "present_value_names": "present_value_%d",
          },
        },
      },
      "search": {
        "max_length": decoder.context_length,
        "do_sample": False,
        "num_beams": 1,
        "past_present_share_buffer": self.cache == SHARED,
      },
    }

  def runners(self, decoder: Decoder, written: Path) -> Mapping[str, Runner]:
    genai = extra("onnxruntime_genai")
    config = genai.Config(str(written))
    size = sum(file.stat().st_size for file in written.iterdir())
    options = _QUIET | (WITHOUT_COPIES if size > WITH_COPIES else {})
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    try:
      model = genai.Model(config)
    except Exception as error:
      raise ExportError(NAME, f"{ENGINE} cannot open the model: {error}") from error
    if decoder.tokenizer is not None:
      _check_tokenizer(genai, model, decoder)

    def run(conversations: Sequence[Conversation]) -> list[Generated]:
      return [_generated(genai, model, decoder, each) for each in conversations]

    return {ENGINE: run}

  def continued(self, path: Path, prompt: str, new: int) -> str:
    genai = extra("onnxruntime_genai")
    model = genai.Model(str(path))
    tokenizer = genai.Tokenizer(model)
    tokens = tokenizer.encode(prompt)
    longest = json.loads((path / _CONFIG).read_text())["search"]["max_length"]
    search = genai.GeneratorParams(model)
    search.set_search_options(max_length=min(longest, len(tokens) + new), do_sample=False)
    generator = genai.Generator(model, search)
    generator.append_tokens(tokens)
    while not generator.is_done():
      generator.generate_next_token()
    return str(tokenizer.decode(generator.get_sequence(0)[len(tokens) :]))

  def versions(self) -> dict[str, str]:
    return {name: extra(name).__version__ for name in ("onnxruntime", "onnxruntime_genai")}


def extra(module: str) -> Any:
  """A module of jax2tf[onnxruntime-genai]."""
  return extras.module(module, NAME, f"exporting to {ENGINE}")


def _generated(genai: Any, model: Any, decoder: Decoder, conversation: Conversation) -> Generated:
  """The greedy loop by the engine's own search.

  `generate_next_token` chooses a token, and runs the model on it only when the next one is asked
  for. So `get_logits` stands before each prompt of a later turn, too: otherwise the last token of
  the turn before would never enter the cache (GenAI 0.18: of a shared cache without an error).
  """
  search = genai.GeneratorParams(model)
  search.set_search_options(max_length=decoder.context_length, do_sample=False)
  turns: list[tuple[int, ...]] = []
  logits: list[np.ndarray] = []
  try:
    generator = genai.Generator(model, search)
    for turn in conversation:
      if turns:
        generator.get_logits()
      generator.append_tokens(np.asarray([turn.prompt], np.int32))
      seen: list[np.ndarray] = []
      start = generator.token_count()
      while len(seen) < turn.new and not generator.is_done():
        seen.append(np.array(generator.get_logits()).reshape(-1))
        generator.generate_next_token()
      chosen = [int(token) for token in generator.get_sequence(0)[start:]]
      if len(chosen) < len(seen):  # of a stop token the engine tells only that it ends
        chosen.append(int(np.argmax(seen[-1])))
      turns.append(tuple(chosen))
      logits.append(np.stack(seen))
      if generator.is_done():
        break
  except Exception as error:
    return Generated(tuple(turns), problem=f"{ENGINE} fails: {error}")
  return Generated(tuple(turns), tuple(logits))


def _check_tokenizer(genai: Any, model: Any, decoder: Decoder) -> None:
  """Raises ExportError if the engine's tokenizer gives other tokens than the file, or cannot read
  it or the template."""
  try:
    tokenizer = genai.Tokenizer(model)
    if decoder.chat_template is not None:
      messages = json.dumps([{"role": "user", "content": "text"}])
      tokenizer.apply_chat_template(messages, add_generation_prompt=True)
  except Exception as error:
    raise ExportError(
      NAME,
      f"{ENGINE} cannot read the tokenizer or the chat template: {error}. It reads byte-level BPE; "
      "leave the tokenizer out for a model that takes token ids",
    ) from error
  tokenizers.compare(
    decoder, NAME, ENGINE, lambda text: [int(token) for token in tokenizer.encode(text)]
  )
