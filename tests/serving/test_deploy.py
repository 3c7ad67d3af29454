"""The files of examples/deploy fit each other, the models that we write, and the programs that read
them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from jax2tf.converters import onnx, saved_model
from jax2tf.tools.serving import config

DEPLOY = Path(__file__).resolve().parents[2] / "examples" / "deploy"
PARAMS = {"w": np.arange(12, dtype=np.float32).reshape(4, 3) / 12}
X = np.arange(8, dtype=np.float32).reshape(2, 4)
SPECS: dict[str, Any] = {"inputs": {"x": "f32[b,4]"}, "outputs": ["y"]}


def predict(params, x):
  return jnp.tanh(x @ params["w"])


def yamls(path: str) -> list[Any]:
  return list(yaml.safe_load_all((DEPLOY / path).read_text(encoding="utf-8")))


def message(name: str, **fields: tuple[str, ...]) -> Any:
  """A proto message as TF Serving documents it: tensorflow-serving-api 2.21 has none of batching
  and monitoring."""
  proto = descriptor_pb2.FileDescriptorProto(name=f"{name}.proto", syntax="proto3")
  for number, (kind, members) in enumerate(
    {"Part": fields.pop("part"), name: tuple(fields)}.items()
  ):
    added = proto.message_type.add(name=kind)
    for i, member in enumerate(members):
      of_part = number and fields[member] != ("bool",)
      added.field.add(
        name=member,
        number=i + 1,
        label=1,
        type=11 if of_part else _TYPES[member],
        type_name=".Part" if of_part else None,
      )
  pool = descriptor_pool.DescriptorPool()
  pool.Add(proto)
  return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()


_TYPES = {"value": 3, "enable": 8, "path": 9, "pad_variable_length_inputs": 8}


def test_tf_serving_and_our_server_take_the_list_of_models():
  options = SimpleNamespace(model_config_file=DEPLOY / "tf-serving" / "models.config", allow_ops=())
  [(name, source)] = config.sources(options).items()
  assert (name, source.folder, source.latest) == ("net", Path("/models/net"), 2)


def test_batching_and_monitoring_have_the_fields_of_tf_serving():
  numbers = ("max_batch_size", "batch_timeout_micros", "max_enqueued_batches", "num_batch_threads")
  batching = message(
    "Batching",
    part=("value",),
    **dict.fromkeys(numbers, ("part",)),
    pad_variable_length_inputs=("bool",),
  )
  text_format.Parse((DEPLOY / "tf-serving/batching.config").read_text(encoding="utf-8"), batching)
  assert all(getattr(batching, name).value for name in numbers)
  monitoring = message("Monitoring", part=("enable", "path"), prometheus_config=("part",))
  text_format.Parse(
    (DEPLOY / "tf-serving/monitoring.config").read_text(encoding="utf-8"), monitoring
  )
  [job] = yamls("tf-serving/prometheus.yaml")[0]["scrape_configs"]
  assert monitoring.prometheus_config.enable
  assert job["metrics_path"] == monitoring.prometheus_config.path


def test_compose_mounts_what_its_flags_name():
  services = yamls("tf-serving/compose.yaml")[0]["services"]
  mounts = {}
  for volume in [v for service in services.values() for v in service["volumes"]]:
    source, target = re.fullmatch(r"(\$\{.*\}|[^:]*):(/[^:]*):ro", volume).groups()
    mounts[target] = source
    assert source.startswith("${MODELS") or (DEPLOY / "tf-serving" / source).is_file()
  named = [flag.partition("=")[2] for flag in services["tf-serving"]["command"] if "_file=" in flag]
  assert len(named) == 3
  assert {*named, "/models"} <= {*mounts}
  [target] = yamls("tf-serving/prometheus.yaml")[0]["scrape_configs"][0]["static_configs"][0][
    "targets"
  ]
  assert target.partition(":")[0] in services
  assert all(
    port.startswith("127.0.0.1:") for service in services.values() for port in service["ports"]
  )


def test_gpus_are_asked_for_by_a_value():
  [gpu] = yamls("tf-serving/compose.gpu.yaml")
  [device] = gpu["services"]["tf-serving"]["deploy"]["resources"]["reservations"]["devices"]
  assert device == {"driver": "nvidia", "count": "${GPUS:-1}", "capabilities": ["gpu"]}
  [customized] = yamls("kubernetes/gpu/kustomization.yaml")
  [patch] = customized["patches"]
  deployment = yamls("kubernetes/tf-serving.yaml")[0]
  assert patch["target"] == {"kind": deployment["kind"], "name": deployment["metadata"]["name"]}
  for operation in yaml.safe_load(patch["patch"]):
    *parents, name = operation["path"].removeprefix("/").split("/")
    place = deployment
    for parent in parents:
      place = place[int(parent) if parent.isdecimal() else parent]
    assert (name in place) == (operation["op"] == "replace")


def test_kubernetes_manifests_name_each_other():
  deployment, service, scaler = yamls("kubernetes/tf-serving.yaml")
  pod = deployment["spec"]["template"]
  [container] = pod["spec"]["containers"]
  assert (
    deployment["spec"]["selector"]["matchLabels"]
    == service["spec"]["selector"]
    == pod["metadata"]["labels"]
  )
  assert {p["targetPort"] for p in service["spec"]["ports"]} == {
    p["name"] for p in container["ports"]
  }
  assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
  assert scaler["spec"]["minReplicas"] == deployment["spec"]["replicas"]
  assert {m["name"] for m in container["volumeMounts"]} == {
    v["name"] for v in pod["spec"]["volumes"]
  }
  [customized] = yamls("kubernetes/kustomization.yaml")
  assert (customized["apiVersion"], customized["kind"]) == (
    "kustomize.config.k8s.io/v1beta1",
    "Kustomization",
  )
  command = (
    (DEPLOY / "kubernetes" / "kustomization.yaml")
    .read_text(encoding="utf-8")
    .partition("\n")[0]
    .removeprefix("# ")
  )
  page = DEPLOY.parents[1] / "docs" / "deploy" / "kubernetes.md"
  typed = page.read_text(encoding="utf-8").replace(" \\\n ", "")  # in one line
  assert command in typed
  [made] = customized["configMapGenerator"]
  assert made["name"] == pod["spec"]["volumes"][0]["configMap"]["name"]
  files = {Path(file).name for file in made["files"] if (DEPLOY / "kubernetes" / file).is_file()}
  assert {flag.rpartition("/")[2] for flag in container["args"] if "/config/" in flag} == files


def test_triton_reads_our_onnx(tmp_path):
  path = tmp_path / "net" / "1" / "model.onnx"
  path.parent.mkdir(parents=True)
  onnx.save(predict, PARAMS, path, **SPECS)
  session = onnxruntime.InferenceSession(str(path))
  text = (DEPLOY / "triton" / "net" / "config.pbtxt").read_text(encoding="utf-8")
  found = re.findall(
    r'(input|output) \[ \{ name: "(\w+)" data_type: TYPE_FP32 dims: \[ (\d+) \]', text
  )
  ours = [("input", session.get_inputs()), ("output", session.get_outputs())]
  assert found == [(kind, x.name, str(x.shape[1])) for kind, [x] in ours]
  assert all(x.type == "tensor(float)" and not isinstance(x.shape[0], int) for _, [x] in ours)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_openvino_reads_our_folder(tmp_path):
  # else its import forks, and calls its makers over the network
  with mock.patch.dict(os.environ, CI="true"):
    import openvino  # noqa: PLC0415

  saved_model.save(predict, PARAMS, tmp_path / "net", **SPECS)
  [model] = json.loads((DEPLOY / "openvino" / "config.json").read_text(encoding="utf-8"))[
    "model_config_list"
  ]
  read = openvino.Core().read_model(tmp_path / Path(model["config"]["base_path"]).name / "1")
  read.reshape(
    {name: json.loads(f"[{shape[1:-1]}]") for name, shape in model["config"]["shape"].items()}
  )
  [y] = openvino.compile_model(read, "CPU")(X).values()
  np.testing.assert_allclose(y, predict(PARAMS, X), rtol=1e-5)
