"""`jax2tf query` through a proxy with certificates, before a replica of the test: strings and
numbers of all kinds, files, and faults."""

from __future__ import annotations

import concurrent.futures
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2

from jax2tf.tools.cli import _clients, _progress, query
from jax2tf.tools.cli import main as command
from jax2tf.tools.serving import balance, child
from tests.serving.serve_models import options
from tests.support.certificates import certificate
from tests.support.ports import free_ports

# TF 2.21: of tf.make_ndarray, for bfloat16.
pytestmark = pytest.mark.filterwarnings("ignore:Setting the dtype on a NumPy array")
SERVICE = "tensorflow.serving.PredictionService"
ANSWER = {
  "text": np.array(["größer".encode(), b"\xff\x00\xfe", b""], object),
  "number": np.array([np.nan, -np.inf, 0.5], np.float32),
  "half": np.array([1.5], ml_dtypes.bfloat16),
}
SIGNATURE = meta_graph_pb2.SignatureDef(
  inputs={"x": {"dtype": tf.float32.as_datatype_enum}},
  outputs={
    name: {"dtype": tf.as_dtype(array.dtype).as_datatype_enum} for name, array in ANSWER.items()
  },
)


def _metadata(_: bytes, context: Any) -> bytes:
  del context
  response = get_model_metadata_pb2.GetModelMetadataResponse()
  response.metadata["signature_def"].Pack(
    get_model_metadata_pb2.SignatureDefMap(signature_def={"serving_default": SIGNATURE})
  )
  return response.SerializeToString()


def _predict(data: bytes, context: Any) -> bytes:
  del context
  request = predict_pb2.PredictRequest.FromString(data)
  assert request.inputs["x"].dtype == SIGNATURE.inputs["x"].dtype
  assert tf.make_ndarray(request.inputs["x"]).tolist() in ([0.5], 2.0)
  return predict_pb2.PredictResponse(
    outputs={name: tf.make_tensor_proto(array) for name, array in ANSWER.items()}
  ).SerializeToString()


def _rest(data: bytes, context: Any) -> bytes:
  del context
  if data.startswith(b"GET"):
    dtypes = {
      name: {"dtype": tf.DType(info.dtype).as_datatype_enum}
      for name, info in SIGNATURE.outputs.items()
    }
    found = {
      name: {"dtype": "DT_" + tf.as_dtype(each["dtype"]).name.upper()}
      for name, each in dtypes.items()
    }
    signatures = {"serving_default": {"inputs": {"x": {}}, "outputs": found}}
    return (
      b"200\n" + json.dumps({"metadata": {"signature_def": {"signature_def": signatures}}}).encode()
    )
  assert json.loads(data.partition(b"\n")[2])["inputs"] == {"x": [0.5]}
  outputs = {
    "text": ["größer", {"b64": "/wD+"}, ""],
    "number": [float("nan"), float("-inf"), 0.5],
    "half": [1.5],
  }
  return b"200\n" + json.dumps({"outputs": outputs}).encode()


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
  """The flags of a query by REST and by gRPC, for a server that demands a certificate of its
  clients."""
  run = tmp_path_factory.mktemp("run")
  cert, key = certificate(run)
  grpc_port, http_port = free_ports(2)
  served = {
    SERVICE: {"Predict": _predict, "GetModelMetadata": _metadata},
    balance.REST_SERVICE: {balance.REST: _rest},
  }
  replica = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
  for service, methods in served.items():
    handlers = {
      name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()
    }
    replica.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
  replica.add_insecure_port(f"unix:{run}/{os.getpid()}.sock")
  replica.start()
  files = [f"--tls_ca={cert}", f"--tls_cert={cert}", f"--tls_key={key}"]
  with_tls = options(
    run, grpc_port=grpc_port, http_port=http_port, tls_cert=cert, tls_key=key, tls_client_ca=cert
  )
  with child.start("proxy", with_tls) as proxy:
    with grpc.secure_channel(f"127.0.0.1:{grpc_port}", _credentials(cert, key)) as channel:
      grpc.channel_ready_future(channel).result(60)
    yield {
      "rest": [f"--rest=127.0.0.1:{http_port}", *files],
      "grpc": [f"--grpc=127.0.0.1:{grpc_port}", *files],
    }
    assert proxy.stdin
    proxy.stdin.close()
  replica.stop(None)


def _credentials(cert: str, key: str) -> grpc.ChannelCredentials:
  return grpc.ssl_channel_credentials(*(Path(file).read_bytes() for file in (cert, key, cert)))


@pytest.fixture(autouse=True)
def a_proxy_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
  """Nobody listens there, so a query of this machine that asks it fails."""
  for name in ("http_proxy", "https_proxy", "grpc_proxy"):
    monkeypatch.setenv(name, "http://127.0.0.1:9")


def _query(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> tuple[int, str, str]:
  with pytest.raises(SystemExit) as ended:
    command.main(["query", "m", *arguments])
  return int(ended.value.code or 0), *capsys.readouterr()


@pytest.fixture
def inputs(tmp_path: Path) -> str:
  (tmp_path / "inputs.json").write_text('{"x": [0.5]}')
  return str(tmp_path / "inputs.json")


@pytest.mark.parametrize("interface", ["rest", "grpc"])
def test_strings_and_numbers_that_json_lacks(
  interface: str,
  flags: dict[str, list[str]],
  inputs: str,
  tmp_path: Path,
  capsys: pytest.CaptureFixture[str],
) -> None:
  (tmp_path / "out.npz").write_bytes(b"of before")
  code, printed, error = _query(
    capsys, [inputs, *flags[interface], "--json", f"--out={tmp_path / 'out'}"]
  )
  assert (error, code) == ("", 0)
  found = json.loads(printed, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
  assert found["verdict"].startswith("'m' answered in ")
  assert found["outputs"]["text"] == {
    "dtype": "string",
    "shape": [3],
    "values": ["größer", {"b64": "/wD+"}, ""],
  }
  assert found["outputs"]["number"] == {
    "dtype": "float32",
    "shape": [3],
    "values": ["nan", "-inf", 0.5],
  }
  assert found["outputs"]["half"] == {"dtype": "float32", "shape": [1], "values": [1.5]}
  with np.load(tmp_path / "out.npz") as stored:
    assert stored["text"].tolist() == ANSWER["text"].tolist()
    np.testing.assert_array_equal(stored["number"], ANSWER["number"])
  assert sorted(path.name for path in tmp_path.iterdir()) == ["inputs.json", "out.npz"]
  assert "'größer', {'b64': '/wD+'}, ''" in _query(capsys, [inputs, *flags[interface]])[1]


def test_a_number_has_the_dtype_of_the_input(
  flags: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  (tmp_path / "inputs.json").write_text('{"x": 2}')
  code, _, error = _query(capsys, [str(tmp_path / "inputs.json"), *flags["grpc"]])
  assert (error, code) == ("", 0)


@pytest.mark.parametrize("interface", ["rest", "grpc"])
def test_a_full_disk_leaves_the_file(
  interface: str,
  flags: dict[str, list[str]],
  inputs: str,
  tmp_path: Path,
  capsys: pytest.CaptureFixture[str],
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  def half(path: Path, **_: np.ndarray) -> None:
    path.write_bytes(b"half")
    raise OSError(28, "No space left")

  monkeypatch.setattr(np, "savez", half)
  (tmp_path / "out.npz").write_bytes(b"of before")
  code, _, error = _query(capsys, [inputs, *flags[interface], f"--out={tmp_path / 'out.npz'}"])
  assert (code, error) == (
    2,
    f"jax2tf query: {tmp_path / 'out.npz'} cannot be written: No space left\n",
  )
  assert (tmp_path / "out.npz").read_bytes() == b"of before"
  assert len(list(tmp_path.iterdir())) == 2


def test_the_import_is_a_stage_of_its_own(
  flags: dict[str, list[str]],
  inputs: str,
  capsys: pytest.CaptureFixture[str],
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  monkeypatch.setattr(_progress, "PATIENCE", 0.0)
  monkeypatch.setattr(_progress, "_MOMENT", 0.02)
  monkeypatch.setattr(_clients, "import_tensorflow", lambda: time.sleep(0.2))
  assert " s: import TensorFlow\n" in _query(capsys, [inputs, *flags["grpc"]])[2]


def test_a_string_that_ends_in_a_zero_byte_is_no_npz() -> None:
  with pytest.raises(ValueError, match="output 'text' has a string that ends in a zero byte"):
    query._storable("text", np.array([b"a\0", b"b"], object))


def test_certificates_that_cannot_be_used(
  flags: dict[str, list[str]],
  inputs: str,
  tmp_path: Path,
  capsys: pytest.CaptureFixture[str],
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  """One line each, and no question for a password on the terminal."""
  monkeypatch.setattr(_progress, "PATIENCE", float("inf"))
  (tmp_path / "no.pem").write_text("no certificate")
  cert, key = certificate(tmp_path, b"secret")
  rest, by_grpc = ([flag for flag in flags[name] if "tls" not in flag] for name in ("rest", "grpc"))
  [ca] = [flag for flag in flags["rest"] if flag.startswith("--tls_ca")]
  for given, words in (
    ([*rest, f"--tls_ca={tmp_path / 'no.pem'}"], "--tls_ca cannot be used: "),
    ([*by_grpc, f"--tls_ca={tmp_path / 'no.pem'}"], "--tls_ca cannot be used: "),
    (
      [*rest, ca, f"--tls_cert={cert}", f"--tls_key={key}"],
      "--tls_cert and --tls_key cannot be used: ",
    ),
    (
      [*by_grpc, ca, f"--tls_cert={cert}", f"--tls_key={key}"],
      "--tls_cert and --tls_key cannot be used: ",
    ),
    ([*rest, ca, f"--tls_key={key}"], "TLS needs both --tls_cert and --tls_key"),
    (
      [*rest, f"--tls_cert={cert}", f"--tls_key={key}"],
      "--tls_cert and --tls_key go together, and with --tls_ca",
    ),
    ([*rest, f"--tls_ca={cert}"], "ends the connection: "),
    ([*rest, ca], "ends the connection: "),  # a client without a certificate
    ([*by_grpc, ca, "--seconds=5"], "refuses (UNAVAILABLE): "),
    (rest, "ends the connection: "),
  ):
    code, _, error = _query(capsys, [inputs, *given])
    assert (code, error.count("\n")) == (2, 1), error
    assert words in error
