"""`jax2tf batch`: formats, bad rows, padding, kills, and what is refused."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from jax2tf.converters import saved_model
from jax2tf.tools.batch import cells, contract, engines, formats, model, plan, supervisor, worker
from jax2tf.tools.cli.main import main

EMBEDDING = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
IDS = [[1, 2, 3], [7], [4, 9], [5, 5, 5, 5, 5, 5, 5]]


def encode(params: Any, ids: jax.Array, attention_mask: jax.Array) -> dict[str, jax.Array]:
  """ids i32[b,s], attention_mask i32[b,s] -> mean f32[b,3], tokens f32[b,s,3]."""
  weights = attention_mask.astype(jnp.float32)[..., None]
  tokens = params[ids]
  return {"mean": (tokens * weights).sum(1) / weights.sum(1), "tokens": tokens}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
  folder = tmp_path_factory.mktemp("encoder")
  specs = {"ids": "i32[b,s]", "attention_mask": "i32[b,s]"}
  saved_model.save(
    encode,
    EMBEDDING,
    folder,
    inputs=specs,
    outputs=["mean", "tokens"],
    polymorphic_constraints=["s<=8", "b<=300"],
  )
  return str(folder)


def run(*words: object) -> int:
  with pytest.raises(SystemExit) as ended:
    main(["batch", *map(str, words)])
  return int(ended.value.code or 0)


def written(path: Path) -> list[dict[str, Any]]:
  """The rows of a file, as JSON values."""
  rows = formats.of(path).read(path, [], 100)
  found = [pa_or_list(window.carried) for window in rows]
  return [{key: cells.plain(value) for key, value in row.items()} for part in found for row in part]


def pa_or_list(carried: Any) -> list[dict[str, Any]]:
  return carried if isinstance(carried, list) else carried.to_pylist()


def test_formats_bad_rows_and_a_second_run(
  encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  """One run over all formats that have columns, with what is wrong with rows and with a file."""
  (tmp_path / "j.jsonl").write_text(
    "".join(json.dumps({"id": i, "ids": row}) + "\n" for i, row in enumerate(IDS))
  )
  (tmp_path / "bad.jsonl").write_text(
    '{"id": 0, "ids": [1, 2.5]}\nnot JSON\n{"id": 2}\n{"id": 3, "ids": '
    '[1,1,1,1,1,1,1,1,1]}\n{"id": 4, "ids": [8]}\n'
  )
  with (tmp_path / "c.csv").open("w", newline="") as file:
    csv.writer(file).writerows([["id", "ids"], *([i, row] for i, row in enumerate(IDS))])
  pq.write_table(pa.table({"id": range(len(IDS)), "ids": IDS}), tmp_path / "p.parquet")
  pq.write_table(pa.table({"id": range(len(IDS)), "ids": IDS})[:0], tmp_path / "empty.parquet")
  with tf.io.TFRecordWriter(str(tmp_path / "t.tfrecord")) as writer:
    for i, row in enumerate(IDS):
      features = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        for name, value in (("id", [i]), ("ids", row))
      }
      writer.write(
        tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
      )
  (tmp_path / "cut.tfrecord").write_bytes((tmp_path / "t.tfrecord").read_bytes()[:-3])

  files = [
    tmp_path / "*.jsonl",
    tmp_path / "*.csv",
    tmp_path / "*.parquet",
    tmp_path / "*.tfrecord",
  ]
  assert run(encoder, *files, tmp_path / "out", "--workers=1", "--json") == 1
  said = json.loads(capsys.readouterr().out)
  assert (said["shards"], said["rows"], said["bad"]) == (6, 4 * len(IDS) + 1, 4)
  assert list(said["failed"]) == ["cut.tfrecord"] and said["failed"]["cut.tfrecord"].startswith(
    "truncated record at 138'"
  )

  for name in ("j.jsonl", "c.csv", "p.parquet", "t.tfrecord"):
    rows = written(tmp_path / "out" / name)
    assert [int(np.ravel(row["id"])[0]) for row in rows] == list(range(len(IDS))), name
    for row, ids in zip(rows, IDS, strict=True):
      mean, tokens = (
        np.float32(json.loads(row[key]) if isinstance(row[key], str) else row[key])
        for key in ("mean", "tokens")
      )
      # without what padding added
      np.testing.assert_array_equal(tokens.reshape(-1, 3), EMBEDDING[ids])
      np.testing.assert_allclose(mean, EMBEDDING[ids].mean(0), rtol=1e-6, atol=1e-6)
  assert pq.read_schema(tmp_path / "out" / "empty.parquet") == pq.read_schema(
    tmp_path / "out" / "p.parquet"
  )
  assert pq.read_schema(tmp_path / "out" / "p.parquet").field("mean").type == pa.list_(pa.float32())
  reasons = [
    json.loads(line)
    for line in (tmp_path / "out" / "_bad.jsonl.bad.jsonl").read_text().splitlines()
  ]
  assert [row["row"] for row in reasons] == [0, 1, 2, 3]
  for row, words in zip(
    reasons,
    ("'ids' has 2.5, which int32 does not hold", "is not JSON", "'ids' is missing", "s<=8"),
    strict=True,
  ):
    assert words in row["reason"]

  before = {
    path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir() if path.suffix != ".json"
  }
  assert not [path for path in before if path.name.startswith(".")]
  assert run(encoder, *files[:3], tmp_path / "out") == 0
  assert capsys.readouterr().out == "nothing to do: 5 shards are there\n"
  assert before == {path: path.stat().st_mtime_ns for path in before}

  def refused(*words: object) -> str:
    assert run(*words) == 2
    return capsys.readouterr().err

  assert "has results of another --batch_size; name a new folder" in refused(
    encoder, *files[:3], tmp_path / "out", "--batch_size=2"
  )
  (Path(encoder) / "1" / "assets.extra" / "note").write_text("another")
  assert "has results of another model" in refused(encoder, *files[:3], tmp_path / "out")
  (Path(encoder) / "1" / "assets.extra" / "note").unlink()
  (tmp_path / "c.csv").write_text("id,ids\n")
  assert "has changed since" in refused(encoder, *files[:3], tmp_path / "out")


def test_killed_in_the_middle_and_in_a_write(
  encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  """A shard of a killed worker is done again, from its beginning, by another; no row is lost or
  there twice."""
  rows = [{"id": i, "ids": [i % 50] * (1 + i % 8)} for i in range(3000)]
  for name in ("a", "b"):
    (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  worker.run(
    model.Runner(encoder, outputs=["mean"], batch_size=4),
    tmp_path / "a.jsonl",
    tmp_path / "expected.jsonl",
  )
  out, killed, ended = tmp_path / "out", [], threading.Event()

  def kill() -> None:
    while not killed and not ended.wait(0.001):
      for path in out.glob(".*.writing.a.jsonl"):
        pid = int(path.name.split(".")[1])
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

  killer = threading.Thread(target=kill)
  asked = plan.Asked(encoder, "serving_default", {}, ["mean"], "", 4)
  with plan.opened([str(tmp_path / "[ab].jsonl")], out, asked) as found:
    killer.start()
    try:
      outcome = supervisor.run(found, supervisor.Processes(1, 1))
    finally:
      ended.set()
      killer.join()
  assert killed and (outcome.renewed, outcome.shards, outcome.rows, outcome.failed) == (
    1,
    2,
    6000,
    {},
  )
  digests = {
    hashlib.sha256((folder / name).read_bytes()).hexdigest()
    for folder, name in ((out, "a.jsonl"), (out, "b.jsonl"), (tmp_path, "expected.jsonl"))
  }
  assert len(digests) == 1
  assert sorted(path.name for path in out.iterdir()) == [plan.LEDGER, "a.jsonl", "b.jsonl"]


def test_npy_in_and_out(tmp_path: Path) -> None:
  saved_model.save(
    lambda p, x: p * x, np.float32(2), tmp_path / "m", inputs={"x": "f32[b,3]"}, outputs=["y"]
  )
  x = np.random.default_rng(1).normal(size=(20_000, 3))
  np.save(tmp_path / "x.npy", x)
  worker.run(model.Runner(str(tmp_path / "m")), tmp_path / "x.npy", tmp_path / "y.npy")
  np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), 2 * x.astype(np.float32))
  np.save(tmp_path / "x.npy", np.where(x > 3, 1e300, x))
  with pytest.raises(
    ValueError, match=r"which float32 does not hold; \.npy cannot hold missing rows"
  ):
    worker.run(model.Runner(str(tmp_path / "m")), tmp_path / "x.npy", tmp_path / "z.npy")
  assert not list(tmp_path.glob("*z.npy*"))


def test_strings_and_columns_side_by_side(tmp_path: Path) -> None:
  built = saved_model.Model(np.float32(3))
  raw = {"text": tf.TensorSpec([None, 2], tf.string), "pair": tf.TensorSpec([None, 2], tf.float32)}

  def to_inputs(t: Any) -> Any:
    lengths = tf.cast(tf.strings.length(t["text"])[:, 0], tf.float32)
    return {"x": lengths + tf.reduce_sum(t["pair"], 1)}

  built.add(
    lambda p, x: p * x, inputs={"x": "f32[b]"}, outputs=["y"], raw_inputs=raw, preprocess=to_inputs
  )
  built.save(tmp_path / "m")
  # text stays text
  runner = model.Runner(str(tmp_path / "m"), columns={"text": ["words", "u"], "pair": ["u", "v"]})
  (tmp_path / "in.csv").write_text('words,u,v\n"a, b",1,2\n123,0.5,-0.5\nx,,1\n')
  assert worker.run(runner, tmp_path / "in.csv", tmp_path / "out.csv") == {"rows": 2, "bad": 1}
  assert (tmp_path / "out.csv").read_text() == "y\n21.0\n9.0\n"


@pytest.mark.parametrize(
  ("specs", "function", "words"),
  [
    ({"x": "f32[4,2]"}, lambda p, x: x, r"input 'x' is \[4,2\], which has no batch dimension"),
    (
      {"x": "f32[b,2]", "t": "f32[]"},
      lambda p, x, t: x * t,
      r"input 't' is \[\], which has no batch dimension",
    ),
    ({"x": "f32[b,2]"}, lambda p, x: x.sum(), r"output 'y' is \[\], which has no batch dimension"),
    (
      {"x": "f32[b,2]"},
      lambda p, x: x @ x.T,
      r"output 'y' is \[b,b\], where the batch dimension is not the first alone",
    ),
    (
      {"x": "f32[b,2]", "z": "f32[c,2]"},
      lambda p, x, z: x,
      r"input 'z' is \[c,2\], and input 'x' begins with b",
    ),
  ],
)
def test_what_has_no_rows_is_refused_by_name(
  specs: dict[str, str], function: Any, words: str, tmp_path: Path
) -> None:
  saved_model.save(function, np.float32(1), tmp_path, inputs=specs, outputs=["y"])
  with pytest.raises(ValueError, match=words):
    contract.read(tmp_path)


BIG = 2**53 + 1
CELLS = [
  ([1, 2], "int32", (), [1, 2], {}),
  ([1, 2**31], "int32", (), [1, 0], {1: "'x' has 2147483648, which int32 does not hold"}),
  ([-1], "uint64", (), [0], {0: "'x' has -1, which uint64 does not hold"}),
  ([2**24 + 1], "float32", (), [0], {0: "'x' has 16777217, which float32 does not hold"}),
  ([0.1, np.nan, np.inf], "float32", (), [np.float32(0.1), np.nan, np.inf], {}),
  ([1e300], "float32", (), [0], {0: "'x' has 1e+300, which float32 does not hold"}),
  ([BIG, 0.5], "int64", (), [BIG, 0], {1: "'x' has 0.5, which int64 does not hold"}),
  ([0.5, 2**24 + 1], "float32", (), [0.5, 0], {1: "'x' has 16777217, which float32 does not hold"}),
  (
    ["7", "x", "-1.5"],
    "float64",
    (),
    [7, 0, -1.5],
    {1: "'x' is 'x', where numbers of one shape are expected"},
  ),
  (
    ["[1, 2]", "[3]"],
    "int32",
    ("2",),
    [[1, 2], [0, 0]],
    {1: "'x' has the shape [1], where [2] is expected"},
  ),
  ([[1, 2, 3, 4]], "int32", ("2", "2"), [[[1, 2], [3, 4]]], {}),
  (
    [[[1, 2], [3, 4]]],
    "int32",
    ("4",),
    [[0] * 4],
    {0: "'x' has the shape [2, 2], where [4] is expected"},
  ),
  ([True, 2], "bool", (), [True, False], {1: "'x' has 2, which bool does not hold"}),
  ([None, 1], "int8", (), [0, 1], {0: "'x' is missing"}),
  (
    ["a\0", b"\xff\0", 3],
    "O",
    (),
    ["a\0", b"\xff\0", 0],
    {2: "'x' is 3, where a text is expected"},
  ),
]


@pytest.mark.parametrize(("column", "dtype", "dims", "values", "faults"), CELLS)
def test_a_value_is_held_or_its_row_is_bad(
  column: Any, dtype: str, dims: Any, values: Any, faults: dict[int, str]
) -> None:
  rows = np.empty(len(column), object)
  rows[:] = column
  found, wrong = cells.convert("x", rows, np.dtype(dtype), dims)
  assert wrong == faults and found.dtype == dtype
  good = [i for i in range(len(column)) if i not in faults]
  np.testing.assert_array_equal(found[good], np.array(values, dtype)[good])


def test_what_json_lines_carry_stays_as_it_is(tmp_path: Path) -> None:
  row = {
    "text": "a\0",
    "mixed": [1, "a", 0.5],
    "ragged": [[1], [1, 2]],
    "big": 2**70,
    "nothing": None,
    "tree": {"k": [True]},
  }
  (tmp_path / "a.jsonl").write_text(json.dumps(row | {"x": 1}) + "\n")
  [window] = formats.JsonLines().read(tmp_path / "a.jsonl", ["x"], 4)
  writer = formats.JsonLines().writer(tmp_path / "b.jsonl")
  outputs = {"y": np.float32([[1, 2]]), "s": np.array([b"t"], object)}
  writer.write(window.carried, cells.Answer(np.arange(1), outputs, {}, {}))
  writer.close()
  assert json.loads((tmp_path / "b.jsonl").read_text()) == row | {"y": [1, 2], "s": "t"}


def test_cells_that_fit_are_converted_as_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.delattr(cells, "_row")  # it takes 13 us for a cell
  for texts, dims, values in (
    (["1", "-0.5"], (), [1, -0.5]),
    (["[1, 2]", "[3, 4e0]"], ("2",), [[1, 2], [3, 4]]),
  ):
    np.testing.assert_array_equal(
      cells.convert("x", np.array(texts, object), np.dtype(np.float32), dims)[0], values
    )


def test_ctrl_c_leaves_nothing_half_written(
  encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  def interrupted(found: plan.Plan, *_: object) -> None:
    (found.folder / ".1.writing.a.jsonl").touch()
    raise KeyboardInterrupt

  monkeypatch.setattr(supervisor, "run", interrupted)
  (tmp_path / "a.jsonl").write_text('{"ids": [1]}\n')
  assert run(encoder, tmp_path / "a.jsonl", tmp_path / "out") == 130
  assert capsys.readouterr().err == "jax2tf batch: interrupted; no partial output remains\n"
  assert [path.name for path in (tmp_path / "out").iterdir()] == [plan.LEDGER]


def test_one_command_at_a_time_works_in_a_folder(encoder: str, tmp_path: Path) -> None:
  (tmp_path / "a.jsonl").write_text('{"ids": [1]}\n')
  asked = plan.Asked(encoder, "serving_default", {}, [], "", 4)
  files, written = [str(tmp_path / "a.jsonl")], tmp_path / "out" / ".1.writing.a.jsonl"
  with plan.opened(files, tmp_path / "out", asked):
    written.touch()
    with (
      pytest.raises(ValueError, match="another jax2tf batch is running in"),
      plan.opened(files, tmp_path / "out", asked),
    ):
      pass
    assert written.exists()  # the second command removes nothing of the first
  assert not written.exists()


def test_a_result_whose_file_has_gone_is_no_success(encoder: str, tmp_path: Path) -> None:
  """As when a worker that was given up for dead meets what its successor has written."""
  (tmp_path / "a.jsonl").write_text('{"ids": [1]}\n')
  theirs, finished = tmp_path / ".1.host.writing.b.jsonl", tmp_path / "b.jsonl"
  theirs.write_text("under way")
  finished.write_text("finished")

  class Robbed(model.Runner):
    def __call__(self, *args: Any) -> cells.Answer:
      worker.temporary(finished, os.getpid()).unlink()
      return super().__call__(*args)

  with pytest.raises(
    ValueError, match=r"another process removed .*writing\.b\.jsonl before it was complete"
  ):
    worker.run(Robbed(encoder, outputs=["mean"]), tmp_path / "a.jsonl", finished)
  assert theirs.read_text() == "under way" and finished.read_text() == "finished"
  assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", theirs.name, finished.name}


def test_the_ledger_of_a_command_that_was_killed_while_it_wrote(
  encoder: str, tmp_path: Path
) -> None:
  (tmp_path / "a.jsonl").write_text('{"ids": [1]}\n')
  asked, ledger = (
    plan.Asked(encoder, "serving_default", {}, [], "", 4),
    tmp_path / "out" / plan.LEDGER,
  )
  with plan.opened([str(tmp_path / "a.jsonl")], tmp_path / "out", asked) as found:
    found.note(found.shards[0], 1, 0)
  with ledger.open("a") as file:
    file.write('{"shard": "a.js')
  with plan.opened([str(tmp_path / "a.jsonl")], tmp_path / "out", asked) as found:
    assert (found.shards[0].rows, found.shards[0].bad) == (1, 0)
  assert len(list(map(json.loads, ledger.read_text().splitlines()))) == 2


def test_workers_without_jax_load_the_version_that_the_plan_named(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  """One thread is enough, for a BatchFunction around a loop too; a version that is published during
  the run is for later ones."""
  for name in ("jax", "jaxlib"):
    (tmp_path / "none" / name).mkdir(parents=True)
    (tmp_path / "none" / name / "__init__.py").write_text("import os\nos._exit(7)\n")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path / "none"), prepend=os.pathsep)

  def looped(params: Any, x: jax.Array) -> jax.Array:
    return jax.lax.while_loop(
      lambda c: c[0] < 3,
      lambda c: (c[0] + 1, jnp.where(c[1].sum() > 0, c[1] * params, c[1])),
      (0, x),
    )[1]

  def publish(value: float) -> None:
    built = saved_model.Model(np.float32(value))
    built.add(
      looped, inputs={"x": "f32[b]"}, outputs=["y"], batching=saved_model.Batching(max_batch_size=8)
    ).save(tmp_path / "m")

  publish(2)
  (tmp_path / "a.jsonl").write_text("".join(f'{{"x": {i}}}\n' for i in range(1, 20)))
  asked = plan.Asked(str(tmp_path / "m"), "serving_default", {}, [], "", 8)
  with plan.opened([str(tmp_path / "a.jsonl")], tmp_path / "out", asked) as found:
    publish(3)
    outcome = supervisor.run(found, supervisor.Processes(1, 1))
  assert (outcome.rows, outcome.renewed) == (19, 0)
  assert [
    json.loads(line)["y"] for line in (tmp_path / "out" / "a.jsonl").read_text().splitlines()
  ] == [8.0 * i for i in range(1, 20)]
  with pytest.raises(
    ValueError, match="has changed since the command began; run the command again"
  ):
    worker.load(
      {"fingerprint": found.fingerprint, "device": "auto", "model": str(tmp_path / "m" / "2")}
    )


@pytest.mark.parametrize("name", ["batch", "serving"])
def test_importing_tensorflow_for_rows_hides_no_jax(
  name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.delitem(sys.modules, "jax")
  file = Path(model.__file__).parents[1] / name / "model.py"
  spec = importlib.util.spec_from_file_location(f"jax2tf.tools.{name}.again", file)
  again = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
  monkeypatch.setitem(sys.modules, again.__name__, again)
  spec.loader.exec_module(again)  # type: ignore[union-attr]
  assert "jax" not in sys.modules


def test_a_worker_imports_neither_jax_nor_keras() -> None:
  """They take as long as TensorFlow itself. What imports them later, such as a preprocessor of
  another program in the same process, gets them."""
  code = """
import subprocess
import sys
from jax2tf.tools.batch import model
assert not {"jax", "keras", "sklearn"} & sys.modules.keys()
import tensorflow as tf
print(tf.keras.layers.Dense(2)(tf.ones([1, 3])).shape)
"""
  done = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
  )
  assert done.stdout == "(1, 2)\n"


def test_threads_are_those_within_ops_and_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
  def started(*_: Any, env: dict[str, str], **__: Any) -> Any:
    raise RuntimeError(
      ",".join(env[name] for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"))
    )

  monkeypatch.setattr(supervisor.subprocess, "Popen", started)
  monkeypatch.setattr(supervisor.tempfile, "TemporaryFile", io.BytesIO)
  with pytest.raises(RuntimeError, match="3,3"):
    supervisor._Worker({}, 0, supervisor.Processes(1, 3).environment(0))


def test_progress_is_a_line_every_ten_seconds(
  monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  now = 100.0
  monkeypatch.setattr(supervisor.time, "monotonic", lambda: now)
  with supervisor._Progress(200).shown() as progress:
    for now, under_way, rows in (
      (101.0, 10, 5),
      (110.5, 100, 42),
      (112.0, 110, 50),
      (121.0, 20, 63),
    ):
      if now == 121.0:
        progress.over(130)
      progress.show(under_way, rows)
  assert capsys.readouterr().err.splitlines() == [
    "jax2tf batch: 50 %, 42 rows, 4 rows/s, 10 s left",
    "jax2tf batch: 75 %, 63 rows, 3 rows/s, 7 s left",
  ]


def test_rows_for_engines(encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
  """Columns, tables and record batches with the same answers, from an object that was pickled; a
  bad row is an error."""
  rows = pickle.loads(pickle.dumps(engines.Rows(encoder, outputs=["mean"])))
  expected = [EMBEDDING[ids].mean(0) for ids in IDS]
  table = pa.table({"id": range(len(IDS)), "ids": IDS})
  ids = np.empty(len(IDS), object)
  ids[:] = [np.array(row) for row in IDS]
  np.testing.assert_allclose(
    rows({"id": np.arange(4), "ids": ids})["mean"], expected, rtol=1e-5, atol=1e-6
  )
  together = pa.Table.from_batches(rows.record_batches(table.to_batches(max_chunksize=3)))
  assert together.column_names == ["id", "mean"]
  np.testing.assert_allclose(together["mean"].to_pylist(), expected, rtol=1e-5, atol=1e-6)
  with pytest.raises(ValueError, match="row 1 of a block of 2: 'ids' is missing"):
    rows.arrow(pa.table({"ids": [[1], None]}))
  for extra, name in (
    ("ray", "ray.data"),
    ("beam", "apache_beam"),
    ("beam", "apache_beam.ml.inference.base"),
  ):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
      ImportError, match=re.escape(f"this needs {name}: pip install 'jax2tf[{extra}]'")
    ):
      engines.engine(name)
