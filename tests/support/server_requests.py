"""Random requests for `jax2tf serve`, valid and invalid ones, each with what JAX answers or with
the fact that it has to be refused.

`jax2tf.tools.lab.server_fuzz` sends them to a server, and tests/serving/test_serve_fuzz.py to the
parsers. A request depends on its seed alone.
"""

from __future__ import annotations

import base64
import gzip
import json
import pathlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import tensorflow as tf

from jax2tf.converters import saved_model

# The dtypes of the model "types", each with a signature of its name.
DTYPES: dict[str, Any] = {
  "f32": np.float32,
  "f64": np.float64,
  "f16": np.float16,
  "bf16": ml_dtypes.bfloat16,
  "i8": np.int8,
  "i16": np.int16,
  "i32": np.int32,
  "i64": np.int64,
  "u8": np.uint8,
  "u16": np.uint16,
  "u32": np.uint32,
  "u64": np.uint64,
  "bool": np.bool_,
  "c64": np.complex64,
}
_FLOATS, _INTEGERS = (
  ("f32", "f64", "f16", "bf16"),
  ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"),
)
_WEIGHTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
Arrays = Mapping[str, np.ndarray]
# What the server of these requests accepts; a request of 5 MB is one that it refuses.
MAX_REQUEST_MB = 4


def _twice(_: Any, x: jax.Array) -> dict[str, jax.Array]:
  return {"same": x, "twice": ~x if x.dtype == jnp.bool_ else x + x}


def linear(weights: jax.Array, x: jax.Array) -> jax.Array:
  """f32[b,4] -> f32[b,3]."""
  return jnp.tanh(x @ weights)


class _Strings(tf.Module):  # type: ignore[misc]
  """A SavedModel without a manifest: texts, and their bytes."""

  @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])  # type: ignore[untyped-decorator]
  def __call__(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"length": tf.strings.length(text), "same_bytes": text}


def save(folder: pathlib.Path) -> None:
  """Saves the models "types", "linear" and "strings". 64-bit dtypes need `jax_enable_x64`."""
  model = saved_model.Model({})
  for name in DTYPES:
    model.add(_twice, signatures=name, inputs={"x": f"{name}[b,n]"}, outputs=["same", "twice"])
  model.save(folder / "types")
  saved_model.save(linear, _WEIGHTS, folder / "linear", inputs={"x": "f32[b,4]"}, outputs=["y"])
  strings = _Strings()
  tf.saved_model.save(strings, str(folder / "strings" / "1"), signatures=strings.__call__)


@dataclass(frozen=True)
class Case:
  """A request.

  Attributes:
    kind: what is tried.
    model, signature: which are asked.
    path: the part of the URL between the model and the verb, with the verb.
    body: of REST the JSON, of gRPC the PredictRequest.
    expected: the outputs; None if the request has to be refused, and a function of the body if that
      decides.
    rows: whether the JSON has rows in place of columns.
    headers: of REST, with the body as they say.
  """

  kind: str
  model: str
  signature: str
  body: bytes
  expected: Arrays | Callable[[bytes], Arrays | None] | None
  rows: bool = False
  path: str = ":predict"
  headers: Mapping[str, str] = field(default_factory=dict)

  def fault(self, outputs: Arrays | None) -> str:
    """What is wrong with an answer, None for a refusal; "" if nothing is."""
    either = callable(self.expected)
    expected = self.expected(self.body) if callable(self.expected) else self.expected
    if outputs is None:
      return "" if expected is None or either else "a valid request was refused"
    if expected is None:
      return "an invalid request was answered"
    if outputs.keys() != expected.keys():
      return f"outputs {sorted(outputs)} in place of {sorted(expected)}"
    return "; ".join(
      f"{name} is wrong"
      for name in expected
      if not _equal(outputs[name], expected[name], self.model == "linear")
    )


def _equal(found: np.ndarray, expected: np.ndarray, rounded: bool) -> bool:
  if found.shape != expected.shape or found.dtype != expected.dtype:
    return False
  if rounded:
    return bool(np.allclose(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True))
  if found.dtype == object or found.dtype.kind in "iub":
    return bool(np.array_equal(found, expected))
  with np.errstate(invalid="ignore"):
    wide_found, wide = (
      x if x.dtype.kind == "c" else x.astype(np.float64) for x in (found, expected)
    )
  signs = (
    np.array_equal(np.signbit(wide_found.real), np.signbit(wide.real))
    if not np.isnan(wide).any()
    else True
  )
  return bool(np.array_equal(wide_found, wide, equal_nan=True)) and signs


def answer(model: str, x: np.ndarray) -> Arrays:
  """What JAX answers."""
  if model == "linear":
    return {"y": np.asarray(linear(jnp.asarray(_WEIGHTS), jnp.asarray(x)))}
  if model == "strings":
    return {"length": np.array([len(text) for text in x], np.int32), "same_bytes": x}
  return {name: np.asarray(value) for name, value in _twice(None, jnp.asarray(x)).items()}


def read(case: Case, text: bytes) -> Arrays:
  """The outputs in the JSON of an answer. Raises KeyError or ValueError for another form."""
  found = json.loads(text)
  names = (
    ["y"]
    if case.model == "linear"
    else ["length", "same_bytes"]
    if case.model == "strings"
    else ["same", "twice"]
  )
  if case.rows:
    rows = found["predictions"]
    found = {name: [row if len(names) == 1 else row[name] for row in rows] for name in names}
  else:
    found = {names[0]: found["outputs"]} if len(names) == 1 else found["outputs"]
  dtypes = {"y": np.float32, "length": np.int32, "same_bytes": object}
  return {
    name: _as_array(value, dtypes.get(name, DTYPES.get(case.signature)))
    for name, value in found.items()
  }


def _as_array(value: Any, dtype: Any) -> np.ndarray:
  if dtype is object:
    return np.array([base64.b64decode(each["b64"]) for each in value], object)
  kind = np.dtype(dtype).kind
  return np.array(value, dtype) if kind in "iub" else np.array(value, np.float64).astype(dtype)


def _draw(draw: random.Random, dtype: str) -> Any:
  """One value, as Python has it; a float may need rounding, and may be an integer."""
  if dtype == "bool":
    return draw.random() < 0.5
  if dtype in _INTEGERS:
    info = np.iinfo(DTYPES[dtype])
    low, high = int(info.min), int(info.max)
    return draw.choice([low, high, 0, 1, high // 2, draw.randint(low, high)])
  plain = draw.choice(
    [
      0.0,
      -0.0,
      1.0,
      0.1,
      -2.5,
      draw.uniform(-100, 100),
      draw.randint(-200, 200),
      float("nan"),
      float("inf"),
      -float("inf"),
    ]
  )
  if dtype == "f64" and draw.random() < 0.3:
    return draw.choice(
      [2**53 + 1, 10**25, -(10**300), 2**63, 2**64, 1e308, draw.uniform(-1e300, 1e300)]
    )
  if dtype in ("f32", "bf16") and draw.random() < 0.2:
    return draw.choice([16_777_217, 10**25, -(2**64), 3e38])
  # TF 2.21 makes 2 * x of x + x, which is NaN for a complex infinity.
  return complex(draw.uniform(-9, 9), draw.uniform(-1, 1)) if dtype == "c64" else plain


def drawn(draw: random.Random, dtype: str, rows: int, columns: int) -> tuple[list[Any], np.ndarray]:
  """(nested lists, the array that they are)."""
  values = [[_draw(draw, dtype) for _ in range(columns)] for _ in range(rows)]
  wide = np.array(values, np.float64) if dtype in _FLOATS else values
  return values, np.array(wide).astype(DTYPES[dtype]) if dtype in _FLOATS else np.array(
    wide, DTYPES[dtype]
  )


_TEXTS = ("", "a", "größer", "漢字", "😀", "\0", '"\\', "\u2028", "x" * 300)
_SPACES = ("", "", " ", "\n", "\t ")


def _spelled(draw: random.Random, value: Any) -> str:
  """JSON of a value, in one of its spellings."""
  if isinstance(value, list):
    comma = "," + draw.choice(_SPACES)
    return f"[{draw.choice(_SPACES)}{comma.join(_spelled(draw, each) for each in value)}]"
  if isinstance(value, dict):
    return (
      "{"
      + ", ".join(f"{json.dumps(key)}: {_spelled(draw, each)}" for key, each in value.items())
      + "}"
    )
  if isinstance(value, float) and value.is_integer() and 0 < abs(value) < 1e15:
    return draw.choice([json.dumps(value), str(int(value)), f"{value:e}", f"{value:.3f}"])
  return json.dumps(value, ensure_ascii=draw.random() < 0.5)


def rest(seed: int) -> Case:
  """A request by REST."""
  draw = random.Random(f"rest {seed}")
  make = draw.choice(
    [
      _rest_valid,
      _rest_valid,
      _rest_texts,
      _rest_linear,
      _rest_refused,
      _rest_values_refused,
      _rest_mutated,
    ]
  )
  return make(draw)


def _written(
  draw: random.Random, kind: str, model: str, signature: str, x: Any, expected: Any
) -> Case:
  """The request for one input, in one of the forms that the API has for it."""
  rows, named = draw.random() < 0.5, draw.random() < 0.5
  name = "text" if model == "strings" else "x"
  value = ([{name: row} for row in x] if named else x) if rows else {name: x} if named else x
  body = {"instances" if rows else "inputs": value}
  if signature or draw.random() < 0.3:
    body["signature_name"] = signature or "serving_default"
  items = list(body.items())
  draw.shuffle(items)
  text = _spelled(draw, dict(items)).encode()
  verb = draw.choice([":predict", ":PREDICT", "/versions/1:predict", "/versions/01:predict"])
  return _sent(draw, Case(kind, model, signature, text, expected, rows, verb))


def _sent(draw: random.Random, case: Case) -> Case:
  """The request with headers, perhaps compressed, perhaps in chunks."""
  headers = {
    "Content-Type": draw.choice(["application/json", "text/plain", "application/octet-stream", ""])
  }
  body = case.body
  if draw.random() < 0.2:
    cut = draw.randrange(len(body) + 1)
    body = (
      gzip.compress(body)
      if draw.random() < 0.5
      else gzip.compress(body[:cut]) + gzip.compress(body[cut:])
    )
    headers["Content-Encoding"] = draw.choice(["gzip", "GZIP", "x-gzip"])
  if draw.random() < 0.2:
    headers["Transfer-Encoding"] = "chunked"
  return Case(
    case.kind, case.model, case.signature, body, case.expected, case.rows, case.path, headers
  )


def _rest_valid(draw: random.Random) -> Case:
  signature = draw.choice([*_FLOATS, *_INTEGERS, "bool"])
  values, x = drawn(draw, signature, draw.randint(1, 3), draw.randint(1, 3))
  return _written(draw, f"values of {signature}", "types", signature, values, answer("types", x))


def _rest_texts(draw: random.Random) -> Case:
  texts = [draw.choice(_TEXTS).encode() for _ in range(draw.randint(1, 4))]
  packed: list[Any] = []
  for text in texts:
    coded = base64.b64encode(text).decode()
    packed.append(draw.choice([text.decode(), {"b64": coded}, {"b64": coded.rstrip("=")}]))
  return _written(draw, "texts", "strings", "", packed, answer("strings", np.array(texts, object)))


def _rest_linear(draw: random.Random) -> Case:
  values = [[draw.uniform(-3, 3) for _ in range(4)] for _ in range(draw.randint(1, 40))]
  return _written(
    draw, "a product", "linear", "", values, answer("linear", np.array(values, np.float32))
  )


def _rest_values_refused(draw: random.Random) -> Case:
  """Rows of which one value is of another kind or out of range, or whose shape is no tensor."""
  signature = draw.choice([*_FLOATS, *_INTEGERS, "bool"])
  values, _ = drawn(draw, signature, draw.randint(1, 3), draw.randint(1, 3))
  row = draw.choice(values)
  bad: list[Any] = ["1", None, {"b64": "AA=="}, {}, [1], [], "", "NaN"]
  bad += [1, 0.5] if signature == "bool" else [True, False]
  if signature in _INTEGERS:
    info = np.iinfo(DTYPES[signature])
    bad += [int(info.max) + 1, int(info.min) - 1, 10**30, 0.5, float("nan")]
  elif signature != "bool":
    bad += [10**400, {"f32": 1e39, "f64": 10**309, "f16": 65520.0, "bf16": 3.4e38}[signature]]
  row[draw.randrange(len(row))] = draw.choice(bad)
  return _written(draw, "a value of another kind or range", "types", signature, values, None)


def _rest_refused(draw: random.Random) -> Case:
  """What is no request."""
  good = '{"inputs": [[1, 2]], "signature_name": "f32"}'
  bodies = {
    "not JSON": draw.choice(
      [
        good[: draw.randrange(len(good))],
        good + "]",
        "{'inputs': 1}",
        "\x00",
        "[" * 10**5,
        "[" * 9000 + "]" * 9000,
      ]
    ),
    "another form": draw.choice(
      ['{"instances": [[1]], "inputs": [[1]]}', "{}", "[]", "1", "null", '"x"', '{"instances": []}']
    ),
    "a name that is unknown": draw.choice(
      [good.replace('"sig', '"x": 1, "sig'), '{"inputs": {"y": [[1]]}, "signature_name": "f32"}']
    ),
    "a name that comes twice": '{"inputs": [[1]], "inputs": [[2]], "signature_name": "f32"}',
    "an unknown signature": draw.choice(
      ['{"inputs": [[1]]}', good.replace("f32", "f31"), good.replace('"f32"', "7")]
    ),
    "another shape": draw.choice(
      [
        good.replace("[[1, 2]]", text)
        for text in ("1", "[1]", "[[[1]]]", "[[1], [2, 3]]", "[[1], 2]", "[]")
      ]
    ),
    "too large": " " * (5 << 20),
    "complex": '{"inputs": [[1]], "signature_name": "c64"}',
  }
  kind, text = draw.choice([*bodies.items()])
  case = _sent(draw, Case(kind, "types", "f32", text.encode(), None))
  if draw.random() < 0.7:
    return case
  path = draw.choice(
    [
      "/versions/7:predict",
      "/labels/none:predict",
      ":classify",
      ":regress",
      "/nothing",
      ":predict/",
      f"/versions/{9**30}:predict",
    ]
  )
  body = draw.choice(
    [(b"x" * 50, "gzip"), (gzip.compress(good.encode())[:-5], "gzip"), (good.encode(), "br")]
  )
  if draw.random() < 0.5:
    return Case("another path", "types", "f32", good.encode(), None, path=path)
  return Case(
    "another coding", "types", "f32", body[0], None, headers={"Content-Encoding": body[1]}
  )


def _rest_mutated(draw: random.Random) -> Case:
  """A request with changed bytes: it is refused, or answered as Python reads it."""
  text = bytearray(
    _spelled(draw, {"inputs": drawn(draw, "f32", 2, 2)[0], "signature_name": "f32"}).encode()
  )
  for _ in range(draw.randint(1, 3)):
    place = draw.randrange(len(text))
    text[place : place + draw.choice([0, 1])] = bytes(
      [draw.choice(b'0123456789eE.-+,:[]{}" \x00\xff')]
    )
  return Case("changed bytes", "types", "f32", bytes(text), _of_json)


def _of_json(body: bytes) -> Arrays | None:
  try:
    found = json.loads(body)
    x = np.array(found["inputs"], np.float64).astype(np.float32)
    return (
      answer("types", x)
      if found.get("signature_name") == "f32" and x.ndim == 2 and len(found) == 2
      else None
    )
  except Exception:
    return None
