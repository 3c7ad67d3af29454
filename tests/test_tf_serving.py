"""TF Serving itself answers what JAX answers, wherever `tensorflow_model_server` is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import grpc
import pytest
import tensorflow as tf
from tensorflow_serving.apis import prediction_service_pb2_grpc

from jax2tf.tools.sweeps import clients

SERVER = shutil.which("tensorflow_model_server")


@pytest.mark.skipif(SERVER is None, reason="tensorflow_model_server is not on PATH; docs/guide/serving.md says how to get it")
def test_tf_serving_gives_the_values_of_jax(tmp_path: Path) -> None:
  questions = clients.save_mlp(tmp_path / "mlp", max_rows=8)
  [port] = clients.free_ports(1)
  command = [str(SERVER), f"--port={port}", "--rest_api_port=0", "--model_name=mlp", f"--model_base_path={tmp_path / 'mlp'}"]
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
