"""The clients of `jax2tf query`: REST with the standard library alone, gRPC with TensorFlow's
tensors."""

from __future__ import annotations

import base64
import http.client
import importlib.util
import ipaddress
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from jax2tf.tools.serving import certificates

# TensorFlow's DataType -> NumPy's name, where they differ by more than the prefix "DT_".
_DTYPES = {"float": "float32", "double": "float64", "half": "float16"}


@dataclass(frozen=True)
class Target:
  """The target of a request, and the connection to it.

  Attributes:
    address: host:port.
    model, version, label, signature: the fields of the model_spec; only `model` is required.
    ca: a PEM file with the certificate of the authority that signed the server's; without it the
      request is not encrypted.
    cert, key: the client's certificate and key.
    seconds: the time limit for the answer.
  """

  address: str
  model: str
  version: int | None
  label: str | None
  signature: str
  ca: str | None
  cert: str | None
  key: str | None
  seconds: float

  @property
  def local(self) -> bool:
    """Whether the server runs on this machine. Then no proxy of the environment (http_proxy) is
    asked."""
    host = self.address.rpartition(":")[0].strip("[]")
    try:
      return ipaddress.ip_address(host).is_loopback
    except ValueError:
      return host == "localhost"

  def context(self) -> ssl.SSLContext | None:
    """None without TLS. Raises ValueError for a file that cannot be used."""
    if not (self.ca or self.cert or self.key):
      return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    certificates.load(
      context, {"--tls_cert": self.cert, "--tls_key": self.key, "--tls_ca": self.ca}, "--tls_ca"
    )
    return context


def by_rest(target: Target, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """The outputs by name.

  Raises:
    ValueError: a certificate cannot be used, the server cannot be reached, or it rejects the
      request.
  """
  path = f"/v1/models/{quote(target.model, safe='')}"
  path += (
    f"/versions/{target.version}"
    if target.version is not None
    else f"/labels/{quote(target.label, safe='')}"
    if target.label
    else ""
  )
  signatures = _http(target, f"{path}/metadata")["metadata"]["signature_def"]["signature_def"]
  if target.signature not in signatures:
    raise ValueError(
      f"--signature is {target.signature!r}; {target.model!r} has "
      f"{', '.join(map(repr, sorted(signatures)))}"
    )
  known = signatures[target.signature]
  values = {
    name: value.tolist() if isinstance(value, np.ndarray) else value
    for name, value in _named(inputs, known["inputs"]).items()
  }
  body = json.dumps(
    {"signature_name": target.signature, "inputs": values}, default=_base64
  ).encode()
  outputs, dtypes = _http(target, f"{path}:predict", body)["outputs"], known["outputs"]
  if len(dtypes) == 1:  # TF Serving omits the name of a single output
    outputs = {next(iter(dtypes)): outputs}
  return {name: _array(value, dtypes[name]["dtype"]) for name, value in outputs.items()}


def _named(inputs: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
  """Names the only input, if it was given without a name."""
  if inputs.keys() != {""}:
    return inputs
  if len(known) != 1:
    raise ValueError(
      f"the signature has {len(known)} inputs; name them: {', '.join(sorted(known))}"
    )
  return {next(iter(known)): inputs[""]}


def _array(value: Any, dtype: str) -> np.ndarray:
  """The array of a JSON value; strings are bytes."""
  name = dtype.removeprefix("DT_").lower()
  if name == "string":
    return np.array(_unpacked(value), object)
  try:
    return _plain(np.array(value, _DTYPES.get(name, name)))
  except TypeError:  # such as bfloat16, whose values float32 represents
    return np.array(value, np.float32)


def _base64(value: object) -> dict[str, str]:
  if isinstance(value, bytes):
    return {"b64": base64.b64encode(value).decode()}
  raise ValueError(f"JSON cannot represent {value!r}; use --grpc")


def _http(target: Target, path: str, body: bytes | None = None) -> Any:
  url = f"{'https' if target.ca else 'http'}://{target.address}{path}"
  request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
  handlers: list[urllib.request.BaseHandler] = [
    urllib.request.HTTPSHandler(context=target.context())
  ]
  if target.local:
    handlers.append(urllib.request.ProxyHandler({}))
  try:
    with urllib.request.build_opener(*handlers).open(request, timeout=target.seconds) as response:
      return json.load(response)
  except urllib.error.HTTPError as error:
    text = error.read().decode(errors="replace")
    raise ValueError(f"{url} refuses ({error.code}): {_reason(text)}") from error
  except (OSError, ValueError, http.client.HTTPException) as error:
    reason = getattr(error, "reason", error)
    if any(isinstance(each, ssl.SSLError | ConnectionResetError) for each in (error, reason)):
      raise ValueError(
        f"{url} ends the connection: {reason}; if the server uses TLS, check --tls_ca, "
        "--tls_cert, --tls_key"
      ) from error
    raise ValueError(f"{url} does not answer: {reason}; is the server running?") from error


def _reason(text: str) -> str:
  try:
    return str(json.loads(text)["error"])
  except (ValueError, KeyError, TypeError):
    return text[:500]


def import_tensorflow() -> None:
  """Imports what `by_grpc` needs. Raises ModuleNotFoundError if a package is missing."""
  from jax2tf.tools import quiet  # noqa: PLC0415

  if None in map(importlib.util.find_spec, ("tensorflow_serving", "grpc")):
    raise ModuleNotFoundError(
      "--grpc needs more packages: pip install 'jax2tf[serving]'; --rest needs none"
    )
  with quiet.startup(lean=True):
    import tensorflow  # noqa: F401, PLC0415


def by_grpc(target: Target, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """The outputs by name, after `import_tensorflow`. Raises the errors of `by_rest`."""
  import grpc  # noqa: PLC0415
  import tensorflow as tf  # noqa: PLC0415
  from tensorflow_serving.apis import (  # noqa: PLC0415
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
  )

  with _channel(target) as channel:
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    metadata_request = get_model_metadata_pb2.GetModelMetadataRequest(
      metadata_field=["signature_def"]
    )
    request = predict_pb2.PredictRequest()
    for spec in (metadata_request.model_spec, request.model_spec):
      spec.name = target.model
      if target.version is not None:
        spec.version.value = target.version
      elif target.label:
        spec.version_label = target.label
    request.model_spec.signature_name = target.signature
    try:
      signatures_of_model = get_model_metadata_pb2.SignatureDefMap()
      stub.GetModelMetadata(metadata_request, timeout=target.seconds).metadata[
        "signature_def"
      ].Unpack(signatures_of_model)
      known = (
        signatures_of_model.signature_def[target.signature].inputs
        if target.signature in signatures_of_model.signature_def
        else {}
      )
      for name, value in _named(inputs, known).items():
        dtype = known[name].dtype if name in known else None  # the server then rejects it by name
        is_array = isinstance(value, np.ndarray) and value.dtype.kind != "O"
        tensor = tf.make_tensor_proto(
          value if is_array else _unpacked(value), None if is_array else dtype
        )
        request.inputs[name].CopyFrom(tensor)
      answer = stub.Predict(request, timeout=target.seconds)
    except grpc.RpcError as error:
      raise ValueError(
        f"{target.address} refuses ({error.code().name}): {error.details()}"
      ) from error
    except (TypeError, OverflowError) as error:
      raise ValueError(f"input {name!r} is not a valid tensor for the model: {error}") from error
  return {name: _plain(tf.make_ndarray(proto)) for name, proto in answer.outputs.items()}


def _plain(array: np.ndarray) -> np.ndarray:
  """float32 in place of a dtype that NumPy does not have, such as bfloat16."""
  return array.astype(np.float32) if array.dtype.kind == "V" else array


def _channel(target: Target) -> Any:
  import grpc  # noqa: PLC0415

  options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
  options.append(("grpc.enable_http_proxy", int(not target.local)))
  if not target.ca:
    return grpc.insecure_channel(target.address, options)
  files = [
    Path(file).read_bytes() if file else None for file in (target.ca, target.key, target.cert)
  ]
  return grpc.secure_channel(target.address, grpc.ssl_channel_credentials(*files), options)


def _unpacked(value: Any) -> Any:
  """Strings and {"b64": ...} in a JSON value as bytes."""
  if isinstance(value, str):
    return value.encode("utf-8", "surrogatepass")
  if isinstance(value, dict) and value.keys() == {"b64"}:
    return base64.b64decode(value["b64"])
  if isinstance(value, np.ndarray):
    return value.tolist()
  return [_unpacked(each) for each in value] if isinstance(value, list) else value
