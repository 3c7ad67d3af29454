"""`jax2tf batch` and what happens on a machine: files that change, names that collide, workers that
hang, full disks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax2tf.converters import saved_model
from jax2tf.tools.batch import cells, model, plan, supervisor, worker


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> str:
  """x f32[b] -> y f32[b]."""
  folder = tmp_path_factory.mktemp("doubled")
  return str(
    saved_model.save(
      lambda p, x: p * x, np.float32(2), folder, inputs={"x": "f32[b]"}, outputs=["y"]
    )
  )


@pytest.fixture(scope="module")
def runner(doubled: str) -> Any:
  return model.Runner(doubled)


def asked(directory: str) -> plan.Asked:
  return plan.Asked(directory, "serving_default", {}, [], "", 4)


def deep(levels: int) -> str:
  return "[" * levels + "]" * levels


DEEP = {
  "a cell": '{"x": ' + deep(200_000) + "}",
  "a column that is copied": '{"x": 1, "note": ' + deep(cells.DEEPEST) + "}",
  "objects": '{"x": 1, "note": ' + '{"a":' * 200_000 + "1" + "}" * 200_001,
  "brackets in strings beside it": '{"t": "' + "]" * 300_000 + '", "x": ' + deep(200_000) + "}",
}


@pytest.mark.parametrize("row", DEEP.values(), ids=list(DEEP))
def test_a_row_that_is_nested_too_deeply_is_one_bad_row(
  row: str, runner: Any, tmp_path: Path
) -> None:
  strings = json.dumps({"x": 2, "t": '"[\\' * 1000, "note": json.loads(deep(cells.DEEPEST - 1))})
  (tmp_path / "a.jsonl").write_text("\n".join(['{"x": 1}', row, strings]) + "\n")
  assert worker.run(runner, tmp_path / "a.jsonl", tmp_path / "b.jsonl") == {"rows": 2, "bad": 1}
  assert json.loads((tmp_path / "_b.jsonl.bad.jsonl").read_text()) == {
    "row": 1,
    "reason": "is nested deeper than 500 levels",
  }


def test_a_cell_of_csv_that_is_nested_too_deeply_is_a_bad_row(runner: Any, tmp_path: Path) -> None:
  (tmp_path / "a.csv").write_text(f"x\n1\n{deep(200_000)}\n3\n")
  assert worker.run(runner, tmp_path / "a.csv", tmp_path / "b.csv") == {"rows": 2, "bad": 1}


def in_place(path: Path) -> None:
  with path.open("r+") as file:
    file.write('{"x": 9}')
  os.utime(path, ns=(0, 1))  # a clock of the file system may not have moved on


def by_rename(path: Path) -> None:
  state = path.stat()
  other = path.with_name("other")
  other.write_bytes(path.read_bytes())
  os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
  other.rename(path)


def longer(path: Path) -> None:
  state = path.stat()
  with path.open("a") as file:
    file.write('{"x": 9}\n')
  os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("change", [in_place, by_rename, longer])
def test_a_file_that_changes_while_it_is_read_gets_no_results(
  change: Any, doubled: str, tmp_path: Path
) -> None:
  source = tmp_path / "a.jsonl"
  source.write_text('{"x": 1}\n{"x": 2}\n{"x": 3}\n')

  class Meanwhile(model.Runner):
    def __call__(self, *args: Any) -> cells.Answer:
      change(source)
      return super().__call__(*args)

  before = worker.State.of(source)
  with pytest.raises(
    ValueError, match=r"a\.jsonl has changed since the command began, so it gets no results"
  ):
    worker.run(Meanwhile(doubled), source, tmp_path / "b.jsonl")
  with pytest.raises(ValueError, match="has changed since"):
    worker.run(Meanwhile(doubled), source, tmp_path / "b.jsonl", state=before)
  assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_changed_file_without_results_does_not_end_the_folder(
  doubled: str, tmp_path: Path
) -> None:
  for name in "ab":
    (tmp_path / f"{name}.jsonl").write_text('{"x": 1}\n')
  files = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
  with plan.opened(files, tmp_path / "out", asked(doubled)) as found:
    found.shards[1].target.touch()
  longer(tmp_path / "a.jsonl")
  with plan.opened(files, tmp_path / "out", asked(doubled)) as found:
    assert [shard.source.name for shard in found.left] == ["a.jsonl"]
  longer(tmp_path / "b.jsonl")
  with (
    pytest.raises(ValueError, match=r"b\.jsonl has changed since"),
    plan.opened(files, tmp_path / "out", asked(doubled)),
  ):
    pass


@pytest.mark.parametrize(
  "name", ["_x.jsonl.bad.jsonl", "_X.JSONL.BAD.JSONL", ".1.host.writing.x.jsonl"]
)
def test_a_file_with_the_name_of_another_result_is_refused(
  name: str, doubled: str, runner: Any, tmp_path: Path
) -> None:
  for each in (name, "x.jsonl"):
    (tmp_path / each).write_text('{"x": 1}\n{"x": "a"}\n')
  files = [str(tmp_path / name), str(tmp_path / "x.jsonl")]
  with (
    pytest.raises(ValueError, match="has a name that jax2tf batch gives to"),
    plan.opened(files, tmp_path / "out", asked(doubled)),
  ):
    pass
  assert not (tmp_path / "out").exists()
  with pytest.raises(ValueError, match="has a name that jax2tf batch gives to"):
    worker.run(runner, tmp_path / "x.jsonl", tmp_path / "out" / name)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_no_other_command(
  code: int, doubled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  def fails(*_: object) -> None:
    raise OSError(code, os.strerror(code))

  monkeypatch.setattr(fcntl, "flock", fails)
  (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
  files = [str(tmp_path / "a.jsonl")]
  warned = pytest.warns(
    UserWarning, match=f"without locks .{os.strerror(code)}.*one jax2tf batch at a time"
  )
  with warned, plan.opened(files, tmp_path / "out", asked(doubled)) as found:
    assert len(found.left) == 1


def test_a_full_disk_is_named(doubled: str, tmp_path: Path) -> None:
  (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
  with plan.opened([str(tmp_path / "a.jsonl")], tmp_path / "out", asked(doubled)) as found:
    (tmp_path / "out" / plan.LEDGER).unlink()
    (tmp_path / "out" / plan.LEDGER).symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:
      found.note(found.shards[0], 1, 0)
  assert caught.value.filename == str(tmp_path / "out" / plan.LEDGER)
  full = OSError(errno.ENOSPC, "No space left on device")
  assert worker._reason(full, "out/a.jsonl") == "out/a.jsonl: [Errno 28] No space left on device"


# What `supervisor` starts, without TensorFlow. The first one of a shard named `stops` stops in the
# middle; `slow` takes 8 reports.
WORKER = """
import json, os, pathlib, signal, sys, time
def tell(**what): print(json.dumps(what), flush=True)
json.loads(input())
tell(ready=0.0)
while True:
  source, target, state = json.loads(input())
  tell(rows=1, part=0.1)
  target = pathlib.Path(target)
  mark = target.with_name("stopped")
  if target.stem == "stops" and not mark.exists():
    mark.touch()
    os.write(1, b'{"rows": ')
    os.kill(os.getpid(), signal.SIGSTOP)
  for _ in range(8 if target.stem == "slow" else 0):
    time.sleep(0.2)
    tell(rows=1, part=0.1)
  target.touch()
  tell(done={"rows": 9, "bad": 0})
"""


@pytest.mark.parametrize(("name", "renewed"), [("stops", 1), ("slow", 0)])
def test_a_worker_that_runs_nothing_is_replaced(
  name: str, renewed: int, doubled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(supervisor, "_COMMAND", [sys.executable, "-c", WORKER])
  monkeypatch.setattr(supervisor, "_LOOK_SECONDS", 0.1)
  for each in (name, "other"):
    (tmp_path / f"{each}.jsonl").write_text('{"x": 1}\n')
  with plan.opened([str(tmp_path / "*.jsonl")], tmp_path / "out", asked(doubled)) as found:
    outcome = supervisor.run(found, supervisor.Processes(2, 1), stall_seconds=1)
    assert (outcome.shards, outcome.rows, outcome.renewed, outcome.failed) == (2, 18, renewed, {})
    monkeypatch.setattr(
      supervisor, "_COMMAND", [sys.executable, "-c", "import time; time.sleep(600)"]
    )
    (tmp_path / "out" / "other.jsonl").unlink()
    if renewed:
      with pytest.raises(
        ValueError,
        match=r"cannot start a worker: it ran no rows for 0 s \(--stall_seconds\), so its worker "
        r"ended with -9",
      ):
        supervisor.run(found, supervisor.Processes(1, 1), stall_seconds=0.2)
