"""What a replica of examples/serve_ray.py does with a model, without a server: requests that run together, versions that come and go."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import grpc
import jax
import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters import saved_model
from tests.serve_ray_models import encode, inputs_of, params, save

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
  path = tmp_path_factory.mktemp("models") / "encoder"
  save(path, 0)
  return path


@pytest.fixture
def model_module(monkeypatch: pytest.MonkeyPatch) -> Any:
  """The replicas' module, which keeps JAX out of its process; not out of this one."""
  monkeypatch.setitem(sys.modules, "jax", jax)  # which puts it back afterwards
  return importlib.import_module("serve_ray_model")


def _counted(signature: Any) -> tuple[Any, list[int]]:
  """The signature, and the rows of each of its runs."""
  rows: list[int] = []

  def function(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
    rows.append(len(inputs["x"]))
    result: dict[str, tf.Tensor] = signature.function(**inputs)
    return result

  return dataclasses.replace(signature, function=function), rows


@pytest.mark.parametrize(
  ("sizes", "max_rows", "expected"),
  [
    ([(2, 3), (3, 3), (4, 3)], 256, [9]),
    ([(2, 3), (3, 5), (4, 3)], 256, [6, 3]),
    ([(2, 3), (3, 3), (4, 3)], 5, [5, 4]),
    ([(2, 3), (9, 3)], 5, [2, 9]),
    ([(60, 1), (60, 1)], 256, [120, 60, 60]),
    ([(2, 3), (0, 3)], 256, [2, 0]),
  ],
  ids=["one run", "other dimensions", "limit", "larger than the limit", "refused together", "no rows"],
)
def test_which_requests_run_together(
  folder: Path, model_module: Any, sizes: list[tuple[int, int]], max_rows: int, expected: list[int]
) -> None:
  model = model_module.Model(folder / "1")
  signature, rows = _counted(model.signature(""))
  inputs = [inputs_of(b, s) for b, s in sizes]
  outcomes = model_module.run([model_module.Call(signature, each) for each in inputs], max_rows)
  assert rows == expected
  for each, outcome in zip(inputs, outcomes, strict=True):
    if len(each["x"]):
      np.testing.assert_allclose(outcome["y"], encode(params(0), **each)["y"], rtol=1e-5, atol=1e-6)
    else:
      assert outcome.code == INVALID


@pytest.mark.parametrize(
  ("inputs", "constraints", "batched"),
  [
    ({"x": "f32[b,8]", "ids": "i32[b,s]"}, ["b <= 9", "s >= 2"], True),
    ({"x": "f32[b,8]", "ids": "i32[b,s]"}, ["b >= 2"], False),
    ({"x": "f32[b,8]", "ids": "i32[b,b]"}, [], False),
    ({"x": "f32[4,8]", "ids": "i32[4,s]"}, [], False),
  ],
  ids=["bounded", "at least", "twice", "fixed"],
)
def test_which_signatures_are_batched(
  tmp_path: Path, model_module: Any, inputs: dict[str, str], constraints: list[str], batched: bool
) -> None:
  path = saved_model.save(encode, params(0), tmp_path, inputs=inputs, polymorphic_constraints=constraints)
  assert model_module.Model(path).signature("").batched is batched


@pytest.fixture
def versions_module(model_module: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
  """The replicas' module of versions, which looks when it is told."""
  module = importlib.import_module("serve_ray_versions")
  monkeypatch.setattr(module, "POLL_SECONDS", 1e9)
  return module


def _looks(versions: Any, count: int = 2) -> int:
  for _ in range(count):
    versions._refresh()
  return int(versions.get("encoder", None).version)


def test_a_copy_that_takes_long_is_served_when_it_is_whole(folder: Path, tmp_path: Path, versions_module: Any) -> None:
  shutil.copytree(folder / "1", tmp_path / "encoder" / "1")
  versions = versions_module.Versions(tmp_path / "encoder", "encoder")
  (tmp_path / "encoder" / "2").mkdir()
  shutil.copy(folder / "1" / "saved_model.pb", tmp_path / "encoder" / "2")
  assert _looks(versions, 6) == 1
  assert [state["version"] for state in versions.status("encoder", None)] == ["2", "1"]
  shutil.copytree(folder / "1", tmp_path / "encoder" / "2", dirs_exist_ok=True)
  assert _looks(versions) == 2
  assert [state["state"] for state in versions.status("encoder", None)] == ["AVAILABLE"]


def test_a_version_is_not_loaded_while_it_changes(folder: Path, tmp_path: Path, versions_module: Any) -> None:
  shutil.copytree(folder / "1", tmp_path / "encoder" / "1")
  versions = versions_module.Versions(tmp_path / "encoder", "encoder")
  shutil.copytree(folder / "1", tmp_path / "encoder" / "2")
  words = tmp_path / "encoder" / "2" / "assets" / "words.txt"
  words.parent.mkdir(exist_ok=True)
  for i in range(4):  # a vocabulary that has half of its lines would load, and be wrong
    with words.open("a") as file:
      file.write(f"word {i}\n")
    assert _looks(versions, 1) == 1
  assert _looks(versions, 1) == 2
  served = versions.get("encoder", None)
  words.write_text("other words\n")
  _looks(versions)
  assert versions.get("encoder", None) is not served


def test_a_replica_starts_with_the_newest_version_that_loads(folder: Path, tmp_path: Path, versions_module: Any) -> None:
  shutil.copytree(folder / "1", tmp_path / "encoder" / "1")
  (tmp_path / "encoder" / "2").mkdir()
  (tmp_path / "encoder" / "2" / "saved_model.pb").write_bytes(b"broken")
  versions = versions_module.Versions(tmp_path / "encoder", "encoder")
  assert _looks(versions) == 1
  assert [state["version"] for state in versions.status("encoder", None)] == ["2", "1"]
  shutil.rmtree(tmp_path / "encoder" / "1")
  assert _looks(versions) == 1
  with pytest.raises(RuntimeError, match=r"of version 2: .*parse"):
    versions_module.Versions(tmp_path / "encoder", "encoder")


def test_requests_that_become_large_wait_for_each_other(model_module: Any) -> None:
  async def most_at_once() -> int:
    memory, most, now = model_module.Memory(100), 0, 0

    async def hold() -> None:
      nonlocal most, now
      async with memory.hold(40):
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1

    await asyncio.gather(*(hold() for _ in range(9)))
    return most

  assert asyncio.run(most_at_once()) == 2
