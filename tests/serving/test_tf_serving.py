"""TF Serving itself answers what JAX answers, wherever `tensorflow_model_server` is installed; the
guide compares the two servers fully."""

from __future__ import annotations

import importlib
import pkgutil
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest
import tensorflow as tf
from tensorflow_serving import config
from tensorflow_serving.apis import (
  model_service_pb2,
  prediction_service_pb2,
  prediction_service_pb2_grpc,
  session_service_pb2,
)

from tests.support import clients
from tests.support.ports import free_ports

SERVER = shutil.which("tensorflow_model_server")


@pytest.mark.skipif(
  SERVER is None,
  reason="tensorflow_model_server is not on PATH; docs/deploy/tf-serving.md says more",
)
def test_tf_serving_gives_the_values_of_jax(tmp_path: Path) -> None:
  questions = clients.save_mlp(tmp_path / "mlp", max_rows=8)
  [port] = free_ports(1)
  command = [
    str(SERVER),
    f"--port={port}",
    "--rest_api_port=0",
    "--model_name=mlp",
    f"--model_base_path={tmp_path / 'mlp'}",
  ]
  with (
    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
    grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
  ):
    try:
      stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
      for question in questions:
        response = stub.Predict(question.request, timeout=60, wait_for_ready=True)
        assert not question.wrong(response), tf.make_ndarray(response.outputs[question.output])
    finally:
      process.terminate()


GUIDE = Path(__file__).resolve().parents[2] / "docs" / "developers" / "tf-serving.md"
SERVICES = [
  service
  for module in (prediction_service_pb2, model_service_pb2, session_service_pb2)
  for service in module.DESCRIPTOR.services_by_name.values()
]


def _with_parts(messages: Iterable[Any]) -> dict[str, set[str]]:
  """{message: its fields} of TF Serving's messages, those of their fields, and those that are
  declared in them."""
  found: dict[str, set[str]] = {}
  queue = list(messages)
  while queue:
    message = queue.pop()
    own = message.full_name.startswith("tensorflow.serving.")
    if own and not message.GetOptions().map_entry:
      found[message.name] = {field.name for field in message.fields}
    if own:
      queue += [
        part
        for part in (*message.nested_types, *(f.message_type for f in message.fields))
        if part and part.name not in found
      ]
  return found


def _said(rows: list[str], message: str, field: str) -> bool:
  """Whether a row is of the field, or of the message and names the field."""
  return any(
    f"`{message}.{field}`" in row or (f"`{message}`" in row.split(" | ")[0] and f"`{field}`" in row)
    for row in rows
  )


def test_the_guide_compares_every_rpc_and_every_field() -> None:
  rows = [row for row in GUIDE.read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
  methods = [method for service in SERVICES for method in service.methods]
  assert len(methods) == 8
  names = {
    method.full_name: rf"`{method.containing_service.name}\.(\w+`, `)*{method.name}`"
    for method in methods
  }
  assert not [
    name for name, pattern in names.items() if not any(re.search(pattern, row) for row in rows)
  ]
  files = [
    importlib.import_module(f"{config.__name__}.{each.name}")
    for each in pkgutil.iter_modules(config.__path__)
  ]
  configs = [
    message
    for file in files
    if hasattr(file, "DESCRIPTOR")
    for message in file.DESCRIPTOR.message_types_by_name.values()
  ]
  messages = _with_parts(
    [part for method in methods for part in (method.input_type, method.output_type)] + configs
  )
  assert {"ModelConfig", "Latest", "Handshake", "ExampleList"} <= messages.keys()
  assert not [
    f"{message}.{field}"
    for message, fields in messages.items()
    for field in fields
    if not _said(rows, message, field)
  ]
  assert not [message for message in messages if not any(f"`{message}" in row for row in rows)]
