"""Random requests against `jax2tf serve`: 4,000 by REST and 4,000 by gRPC, and a version that is
replaced while clients use its label.

  python -m jax2tf.tools.lab.server_fuzz [--requests=4000] [--seed=0]

Each valid request has to be answered with JAX's values, and each invalid one refused as such. It
fails if an answer is wrong or missing, if a label misses, or if the server's memory grows by more
than 5 % after the warm-up: docs/reports/server-fuzz.md.
"""

from __future__ import annotations

import collections
import concurrent.futures
import http.client
import json
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import click
import grpc
import jax
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2
from tqdm import tqdm

from jax2tf.converters import saved_model
from jax2tf.tools.lab import reports, serving_report
from tests.support import clients, grpc_requests, server_requests
from tests.support.server_requests import Arrays, Case

# The warm-up is a part of the requests, of other seeds.
_WARM_UP = 0.5
# The proxies alone are small, so that a few MB are more than 5 % of them.
_WEIGHED = ("replicas", "all processes")
_CLIENTS = 8
_GROWTH = 1.05
_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_SECONDS = 60.0
_REFUSALS = {400, 404, 413, 415, 501}
_REFUSED = {
  grpc.StatusCode.INVALID_ARGUMENT,
  grpc.StatusCode.NOT_FOUND,
  grpc.StatusCode.FAILED_PRECONDITION,
  grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class _LostError(Exception):
  """Neither an answer nor a refusal."""


class _Rest:
  """A client of the REST API, with a connection for each thread."""

  def __init__(self, port: int):
    self._port = port
    self._local = threading.local()

  def ask(self, case: Case) -> Arrays | None:
    """The outputs; None if the request is refused. Raises _LostError."""
    status, body = self.send(f"/v1/models/{case.model}{case.path}", case.body, case.headers)
    if status == 200:
      return server_requests.read(case, body)
    if status not in _REFUSALS or set(json.loads(body)) != {"error"}:
      raise _LostError(f"{status}: {body[:200]!r}")
    return None

  def send(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """The status and the body of the answer."""
    connection = getattr(self._local, "connection", None) or http.client.HTTPConnection(
      "127.0.0.1", self._port, timeout=_SECONDS
    )
    self._local.connection = connection
    try:
      chunked = "Transfer-Encoding" in headers
      parts: Any = (
        iter([body[:7], body[7:]] if len(body) > 7 else [body] if body else []) if chunked else body
      )
      connection.request("POST", path, parts, dict(headers), encode_chunked=chunked)
      response = connection.getresponse()
      return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
      connection.close()
      self._local.connection = None
      raise _LostError(f"{type(error).__name__}: {error}") from error


class _Grpc:
  """A client of the gRPC API."""

  def __init__(self, channel: grpc.Channel):
    self._predict = channel.unary_unary(_PREDICT)

  def ask(self, case: Case) -> Arrays | None:
    """The outputs; None if the request is refused. Raises _LostError."""
    try:
      response = predict_pb2.PredictResponse.FromString(self._predict(case.body, timeout=_SECONDS))
    except grpc.RpcError as error:
      if error.code() not in _REFUSED:
        raise _LostError(f"{error.code().name}: {error.details()}") from error
      return None
    return {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}


def _run(
  make: Callable[[int], Case], ask: Callable[[Case], Arrays | None], seeds: range
) -> dict[str, dict[str, Any]]:
  """{kind: numbers of requests, answers, refusals, wrong and lost ones}, with the first faults."""
  found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
  faults: list[str] = []

  def one(seed: int) -> tuple[str, str, str]:
    case = make(seed)
    try:
      outputs = ask(case)
    except (_LostError, KeyError, ValueError, TypeError) as error:
      return case.kind, "lost", f"seed {seed}, {case.kind}: {type(error).__name__}: {error}"
    fault = case.fault(outputs)
    return (
      case.kind,
      "wrong" if fault else "refused" if outputs is None else "answered",
      fault and f"seed {seed}, {case.kind}: {fault}",
    )

  with concurrent.futures.ThreadPoolExecutor(_CLIENTS) as pool:
    for kind, what, fault in tqdm(
      pool.map(one, seeds), total=len(seeds), unit=" requests", leave=False, mininterval=5
    ):
      found[kind].update(["requests", what])
      faults += [fault] * bool(fault)
  for fault in faults[:20]:
    print(fault)
  names = ("requests", "answered", "refused", "wrong", "lost")
  return {kind: {name: numbers[name] for name in names} for kind, numbers in sorted(found.items())}


def _megabytes(server: clients.Server) -> dict[str, float]:
  """The resident memory of the proxies, of the replicas, and of all processes."""
  totals = {kind: sum(sizes) for kind, sizes in server.megabytes.items()}
  named = {"proxies": totals["proxy"], "replicas": totals["replica"]}
  named["all processes"] = sum(totals.values())
  return {name: round(size) for name, size in named.items()}


def _configure(folder: pathlib.Path, versions: tuple[int, ...], stable: int) -> pathlib.Path:
  """Writes the config file of the server, with the versions of the model "rolled" and its label."""
  chosen = " ".join(f"versions: {version}" for version in versions)
  models = [
    f'config {{ name: "{name}" base_path: "{name}" }}' for name in ("types", "linear", "strings")
  ]
  policy = f"model_version_policy {{ specific {{ {chosen} }} }}"
  models.append(
    f'config {{ name: "rolled" base_path: "rolled" {policy} version_labels {{ key: "stable" '
    f"value: {stable} }} }}"
  )
  (folder / "models.new").write_text(f"model_config_list {{ {' '.join(models)} }}")
  (folder / "models.new").rename(folder / "models.config")
  return folder / "models.config"


def _save_rolled(folder: pathlib.Path, version: int) -> None:
  saved_model.save(
    lambda w, x: w * x,
    np.float32(version),
    folder / "rolled",
    inputs={"x": "f32[b]"},
    outputs=["y"],
    version=version,
  )


def _roll(folder: pathlib.Path, rest: _Rest) -> dict[str, Any]:
  """Replaces version 1 by version 2 as docs/guide/serving.md says, while clients use the label."""
  ended, answers, errors = (
    threading.Event(),
    collections.Counter[float](),
    collections.Counter[str](),
  )

  def label() -> None:
    while not ended.is_set():
      try:
        status, body = rest.send(
          "/v1/models/rolled/labels/stable:predict", b'{"inputs": [1.0]}', {}
        )
        answers[json.loads(body)["outputs"][0] if status == 200 else -status] += 1
      except (_LostError, KeyError, ValueError) as error:
        errors[f"{error}"] += 1

  def until(path: str) -> None:
    """Waits until each replica has a version; 40 answers in a row are of all of them."""
    in_a_row, end = 0, time.monotonic() + _SECONDS
    while in_a_row < 40:
      status, body = rest.send(f"/v1/models/rolled{path}:predict", b'{"inputs": [1.0]}', {})
      in_a_row = in_a_row + 1 if status == 200 and json.loads(body)["outputs"] == [2.0] else 0
      if time.monotonic() > end:
        raise SystemExit(
          f"version 2 of 'rolled' does not answer at {path} after {_SECONDS:g} s: {status} "
          f"{body[:200]!r}"
        )
      time.sleep(0.02)

  threads = [threading.Thread(target=label) for _ in range(4)]
  for thread in threads:
    thread.start()
  try:
    _save_rolled(folder, 2)
    _configure(folder, (1, 2), 1)
    until("/versions/2")
    _configure(folder, (1, 2), 2)
    until("/labels/stable")
    _configure(folder, (2,), 2)
    time.sleep(5)
  finally:
    ended.set()
    for thread in threads:
      thread.join()
  missed = sum(errors.values()) + sum(
    count for value, count in answers.items() if value not in (1.0, 2.0)
  )
  return {"by version 1": answers[1.0], "by version 2": answers[2.0], "missed": missed}


def faults(report: Mapping[str, Any]) -> Iterator[str]:
  for interface in ("REST", "gRPC"):
    for kind, numbers in report[interface].items():
      if numbers["wrong"] or numbers["lost"]:
        yield f"{interface}, {kind}: {numbers['wrong']} wrong, {numbers['lost']} lost"
  for name, (before, after) in report["MB after the warm-up and at the end"].items():
    if name in _WEIGHED and after > _GROWTH * before:
      yield (
        f"{name}: {before} MB after the warm-up and {after} MB at the end, a growth by more "
        f"than {_GROWTH - 1:.0%}"
      )
  if report["label"]["missed"] or not (
    report["label"]["by version 1"] and report["label"]["by version 2"]
  ):
    yield f"the label: {report['label']}"


def markdown(report: Mapping[str, Any]) -> str:
  """The page, of all JAX versions that have numbers."""
  lines = [
    "# Random requests",
    "",
    "Generated by `make fuzz-server`; do not edit. The numbers are in "
    "[server-fuzz.json](data/server-fuzz.json).",
    "Each valid request has to be answered with JAX's values, and each invalid one refused with "
    "4xx, or with a status such as",
    "`INVALID_ARGUMENT`.",
    "A request with changed bytes may be refused, or answered as a parser of its own reads it.",
    "",
  ]
  for version, section in sorted(report.items()):
    lines += [
      f"## JAX {version}",
      "",
      "| | requests | answered | refused | wrong | lost |",
      "|---|---:|---:|---:|---:|---:|",
    ]
    for interface in ("REST", "gRPC"):
      for kind, numbers in section[interface].items():
        lines.append(
          f"| {interface}: {kind} | " + " | ".join(f"{n:,}" for n in numbers.values()) + " |"
        )
      total = {
        name: sum(each[name] for each in section[interface].values())
        for name in next(iter(section[interface].values()))
      }
      lines.append(
        f"| **{interface}** | " + " | ".join(f"**{n:,}**" for n in total.values()) + " |"
      )
    lines += [
      "",
      "| resident memory, MB | after the warm-up | at the end | ratio |",
      "|---|---:|---:|---:|",
    ]
    for name, (before, after) in section["MB after the warm-up and at the end"].items():
      lines.append(f"| {name} | {before:,} | {after:,} | {after / before:.3f} |")
    label = section["label"]
    lines += [
      "",
      "The replicas, and all processes together, may grow by 5 % at most. The proxies are small: "
      "a few MB show there.",
      "",
      f"While version 2 replaced version 1, {label['by version 1']:,} requests for the label "
      "`stable` were answered by version 1 and",
      f"{label['by version 2']:,} by version 2; {label['missed']} missed.",
      "",
    ]
  return "\n".join(lines)


@click.command
@click.option(
  "--requests",
  type=click.IntRange(10),
  default=4000,
  help="The number of requests by each interface.",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="The first seed.")
@click.option("--keep/--no_keep", default=True, help="Whether to write the report.")
def main(requests: int, seed: int, keep: bool) -> None:
  """Prints and writes the numbers. Raises SystemExit if an answer is wrong or missing, a label
  missed, or the memory grew."""
  jax.config.update("jax_enable_x64", True)
  warm_up = range(10**9, 10**9 + int(_WARM_UP * requests))
  with tempfile.TemporaryDirectory() as place:
    folder = pathlib.Path(place)
    server_requests.save(folder)
    _save_rolled(folder, 1)
    config = _configure(folder, (1,), 1)
    options = ("--replicas=2", f"--max_request_mb={server_requests.MAX_REQUEST_MB}")
    with (
      clients.serving(config, *options) as server,
      grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
      rest = _Rest(server.http_port)
      asked = {
        "REST": (server_requests.rest, rest.ask),
        "gRPC": (grpc_requests.by_grpc, _Grpc(channel).ask),
      }
      for make, ask in asked.values():
        _run(make, ask, warm_up)
      before = _megabytes(server)
      report: dict[str, Any] = {
        name: _run(make, ask, range(seed, seed + requests)) for name, (make, ask) in asked.items()
      }
      after = _megabytes(server)
      report |= {
        "MB after the warm-up and at the end": {
          name: [size, after[name]] for name, size in before.items()
        }
      }
      report |= {"label": _roll(folder, rest)} | serving_report.machine()
  print(reports.lines(report))
  if keep:
    reports.update("server-fuzz", report, [*report], markdown)
  if found := [*faults(report)]:
    raise SystemExit(f"{len(found)} faults, such as: {found[0]}")


if __name__ == "__main__":
  main()
