"""`jax2tf serve`: TF Serving's gRPC and REST interfaces in Ray Serve, asked by a stock client and
by curl."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_serving.apis import (
  get_model_metadata_pb2,
  get_model_status_pb2,
  model_service_pb2_grpc,
  predict_pb2,
  prediction_service_pb2_grpc,
)

from jax2tf.tools.cli import main as command
from jax2tf.tools.serving import place
from tests.serving.serve_models import Strings, configure, encode, inputs_of, params, save
from tests.serving.serve_requests import (
  BAD_BODIES,
  BAD_REQUESTS,
  EXHAUSTED,
  INVALID,
  MAX_BYTES,
  NOT_FOUND,
  ROW,
  is_answered,
  refusal,
  request_of,
)
from tests.support import clients
from tests.support.ports import free_ports

PREDICT = "/tensorflow.serving.PredictionService/Predict"
CLIENT_SECONDS = 5.0
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
  path = tmp_path_factory.mktemp("models") / "encoder"
  save(path, 0)
  (path / ".saving-abc" / "model").mkdir(parents=True)
  (path / ".saving-abc" / "model" / "saved_model.pb").write_bytes(b"half")
  configure(path)
  return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[clients.Server]:
  options = (
    "--replicas=2",
    f"--max_request_mb={MAX_BYTES >> 20}",
    f"--client_seconds={CLIENT_SECONDS}",
  )
  with clients.serving(folder.parent / "models.config", *options) as running:
    yield running


@pytest.fixture(scope="module")
def channel(server: clients.Server) -> Iterator[grpc.Channel]:
  with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as opened:
    yield opened


@pytest.fixture
def stub(channel: grpc.Channel) -> prediction_service_pb2_grpc.PredictionServiceStub:
  return prediction_service_pb2_grpc.PredictionServiceStub(channel)


@pytest.fixture
def curl(server: clients.Server) -> Callable[..., tuple[int, Any]]:
  def call(
    path: str, body: str | bytes | None = None, host: str = "localhost", *headers: str
  ) -> tuple[int, Any]:
    given = [part for header in (f"Host: {host}", *headers) for part in ("-H", header)]
    command = [
      "curl",
      "-s",
      *given,
      "-w",
      "\n%{http_code}",
      f"http://127.0.0.1:{server.http_port}{path}",
    ]
    command += [] if body is None else ["--data-binary", "@-"]
    sent = body.encode() if isinstance(body, str) else body
    found = subprocess.run(
      command, input=sent, capture_output=True, timeout=30, check=True
    ).stdout.decode()
    answer, _, code = found.rpartition("\n")
    return int(code), json.loads(answer) if answer[:1] in "{[" else answer

  return call


@pytest.mark.parametrize(("b", "s"), [(1, 4), (3, 4), (100, 1)])
def test_grpc_gives_the_values_of_jax(stub: Any, b: int, s: int) -> None:
  inputs = inputs_of(b, s)
  response = stub.Predict(request_of(inputs), timeout=30)
  expected = encode(params(0), **inputs)
  np.testing.assert_allclose(
    tf.make_ndarray(response.outputs["y"]), expected["y"], rtol=1e-5, atol=1e-6
  )
  np.testing.assert_array_equal(tf.make_ndarray(response.outputs["total"]), expected["total"])
  spec = response.model_spec
  assert (spec.name, spec.version.value, spec.signature_name) == ("encoder", 1, "serving_default")


def test_nan_is_a_value(stub: Any, curl: Any) -> None:
  inputs = inputs_of(2, 1)
  inputs["x"][1, 3] = np.nan
  found = tf.make_ndarray(stub.Predict(request_of(inputs), timeout=30).outputs["y"])
  np.testing.assert_array_equal(np.isnan(found), [[False] * 3, [True] * 3])
  code, answer = curl(
    "/v1/models/encoder:predict", json.dumps({"inputs": {k: v.tolist() for k, v in inputs.items()}})
  )
  assert code == 200
  np.testing.assert_array_equal(np.isnan(answer["outputs"]["y"]), np.isnan(found))


def test_version_signature_and_filter_of_a_request(stub: Any) -> None:
  request = request_of(inputs_of(2, 3), version=1, signature_name="serving_default")
  request.output_filter.append("total")
  assert list(stub.Predict(request, timeout=30).outputs) == ["total"]


@pytest.mark.parametrize("fault", BAD_REQUESTS)
def test_what_grpc_refuses(stub: Any, fault: str) -> None:
  make, expected, words = BAD_REQUESTS[fault]
  code, details = refusal(lambda: stub.Predict(make(), timeout=30))
  assert code == expected, details
  assert words in details


@needs_curl
def test_versions_have_labels(stub: Any, curl: Any) -> None:
  assert (
    stub.Predict(
      request_of(inputs_of(1, 1), version_label="first"), timeout=30
    ).model_spec.version.value
    == 1
  )
  body = json.dumps({"inputs": {name: value.tolist() for name, value in inputs_of(1, 1).items()}})
  assert curl("/v1/models/encoder/labels/first:predict", body)[0] == 200
  assert curl("/v1/models/encoder/labels/first") == curl("/v1/models/encoder/versions/1")
  assert curl("/v1/models/encoder/labels/second/metadata")[0] == 400


@needs_curl
def test_a_body_of_any_content_type_and_of_gzip(curl: Any) -> None:
  """As in TF Serving, whose REST API does not look at the Content-Type."""
  body = json.dumps({"instances": [ROW]})
  expected = curl("/v1/models/encoder:predict", body)
  assert expected[0] == 200
  for content in ("application/octet-stream", "application/x-www-form-urlencoded"):
    assert (
      curl("/v1/models/encoder:predict", body, "localhost", f"Content-Type: {content}") == expected
    )
  packed = gzip.compress(body.encode())
  assert (
    curl("/v1/models/encoder:predict", packed, "localhost", "Content-Encoding: gzip") == expected
  )
  for bad, code in (
    (packed[:-9], 400),
    (body.encode(), 400),
    (gzip.compress(bytes(MAX_BYTES + 1)), 413),
  ):
    assert curl("/v1/models/encoder:predict", bad, "localhost", "Content-Encoding: gzip")[0] == code


def test_status_and_health_by_grpc(channel: grpc.Channel) -> None:
  status = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus
  request = get_model_status_pb2.GetModelStatusRequest(model_spec={"name": "encoder"})
  [state] = status(request, timeout=30).model_version_status
  assert (state.version, state.state, state.status.error_code) == (
    1,
    get_model_status_pb2.ModelVersionStatus.AVAILABLE,
    0,
  )
  request.model_spec.name = "other"
  assert refusal(lambda: status(request, timeout=30))[0] == NOT_FOUND
  # grpc.health.v1: a name in field 1, and a status in field 1, of which 1 is SERVING and 3
  # SERVICE_UNKNOWN.
  check = channel.unary_unary("/grpc.health.v1.Health/Check")
  service = b"tensorflow.serving.PredictionService"
  assert (
    check(b"", timeout=30)
    == check(b"\n" + bytes([len(service)]) + service, timeout=30)
    == b"\x08\x01"
  )
  assert refusal(lambda: check(b"\n\x01x", timeout=30))[0] == NOT_FOUND
  watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
  for name, expected in ((b"", b"\x08\x01"), (b"\n\x01x", b"\x08\x03")):
    stream = watch(name, timeout=30)
    assert next(stream) == expected
    stream.cancel()


def test_a_port_that_is_taken_is_said_before_anything_starts(
  folder: Path, server: clients.Server
) -> None:
  [free] = free_ports(1)
  for ports in ((server.grpc_port, free), (free, server.http_port)):
    done = subprocess.run(
      [*clients.COMMAND, str(folder), f"--grpc_port={ports[0]}", f"--http_port={ports[1]}"],
      capture_output=True,
      text=True,
      check=False,
    )
    [taken] = {*ports} - {free}
    words = (
      f"jax2tf serve: port {taken} of 127.0.0.1 cannot be used (Address already in use); "
      "give --grpc_port and --http_port\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", words)


def test_query(
  folder: Path, server: clients.Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  inputs = inputs_of(3, 2)
  expected = encode(params(0), **inputs)
  np.savez(tmp_path / "inputs.npz", **inputs)
  (tmp_path / "inputs.json").write_text(
    json.dumps({name: value.tolist() for name, value in inputs.items()})
  )
  rest, by_grpc = (
    [f"--rest=127.0.0.1:{server.http_port}"],
    [f"--grpc=127.0.0.1:{server.grpc_port}", "--label=first"],
  )
  for flags in (rest, by_grpc):
    for file in ("inputs.npz", "inputs.json"):
      code, table, error = _query(
        capsys, "encoder", str(tmp_path / file), *flags, f"--out={tmp_path / 'out.npz'}"
      )
      assert (code, "float32[3,3]" in table, error) == (0, True, "")
      with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5, atol=1e-6)
        assert {name: array.dtype.name for name, array in found.items()} == {
          "y": "float32",
          "total": "int32",
        }
  rows = [{name: value[i].tolist() for name, value in inputs.items()} for i in range(3)]
  (tmp_path / "rows.json").write_text(json.dumps({"instances": rows}))
  _, printed, _ = _query(capsys, "encoder", str(tmp_path / "rows.json"), *rest, "--json")
  assert json.loads(printed)["outputs"]["total"] == {
    "dtype": "int32",
    "shape": [3],
    "values": expected["total"].tolist(),
  }
  [dead], right = free_ports(1), str(tmp_path / "inputs.json")
  for flags, words in (
    (["encoder", right, f"--rest=127.0.0.1:{dead}"], "does not answer"),
    (["encoder", right, f"--grpc=127.0.0.1:{dead}", "--seconds=2"], "refuses (UNAVAILABLE)"),
    (["other", right, *rest], "no model 'other' here"),
    (["encoder", right, *rest, "--version=9"], "version 9 of 'encoder' is not served"),
    (["encoder", str(folder / "1" / "saved_model.pb"), *rest], "is neither .npz nor JSON"),
  ):
    code, _, error = _query(capsys, *flags)
    assert (code, error.count("\n")) == (2, 1), error
    assert words in error


def _query(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
  """The exit code, and what was written to stdout and stderr."""
  with pytest.raises(SystemExit) as ended:
    command.main(["query", *arguments])
  return int(ended.value.code or 0), *capsys.readouterr()


def test_few_bytes_that_stand_for_many_are_refused(stub: Any) -> None:
  request = request_of(inputs_of(2, 3))
  for name, tensor in request.inputs.items():
    tensor.tensor_content = b""
    getattr(tensor, {"x": "float_val", "ids": "int_val"}[name]).append(1)
    tensor.tensor_shape.dim[0].size = 2**60
  code, details = refusal(lambda: stub.Predict(request, timeout=30))
  assert code == EXHAUSTED
  assert "the inputs would have" in details


def test_bytes_that_are_no_request(channel: grpc.Channel) -> None:
  code, details = refusal(lambda: channel.unary_unary(PREDICT)(b"\xff\xff\xff", timeout=30))
  assert code == INVALID
  assert "not a tensorflow.serving.PredictRequest" in details
  code, _ = refusal(
    lambda: channel.unary_unary("/tensorflow.serving.PredictionService/Classify")(b"", timeout=30)
  )
  assert code == grpc.StatusCode.UNIMPLEMENTED


def test_metadata_by_grpc(stub: Any) -> None:
  request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
  request.model_spec.name = "encoder"
  found = get_model_metadata_pb2.SignatureDefMap()
  assert stub.GetModelMetadata(request, timeout=30).metadata["signature_def"].Unpack(found)
  assert set(found.signature_def["serving_default"].inputs) == {"x", "ids"}
  request.metadata_field[0] = "weights"
  assert refusal(lambda: stub.GetModelMetadata(request, timeout=30))[0] == INVALID


@needs_curl
def test_rest_gives_the_values_of_jax(curl: Any) -> None:
  inputs = inputs_of(3, 2)
  expected = encode(params(0), **inputs)
  rows = [{name: array[i].tolist() for name, array in inputs.items()} for i in range(3)]
  code, answer = curl("/v1/models/encoder:predict", json.dumps({"instances": rows}))
  assert code == 200, answer
  np.testing.assert_allclose(
    [row["y"] for row in answer["predictions"]], expected["y"], rtol=1e-5, atol=1e-6
  )
  assert [row["total"] for row in answer["predictions"]] == expected["total"].tolist()
  columns = {name: array.tolist() for name, array in inputs.items()}
  code, answer = curl(
    "/v1/models/encoder/versions/1:predict",
    json.dumps({"signature_name": "serving_default", "inputs": columns}),
  )
  assert code == 200, answer
  np.testing.assert_allclose(answer["outputs"]["y"], expected["y"], rtol=1e-5, atol=1e-6)


@needs_curl
def test_status_metadata_and_health_by_rest(curl: Any, server: clients.Server) -> None:
  available = {
    "version": "1",
    "state": "AVAILABLE",
    "status": {"error_code": "OK", "error_message": ""},
  }
  assert (
    curl("/v1/models/encoder")
    == curl("/v1/models/encoder/versions/1")
    == (200, {"model_version_status": [available]})
  )
  code, found = curl("/v1/models/encoder/metadata")
  assert code == 200
  assert set(found["metadata"]["signature_def"]["signature_def"]["serving_default"]["outputs"]) == {
    "y",
    "total",
  }
  health = subprocess.run(
    ["curl", "-s", f"http://127.0.0.1:{server.http_port}/-/healthz"],
    capture_output=True,
    text=True,
    check=True,
  )
  assert health.stdout == "success"
  check = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}").unary_unary(
    "/grpc.health.v1.Health/Check"
  )
  assert check(b"", timeout=30) == b"\x08\x01"  # HealthCheckResponse(status=SERVING)


@needs_curl
@pytest.mark.parametrize(
  ("host", "code"),
  [
    ("127.0.0.1", 200),
    ("localhost:80", 200),
    ("evil.example", 400),
    ("127.0.0.1.evil.example", 400),
  ],
)
def test_whom_a_client_must_mean(curl: Any, host: str, code: int) -> None:
  assert curl("/v1/models/encoder", host=host)[0] == code


def test_slow_clients_are_cut(server: clients.Server) -> None:
  head = b"POST /v1/models/encoder:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
  started = {
    "head": (server.http_port, head),
    "body": (server.http_port, head + b"\r\n{"),
    "handshake": (server.grpc_port, b"PRI"),
  }
  release = threading.Event()
  with contextlib.ExitStack() as stack:
    channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}"))
    # has begun, and sends no request
    never = channel.stream_unary(PREDICT).future(iter(release.wait, True), timeout=30)
    stack.callback(release.set)
    connections = {
      name: stack.enter_context(socket.create_connection(("127.0.0.1", port)))
      for name, (port, _) in started.items()
    }
    for name, connection in connections.items():
      connection.sendall(started[name][1])
    for name, connection in connections.items():
      connection.settimeout(30)
      assert (b" 408 " in b"".join(iter(lambda: _received(connection), b""))) == (name == "body")  # noqa: B023  (called at once)
    assert "did not arrive within" in never.details()


def _received(connection: socket.socket) -> bytes:
  with contextlib.suppress(ConnectionResetError):
    return connection.recv(1000)
  return b""


@needs_curl
@pytest.mark.parametrize("fault", BAD_BODIES)
def test_what_rest_refuses(curl: Any, fault: str) -> None:
  path, body, expected, words = BAD_BODIES[fault]
  code, answer = curl(f"/v1/models/encoder{path}", body)
  assert code == expected, answer
  assert words in answer["error"]


def test_jax_is_in_no_process_of_the_server(server: clients.Server, stub: Any) -> None:
  stub.Predict(request_of(inputs_of(1, 1)), timeout=30)
  assert len(server.pids("replica")) == 2

  def maps(pid: int | str) -> str:
    return Path("/proc", str(pid), "maps").read_text()

  assert "jaxlib" in maps("self"), "importing JAX should show in this file"
  assert all("libtensorflow_framework" in maps(pid) for pid in server.pids("replica"))
  assert not [title for pid, title in server.processes.items() if "jaxlib" in maps(pid)]


def _listening(pid: int) -> set[str]:
  """The addresses on which a process listens, as /proc/net writes them."""
  rows = [
    line.split()
    for table in ("tcp", "tcp6")
    for line in Path("/proc", str(pid), "net", table).read_text().splitlines()[1:]
  ]
  addresses = {f"socket:[{row[9]}]": row[1].partition(":")[0] for row in rows if row[3] == "0A"}
  links = [os.readlink(link) for link in Path("/proc", str(pid), "fd").iterdir()]
  return {addresses[link] for link in links if link in addresses}


def test_no_port_is_open_to_other_machines(server: clients.Server) -> None:
  found = {title: _listening(pid) for pid, title in server.processes.items()}
  assert len(found) > 10
  assert set().union(*found.values()) <= {"0100007F", "0000000000000000FFFF00000100007F"}, found


@needs_curl
def test_models_that_the_file_names_anew(folder: Path, stub: Any, curl: Any) -> None:
  shutil.copytree(folder / "1", folder.parent / "second" / "5")
  for others, expected in ((("second",), {200}), ((), {404})):
    configure(folder, *others)
    _until(lambda: {curl("/v1/models/second/versions/5")[0] for _ in range(8)} == expected)  # noqa: B023  (called at once)
  (folder.parent / "models.config").write_text("no proto")
  time.sleep(2)
  assert stub.Predict(request_of(inputs_of(1, 1)), timeout=30).model_spec.version.value == 1
  configure(folder)


@needs_curl
def test_metrics(curl: Any) -> None:
  code, text = curl("/metrics")
  assert code == 200
  counted = [line for line in text.splitlines() if line.startswith("jax2tf_requests_total{")]
  for labels in (
    'model="encoder",signature="serving_default",version="1"',
    'code="INVALID_ARGUMENT",interface="grpc",method="Predict"',
  ):
    assert any(labels in line for line in counted), counted
  assert 'model="other"' not in text  # clients make up no names
  assert "\njax2tf_replicas 2.0\n" in text


def test_many_requests_at_once_of_mixed_sizes_and_a_proxy_dies(server: clients.Server) -> None:
  questions = []
  for b, s in [(1, 2), (2, 2), (5, 2), (3, 7), (40, 2), (64, 7)]:
    inputs = inputs_of(b, s)
    questions.append(
      clients.Question(request_of(inputs), "y", np.asarray(encode(params(0), **inputs)["y"]))
    )

  async def ask(victims: list[int]) -> clients.Tally:
    running = asyncio.create_task(
      clients.load(server.grpc_port, questions, concurrency=100, seconds=2.0)
    )
    await asyncio.sleep(0.7)
    for victim in victims:
      os.kill(victim, signal.SIGKILL)
    return await running

  for victims in ([], server.pids("proxy")[:1]):
    tally = asyncio.run(ask(victims))
    assert len(tally.milliseconds) > 50
    assert (tally.wrong, tally.errors) == (0, [])
    assert victims or not tally.retries
    assert tally.summary()["longest outage s"] < 2
  _until(lambda: len(server.pids("proxy")) == 2)


def _until(condition: Callable[[], bool]) -> None:
  end = time.monotonic() + 30
  while not condition():
    assert time.monotonic() < end, "nothing happened within 30 s"
    time.sleep(0.2)


def _write_garbage(folder: Path) -> None:
  (folder / "2").mkdir()
  (folder / "2" / "saved_model.pb").write_bytes(b"broken")


def _save_with_a_warm_up_that_is_refused(folder: Path) -> None:
  save(folder, 5, warmup_requests=[inputs_of(101, 1)])


@needs_curl
@pytest.mark.parametrize(
  ("write", "words"),
  [(_write_garbage, "parse"), (_save_with_a_warm_up_that_is_refused, "b <= 100")],
  ids=["garbage", "warm-up"],
)
def test_a_version_that_cannot_be_loaded_leaves_the_old_one(
  folder: Path, stub: Any, curl: Any, write: Callable[[Path], None], words: str
) -> None:
  write(folder)

  def states() -> list[Any]:
    found: list[Any] = curl("/v1/models/encoder")[1]["model_version_status"]
    return found

  _until(
    lambda: (
      [(state["version"], state["state"]) for state in states()]
      == [("2", "END"), ("1", "AVAILABLE")]
    )
  )
  _until(lambda: words in states()[0]["status"]["error_message"])  # of either replica
  assert stub.Predict(request_of(inputs_of(1, 1)), timeout=30).model_spec.version.value == 1
  shutil.rmtree(folder / "2")
  _until(lambda: all([state["version"] for state in states()] == ["1"] for _ in range(8)))


def test_a_new_version_takes_over_while_the_old_one_answers(folder: Path, stub: Any) -> None:
  inputs = inputs_of(4, 2)
  expected = {version: encode(params(seed), **inputs)["y"] for version, seed in ((1, 0), (3, 5))}
  save(folder, 5, version=3, warmup_requests=[inputs])
  seen: list[int] = []

  def served() -> int:
    response = stub.Predict(request_of(inputs), timeout=30)  # every request on the way is answered
    seen.append(response.model_spec.version.value)
    np.testing.assert_allclose(
      tf.make_ndarray(response.outputs["y"]), expected[seen[-1]], rtol=1e-5, atol=1e-6
    )
    return seen[-1]

  _until(lambda: {served() for _ in range(8)} == {3})
  assert set(seen) <= {1, 3}
  # the label "first" names it
  assert all(is_answered(stub, request_of(inputs, version=1)) for _ in range(8))


@needs_curl
def test_strings_of_a_model_without_a_manifest(folder: Path, stub: Any, curl: Any) -> None:
  model = Strings()
  tf.saved_model.save(model, str(folder / ".saving-4" / "model"), signatures=model.__call__)
  (folder / ".saving-4" / "model").rename(folder / "4")

  def answer(body: Any) -> tuple[int, Any]:
    return curl("/v1/models/encoder/versions/4:predict", json.dumps(body))

  text, data = "größer", {"b64": base64.b64encode(b"\xff\x00").decode()}
  _until(lambda: all(answer({"instances": [text]})[0] == 200 for _ in range(8)))
  coded = {"b64": base64.b64encode(text.encode()).decode()}
  rows = [{"length": 8, "same_bytes": coded}, {"length": 2, "same_bytes": data}]
  unpadded = {"b64": data["b64"].rstrip("=")}
  assert (
    answer({"instances": [text, data]})
    == answer({"instances": [text, unpadded]})
    == (200, {"predictions": rows})
  )
  assert answer({"inputs": {"text": [text]}}) == (
    200,
    {"outputs": {"length": [8], "same_bytes": [coded]}},
  )
  deep: Any = "a"
  for _ in range(800):
    deep = [deep]
  for bad, words in (
    (1, "a tensor of strings"),
    ({"b64": "?"}, "base64: "),
    (["a"], "lists side by side"),
    (deep, "lists side by side"),
  ):
    code, found = answer({"instances": [text, bad]})
    assert code == 400
    assert words in found["error"]
  _until(lambda: _strings_claimed(stub, 2, b"") == "")
  for count, value in ((200_000, b"a"), (1000, b"a" * 5000)):  # each a few bytes of a request
    assert "the inputs would have" in _strings_claimed(stub, count, value)


def _strings_claimed(stub: Any, count: int, value: bytes) -> str:
  """How a request is refused that sends one string and says that there are so many; "" if it is
  answered."""
  request = predict_pb2.PredictRequest(inputs={"text": tf.make_tensor_proto([value])})
  request.model_spec.name = "encoder"
  request.inputs["text"].tensor_shape.dim[0].size = count
  try:
    stub.Predict(request, timeout=30)
  except grpc.RpcError as error:
    return str(error.details())  # type: ignore[attr-defined]
  return ""


def test_what_hangs_and_what_ends_with_the_server(
  folder: Path, server: clients.Server, stub: Any
) -> None:
  """The last test of this file, for it ends the server. Processes that hang are killed and
  replaced; the last answers are given."""
  save(folder, 0, version=9)
  request = request_of(inputs_of(1, 1), version=9)
  hangs = server.pids("proxy")[0]
  os.kill(hangs, signal.SIGSTOP)
  _until(lambda: hangs not in server.pids("proxy") and len(server.pids("proxy")) == 2)
  _until(lambda: all(is_answered(stub, request) for _ in range(8)))
  [hangs, lives] = server.pids("replica")
  os.kill(hangs, signal.SIGSTOP)
  stopped = time.monotonic()
  calls = [stub.Predict.future(request, timeout=60) for _ in range(2)]  # one goes to each replica
  _until(lambda: all(call.done() for call in calls))
  assert time.monotonic() < stopped + 10
  [lost] = [call for call in calls if call.code() != grpc.StatusCode.OK]
  assert (lost.code(), lost.details()) == (
    grpc.StatusCode.UNAVAILABLE,
    "the replica that had this request died; send it again",
  )
  _until(
    lambda: (
      f"a replica (process {hangs}) ended and is replaced: it did not answer health calls for 2 s"
      in server.said()
    )
  )
  os.kill(lives, signal.SIGSTOP)
  kept = stub.Predict.future(request, timeout=60)
  time.sleep(0.5)
  server.process.send_signal(signal.SIGTERM)
  time.sleep(1)
  with pytest.raises(OSError, match="refused"):
    socket.create_connection(("127.0.0.1", server.http_port))
  os.kill(lives, signal.SIGCONT)
  assert kept.result().model_spec.version.value == 9
  assert server.process.wait(60) == 0
  assert not server.processes.keys() - {server.process.pid}
  assert not any(place.parents()[0].glob(f"jax2tf-serve-*/{server.process.pid}.server"))
