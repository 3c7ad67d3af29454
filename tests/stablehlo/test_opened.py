"""Closed SavedModels become ordinary ones, with the same values, gradients, variables and files."""

import shutil

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from jax2tf.converters import opened, tflite
from jax2tf.converters.opened import contents, files, functions, rewriting
from jax2tf.converters.saved_model import described, manifest
from jax2tf.errors import ArtifactError
from jax2tf.stablehlo import export_files
from jax2tf.tools.batch import engines, worker
from tests.support import stored_artifacts as stored
from tests.support.archives import npz
from tests.support.conformance import mutants


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
  folder = tmp_path_factory.mktemp("closed")
  return {path.name: path for path in stored.closed_models(folder)}


def _graph(path):
  saved = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
  return saved.meta_graphs[0]


def _ops(path):
  graph = _graph(path).graph_def
  nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
  return {node.op for node in nodes}


@pytest.mark.parametrize(
  "name", ["upstream-0.4.38-mlp", "upstream-0.10.2-mlp", "native-0.12.0.1-draws"]
)
def test_values_and_gradients(closed, name, tmp_path):
  result = opened.save(closed[name], tmp_path / "open", samples=1)
  assert result.report.ok and result.count == 2
  assert {row.output for row in result.report.rows} >= {"y0", "gradient of x"}
  assert not any(op.startswith("Xla") for op in _ops(result.path))
  values = npz(f"{closed[name]}.npz")
  answer = tf.saved_model.load(str(result.path)).signatures["serving_default"](
    x=tf.constant(values["x"])
  )
  np.testing.assert_allclose(answer["y0"], values["y0"], 1e-5, 1e-6)


def test_all_else_stays(closed, tmp_path):
  source = closed["native-0.12.0.1-loop"]
  result = opened.save(source, tmp_path / "open", samples=1)
  before, after = _graph(source), _graph(result.path)
  assert before.signature_def == after.signature_def
  assert before.object_graph_def == after.object_graph_def
  names = [f.signature.name for f in before.graph_def.library.function]
  assert names == [f.signature.name for f in after.graph_def.library.function][: len(names)]
  assert (result.path / "assets" / "words.txt").read_text() == "one\ntwo\nthree\n"
  for file in source.glob("variables/*"):
    assert file.read_bytes() == (result.path / "variables" / file.name).read_bytes()
  assert any(row.output == "variable 0" for row in result.report.rows)  # that it counts calls
  signatures = manifest.read(result.path).signatures
  assert signatures["counted"].stateful and not signatures["serving_default"].stateful
  assert any("no gradients" in note for note in result.notes)  # of a tf.cond, in TensorFlow 2.21


def test_what_tensorflow_cannot_run_is_repaired(closed, tmp_path):
  """Its module has composites of a version that TensorFlow 2.21 does not know."""
  source = closed["upstream-0.10.2-rnn"]
  x = tf.zeros([2, 5, 4])
  with pytest.raises(tf.errors.OpError):
    tf.saved_model.load(str(source)).signatures["serving_default"](x=x)
  result = opened.save(source, tmp_path / "open", samples=1)
  assert any("run under jax.jit" in note for note in result.notes)
  assert tf.saved_model.load(str(result.path)).signatures["serving_default"](x=x)["y0"].shape == [
    2,
    4,
  ]


def test_writes_that_change_nothing_are_dropped(closed, tmp_path):
  """Keras writes the statistics of a batch normalisation back in inference; seeds do change."""
  graph = _graph(closed["keras-0.10.2-cnn"]).graph_def
  assert len(writers_of_signature(graph)) == 3
  assert rewriting.opened(graph) == 2
  assert not writers_of_signature(graph)
  graph = _graph(closed["keras-0.10.2-seeded"]).graph_def
  before = writers_of_signature(graph)
  rewriting.opened(graph)
  assert before and writers_of_signature(graph) == before


def writers_of_signature(graph):
  functions = [f for f in graph.library.function if "stateful_fn" in f.signature.name]
  return [n.name for f in functions for n in f.node_def if n.op == "AssignVariableOp"]


@pytest.mark.one_python
def test_files_of_rows_run_through_an_opened_model(closed, tmp_path):
  """Its manifest says what a row is."""
  source = closed["upstream-0.10.2-mlp"]
  result = opened.save(source, tmp_path / "open", samples=1, sizes={"b": 2})
  rows, values = tmp_path / "x.npy", npz(f"{source}.npz")
  np.save(rows, values["x"])
  runner = engines.Rows(str(result.path)).runner
  worker.run(runner, rows, tmp_path / "y.npy")
  np.testing.assert_allclose(np.load(tmp_path / "y.npy"), values["y0"], 1e-5, 1e-6)
  with pytest.raises(FileNotFoundError, match="jax2tf open writes one"):
    manifest.read(source)


@pytest.mark.one_python
def test_what_is_inside(closed):
  """Also where a part is damaged."""
  graph = _graph(closed["upstream-0.4.38-rnn"]).graph_def
  _cut([f for f in graph.library.function if "internal_grad_fn" in f.signature.name])
  outer, gradient = contents.of_graph(graph)
  assert outer["platforms"] == ["CPU"] and outer["stablehlo"] == "1.8.2"
  assert outer["ops"]["stablehlo.while"] == 1
  assert outer["calls"] == ["mhlo.topk", "shape_assertion"]
  assert outer["refused"] == ""
  assert "no StableHLO module" in gradient["refused"]


def _cut(functions):
  """Cuts the modules of functions of a graph."""
  for function in functions:
    for node in function.node_def:
      if node.op == "XlaCallModule":
        node.attr["module"].s = node.attr["module"].s[:200]


def test_exporters_take_a_closed_model(closed, tmp_path):
  source = closed["upstream-0.10.2-mlp"]
  exported = tflite.save_model(source, tmp_path / "model.tflite")
  assert exported.report.ok


@pytest.mark.parametrize("name", ["orders", "windows", "draws", "rnn", "attention"])
def test_ops_of_xla_are_opened(closed, name, tmp_path):
  """JAX 0.4.38 wrote them into graphs. Here the graph changes; `opened.save` compares as well."""
  source = closed[f"graph-0.4.38-{name}"]
  files.copied(source, tmp_path / "open", rewriting.opened)
  assert not any(op.startswith("Xla") for op in _ops(tmp_path / "open"))
  values = npz(f"{source}.npz")
  signature = tf.saved_model.load(str(tmp_path / "open")).signatures["serving_default"]
  answer = signature(x=tf.constant(values["x"]))
  for key in answer:
    np.testing.assert_allclose(answer[key], values[key], 1e-5, 5e-6)


@pytest.mark.one_python
def test_ops_of_xla_keep_saved_gradients(closed, tmp_path):
  """Those of a convolution and a pooling, whose own ops are opened too."""
  result = opened.save(closed["graph-0.4.38-cnn"], tmp_path / "open", samples=1, sizes={"b": 2})
  assert result.report.ok and result.count == 11
  assert "gradient of x" in {row.output for row in result.report.rows}


def test_a_reducer_without_a_rule_is_refused(closed):
  graph = _graph(closed["graph-0.4.38-orders"]).graph_def
  [reducer] = [f for f in graph.library.function if f.signature.name.startswith("__inference__add")]
  next(node for node in reducer.node_def if node.op == "AddV2").op = "Atan2"
  with pytest.raises(NotImplementedError, match=rf"{reducer.signature.name}.* has an op Atan2"):
    rewriting.opened(graph)


def test_an_ordinary_model_is_refused(tmp_path):
  module = tf.Module()
  module.f = tf.function(tf.sin, input_signature=[tf.TensorSpec([None], tf.float32)])
  tf.saved_model.save(module, str(tmp_path / "plain"))
  with pytest.raises(ValueError, match="no closed ops"):
    opened.save(tmp_path / "plain", tmp_path / "open")
  assert not (tmp_path / "open").exists()


def test_nothing_is_replaced_unasked(closed, tmp_path):
  (tmp_path / "there").mkdir()
  with pytest.raises(FileExistsError, match="exists already"):
    opened.save(closed["upstream-0.10.2-mlp"], tmp_path / "there")


def test_a_cut_module_is_refused(closed, tmp_path):
  source = tmp_path / "cut"
  shutil.copytree(closed["upstream-0.10.2-mlp"], source)
  saved = saved_model_pb2.SavedModel.FromString((source / "saved_model.pb").read_bytes())
  _cut(saved.meta_graphs[0].graph_def.library.function)
  (source / "saved_model.pb").write_bytes(saved.SerializeToString())
  with pytest.raises(ValueError, match="cannot be read"):
    opened.save(source, tmp_path / "open")


def test_other_values_are_not_written(closed, tmp_path, monkeypatch):
  convert = functions.jax2tf.convert
  monkeypatch.setattr(
    functions.jax2tf,
    "convert",
    lambda fun, **options: convert(lambda *x: tuple(1.001 * y for y in fun(*x)), **options),
  )
  with pytest.raises(opened.OpenError, match="computes other values"):
    opened.save(closed["upstream-0.10.2-mlp"], tmp_path / "open", samples=1)
  assert not (tmp_path / "open").exists()


def test_the_names_of_equal_sizes_are_found(tmp_path):
  module = tf.Module()
  spec = [tf.TensorSpec([None, None], tf.float32, name) for name in "xy"]
  module.f = tf.function(lambda x, y: {"z": x + tf.transpose(y)}, input_signature=spec)
  tf.saved_model.save(module, str(tmp_path / "plain"), signatures=module.f)
  [record] = described.records(tf.saved_model.load(str(tmp_path / "plain"))).values()
  assert record.inputs == {"x": "f32[b,b]", "y": "f32[b,b]"}


@pytest.mark.one_python
def test_a_module_that_ends_the_parser_is_refused(closed, tmp_path):
  """Where a child process reads it first, as for `jax2tf open`: MLIR ends the process."""
  source = tmp_path / "harmful"
  shutil.copytree(closed["upstream-0.10.2-mlp"], source)
  saved = saved_model_pb2.SavedModel.FromString((source / "saved_model.pb").read_bytes())
  module = export_files.read(mutants.mutant(483).contents).module.take()
  for function in saved.meta_graphs[0].graph_def.library.function:
    for node in function.node_def:
      if node.op == "XlaCallModule":
        node.attr["module"].s = module
  (source / "saved_model.pb").write_bytes(saved.SerializeToString())
  with pytest.raises(ArtifactError, match="has a module that ends MLIR's parser"):
    opened.save(source, tmp_path / "open", untrusted=True)
