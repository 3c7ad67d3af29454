"""jax2tf.converters.verify: a right model passes; each way to be wrong is caught and named."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.experimental import checkify

from jax2tf.converters import saved_model, stages, verify
from jax2tf.converters.bundle import paths
from jax2tf.converters.saved_model import manifest
from jax2tf.converters.saved_model.domain import Domain
from jax2tf.converters.verify import answers as compare
from jax2tf.converters.verify import plan, verification
from jax2tf.converters.verify.child import ABSENT

PARAMS = {"w": np.arange(1, 9, dtype=np.float32).reshape(4, 2) / 8}
INPUTS = {"x": "f32[b,4]"}


def affine(params: Any, x: jax.Array) -> jax.Array:
  return jnp.tanh(x @ params["w"])


# In a new Python each; the others share one that has imported TensorFlow.
IN_A_NEW_PROCESS = {"test_a_right_model_passes", "test_the_model_runs_where_there_is_no_jax"}


@pytest.fixture(autouse=True)
def warm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
  if request.node.name not in IN_A_NEW_PROCESS:
    monkeypatch.setattr(sys, "executable", request.getfixturevalue("without_jax"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
  return saved_model.save(
    affine, PARAMS, tmp_path_factory.mktemp("affine"), inputs=INPUTS, outputs=["y"]
  )


def _wrong(report: verify.Report, signature: str) -> set[tuple[str, int, str]]:
  return {
    (row.output, row.sizes["b"], row.values)
    for row in report.rows
    if row.signature == signature and not row.ok
  }


def _resaved(
  source: Path, target: Path, changes: dict[str, Callable[[Any], Any]], weight: float = 0.0
) -> Path:
  """The model with `weight` added to its parameters, and for each change a signature that has it,
  under the manifest's old record."""
  loaded = tf.saved_model.load(str(source))
  serve = loaded.signatures["serving_default"]
  [variable] = serve.variables
  variable.assign_add(tf.fill(variable.shape, weight))
  module = tf.Module()
  module.loaded = loaded
  spec = tf.TensorSpec([None, 4], tf.float32, "x")
  signatures = {
    name: tf.function(
      lambda x, change=change: change(serve(x=x)["y"]), input_signature=[spec], autograph=False
    )
    for name, change in changes.items()
  }
  tf.saved_model.save(module, str(target), signatures=signatures)
  record = manifest.read(source)
  dataclasses.replace(
    record, signatures=dict.fromkeys(changes, record.signatures["serving_default"])
  ).write(target)
  return target


@pytest.mark.latencies
def test_a_right_model_passes(model: Path, tmp_path: Path) -> None:
  report = verify.verify(
    model.parent, affine, params=PARAMS, samples=2, report=tmp_path, hostile=True
  )
  assert report.ok, report.text()
  report.raise_for_mismatch()
  assert report.model == str(model)
  assert {(row.sizes["b"], row.values) for row in report.rows} == {
    (b, values) for b in (1, 3, 7, 32) for values in ("ordinary", "hostile", "subnormal")
  }
  assert all(
    row.dtype == "float32" and row.samples == 2 and row.max_abs is not None and row.max_abs < 1e-6
    for row in report.rows
  )
  assert [x.sizes["b"] for x in report.latencies] == [1, 3, 7, 32]
  assert all(0 < x.model < 10 and 0 < x.reference < 10 for x in report.latencies)
  written = {file.suffix: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
  found = json.loads(written[".json"])
  assert (
    found["ok"]
    and len(found["rows"]) == len(report.rows)
    and found["rows"][0]["max_ulp"] == report.rows[0].max_ulp
  )
  assert report.verdict in written[".txt"] and "of tolerance" in written[".txt"]
  assert (
    report.verdict in written[".html"]
    and written[".html"].count('src="data:image/svg+xml;base64,') == 2
  )
  assert not re.findall(r"https?://|<link|<script|url\(", written[".html"])


def test_a_model_at_an_address(model: Path) -> None:
  tf.io.gfile.makedirs("ram://verified")
  paths.Address("ram://verified/1").put(model)
  report = verify.verify("ram://verified", affine, params=PARAMS, samples=1, sizes={"b": 1})
  assert (report.ok, report.model) == (True, "ram://verified/1")


def test_a_check_of_the_function_must_fail_in_the_model_too(tmp_path: Path) -> None:
  def checked(limit: Any, x: Any) -> Any:
    checkify.check(jnp.all(x < limit), "too large: {}", x.max())
    return jnp.sin(x)

  path = saved_model.save(checked, np.float32(2), tmp_path / "model", inputs={"x": "f32[b]"})
  inputs = {"x": lambda rng, shape, dtype: rng.uniform(0, 1, shape).astype(dtype)}
  assert verify.verify(path, checked, params=np.float32(2), samples=1, inputs=inputs).ok
  assert (
    verify.verify(path, checked, params=np.float32(-1), samples=1, inputs=inputs)
    .rows[0]
    .problem.startswith("the reference refuses")
  )
  too_large = verify.verify(
    path,
    checked,
    params=np.float32(2),
    samples=1,
    inputs={"x": lambda rng, shape, dtype: np.full(shape, 3, dtype)},
  )
  assert too_large.ok and {row.output for row in too_large.rows} == {"(a check)"}


def test_what_was_changed_after_saving(model: Path, tmp_path: Path) -> None:
  changes: dict[str, Callable[[Any], Any]] = {
    "same": lambda y: {"y": y},
    "name": lambda y: {"z": y},
    "dtype": lambda y: {"y": tf.cast(y, tf.float16)},
    "shape": lambda y: {"y": y[:, None]},
  }
  path = _resaved(model, tmp_path / "1", changes)
  report = verify.verify(
    path,
    dict.fromkeys(changes, affine),
    params=PARAMS,
    samples=1,
    sizes={"b": [1, 3]},
    hostile=True,
  )
  assert {row.signature for row in report.rows if not row.ok} == {"name", "dtype", "shape"}
  assert {row.signature for row in report.rows if row.ok and row.values == "ordinary"} == {"same"}
  with pytest.raises(verify.VerificationError) as error:
    report.raise_for_mismatch()
  for words in (
    "name, output 'y', b=1, ordinary inputs: the model has no output 'y'; it has: z",
    "name, output 'z', b=3, hostile inputs: the reference has no output 'z'; it has: y",
    "dtype, output 'y', b=1, ordinary inputs: the model's dtype is float16, the reference's "
    "float32",
    "shape, output 'y', b=3, ordinary inputs: the model's shape is (3, 1, 2), the reference's (3, "
    "2)",
  ):
    assert words in str(error.value)
    assert words in report.text()
  assert "NOT verified" in report.html()


def test_variables_changed_after_saving(model: Path, tmp_path: Path) -> None:
  path = _resaved(model, tmp_path / "1", {"serving_default": lambda y: {"y": y}}, weight=0.5)
  report = verify.verify(path, affine, params=PARAMS, samples=1, sizes={"b": [1, 3]})
  assert {("y", 1, "ordinary"), ("y", 3, "ordinary")} <= _wrong(report, "serving_default")
  with pytest.raises(
    verify.VerificationError,
    match=r"'y', b=1, ordinary inputs: \d of 2 elements differ; at \[0, \d\] the model has ",
  ):
    report.raise_for_mismatch()


def test_wrong_only_at_nan_or_only_at_a_batch_of_one(tmp_path: Path) -> None:
  model = saved_model.Model(PARAMS)
  model.add(
    lambda p, x: jnp.nan_to_num(x, posinf=jnp.inf, neginf=-jnp.inf),
    inputs=INPUTS,
    outputs=["y"],
    signatures="nan",
  )
  model.add(
    lambda p, x: x + jnp.where(jnp.asarray(x.shape[0]) == 1, 1, 0),
    inputs=INPUTS,
    outputs=["y"],
    signatures="one",
  )
  report = verify.verify(
    model.save(tmp_path), dict.fromkeys(["nan", "one"], lambda p, x: x), params=PARAMS, hostile=True
  )
  assert _wrong(report, "nan") == {("y", b, "hostile") for b in (1, 3, 7, 32)}
  assert all(
    "NaN at other places" in row.problem
    for row in report.rows
    if row.signature == "nan" and not row.ok
  )
  assert _wrong(report, "one") == {("y", 1, "ordinary"), ("y", 1, "hostile")}


def test_integers_and_bools_must_be_equal(tmp_path: Path) -> None:
  def fun(p: Any, i: jax.Array, m: jax.Array) -> dict[str, jax.Array]:
    return {"i": i * 3, "m": ~m}

  model = saved_model.Model(PARAMS).add(
    fun, inputs={"i": "i32[b]", "m": "bool[b]"}, signatures=["right", "wrong"]
  )
  wrong = {"right": fun, "wrong": lambda p, i, m: {"m": ~m, "i": i * 3 + (i == 2**31 - 1)}}
  report = verify.verify(model.save(tmp_path), wrong, params=PARAMS, hostile=True)
  assert _wrong(report, "right") == set()
  assert {(output, values) for output, _, values in _wrong(report, "wrong")} == {("i", "hostile")}
  assert {row.max_abs for row in report.rows if not row.ok} == {1.0}


def test_sizes_meet_the_constraints(tmp_path: Path) -> None:
  def fun(p: Any, x: jax.Array, ids: jax.Array) -> jax.Array:
    return x.sum() + ids

  path = saved_model.save(
    fun,
    PARAMS,
    tmp_path,
    inputs={"x": "f32[2*b]", "ids": "i32[s]"},
    polymorphic_constraints=["b >= 16", "s <= 5", "mod(b, 8) == 0"],
  )
  report = verify.verify(path, fun, params=PARAMS, samples=1)
  assert report.ok, report.text()
  assert {row.sizes["b"] for row in report.rows} == {16, 24, 32, 40}
  assert {row.sizes["s"] for row in report.rows} == {1, 2, 3, 4}
  record = manifest.read(path)
  domain = Domain(record.signatures["serving_default"], record.constraints)
  assert {
    (sizes["b"], sizes["s"]) for sizes in domain.assignments({"b": [64, 24], "s": [4]}, {})
  } == {(64, 4), (24, 4)}
  with pytest.raises(
    ValueError,
    match=r"sizes\['b'\] = 17: it breaks the constraints b >= 16, s <= 5, mod\(b, 8\) == 0; "
    "choose another",
  ):
    verify.verify(path, fun, params=PARAMS, sizes={"b": [16, 17]})


@pytest.mark.parametrize(
  ("constraints", "sizes"),
  [
    ([], [{"a": 1, "b": 3}, {"a": 3, "b": 7}, {"a": 7, "b": 32}, {"a": 32, "b": 1}]),
    (["a == b"], [{"b": n} for n in (1, 3, 7, 32)]),
    (["a >= 50", "b <= 2", "a <= 51"], [{"a": 50, "b": 2}, {"a": 51, "b": 1}]),
    (["a <= 1", "b <= 1"], [{"a": 1, "b": 1}]),
    (["b == 2*a + 1"], [{"a": n} for n in (1, 3, 7, 32)]),
  ],
)
def test_default_sizes(constraints: list[str], sizes: list[dict[str, int]]) -> None:
  domain = Domain(
    manifest.SignatureRecord(inputs={"x": "f32[a]", "y": "f32[b]"}, outputs={}), constraints
  )
  assert domain.assignments({}, {}) == sizes


def test_default_sizes_far_apart() -> None:
  record = manifest.SignatureRecord(inputs={"x": "f32[a]", "y": "f32[b]"}, outputs={})
  found = Domain(record, ["a >= b + 40"]).assignments({}, {})
  assert len(found) == 4 and all(sizes["a"] >= sizes["b"] + 40 for sizes in found)
  with pytest.raises(
    ValueError, match="no sizes were found that meet a >= 9999; give some: sizes="
  ):
    Domain(record, ["a >= 9999"]).assignments({}, {})


def test_inputs_of_the_caller(tmp_path: Path) -> None:
  seen: list[tuple[int, ...]] = []

  def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    seen.append(shape)
    return rng.integers(100, 103, shape).astype(dtype)

  def fun(p: Any, ids: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.where(ids[:, None] >= 100, x, 0)

  path = saved_model.save(fun, PARAMS, tmp_path, inputs={"ids": "i32[b]", "x": "f32[b,2]"})
  report = verify.verify(path, lambda p, ids, x: x, params=PARAMS, samples=1, inputs={"ids": draw})
  assert report.ok and {(b,) for b in (1, 3, 7, 32)} == set(seen)
  arrays = {"ids": np.full(5, 100, np.int32), "x": np.ones((5, 2), np.float32)}
  report = verify.verify(path, lambda p, ids, x: x, params=PARAMS, inputs=arrays)
  assert report.ok and [(row.sizes, row.values, row.samples) for row in report.rows] == [
    ({"b": 5}, "given", 1)
  ]


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> Path:
  """Two signatures: one with a pass-through of strings, one that parses strings."""
  model = saved_model.Model(PARAMS).add(
    affine, inputs=INPUTS, outputs=["y"], pass_through={"id": "string[b]"}
  )
  model.add(
    affine,
    inputs=INPUTS,
    outputs=["y"],
    signatures=["parsed", "parsed_too"],
    raw_inputs={"text": "string[b]"},
    preprocess=lambda given: {"x": tf.ones([1, 4]) * tf.strings.to_number(given["text"])[:, None]},
  )
  return model.save(tmp_path_factory.mktemp("processors"))


def test_what_is_not_jax_is_never_passed_in_silence(processors: Path) -> None:
  report = verify.verify(processors, affine, params=PARAMS, samples=1)
  assert {row.output for row in report.rows} == {"y", "id"} and all(row.ok for row in report.rows)
  assert not report.ok and report.skipped.keys() == {"parsed", "parsed_too"}
  with pytest.raises(verify.VerificationError, match="parsed, skipped: it has a preprocess step"):
    report.raise_for_mismatch()
  assert "SKIPPED: parsed" in report.text() and "Skipped" in report.html()


def test_preprocessing_against_the_callers_own_reference(processors: Path) -> None:
  def parsed(params: Any, text: np.ndarray) -> jax.Array:
    return affine(
      params, np.array([float(s) for s in text], np.float32)[:, None] * np.ones((1, 4), np.float32)
    )

  references = {"parsed": parsed, "parsed_too": lambda params, text: 1.01 * parsed(params, text)}
  report = verify.verify(
    processors,
    references,
    params=PARAMS,
    signatures=list(references),
    inputs={"text": np.array(["0.5", "-2"])},
  )
  found = {(row.signature, row.output, row.values, row.samples, row.ok) for row in report.rows}
  assert (
    found == {("parsed", "y", "given", 1, True), ("parsed_too", "y", "given", 1, False)}
    and not report.skipped
  )


def test_a_training_step_starts_from_the_saved_variables(tmp_path: Path) -> None:
  """A signature that writes its variable: each run, and each of those that are timed, would see
  another value."""
  module = tf.Module()
  module.count = tf.Variable(1.0)
  module.step = tf.function(
    lambda x: {"y": x + module.count.assign_add(1.0)},
    input_signature=[tf.TensorSpec([None], tf.float32, "x")],
  )
  tf.saved_model.save(
    module, str(tmp_path), signatures={"right": module.step, "wrong": module.step}
  )
  record = manifest.SignatureRecord(inputs={"x": "f32[b]"}, outputs={"y": "f32[b]"})
  manifest.Manifest({"right": record, "wrong": record}, [], {"count": "f32[]"}, "", False).write(
    tmp_path
  )
  report = verify.verify(tmp_path, {"right": lambda x: x + 2, "wrong": lambda x: x + 3}, samples=2)
  assert {(row.signature, row.ok) for row in report.rows if row.values == "ordinary"} == {
    ("right", True),
    ("wrong", False),
  }


def test_optional_inputs_are_taken_by_name(tmp_path: Path) -> None:
  def fun(p: Any, scale: jax.Array, x: jax.Array) -> jax.Array:
    return x * scale

  model = saved_model.Model(PARAMS).add(
    fun, inputs={"scale": "f32[]", "x": "f32[b]"}, defaults={"scale": 2.0}
  )
  path = model.save(tmp_path)
  assert verify.verify(path, lambda p, scale, x: x * scale, params=PARAMS, samples=1).ok
  with pytest.raises(
    ValueError, match="takes a, b; with optional inputs, name them as the signature: x, scale"
  ):
    verify.verify(path, lambda p, a, b: a * b, params=PARAMS)


def test_the_model_runs_where_there_is_no_jax(model: Path) -> None:
  record = manifest.read(model).signatures["serving_default"]
  subject = plan.Subject("serving_default", record, affine, ["x"])
  run = plan.Run(subject, {"b": 1}, "ordinary", {"x": np.ones((1, 4), np.float32)}, timed=False)
  response = verification._run_without_jax(model, [run], lambda: None)
  assert {"tensorflow", "numpy"} <= set(response["packages"])
  assert not set(ABSENT) & set(response["packages"])
  np.testing.assert_allclose(
    response["runs"][0]["outputs"]["y"], affine(PARAMS, np.ones((1, 4), np.float32)), rtol=1e-6
  )


def test_a_model_that_is_damaged_is_no_mismatch(model: Path, tmp_path: Path) -> None:
  for file, contents in (
    ("variables.index", b"damaged"),
    ("variables.data-00000-of-00001", b"1234"),
    ("variables.index", None),
  ):
    path = Path(shutil.copytree(model, tmp_path / "1", dirs_exist_ok=True)) / "variables" / file
    path.write_bytes(contents) if contents else path.unlink()
    with pytest.raises(ValueError, match=r"1/variables is damaged: .*; save the model again"):
      verify.verify(tmp_path / "1", affine, params=PARAMS, samples=1, sizes={"b": 2})


def test_a_model_that_cannot_be_loaded_or_run_is_a_mismatch(
  model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  silent = {
    "error": "OpError: Op type not registered 'Foo'",
    "signatures": [],
    "runs": [],
    "packages": [],
    "versions": {},
  }
  with monkeypatch.context() as patch:
    patch.setattr(verification, "_run_without_jax", lambda *_: silent)
    report = verify.verify(model, affine, params=PARAMS, samples=1, sizes={"b": 2})
  assert all(
    row.problem == f"the model fails: no answer without JAX: {silent['error']}"
    for row in report.rows
  )
  assert report.rows and not report.ok and not report.latencies
  found = manifest.read(model)
  other = {"other": found.signatures["serving_default"]}
  dataclasses.replace(found, signatures=other).write(Path(shutil.copytree(model, tmp_path / "2")))
  report = verify.verify(tmp_path / "2", affine, params=PARAMS, samples=1, sizes={"b": 2})
  assert "KeyError" in report.rows[0].problem and report.skipped.keys() == {"serving_default"}


@pytest.mark.parametrize(
  ("arguments", "words"),
  [
    ({"signatures": ["serve"]}, "the model has no 'serve'; choose from serving_default"),
    ({"signatures": []}, "selects no signature"),
    ({"reference": {}}, "reference: it has no function for signature 'serving_default'"),
    ({"reference": {"serve": affine}}, "reference['serve']: the signatures to compare are"),
    ({"reference": 3}, "reference = 3: it is neither a function nor"),
    (
      {"reference": lambda x: x},
      "reference of 'serving_default' cannot be called with (params, x)",
    ),
    (
      {"reference": lambda p, x: (x, x)},
      "reference of 'serving_default' has 2 results, and the signature 1: y",
    ),
    ({"sizes": {"c": 3}}, "sizes['c'] = 3: the inputs have no such variable, only b"),
    ({"sizes": {"b": 0}}, "sizes['b'] = [0]; give one or more positive integers"),
    ({"sizes": {"b": []}}, "sizes['b'] = []; give"),
    ({"samples": 0}, "samples = 0"),
    ({"inputs": {"z": np.ones(3)}}, "inputs['z']: the signatures take no such input, only x"),
    (
      {"inputs": {"x": np.ones((3, 4))}},
      "inputs['x']: it is float64[3, 4], and the signature takes float32[3, 4] here",
    ),
    (
      {"inputs": {"x": np.ones((3, 5), np.float32)}},
      "inputs['x']: it is float32[3, 5], and the signature takes float32[3, 4] here",
    ),
    (
      {"inputs": {"x": np.ones(3)}},
      "inputs['x']: it has the shape (3,), and the signature takes f32[b,4]",
    ),
    (
      {"inputs": {"x": np.ones((3, 4))}, "sizes": {"b": 5}},
      "so b = 3, and not [5]; use the same size",
    ),
  ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: str, model: Path) -> None:
  with pytest.raises(ValueError, match=re.escape(words)):
    verify.verify(model, **{"reference": affine, "params": PARAMS, **arguments})


def test_what_is_no_model(model: Path, tmp_path: Path) -> None:
  with pytest.raises(FileNotFoundError, match=r"is not a directory; pass a SavedModel"):
    verify.verify(tmp_path / "nowhere", affine)
  with pytest.raises(
    FileNotFoundError, match=r"holds neither saved_model\.pb nor a numbered version"
  ):
    verify.verify(tmp_path, affine)
  path = Path(shutil.copytree(model, tmp_path / "1"))
  shutil.rmtree(path / "assets.extra")
  with pytest.raises(FileNotFoundError, match=r"has no assets\.extra/jax2tf\.json"):
    verify.verify(tmp_path, affine)


def test_several_signatures_need_several_references(tmp_path: Path) -> None:
  path = (
    saved_model.Model(PARAMS).add(affine, inputs=INPUTS, signatures=["one", "two"]).save(tmp_path)
  )
  with pytest.raises(ValueError, match="reference: it is one function for the signatures one, two"):
    verify.verify(path, affine, params=PARAMS)


def test_the_verdict_says_what_failed_and_what_is_noted() -> None:
  def verdict(*rows: verify.Row, **skipped: str) -> str:
    return verify.Report("m", rows, (), skipped, {}).verdict

  good, bad = (
    verify.Row("s", "y", {}, "ordinary"),
    verify.Row("s", "y", {}, "ordinary", problem="differs"),
  )
  hostile = verify.Row("s", "y", {}, "hostile", problem="differs")
  assert verdict(good) == "verified: 1 comparisons agree"
  assert verdict(good, bad) == "NOT verified: 1 of 2 comparisons differ"
  assert (
    verdict(good, hostile)
    == "NOT verified: 1 of 2 comparisons differ, all of hostile inputs (NaN, infinities, extreme "
    "numbers)"
  )
  noted = dataclasses.replace(hostile, counts=False)  # as exports have it
  assert (
    verdict(good, noted)
    == "verified: 1 comparisons agree, and 1 of hostile inputs (NaN, infinities, extreme numbers) "
    "differ"
  )
  subnormal = verify.Row("s", "y", {}, "subnormal", problem="differs", counts=False)
  assert (
    verdict(good, subnormal) == "verified: 1 comparisons agree, and 1 of subnormal inputs differ"
  )
  assert (
    verdict(good, parsed="no reference") == "verified in part: 1 comparisons agree; skipped: parsed"
  )


def test_a_report_replaces_the_files_of_another_when_it_is_complete(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  entered: list[str] = []

  @contextlib.contextmanager
  def show(name: str) -> Iterator[None]:
    entered.append(name)
    yield

  report = verify.Report("first", (verify.Row("s", "y", {}, "ordinary"),), (), {}, {})
  with stages.shown_by(show):
    report.write(tmp_path / "report")
  assert entered == ["write the report"]

  def interrupted(_: object) -> str:
    raise KeyboardInterrupt

  monkeypatch.setattr(verify.Report, "html", interrupted)
  for folder in ("report", "another/report"):
    with pytest.raises(KeyboardInterrupt):
      dataclasses.replace(report, model="second").write(tmp_path / folder)
  assert sorted(file.name for file in tmp_path.rglob("*")) == [
    "report",
    *(f"verification.{kind}" for kind in ("html", "json", "txt")),
  ]
  assert all("first" in file.read_text() for file in (tmp_path / "report").iterdir())


def test_64_bits_are_not_cut_in_silence(tmp_path: Path) -> None:
  with jax.enable_x64(True):
    path = saved_model.save(lambda p, x: x * 2, PARAMS, tmp_path, inputs={"x": "f64[b]"})
    report = verify.verify(path, lambda p, x: x * 2, params=PARAMS, samples=1)
  assert report.ok and {row.dtype for row in report.rows} == {"float64"}
  with pytest.raises(
    ValueError,
    match=r"inputs\['x'\] = 'f64\[b\]': JAX narrows this dtype here; set jax.config.update",
  ):
    verify.verify(path, lambda p, x: x * 2, params=PARAMS)


@pytest.mark.parametrize(
  ("found", "expected", "share"),
  [
    (np.float32([1, np.nan, np.inf, -0.0]), np.float32([1, np.nan, np.inf, 0.0]), 0),
    (np.float32([1 + 2**-20]), np.float32([1]), 8 / (256 + 32)),
    (np.float32([np.inf]), np.float32([-np.inf]), np.inf),
    (np.float32([np.inf]), np.float32([3e38]), np.inf),
    (np.complex64([1 + 2e-6j]), np.complex64([1]), 2e-6 / ((256 + 32) * 2**-23)),
    (np.array([1.0078125], jnp.bfloat16), np.array([1], jnp.bfloat16), 1 / 16),
    (np.float32([]), np.float32([]), 0),
  ],
  ids=["equal", "ulps", "sign-of-inf", "overflow", "complex", "bfloat16", "empty"],
)
def test_share_of_the_tolerance(found: np.ndarray, expected: np.ndarray, share: float) -> None:
  difference = compare._difference(found, expected, None, None)
  assert difference.of_tolerance == pytest.approx(share)
  assert bool(difference.problem) == (share > 1)


def test_units_in_the_last_place() -> None:
  x = np.float32([1, 3, -100, 2**20])
  steps = np.nextafter(np.nextafter(x, np.float32(np.inf)), np.float32(np.inf))
  assert compare._difference(steps, x, None, 0.0).max_ulp == 2
  narrow = np.array([1, 3, -100], jnp.bfloat16)
  assert (
    compare._difference(
      np.array([1.0078125, 3.015625, -100.5], jnp.bfloat16), narrow, None, 0.0
    ).max_ulp
    == 1
  )


def test_tolerances_of_the_caller() -> None:
  found, expected = np.float32([1.001, 0.001]), np.float32([1, 0])
  shares = [
    compare._difference(found, expected, *tolerance).of_tolerance
    for tolerance in ((None, None), (0.0, 2e-3), (1e-4, 2e-3))
  ]
  assert shares == [pytest.approx(share, rel=1e-3) for share in (1e-3 / (32 * 2**-23), 0.5, 0.5)]


def test_a_missing_package_names_the_extra(
  monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
  monkeypatch.setitem(sys.modules, "jinja2", None)
  with pytest.raises(ImportError, match=r"needs jinja2: pip install 'jax2tf\[verify\]'"):
    verify.verify(model, affine, params=PARAMS, report=tmp_path)
