"""The manifests of examples/deploy by the schemas of Kubernetes, KServe and Triton, in an
environment of theirs: `make deploy-schemas`.

python tests/serving/deploy_schemas.py kubernetes|kserve|triton: a process each, for KServe and
Triton register one proto twice.
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "examples" / "deploy"


def kubernetes() -> None:
  import kubernetes_validate  # noqa: PLC0415

  for manifest in yaml.safe_load_all(
    (DEPLOY / "kubernetes" / "tf-serving.yaml").read_text(encoding="utf-8")
  ):
    kubernetes_validate.validate(manifest, "1.32", strict=True)


def kserve() -> None:
  import kserve  # noqa: PLC0415

  def check(value: object, kind: str) -> None:
    """Every field is one that KServe's own class has."""
    if isinstance(value, dict) and (known := getattr(kserve, kind, None)):
      for field, inner in value.items():
        [name] = [name for name, written in known.attribute_map.items() if written == field] or [
          None
        ]
        assert name, f"{kind} has no {field}"
        check(inner, known.openapi_types[name])

  manifest = yaml.safe_load(
    (DEPLOY / "kserve" / "inference-service.yaml").read_text(encoding="utf-8")
  )
  check(manifest, "V1beta1InferenceService")
  assert manifest["spec"]["predictor"]["model"]["modelFormat"]["name"] == "tensorflow"


def triton() -> None:
  from google.protobuf import text_format  # noqa: PLC0415
  from tritonclient.grpc import model_config_pb2  # noqa: PLC0415

  config = text_format.Parse(
    (DEPLOY / "triton" / "net" / "config.pbtxt").read_text(encoding="utf-8"),
    model_config_pb2.ModelConfig(),
  )
  assert (
    config.backend,
    config.max_batch_size,
    config.input[0].name,
    list(config.input[0].dims),
  ) == ("onnxruntime", 64, "x", [4])


if __name__ == "__main__":
  {"kubernetes": kubernetes, "kserve": kserve, "triton": triton}[sys.argv[1]]()
  print(sys.argv[1], "valid")
