"""A folder for OpenVINO GenAI: the model with the cache as its state, its weights and its
configuration."""

from __future__ import annotations

import functools
import importlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.extend.core import jaxpr_as_fun

from jax2tf.messages import Argument, ArgumentError, Text

from .. import extras
from ..export.source import ExportError, Source
from ..onnx.exporter import IDIOMS
from ..onnx.opsets import OLDEST
from ..onnx.target import Onnx
from ..saved_model.builder import Model
from ..verify.plan import Comparison
from . import attention, engine_rows, greedy, loops, stateful, tokenizers
from .conversations import Conversation, Generated, Runner
from .decoder import Decoder
from .target import Target

NAME = "openvino-genai"
ENGINE = "OpenVINO GenAI"
_NOT_PAGED = Argument("paged_attention", False)
_PAGED = f"{ENGINE} (PA)"
# In bytes, of the parameters: larger ones stay outside of the graph while it is translated.
_OUTSIDE = 10**7
# OpenVINO computes in bfloat16 and keeps the cache in 8 bits by default, where the processor can.
_IN_FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


@dataclass(frozen=True, kw_only=True)
class OpenvinoGenAI(Target):
  """The export to OpenVINO GenAI.

  Attributes:
    paged_attention: whether the model is for the engine's backend "PA" too, which serves many
      sequences at once. It needs attention that `attention.py` recognises.
  """

  name: ClassVar[str] = NAME
  example: ClassVar[str] = "model"
  folder: ClassVar[bool] = True

  paged_attention: bool = True

  def check(self, decoder: Decoder) -> None:
    openvino()
    for module in ("openvino_genai", "tf2onnx"):
      extra(module)
    decoder.check_rows_only()
    _ = decoder.cache.layers
    if not decoder.stop_tokens:
      raise ArgumentError(
        "stop_tokens", [], problem=f"{ENGINE} needs a token that ends an answer", advice="name one"
      )
    tokenizers.check(decoder, ENGINE, NAME)
    if decoder.tokenizer is not None:
      _transformers()
    if self.paged_attention and not decoder.takes_mask():
      raise ArgumentError(
        "paged_attention",
        True,
        problem="the engine then runs tokens of several sequences in one batch, and this step "
        "hides rows by itself",
        advice=Text("give `step` a parameter `mask`, or pass ", _NOT_PAGED),
      )
    if self.paged_attention and (why := engine_rows.refusal(decoder, _rows(decoder))):
      raise ArgumentError(
        "paged_attention",
        True,
        problem=f"the engine then has as many rows as tokens, and this step needs a cache of "
        f"{decoder.context_length}: {why}",
        advice=Text("compute with any length, or pass ", _NOT_PAGED),
      )

  def pieces(self, decoder: Decoder) -> Sequence[int]:
    del decoder
    return ()

  def write(self, decoder: Decoder, place: Path) -> Path:
    exporter = Onnx(False, Comparison(None, 1, None, None, None), OLDEST, _OUTSIDE)
    source = Source.of(self._model(decoder))
    exporter.accept(source)
    place.mkdir()
    written = exporter.write(source, place / "onnx", "model.onnx")
    ov = openvino()
    try:
      model = ov.Core().read_model(str(written.path))
    except RuntimeError as error:
      raise ExportError(NAME, f"OpenVINO cannot read the model: {error}") from error
    names = _names(decoder).values()
    stateful.with_state(ov, model, {f"past_{name}": f"present_{name}" for name in names})
    if self.paged_attention:
      self._page(decoder, stateful.with_attention(ov, model))
    ov.save_model(model, str(place / "openvino_model.xml"), compress_to_fp16=False)
    del model
    shutil.rmtree(place / "onnx")
    for name, contents in _configurations(decoder).items():
      (place / name).write_text(json.dumps(contents, indent=2) + "\n")
    if decoder.tokenizer is not None:
      _write_tokenizer(decoder, place)
    return place

  def _page(self, decoder: Decoder, replaced: int) -> None:
    """Raises ExportError unless each layer has an attention that was replaced, and that paged
    attention computes: it hides no rows but later ones, whatever mask the model has."""
    layers, causal = len(decoder.cache.layers), _causal_attentions(decoder)
    if min(replaced, len(causal)) < layers:
      problem = (
        "paged attention needs softmax(where(mask, q @ k * scale, -1e30)) @ v of float32 keys and "
        "values as they are in the cache, with one mask for all heads, and "
        f"{min(replaced, len(causal))} of {layers} layers have it"
      )
    elif not all(causal):
      problem = "paged attention hides no rows but later ones, and a mask of the model hides others"
    else:
      return
    raise ExportError(
      NAME, Text(f"{problem}; pass ", _NOT_PAGED, ", for the engine's other backend, SDPA")
    )

  def _model(self, decoder: Decoder) -> Model:
    """The step with the names and the layout of the engine's own models.

    A decoder without `mask` attends to all earlier rows, so it has one sequence in a batch: the
    engine fills shorter ones up. So has one that needs a cache of `context_length` rows, for it
    writes at the positions of the tokens.
    """
    rows = _rows(decoder)
    names = _names(decoder)
    change = attention.rewritten if self.paged_attention else lambda jaxpr: jaxpr
    # For paged attention `check` has refused it.
    has_length = not self.paged_attention and bool(engine_rows.refusal(decoder, rows))
    step = (
      engine_rows.padded(decoder, rows)
      if has_length
      else engine_rows.growing(decoder, rows, change)
    )
    takes_mask = decoder.takes_mask() and not has_length
    batch = "b" if takes_mask else 1

    def call(
      params: Any,
      input_ids: jax.Array,
      position_ids: jax.Array,
      past: Any,
      attention_mask: jax.Array | None = None,
    ) -> Any:
      arrays = {path: past[name] for path, name in names.items()}
      logits, after = step(params, input_ids, position_ids, arrays, attention_mask)
      return {"logits": logits, "present": {names[path]: array for path, array in after.items()}}

    inputs: dict[str, Any] = {
      "input_ids": f"i32[{batch},s]",
      "position_ids": f"i32[{batch},s]",
      "past": {names[path]: one.spec(batch, "p") for path, one in rows.items()},
    }
    if takes_mask:
      inputs["attention_mask"] = "i32[b,p+s]"
    model = Model(
      decoder.params,
      trainable=False,
      polymorphic_constraints=[f"p + s <= {decoder.context_length}"] if has_length else [],
      idioms=IDIOMS,
    )
    model.add(call, inputs=inputs)
    return model

  def runners(self, decoder: Decoder, written: Path) -> Mapping[str, Runner]:
    run = functools.partial(_in_openvino, decoder, written)
    backends = {"SDPA": f"{ENGINE} (SDPA)"} | ({"PA": _PAGED} if self.paged_attention else {})
    in_engine = {
      engine: functools.partial(_in_engine, decoder, written, backend)
      for backend, engine in backends.items()
    }
    return {"OpenVINO": run, **in_engine}

  def continued(self, path: Path, prompt: str, new: int) -> str:
    options = _greedy(new)
    options.apply_chat_template = False  # OpenVINO 2026.4 puts any text into it by default
    return str(_pipeline(path).generate(prompt, options))

  def advice(self, engine: str) -> str:
    if engine != _PAGED:
      return ""
    return Text(
      "paged attention rounds in other places, which a router of experts may turn into another "
      "choice; pass ",
      _NOT_PAGED,
      ", for the engine's other backend, SDPA",
    )

  def versions(self) -> dict[str, str]:
    return {name: extra(name).__version__ for name in ("openvino", "openvino_genai")}


def _rows(decoder: Decoder) -> dict[str, engine_rows.EngineRows]:
  """{path: how the engine holds the leaf}."""
  return engine_rows.of_decoder(decoder, by_heads=True)


def _names(decoder: Decoder) -> dict[str, str]:
  """{path of a leaf: "key_0"}."""
  return {
    leaf.path: f"{kind}_{i}"
    for i, layer in enumerate(decoder.cache.layers)
    for kind, leaf in zip(("key", "value"), layer, strict=True)
  }


def _configurations(decoder: Decoder) -> dict[str, dict[str, Any]]:
  """{file: contents}, of what the engine reads beside the model."""
  tokens: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": list(decoder.stop_tokens)}
  if decoder.start_token is not None:
    tokens["bos_token_id"] = decoder.start_token
  model = {
    "model_type": "jax",
    "vocab_size": decoder.vocabulary,
    "num_hidden_layers": len(decoder.cache.layers),
    "max_position_embeddings": decoder.context_length,
  }
  return {"config.json": model | tokens, "generation_config.json": tokens}


def _causal_attentions(decoder: Decoder) -> list[bool]:
  """For each attention that is recognised, whether its mask hides the later rows and no others, for
  the first and the last tokens of a context."""
  rows = _rows(decoder)

  def masks(tokens: jax.Array, positions: jax.Array, held: jax.Array, read: jax.Array) -> Any:
    # Values that no mask depends on: only their shapes are there when this runs.
    params = jax.tree.map(lambda x: jnp.zeros(jnp.shape(x), jnp.result_type(x)), decoder.params)
    batch, before = tokens.shape[0], read.shape[0]
    past = {path: jnp.zeros(one.shape(batch, before), one.leaf.dtype) for path, one in rows.items()}
    jaxpr, operands = engine_rows.traced(decoder, rows, params, tokens, positions, past, held)
    return jaxpr_as_fun(attention.masks(jaxpr))(*operands)

  batch, count, before = export.symbolic_shape("b, s, p")
  exported = export.export(jax.jit(masks))(
    *(jax.ShapeDtypeStruct((batch, count), jnp.int32) for _ in range(2)),
    jax.ShapeDtypeStruct((batch, before + count), jnp.int32),
    jax.ShapeDtypeStruct((before,), jnp.int8),
  )
  few = min(4, decoder.context_length - 1)
  are_causal = []
  for start in (1, decoder.context_length - few):
    positions = np.arange(start, start + few, dtype=np.int32)[None]
    length = start + few
    expected = np.arange(length) <= positions[0][:, None]
    results = exported.call(
      np.zeros_like(positions), positions, np.ones((1, length), np.int32), np.zeros(start, np.int8)
    )
    shown = [np.asarray(mask)[0, 0] for mask in results]
    seen = [mask if mask.dtype == bool else mask > attention.HIDES for mask in shown]
    are_causal.append([np.array_equal(mask, expected) for mask in seen])
  return [*map(all, zip(*are_causal, strict=True))]


def _transformers() -> Any:
  """The package by which OpenVINO Tokenizers 2026.4 reads tokenizer.json."""
  try:
    return importlib.import_module("transformers")
  except ImportError as error:
    raise ImportError(
      f"the tokenizer of {ENGINE} needs transformers: pip install "
      "'openvino-tokenizers[transformers]', or leave the tokenizer out for a model that takes "
      "token ids"
    ) from error


def _write_tokenizer(decoder: Decoder, folder: Path) -> None:
  """Writes the tokenizer as two models of OpenVINO, and compares its tokens with the file's.

  Raises:
    ExportError: the engine cannot read it, or its tokens differ.
  """
  options = tokenizers.options(decoder)
  tokenizer = _transformers().PreTrainedTokenizerFast(
    tokenizer_file=str(decoder.tokenizer), clean_up_tokenization_spaces=False, **options
  )
  ov, genai = openvino(), extra("openvino_genai")
  try:
    models = extra("openvino_tokenizers").convert_tokenizer(tokenizer, with_detokenizer=True)
    for model, name in zip(models, ("tokenizer", "detokenizer"), strict=True):
      ov.save_model(model, str(folder / f"openvino_{name}.xml"))
    tokenizers.write(decoder, folder)
    engine = genai.Tokenizer(str(folder))
  except Exception as error:
    raise ExportError(NAME, f"{ENGINE} cannot read the tokenizer: {error}") from error
  tokenizers.compare(
    decoder, NAME, ENGINE, lambda text: engine.encode(text).input_ids.data[0].tolist()
  )


def _in_openvino(
  decoder: Decoder, folder: Path, conversations: Sequence[Conversation]
) -> list[Generated]:
  """The loop in OpenVINO's own runtime, which gives logits."""
  ov = openvino()
  model = ov.Core().compile_model(str(folder / "openvino_model.xml"), "CPU", _IN_FLOAT32)
  request = model.create_infer_request()

  def session() -> greedy.Session:
    request.reset_state()
    read = 0

    def tokens_read(tokens: Sequence[int]) -> np.ndarray:
      nonlocal read
      before, read = read, read + len(tokens)
      request.infer(
        {
          stateful.IDS: np.asarray([tokens], np.int64),
          stateful.POSITIONS: np.arange(before, read, dtype=np.int64)[None],
          stateful.MASK: np.ones((1, read), np.int64),
          stateful.BEAMS: np.zeros(1, np.int32),
        }
      )
      return np.array(request.get_tensor("logits").data[0, -1])

    return tokens_read

  return [loops.loop(session(), each) for each in conversations]


def _pipeline(folder: Path, **options: str) -> Any:
  openvino()
  return extra("openvino_genai").LLMPipeline(str(folder), "CPU", **options, **_IN_FLOAT32)


def _greedy(new: int) -> Any:
  """The configuration of a greedy loop of `new` tokens at most."""
  options = extra("openvino_genai").GenerationConfig()
  options.do_sample, options.max_new_tokens = False, new
  return options


def _in_engine(
  decoder: Decoder, folder: Path, backend: str, conversations: Sequence[Conversation]
) -> list[Generated]:
  """The engine's own loop. In a later turn it gets the whole text, as its chats give it."""
  ov = openvino()
  try:
    pipeline = _pipeline(folder, ATTENTION_BACKEND=backend)
  except RuntimeError as error:
    raise ExportError(NAME, f"{ENGINE} cannot open the model with {backend}: {error}") from error
  generated = []
  for conversation in conversations:
    text: list[int] = []
    turns: list[tuple[int, ...]] = []
    for turn in conversation:
      text += turn.prompt
      options = _greedy(turn.new)
      options.ignore_eos = True
      answer = pipeline.generate(ov.Tensor(np.asarray([text], np.int64)), options)
      turns.append(tuple(map(int, answer.tokens[0])))
      text += turns[-1]
    generated.append(Generated(tuple(turns)))
  return generated


def extra(module: str) -> Any:
  """A module of jax2tf[openvino-genai]."""
  return extras.module(module, NAME, f"exporting to {ENGINE}")


def openvino() -> Any:
  """The package, imported without telemetry, which it sends over the network unless it detects a
  test."""
  with mock.patch.dict(os.environ, CI="true"):
    return extra("openvino")
