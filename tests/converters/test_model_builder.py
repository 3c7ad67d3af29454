"""jax2tf.converters.saved_model.Model: several functions of one set of parameters, and what stands
around them."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import prediction_log_pb2

import jax2tf
from jax2tf.converters import saved_model
from jax2tf.converters.bundle import files, publish
from jax2tf.converters.saved_model import manifest

PARAMS = {
  "w": np.arange(8, dtype=np.float32).reshape(4, 2),
  "steps": np.int32(3),
  "scale": np.ones(2, ml_dtypes.bfloat16),
}
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def predict(params: Any, x: Any) -> Any:
  return jnp.sin(x @ params["w"]) * params["scale"].astype(jnp.float32)


def embed(params: Any, batch: Any, temperature: Any) -> Any:
  return {
    "scores": (batch["ids"] @ params["w"]) / temperature[:, None],
    "n": batch["mask"].sum(1) * params["steps"],
  }


EMBED = {"batch": {"ids": "f32[b,4]", "mask": "i32[b,s]"}, "temperature": "f32[b]"}


def both() -> saved_model.Model:
  model = saved_model.Model(PARAMS, polymorphic_constraints=["b <= 8"])
  model.add(
    predict,
    inputs={"x": "f32[b,4]"},
    outputs=["y"],
    signatures=["serving_default", "predict"],
    method="predict",
  )
  return model.add(
    embed, inputs=EMBED, signatures="embed", method="embed", defaults={"temperature": 2.0}
  )


def test_a_function_is_traced_once() -> None:
  runs = []

  def count(params: Any, state: Any, x: Any) -> Any:
    runs.append(x.shape)
    return {"steps": state["steps"] + 1}, x @ params["w"]

  model = saved_model.Model(
    PARAMS,
    state={"steps": np.int32(0)},
    stored_dtype=jnp.bfloat16,
    polymorphic_constraints=["b <= 9"],
  )
  model.add(count, inputs={"x": "f32[b,4]"}, stateful=True)
  assert len(runs) == 1


def test_constraints_concern_the_functions_that_have_their_variables() -> None:
  model = saved_model.Model(PARAMS, polymorphic_constraints=["b <= 8", "s >= 2"])
  model.add(predict, inputs={"x": "f32[b,4]"}, signatures="predict").add(
    embed, inputs=EMBED, signatures="embed"
  )
  with pytest.raises(tf.errors.InvalidArgumentError, match="b <= 8"):
    model.signatures["predict"](x=tf.zeros([9, 4]))
  with pytest.raises(tf.errors.InvalidArgumentError, match=">= 2"):
    model.signatures["embed"](
      batch_ids=X, batch_mask=np.ones((3, 1), np.int32), temperature=np.ones(3, np.float32)
    )


def signature_def(path: Path, name: str) -> Any:
  saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
  return saved.meta_graphs[0].signature_def[name]


def test_several_signatures_aliases_and_methods(tmp_path: Path) -> None:
  path = both().save(tmp_path)
  loaded = tf.saved_model.load(str(path))
  assert set(loaded.signatures) == {"serving_default", "predict", "embed"}
  mask, ones = np.ones((3, 5), np.int32), np.ones(3, np.float32)
  expected = embed(PARAMS, {"ids": X, "mask": mask}, ones)
  for name in ("serving_default", "predict"):
    np.testing.assert_allclose(
      loaded.signatures[name](x=tf.constant(X))["y"], predict(PARAMS, X), rtol=1e-6
    )
  found = loaded.signatures["embed"](batch_ids=X, batch_mask=mask, temperature=ones)
  np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-6)
  np.testing.assert_array_equal(found["n"], expected["n"])
  np.testing.assert_allclose(
    loaded.embed({"ids": X, "mask": mask}, ones)["scores"], expected["scores"], rtol=1e-6
  )
  np.testing.assert_allclose(loaded(X), loaded.predict(X))
  assert len(loaded.variables) == 3  # shared


def test_optional_inputs_have_the_size_of_the_others(tmp_path: Path) -> None:
  path = both().save(tmp_path)
  record = signature_def(path, "embed")
  assert tf.make_ndarray(record.defaults["temperature"]).tolist() == [2.0]
  assert set(record.inputs) == {"batch_ids", "batch_mask", "temperature"}
  mask = np.ones((3, 5), np.int32)
  expected = embed(PARAMS, {"ids": X, "mask": mask}, np.full(3, 2.0, np.float32))
  # As TF Serving does it: the default of the signature in place of what is missing.
  found = tf.saved_model.load(str(path)).signatures["embed"](
    batch_ids=X, batch_mask=mask, temperature=np.float32([2.0])
  )
  np.testing.assert_allclose(found["scores"], expected["scores"], rtol=1e-6)


def test_names_may_be_overridden(tmp_path: Path) -> None:
  model = saved_model.Model(PARAMS)
  model.add(embed, inputs=EMBED, input_names={"batch_ids": "ids"}, outputs={"scores": "logits"})
  record = signature_def(model.save(tmp_path), "serving_default")
  assert set(record.inputs) == {"ids", "batch_mask", "temperature"}
  assert set(record.outputs) == {"logits", "n"}


def test_processors_their_tables_and_what_passes_through(tmp_path: Path) -> None:
  vocabulary = tmp_path / "vocabulary.txt"
  vocabulary.write_text("the\ncat\nsat\n")
  table = tf.lookup.StaticVocabularyTable(
    tf.lookup.TextFileInitializer(
      str(vocabulary),
      tf.string,
      tf.lookup.TextFileIndex.WHOLE_LINE,
      tf.int64,
      tf.lookup.TextFileIndex.LINE_NUMBER,
    ),
    1,
  )
  labels = tf.constant(["even", "odd"])

  def tokenize(raw: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {
      "ids": tf.cast(table.lookup(tf.strings.split(raw["text"]).to_tensor("")), tf.int32),
      "bias": raw["bias"],
    }

  def name_classes(found: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return found | {"label": tf.gather(labels, found["sum"] % 2)}

  model = saved_model.Model({"offset": np.int32(1)})
  model.add(
    lambda p, ids, bias: {"sum": jnp.sum(ids + p["offset"], axis=1) + bias},
    inputs={"ids": "i32[b,s]", "bias": "i32[]"},
    raw_inputs={"text": "string[b]", "bias": "i32[]"},
    preprocess=tokenize,
    postprocess=name_classes,
    pass_through={"request": "string[b]"},
    resources=[table],
  )
  path = model.save(tmp_path / "model")
  vocabulary.unlink()  # the model has its own
  assert (path / "assets" / "vocabulary.txt").exists()
  served = tf.saved_model.load(str(path)).signatures["serving_default"]
  found = served(
    text=tf.constant(["the cat sat", "the dog sat"]),
    bias=tf.constant(0),
    request=tf.constant(["a", "b"]),
  )
  np.testing.assert_array_equal(found["sum"], [1 + 2 + 3, 1 + 4 + 3])
  assert found["label"].numpy().tolist() == [b"even", b"even"]
  assert found["request"].numpy().tolist() == [b"a", b"b"]
  record = manifest.read(path).signatures["serving_default"]
  assert record.inputs == {"text": "string[?]", "bias": "i32[]", "request": "string[?]"}
  assert record.passed_through == ["request"]
  assert record.preprocessed
  assert record.postprocessed


def test_an_image_is_decoded_in_front_of_the_function(tmp_path: Path) -> None:
  def decode(raw: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    decoded = tf.map_fn(
      lambda s: tf.io.decode_png(s, channels=3),
      raw["png"],
      fn_output_signature=tf.TensorSpec([None, None, 3], tf.uint8),
    )
    return {"image": tf.cast(tf.ensure_shape(decoded, [None, 4, 5, 3]), tf.float32) / 255}

  model = saved_model.Model({"w": np.ones(3, np.float32)})
  model.add(
    lambda p, image: (image * p["w"]).mean((1, 2, 3)),
    inputs={"image": "f32[b,4,5,3]"},
    raw_inputs={"png": "string[b]"},
    preprocess=decode,
  )
  image = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
  served = tf.saved_model.load(str(model.save(tmp_path))).signatures["serving_default"]
  found = served(png=tf.stack([tf.io.encode_png(image)] * 2))["output"]
  np.testing.assert_allclose(found, [image.mean() / 255] * 2, rtol=1e-5)


def test_which_parameters_are_trainable() -> None:
  tree = {
    "encoder": {"w": np.ones(2, np.float32)},
    "head": np.ones(2, np.float32),
    "n": np.int32(1),
  }

  def trainable(flag: Any) -> set[str]:
    return {
      v.name.removesuffix(":0") for v in saved_model.Model(tree, trainable=flag).trainable_variables
    }

  assert trainable(True) == {"encoder/w", "head"}
  assert trainable(False) == set()
  assert trainable(lambda path: path.startswith("head")) == {"head"}
  assert trainable({"encoder": True, "head": False, "n": True}) == {"encoder/w"}
  with pytest.raises(ValueError, match=r"trainable = \{'encoder': True\}: it is not a bool"):
    trainable({"encoder": True})


def test_paths_that_tensorflow_cannot_name_an_op_by(tmp_path: Path) -> None:
  """Haiku's nested modules are `mlp/~/linear_0`."""
  params = {
    "mlp/~/linear_0": {"w": np.float32(2)},
    "~": np.float32(3),
    "größe [0]": np.float32(5),
    "größe {0}": np.float32(7),
  }
  model = saved_model.Model(params).add(
    lambda p, x: x * p["mlp/~/linear_0"]["w"] * p["~"] + p["größe [0]"] - p["größe {0}"],
    inputs={"x": "f32[b]"},
  )
  assert set(model.parameters) == {"mlp/~/linear_0/w", "~", "größe [0]", "größe {0}"}
  path = model.save(tmp_path)
  assert set(manifest.read(path).parameters) == set(model.parameters)
  loaded = tf.saved_model.load(str(path))
  np.testing.assert_array_equal(
    loaded.signatures["serving_default"](x=tf.ones([2]))["output"], [4, 4]
  )
  model.update(params | {"~": np.float32(4)})
  np.testing.assert_array_equal(model.signatures["serving_default"](tf.ones([2]))["output"], [6, 6])


def test_update_traces_nothing_anew_and_takes_all_or_none() -> None:
  traces = []

  def traced(params: Any, x: Any) -> Any:
    traces.append(1)
    return predict(params, x)

  params = jax.tree.map(jnp.asarray, PARAMS)
  model = saved_model.Model(params).add(traced, inputs={"x": "f32[b,4]"}, outputs=["y"])
  serve = model.signatures["serving_default"]
  before, count = serve(x=X)["y"], len(traces)
  model.update(params | {"w": params["w"] + 1})
  np.testing.assert_allclose(
    serve(x=X)["y"], predict(params | {"w": params["w"] + 1}, X), rtol=1e-6
  )
  assert len(traces) == count
  differences = (
    r"(?s)  scale: missing\n.*  steps: f32\[\], the model has i32\[\]\n  v: not in "
    r"the model\n  w: f32\[2,4\], the model has f32\[4,2\]"
  )
  with pytest.raises(ValueError, match=differences):
    model.update({"w": PARAMS["w"].T, "steps": np.float32(3), "v": 1.0})
  assert np.any(serve(x=X)["y"] != before)


def test_variables_share_the_memory_of_arrays_and_never_write_into_it() -> None:
  w = jnp.ones((1000, 100))
  model = saved_model.Model({"w": w})
  [variable] = model.parameters.values()
  assert np.asarray(variable.value()).ctypes.data == np.asarray(w).ctypes.data
  variable.assign_add(tf.ones_like(variable))
  variable.scatter_nd_update([[0]], tf.zeros([1, 100]))
  np.testing.assert_array_equal(w, np.ones((1000, 100)))
  assert float(variable[1, 1]) == 2.0


def test_dtypes_of_parameters(tmp_path: Path) -> None:
  dtypes = [
    np.bool_,
    np.int8,
    np.uint16,
    np.int32,
    np.float16,
    ml_dtypes.bfloat16,
    np.float32,
    np.complex64,
    ml_dtypes.float8_e4m3fn,
  ]
  params = {np.dtype(d).name: jnp.ones((3,), d) for d in dtypes}
  model = saved_model.Model(params).add(lambda p, x: p, inputs={"x": "f32[]"})
  found = tf.saved_model.load(str(model.save(tmp_path))).signatures["serving_default"](
    x=tf.constant(0.0)
  )
  assert {name: y.dtype.as_numpy_dtype for name, y in found.items()} == {
    np.dtype(d).name: d for d in dtypes
  }


def test_the_manifest(tmp_path: Path) -> None:
  model = both()
  path = model.save(tmp_path)
  record = manifest.read(path)
  assert record.signatures["embed"].inputs == {
    "batch_ids": "f32[b,4]",
    "batch_mask": "i32[b,s]",
    "temperature": "f32[b]",
  }
  assert record.signatures["embed"].outputs == {"n": "i32[b]", "scores": "f32[b,2]"}
  assert record.signatures["embed"].defaults == ["temperature"]
  assert record.signatures["predict"] == record.signatures["serving_default"]
  assert record.constraints == ["b <= 8"]
  assert record.parameters == {"scale": "bf16[2]", "steps": "i32[]", "w": "f32[4,2]"}
  assert record.versions["jax"] == jax.__version__
  assert json.loads((path / files.MANIFEST).read_text())["format"] == 1
  again = manifest.read(both().save(tmp_path))
  assert (again.weights, again.signatures) == (record.weights, record.signatures)
  model.update(PARAMS | {"steps": np.int32(4)})
  assert manifest.read(model.save(tmp_path)).weights != record.weights


def test_a_field_that_a_later_version_added_is_no_obstacle(tmp_path: Path) -> None:
  path = both().save(tmp_path)
  record = json.loads((path / files.MANIFEST).read_text())
  record["later"] = record["signatures"]["embed"]["later"] = 1
  before = manifest.read(path)
  (path / files.MANIFEST).write_text(json.dumps(record))
  assert manifest.read(path) == before


def test_a_manifest_that_is_not_there_or_not_ours(tmp_path: Path) -> None:
  with pytest.raises(FileNotFoundError, match=r"jax2tf\.converters\.saved_model did not save it"):
    manifest.read(tmp_path)
  (tmp_path / files.MANIFEST).parent.mkdir()
  for text in ("{", "[]", '{"format": 99}', '{"format": 1}'):
    (tmp_path / files.MANIFEST).write_text(text)
    with pytest.raises(ValueError, match="cannot be read by this jax2tf"):
      manifest.read(tmp_path)


def test_warm_up_requests(tmp_path: Path) -> None:
  requests = {
    "predict": [{"x": X}, {"x": X[:1]}],
    "embed": [{"batch_ids": X, "batch_mask": np.ones((3, 2), np.int32)}],
  }
  path = both().save(tmp_path / "encoder", warmup_requests=requests)
  logs = [
    prediction_log_pb2.PredictionLog.FromString(r.numpy()).predict_log.request
    for r in tf.data.TFRecordDataset(str(path / files.WARM_UP))
  ]
  assert [(r.model_spec.name, r.model_spec.signature_name) for r in logs] == [
    ("encoder", "predict")
  ] * 2 + [("encoder", "embed")]
  np.testing.assert_array_equal(tf.make_ndarray(logs[0].inputs["x"]), X)
  loaded = tf.saved_model.load(str(path))
  for request in logs[:2]:
    loaded.signatures["predict"](
      **{name: tf.constant(tf.make_ndarray(t)) for name, t in request.inputs.items()}
    )


@pytest.mark.parametrize(
  ("requests", "words"),
  [
    ({"other": [{"x": X}]}, "there is no such signature, only serving_default, predict, embed"),
    ([{}], "request 0 of signature 'serving_default': x is missing"),
    (
      [{"x": X}, {"x": X, "z": 1}],
      "request 1 of signature 'serving_default': 'z' is not an input; the inputs are x",
    ),
    ([{"x": X.astype(np.float64)}], r"'x' is float64\(3, 4\), and float32\(None, 4\) is needed"),
    ([{"x": X.T}], r"'x' is float32\(4, 3\), and float32\(None, 4\) is needed"),
    ([{"x": X}] * 1001, "1001 warm-up requests; TF Serving takes at most 1000"),
  ],
)
def test_warm_up_requests_that_do_not_fit(requests: Any, words: str, tmp_path: Path) -> None:
  with pytest.raises(ValueError, match=words):
    both().save(tmp_path, warmup_requests=requests)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("options", "words"),
  [
    ({"defaults": {"z": 1.0}}, r"defaults\['z'\] = 1.0: the inputs are x"),
    (
      {"defaults": {"x": np.ones((3, 4))}},
      r"defaults\['x'\]: it has the shape \(3, 4\), and f32\[b,4\] needs \(1, 4\)",
    ),
    ({"defaults": {"x": np.ones((1, 4))}}, r"defaults\['x'\]: no other input has the dimension b"),
    ({"preprocess": lambda raw: raw}, "raw_inputs = None: preprocess and raw_inputs go together"),
    (
      {"preprocess": lambda raw: {}, "raw_inputs": {"t": "string[b]"}},
      "preprocess: it gives nothing, and not x, which 'predict' takes",
    ),
    ({"pass_through": {"x": "f32[b]"}}, "pass_through: x is already an input"),
    ({"pass_through": {"output": "f32[b]"}}, "pass_through: output is already an output"),
    ({"input_names": {"z": "y"}}, "input_names = {'z': 'y'}: there is no input z to rename"),
    ({"input_names": {"x": "a b"}}, "input name 'a b' is not an identifier"),
    ({"outputs": {"z": "y"}}, "outputs = {'z': 'y'}: there is no result z to rename"),
    ({"inputs": {"x": "string[b]"}}, "JAX has no strings; let preprocess= take it"),
    (
      {"inputs": {"x": {"a": "f32[b,4]"}, "x_a": "f32[b]"}},
      r"inputs = \['x_a', 'x_a'\]: two inputs would have one name",
    ),
    ({"inputs": {"x": "f32[b,4]", "X": "f32[b]"}}, "'x' and 'X' differ in capital letters only"),
  ],
)
def test_what_does_not_fit_is_refused_at_once(options: dict[str, Any], words: str) -> None:
  model = saved_model.Model(PARAMS)
  with pytest.raises(ValueError, match=words):
    model.add(predict, **({"inputs": {"x": "f32[b,4]"}} | options))
  assert not model.signatures


def test_a_name_twice_and_no_function_at_all(tmp_path: Path) -> None:
  with pytest.raises(ValueError, match="signature 'predict' already exists"):
    both().add(predict, inputs={"x": "f32[b,4]"}, signatures="predict")
  with pytest.raises(ValueError, match="the model has no function"):
    saved_model.Model(PARAMS).save(tmp_path)


FINE_TUNE = """
import sys
sys.modules["jax"] = None
import keras, numpy as np, tensorflow as tf

loaded = tf.saved_model.load(sys.argv[1])
x = tf.constant(np.random.default_rng(0).standard_normal((64, 4)), tf.float32)
y = tf.sin(x @ tf.constant([[1.0, 0.5], [0.0, 1.0], [0.5, 0.0], [1.0, 1.0]]))
optimizer, losses = keras.optimizers.Adam(0.05), []
for _ in range(300):
  with tf.GradientTape() as tape:
    loss = tf.reduce_mean(tf.square(loaded(x) - y))
  optimizer.apply(tape.gradient(loss, loaded.trainable_variables), loaded.trainable_variables)
  losses.append(float(loss))
print(losses[0], losses[-1])
"""


def test_fine_tuned_by_keras_without_jax(tmp_path: Path, without_jax: str) -> None:
  params = {
    "w": np.random.default_rng(1).standard_normal((4, 2)).astype(np.float32),
    "scale": np.ones(2, np.float32),
  }
  model = saved_model.Model(params, with_gradient=True, trainable={"w": True, "scale": False})
  path = model.add(predict, inputs={"x": "f32[b,4]"}).save(tmp_path)
  run = subprocess.run(
    [without_jax, "-c", FINE_TUNE, str(path)],
    capture_output=True,
    text=True,
    check=False,
    env=os.environ | {"KERAS_BACKEND": "tensorflow"},
  )
  assert run.returncode == 0, run.stderr[-2000:]
  first, last = map(float, run.stdout.split())
  assert last < 0.1 * first


def test_scalar_parameters_of_any_dtype(tmp_path: Path) -> None:
  """TF 2.21: NumPy cannot look at a scalar tensor of bfloat16."""
  model = saved_model.Model({"scale": jnp.bfloat16(2), "bias": jnp.asarray(1, jnp.float8_e5m2)})
  model.add(
    lambda params, x: x * params["scale"].astype(x.dtype), inputs={"x": "f32[b]"}, outputs=["y"]
  )
  loaded = tf.saved_model.load(model.save(tmp_path))
  np.testing.assert_array_equal(loaded.signatures["serving_default"](tf.ones(2))["y"], [2, 2])


@pytest.mark.parametrize("version", ["../escaped", -1, True, 1.5, "1"])
def test_a_version_is_a_number(version: Any, tmp_path: Path) -> None:
  with pytest.raises(ValueError, match="give a nonnegative integer"):
    saved_model.save(
      lambda params, x: x, {}, tmp_path / "m", inputs={"x": "f32[]"}, version=version
    )
  assert not list(tmp_path.iterdir())


def test_paths_of_parameters_are_different() -> None:
  with pytest.raises(ValueError, match=r"two leaves of the parameters would have one path: a/b;"):
    saved_model.Model({"a": {"b": np.ones(2)}, "a/b": np.ones(3)})


@pytest.mark.parametrize("name", ["λ", "_x", "class", "self"])
def test_names_that_tensorflow_has_not(name: str) -> None:
  with pytest.raises(ValueError, match="is not an identifier"):
    saved_model.Model({}).add(lambda params, x: x, inputs={name: "f32[]"})


@pytest.mark.parametrize("method", ["variables", "save", "add", "_tree", "a b"])
def test_methods_are_no_attributes_of_the_model(method: str) -> None:
  with pytest.raises(
    ValueError, match="it is already an attribute of the model, or not a valid name"
  ):
    saved_model.Model({}).add(lambda params, x: x, inputs={"x": "f32[]"}, method=method)


def test_what_a_killed_save_left_goes_with_the_next_one(tmp_path: Path) -> None:
  imports = (
    "import os, sys; from jax2tf.converters.bundle.publish import beside; from pathlib import Path"
  )
  writer = f"{imports}\nwith beside(Path(sys.argv[1])): "
  subprocess.run([sys.executable, "-c", writer + "os._exit(9)", str(tmp_path)], check=False)
  assert len(list(tmp_path.glob(".saving-*"))) == 1
  with publish.beside(tmp_path) as mine, publish.beside(tmp_path) as other:
    assert set(tmp_path.glob(".saving-*")) == {mine.parent, other.parent}


@pytest.mark.parametrize("is_on", [True, False])
def test_the_garbage_collector_is_as_before(is_on: bool, tmp_path: Path) -> None:
  """It pauses while a graph is built."""
  seen = []

  def function(params: jax.Array, x: jax.Array) -> jax.Array:
    seen.append(gc.isenabled())
    return params * x

  was_on = gc.isenabled()
  (gc.enable if is_on else gc.disable)()
  try:
    model = saved_model.Model(jnp.float32(2)).add(function, inputs={"x": "f32[3]"})
    assert gc.isenabled() == is_on
    model.save(tmp_path / "model")
    with pytest.raises(FileExistsError):
      model.save(tmp_path / "model", version=1)
    assert gc.isenabled() == is_on
  finally:
    (gc.enable if was_on else gc.disable)()
  assert seen
  assert not any(seen)


def refused_functions() -> dict[str, dict[str, Any]]:
  x = {"inputs": {"x": "f32[b,2]"}}
  return {
    "batching": {
      **x,
      "fun": lambda w, x: (x @ w).sum(),
      "batching": saved_model.Batching(max_batch_size=4),
    },
    "names of outputs": {**x, "fun": lambda w, x: x @ w, "outputs": ["y", "z"]},
    "an error of the function": {**x, "fun": lambda w, x: x @ w[0, 0, 0]},
    "a postprocess that fails": {
      **x,
      "fun": lambda w, x: x @ w,
      "postprocess": lambda found: found["none"],
    },
    "a preprocess without the input": {
      **x,
      "fun": lambda w, x: x @ w,
      "raw_inputs": {"text": "string[b]"},
      "preprocess": lambda raw: raw,
      "resources": [tf.Variable(1.0)],
    },
    "a variable captured before the error": {
      **x,
      "fun": lambda w, x: (jax2tf.call_tf(lambda x: x * CAPTURED)(x) @ w).sum(),
      "batching": saved_model.Batching(max_batch_size=4),
      "method": "m",
    },
    "a state that is returned with another shape": {
      **x,
      "fun": lambda w, state, x: (state[None], x @ w),
      "stateful": True,
      "method": "m",
    },
    "a default of an unknown input": {**x, "fun": lambda w, x: x @ w, "defaults": {"y": 1}},
  }


CAPTURED = tf.Variable(3.0)


@pytest.mark.parametrize("case", refused_functions())
def test_a_function_that_is_refused_leaves_nothing_behind(case: str) -> None:
  model = saved_model.Model(np.eye(2, dtype=np.float32), state=np.float32(0))
  model.add(lambda w, x: x @ w, inputs={"x": "f32[b,2]"}, signatures="first")

  def kept() -> Any:
    lists = ("captured_variables", "trainable_variables", "state_variables", "_resources")
    return (
      {name: len(getattr(model, name)) for name in lists},
      list(model.signatures),
      list(model.records),
      list(model.functions),
      hasattr(model, "m"),
    )

  before, call = kept(), model.__call__
  with pytest.raises((ValueError, KeyError, TypeError, IndexError, RuntimeError)):
    model.add(signatures=["bad", "worse"], **refused_functions()[case])
  assert kept() == before and model.__call__ is call
