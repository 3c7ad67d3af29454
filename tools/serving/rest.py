"""Converts between arrays and the JSON of TF Serving's REST API: rows are "instances", columns are
"inputs".

https://www.tensorflow.org/tfx/serving/api_rest; NaN, Infinity and -Infinity are values, {"b64":
"..."} is a string of bytes.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import json_format

from jax2tf.tools.serving import protobuf
from jax2tf.tools.serving.model import (
  Arrays,
  Call,
  Model,
  RefusedError,
  Signature,
  invalid,
  spec_of,
  type_of,
)

# After `model`, which imports TensorFlow without JAX.
import tensorflow as tf  # isort: skip

_RAGGED = "lists side by side must have one length, and nest to a depth of 64 at most"
_MAX_RANK = 64  # NumPy's
_KINDS = {
  bool: "true or false",
  int: "integers",
  float: "numbers with a fraction or exponent",
  str: "strings",
}


@dataclass(frozen=True)
class Request:
  """A checked request.

  Attributes:
    call: the call of the signature.
    rows: the number of instances; None for the columnar form.
  """

  call: Call
  rows: int | None


def parse_predict(model: Model, body: bytes) -> Request:
  """Parses the body of a `:predict` request.

  Raises:
    RefusedError: the body is no JSON or no request, or the signature does not take its values.
  """
  try:
    parsed = json.loads(body, parse_float=_float, object_pairs_hook=_object)
  except (ValueError, RecursionError) as error:
    raise invalid(f"the body is not JSON: {error}") from error
  if not isinstance(parsed, dict) or ("instances" in parsed) == ("inputs" in parsed):
    raise invalid(
      'the body must be an object with either "instances" (a list of rows) or "inputs" (whole '
      "tensors)"
    )
  name = parsed.get("signature_name", "")
  if not isinstance(name, str):
    raise invalid(f"signature_name is {_shown(name)}; it must be a string")
  signature = model.signature(name)
  unknown = sorted(parsed.keys() - {"signature_name", "instances", "inputs"})
  if unknown:
    raise invalid(
      f"the body has {unknown}; it may have signature_name and either instances or inputs"
    )
  if "inputs" in parsed:
    return Request(_call(signature, _named(signature, parsed["inputs"])), None)
  rows = parsed["instances"]
  if not isinstance(rows, list) or not rows:
    raise invalid('"instances" must be a list of at least one row')
  return Request(_call(signature, _columns(signature, rows)), len(rows))


def _float(text: str) -> float:
  # Infinity is valid, but Python (3.12) also reads 1e400 as Infinity.
  value = float(text)
  if math.isinf(value):
    raise invalid(f"{text[:50]} is outside of the range of float64")
  return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  members = dict(pairs)
  if len(members) < len(pairs):  # Python would keep the last value, and other readers the first
    seen: set[str] = set()
    twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    raise invalid(f"the body names {_shown(twice)} twice in one object")
  return members


def _is_named(value: Any) -> bool:
  return isinstance(value, dict) and value.keys() != {"b64"}


def _columns(signature: Signature, rows: list[Any]) -> dict[str, Any]:
  if not any(map(_is_named, rows)):
    return _named(signature, rows)
  for i, row in enumerate(rows):
    if not _is_named(row) or row.keys() != rows[0].keys():
      raise invalid(f"instance {i} must be an object with the same names as instance 0")
  return {name: [row[name] for row in rows] for name in rows[0]}


def _named(signature: Signature, value: Any) -> dict[str, Any]:
  if _is_named(value):
    return value
  required = signature.inputs.keys() - signature.defaults.keys()
  names = required or signature.inputs.keys()
  if len(names) != 1:
    raise invalid(
      f"signature {signature.name!r} has {len(signature.inputs)} inputs; name them: "
      f"{sorted(signature.inputs)}"
    )
  return {next(iter(names)): value}


def _call(signature: Signature, columns: dict[str, Any]) -> Call:
  known = {name: spec.dtype for name, spec in signature.inputs.items()}
  # The error for an unknown name lists the known names.
  by_input = {
    name: _array(name, value, known[name]) if name in known else np.zeros(0)
    for name, value in columns.items()
  }
  signature.check({name: spec_of(array) for name, array in by_input.items()})
  return Call(signature, {**signature.defaults, **by_input})


def _array(name: str, value: Any, dtype: tf.DType) -> np.ndarray:
  """Converts JSON to an array of a dtype. Integers stay exact; a float is the nearest one, also for
  an integer literal.

  Raises:
    RefusedError: the lists are ragged, or a value is of another kind or out of range.
  """
  shape, leaves = _flattened(name, value)
  if dtype == tf.string:
    strings = np.empty(len(leaves), object)
    strings[:] = [_string(name, leaf) for leaf in leaves]
    return strings.reshape(shape)
  _check_kinds(name, leaves, dtype)
  if dtype.is_integer:
    return _integers(name, leaves, dtype).reshape(shape)
  if dtype.is_floating:
    return _floats(name, leaves, dtype).reshape(shape)
  return np.array(leaves, dtype.as_numpy_dtype).reshape(shape)


def _flattened(name: str, value: Any) -> tuple[list[int], list[Any]]:
  """(the shape of nested lists, their elements in row-major order). Raises RefusedError if they are
  ragged or too deep."""
  shape: list[int] = []
  leaves = [value]
  while list in (kinds := set(map(type, leaves))):
    sizes = set(map(len, leaves)) if len(kinds) == 1 else set()
    if len(sizes) != 1 or len(shape) == _MAX_RANK:
      raise invalid(f"input {name!r} is no tensor: {_RAGGED}")
    shape += sizes
    leaves = list(itertools.chain.from_iterable(leaves))
  return shape, leaves


def _check_kinds(name: str, leaves: list[Any], dtype: tf.DType) -> None:
  # By the types of the elements: NumPy would take true for 1, and make floats of integers on both
  # sides of 2**63.
  allowed = (
    {bool}
    if dtype.is_bool
    else {int}
    if dtype.is_integer
    else {int, float}
    if dtype.is_floating
    else set()
  )
  if others := {type(leaf) for leaf in leaves} - allowed:
    kinds = sorted(_KINDS.get(kind, "null or objects") for kind in others)
    raise invalid(
      f"input {name!r} is a tensor of {dtype.name}; the JSON holds "
      f"{' and '.join(dict.fromkeys(kinds))}"
    )


def _integers(name: str, leaves: list[int], dtype: tf.DType) -> np.ndarray:
  if leaves and not dtype.min <= min(leaves) <= max(leaves) <= dtype.max:
    least, most = _shown(min(leaves)), _shown(max(leaves))
    raise invalid(
      f"input {name!r} is a tensor of {dtype.name}; {least} to {most} is outside of its range"
    )
  return np.array(leaves, np.uint64 if dtype == tf.uint64 else np.int64).astype(
    dtype.as_numpy_dtype
  )


def _floats(name: str, leaves: list[float], dtype: tf.DType) -> np.ndarray:
  try:
    floats = np.array(leaves, np.float64)
  except OverflowError as error:  # of an integer of hundreds of digits
    raise _too_large(name, dtype) from error
  with np.errstate(over="ignore"):
    result = floats.astype(dtype.as_numpy_dtype)
  if not np.array_equal(np.isfinite(floats), np.isfinite(result)):
    raise _too_large(name, dtype)
  return result


def _too_large(name: str, dtype: tf.DType) -> RefusedError:
  return invalid(
    f"input {name!r} is a tensor of {dtype.name}; a finite value is outside of its range"
  )


def _string(name: str, value: Any) -> bytes:
  if isinstance(value, str):
    return value.encode("utf-8", "surrogatepass")
  if isinstance(value, dict) and isinstance(value.get("b64"), str):
    text = "".join(value["b64"].split())
    try:
      # TF Serving does not require padding either
      return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
      raise invalid(f"input {name!r} has a b64 string that is not valid base64: {error}") from error
  if isinstance(value, list):
    raise invalid(f"input {name!r} is no tensor: {_RAGGED}")
  raise invalid(
    f'input {name!r} is a tensor of strings; the JSON holds {_shown(value)}, write "..." or '
    '{"b64": "..."}'
  )


def _shown(value: Any) -> str:
  try:
    return json.dumps(value)[:100]
  except RecursionError:
    return "nested too deep"


def predict_body(request: Request, outputs: Arrays) -> bytes:
  """{"predictions": rows} or {"outputs": columns}; a single output has no name.

  Raises:
    RefusedError: rows were requested and an output has none, or an output is complex.
  """
  columns = {name: _json_values(name, array) for name, array in outputs.items()}
  if request.rows is None:
    return _dumps({"outputs": next(iter(columns.values())) if len(columns) == 1 else columns})
  for name, array in outputs.items():
    if array.shape[:1] != (request.rows,):
      raise invalid(
        f"output {name!r} is {type_of(spec_of(array))}, which is not one row for each of "
        f'{request.rows} instances; send "inputs" instead'
      )
  if len(columns) == 1:
    return _dumps({"predictions": next(iter(columns.values()))})
  return _dumps(
    {
      "predictions": [
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
      ]
    }
  )


def _dumps(value: object) -> bytes:
  return json.dumps(value).encode()


def _json_values(name: str, array: np.ndarray) -> Any:
  if array.dtype.kind == "c":
    raise invalid(f"output {name!r} is complex, which JSON cannot represent; use gRPC")
  if array.dtype.kind in "OS":
    as_bytes = name.endswith("_bytes")  # TF Serving's convention
    return np.vectorize(lambda value: _json_string(value, as_bytes), otypes=[object])(
      array
    ).tolist()
  return array.tolist()


def _json_string(value: bytes, as_bytes: bool) -> str | dict[str, str]:
  if not as_bytes:
    try:
      return value.decode()
    except UnicodeDecodeError:
      pass
  return {"b64": base64.b64encode(value).decode()}


def metadata_body(name: str, model: Model) -> bytes:
  """The result of GetModelMetadata in the JSON of TF Serving."""
  spec = {"name": name, "signature_name": "", "version": str(model.version)}
  signatures = json_format.MessageToDict(
    protobuf.signature_def_map(model),
    preserving_proto_field_name=True,
    always_print_fields_with_no_presence=True,
  )
  return _dumps({"model_spec": spec, "metadata": {"signature_def": signatures}})


def error_body(reason: str) -> bytes:
  """{"error": reason}."""
  return _dumps({"error": reason})


def status_body(states: list[dict[str, object]]) -> bytes:
  """{"model_version_status": states}."""
  return _dumps({"model_version_status": states})
