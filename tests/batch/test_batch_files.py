"""Files of rows as strangers write them, and the values in them: `tools/batch/formats.py` and
`cells.py`."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from jax2tf.converters import saved_model
from jax2tf.tools.batch import arrow, cells, contract, engines, formats, model, plan, worker


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
  """x f32[b] -> y f32[b]."""
  return saved_model.save(
    lambda p, x: p * x,
    np.float32(2),
    tmp_path_factory.mktemp("doubled"),
    inputs={"x": "f32[b]"},
    outputs=["y"],
  )


@pytest.fixture(scope="module")
def runner(doubled: Path) -> Any:
  return model.Runner(str(doubled))


def refused_plan(files: list[str], folder: Path, asked: plan.Asked) -> str:
  with pytest.raises(ValueError) as caught, plan.opened(files, folder, asked):
    pass
  return str(caught.value)


ROWS = "".join(json.dumps({"id": i, "x": i}) + "\n" for i in range(8192))


@pytest.mark.parametrize(
  "last", ['\n{"x"', '{"id": 1}\n'], ids=["a blank and a cut line", "a row without the column"]
)
def test_a_bad_row_alone_in_the_last_window(last: str, runner: Any, tmp_path: Path) -> None:
  (tmp_path / "a.jsonl").write_text(ROWS + last)
  assert worker.run(runner, tmp_path / "a.jsonl", tmp_path / "b.jsonl") == {"rows": 8192, "bad": 1}
  [line] = (tmp_path / "_b.jsonl.bad.jsonl").read_text().splitlines()
  assert json.loads(line)["row"] == 8192


CSV = {
  "a byte order mark": (b"\xef\xbb\xbfx,id\n1,a\n", "id,y\na,2.0\n"),
  "bools of pandas": (b"x,id\nTrue,a\nFalse,b\n", "id,y\na,2.0\nb,0.0\n"),
  "a long cell": (b"x,id\n1," + b"a" * 200_000 + b"\n", "id,y\n" + "a" * 200_000 + ",2.0\n"),
  "a header alone": (b"x,id\n", "id,y\n"),
  "nothing": (b"", "y\n"),
  "a row that is not UTF-8": (b"x,id\n1,\xff\n2,\xc3\xa4\n", "id,y\n\u00e4,4.0\n"),
  "a row with a cell too many": (b"x,id\n1,a,b\n2,c\n", "id,y\nc,4.0\n"),
}


@pytest.mark.parametrize(("given", "expected"), CSV.values(), ids=list(CSV))
def test_csv_of_strangers(given: bytes, expected: str, runner: Any, tmp_path: Path) -> None:
  (tmp_path / "in.csv").write_bytes(given)
  worker.run(runner, tmp_path / "in.csv", tmp_path / "out.csv")
  assert (tmp_path / "out.csv").read_text(encoding="utf-8") == expected


def test_columns_of_one_name_are_refused(runner: Any, tmp_path: Path) -> None:
  (tmp_path / "in.csv").write_text("x,id,id\n1,2,3\n")
  with pytest.raises(ValueError, match="two columns 'id'; rename one"):
    worker.run(runner, tmp_path / "in.csv", tmp_path / "out.csv")


def example(**features: Any) -> bytes:
  made = {
    name: tf.train.Feature(float_list=tf.train.FloatList(value=[v])) if v else tf.train.Feature()
    for name, v in features.items()
  }
  return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


@pytest.mark.parametrize(
  "name",
  [
    "a.csv.gz",
    "a.jsonl.gz",
    "a.tfrecord-00000-of-00010",
    "a.tfrecord.gz",
    "a.tfrecord-00003-of-00010.gz",
  ],
)
def test_compressed_files_and_numbered_shards(name: str, runner: Any, tmp_path: Path) -> None:
  (tmp_path / "out").mkdir()
  if "tfrecord" in name:
    with tf.io.TFRecordWriter(
      str(tmp_path / name), "GZIP" if name.endswith("gz") else None
    ) as writer:
      writer.write(example(x=1.5, nothing=None))
  else:
    (tmp_path / name).write_bytes(gzip.compress(b"x\n1.5\n" if "csv" in name else b'{"x": 1.5}\n'))
  assert worker.run(runner, tmp_path / name, tmp_path / "out" / name) == {"rows": 1, "bad": 0}
  [window] = formats.of(name).read(tmp_path / "out" / name, ["y"], 4)
  assert float(np.ravel(window.columns["y"][0])[0]) == 3.0
  if "tfrecord" in name:
    assert window.carried == [{"nothing": None}]  # a feature without values stays one


def test_a_name_that_hides_the_format(runner: Any, tmp_path: Path) -> None:
  for name in ("a.parquet.gz", "a.gz", "part-00000-of-00010"):
    with pytest.raises(ValueError, match="has an unknown format"):
      formats.of(name)
  (tmp_path / "a.tfrecord").write_bytes(gzip.compress(b"anything"))
  with pytest.raises(ValueError, match=r"if it is compressed by gzip, let its name end in \.gz"):
    worker.run(runner, tmp_path / "a.tfrecord", tmp_path / "b.tfrecord")


def test_what_a_plan_finds_before_it_starts(doubled: Path, tmp_path: Path) -> None:
  """A file that may be read later is no reason to refuse the command; an output that a column
  hides, and files of one name, are."""
  (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"x": 2}\n')
  (tmp_path / "empty.csv").write_bytes(b"")
  asked = plan.Asked(str(doubled), "serving_default", {}, [], "", 4)
  with plan.opened(
    [str(tmp_path / "a.jsonl"), str(tmp_path / "empty.csv")], tmp_path / "out", asked
  ) as found:
    assert len(found.left) == 2
  (tmp_path / "y.csv").write_text("x,y\n1,2\n")
  assert "'y' is the name of a column and of an output" in refused_plan(
    [str(tmp_path / "y.csv")], tmp_path / "y", asked
  )
  for day in "12":
    (tmp_path / f"day={day}").mkdir()
    (tmp_path / f"day={day}" / "part-0.csv").write_text("x\n1\n")
  assert "run one folder at a time, each into a folder of its own" in refused_plan(
    [f"{tmp_path}/day=*/*.csv"], tmp_path / "z", asked
  )


BIG = 2**53 + 1
NUMBERS: list[tuple[Any, str, tuple[str, ...], Any]] = [
  ([str(BIG)], "int64", (), [BIG]),
  ([f"+{BIG}"], "int64", (), [BIG]),
  ([f"[{BIG}, 1.0]"], "int64", ("2",), [[BIG, 1]]),
  ([f"{BIG - 1}.0"], "int64", (), f"'x' has {float(BIG)}, which int64 does not hold"),
  ([f"[{BIG}, 1.0]"], "float64", ("2",), f"'x' has {BIG}, which float64 does not hold"),
  (["True", "[false, true]"], "bool", (), "'x' has the shape [2], where [] is expected"),
  (np.array([1 + 2j]), "float32", (), "'x' is '(1+2j)', where numbers of one shape are expected"),
  (np.array([1 + 2j]), "complex64", (), [1 + 2j]),
  (
    np.array(["2020-01-01"], "M8[D]"),
    "int64",
    (),
    "'x' is '2020-01-01', where numbers of one shape are expected",
  ),
  (["\ud800"], "O", (), r"'x' is '\ud800', where a text is expected"),
]


@pytest.mark.parametrize(("column", "dtype", "dims", "expected"), NUMBERS)
def test_no_value_changes_in_silence(
  column: Any, dtype: str, dims: tuple[str, ...], expected: Any
) -> None:
  rows = cells.objects(column) if isinstance(column, list) else column
  found, wrong = cells.convert("x", rows, np.dtype(dtype), dims)
  if isinstance(expected, str):
    assert list(wrong.values()) == [expected]
  else:
    assert not wrong
    np.testing.assert_array_equal(found, np.array(expected, dtype))


def test_decimals_of_parquet() -> None:
  numbers = [Decimal(BIG), Decimal("1.25")]
  table = pa.table(
    {
      "n": pa.array(numbers[:1], pa.decimal128(18, 0)),
      "d": pa.array(numbers[1:], pa.decimal128(10, 2)),
    }
  )
  found = arrow.columns(table, ["n", "d"])
  assert (found["n"][0], found["d"][0]) == (BIG, 1.25)


def test_a_column_for_two_inputs_takes_no_other_with_it(tmp_path: Path, doubled: Path) -> None:
  columns = {"a": ["v"], "b": ["v"]}
  saved_model.save(
    lambda p, a, b: a + b,
    np.float32(0),
    tmp_path / "m",
    inputs={"a": "f32[b]", "b": "f32[b]"},
    outputs=["y"],
  )
  rows = engines.Rows(str(tmp_path / "m"), columns=columns)
  assert rows.arrow(pa.table({"id": [7], "v": [1.0], "w": [5]})).to_pylist() == [
    {"id": 7, "w": 5, "y": 2.0}
  ]
  with pytest.raises(ValueError, match="'y' is the name of a column and of an output"):
    engines.Rows(str(doubled))({"x": np.ones(1), "y": np.zeros(1)})


def manifest(folder: Path, constraints: tuple[str, ...] = (), **record: Any) -> Path:
  """A model of which there is the manifest alone."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / "saved_model.pb").touch()
  signature = {"inputs": {}, "outputs": {"y": "f32[b]"}, **record}
  signatures = {"serving_default": saved_model.manifest.SignatureRecord(**signature)}
  made = saved_model.manifest.Manifest(signatures, list(constraints), {}, "", False)
  made.write(folder)
  return folder


MASKS = [
  ("attention_mask", (), "", ("attention_mask", "s")),
  ("mask", ("s<=8",), "", ("mask", "s")),
  ("key_padding_mask", (), "", ("", "")),  # in Flax and PyTorch True means padding there
  ("key_padding_mask", (), "key_padding_mask", ("key_padding_mask", "s")),
  ("mask", (), "none", ("", "")),
  # a row of one element, refused alone, would run beside a longer one
  ("mask", ("s>=2",), "", ("", "")),
]


@pytest.mark.parametrize(("name", "constraints", "asked", "expected"), MASKS)
def test_which_input_is_a_mask(
  name: str, constraints: Any, asked: str, expected: tuple[str, str], tmp_path: Path
) -> None:
  found = contract.read(
    manifest(tmp_path / "m", constraints, inputs={"ids": "i32[b,s]", name: "i32[b,s]"}), mask=asked
  )
  assert (found.mask, found.padded) == expected


def test_large_rows_are_read_a_few_at_a_time(tmp_path: Path) -> None:
  images = contract.read(
    manifest(tmp_path / "images", inputs={"x": "f32[b,224,224,3]", "flags": "bool[b,8]"})
  )
  assert images.row_bytes == 224 * 224 * 3 * 4 + 8 + 4
  assert (images.window(64), images.window(256)) == (111, 256)
  assert contract.read(manifest(tmp_path / "small", inputs={"x": "f32[b,784]"})).window(256) == 8192


def test_a_stateful_signature_is_refused(tmp_path: Path) -> None:
  with pytest.raises(
    ValueError,
    match="signature = 'serving_default': it keeps a state between calls, so its rows are not",
  ):
    contract.read(manifest(tmp_path / "m", inputs={"x": "f32[b]"}, stateful=True))


def test_rows_without_elements_are_bad_in_any_batch(tmp_path: Path) -> None:
  def mean(params: Any, x: Any, mask: Any) -> Any:
    return (x * mask).sum(1) / mask.sum(1)

  saved_model.save(
    mean, np.float32(0), tmp_path / "m", inputs={"x": "f32[b,s]", "mask": "f32[b,s]"}, outputs=["y"]
  )
  lists = [[1.0, 2.0], [], [5.0]]
  pq.write_table(pa.table({"x": pa.array(lists, pa.list_(pa.float32()))}), tmp_path / "in.parquet")
  pq.write_table(
    pa.table({"x": pa.array(lists[1:2], pa.list_(pa.float32()))}), tmp_path / "alone.parquet"
  )
  found = model.Runner(str(tmp_path / "m"))
  assert worker.run(found, tmp_path / "in.parquet", tmp_path / "out.parquet") == {
    "rows": 2,
    "bad": 1,
  }
  assert pq.read_table(tmp_path / "out.parquet").to_pydict() == {"y": [1.5, 5.0]}
  reason = json.loads((tmp_path / "_out.parquet.bad.jsonl").read_text())["reason"]
  assert reason == "dimension s is 0, and has to be 1 or more"
  with pytest.raises(ValueError, match=reason):
    worker.run(found, tmp_path / "alone.parquet", tmp_path / "none.parquet")
  # what such a row would give
  assert jnp.isnan(mean(None, jnp.zeros((1, 2)), jnp.zeros((1, 2))))[0]
