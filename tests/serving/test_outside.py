"""SavedModels are programs: which ops reach files, the network or Python, and that serve and batch
refuse them before they run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2
from tensorflow.python.client import pywrap_tf_session

import jax2tf
from jax2tf.converters import saved_model
from jax2tf.tools import outside
from jax2tf.tools.batch import model
from jax2tf.tools.cli import main as command
from jax2tf.tools.outside_ops import HIDDEN, NETWORK, OPS, PROCESS, PYTHON, READS, WRITES
from jax2tf.tools.serving import config, models

TEXT, NUMBERS = (
  tf.TensorSpec([None], tf.string, name="x"),
  tf.TensorSpec([None, 2], tf.float32, name="x"),
)


def _graph(function: Callable[..., Any], *specs: tf.TensorSpec) -> meta_graph_pb2.MetaGraphDef:
  """The function as in a SavedModel: in the library, called from the graph."""

  @tf.function(autograph=False)
  def inner(*args: tf.Tensor) -> tf.Tensor:
    function(*args)
    return tf.constant(1)

  outer = tf.function(lambda *args: inner(*args), autograph=False).get_concrete_function(*specs)
  return meta_graph_pb2.MetaGraphDef(graph_def=outer.graph.as_graph_def())


def _node(op: str, **attributes: bytes) -> meta_graph_pb2.MetaGraphDef:
  """A function with one node."""
  graph = meta_graph_pb2.MetaGraphDef()
  function = graph.graph_def.library.function.add()
  function.signature.name = "f"
  node = function.node_def.add(name="n", op=op)
  for name, value in attributes.items():
    node.attr[name].s = value
  return graph


def _in_loop(x: tf.Tensor) -> Any:
  return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, tf.io.read_file(y)), (0, x))


def _from_data(x: tf.Tensor) -> tf.Tensor:
  lines = tf.data.TextLineDataset(["/etc/hostname"]).map(lambda line: tf.strings.join([line, x]))
  return lines.reduce(x, lambda before, line: before + line)


NAMES: dict[str, Any] = {"tensor_names": ["a"], "shape_and_slices": [""]}
SCALAR = tf.TensorSpec([], tf.string)
REACHING: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
  "write": (lambda x: tf.raw_ops.WriteFile(filename="f", contents=x), {"WriteFile": WRITES}),
  "read a constant": (lambda _: tf.io.read_file("/etc/passwd"), {"ReadFile": READS}),
  "read what a client names": (
    lambda x: tf.identity(tf.io.read_file(tf.identity(x))),
    {"ReadFile": READS},
  ),
  "read in a branch": (
    lambda x: tf.cond(x == "a", lambda: tf.io.read_file(x), lambda: x),
    {"ReadFile": READS},
  ),
  "read in a loop": (_in_loop, {"ReadFile": READS}),
  "read in a dataset": (_from_data, {"TextLineDataset": READS}),
  "checkpoint": (
    lambda x: tf.raw_ops.RestoreV2(prefix=x, dtypes=[tf.int32], **NAMES),
    {"RestoreV2": READS},
  ),
  "save": (lambda x: tf.raw_ops.SaveV2(prefix=x, tensors=[x], **NAMES), {"SaveV2": WRITES}),
  "print into a file": (
    lambda x: tf.print(x, output_stream="file:///tmp/printed"),
    {"PrintV2": WRITES},
  ),
  "cache in a file": (
    lambda x: tf.data.Dataset.from_tensors(x).cache("/tmp/c").reduce(x, lambda a, b: a + b),
    {"CacheDatasetV2": WRITES},
  ),
  "debugger": (
    lambda x: tf.raw_ops.DebugIdentityV2(input=x, debug_urls=["file:///tmp/debug"]),
    {"DebugIdentityV2": WRITES},
  ),
  "Python": (lambda x: tf.py_function(lambda y: y, [x], tf.string), {"EagerPyFunc": PYTHON}),
  "NumPy": (lambda x: tf.numpy_function(lambda y: y, [x], tf.string), {"PyFunc": PYTHON}),
  "print": (lambda x: tf.print(x), {}),
  "cache in memory": (
    lambda x: tf.data.Dataset.from_tensors(x).cache().reduce(x, lambda a, b: a + b),
    {},
  ),
  "no debugger": (lambda x: tf.raw_ops.DebugIdentityV2(input=x), {}),
}


@pytest.mark.parametrize("what", REACHING)
def test_which_ops_reach_outside(what: str) -> None:
  function, expected = REACHING[what]
  found = outside.in_graph(_graph(function, SCALAR))
  assert {op: each.effect for op, each in found.items()} == expected
  assert all(place != "the graph" for each in found.values() for place in each.places)


@pytest.mark.parametrize(
  ("graph", "effect"),
  [
    (_node("RpcClient"), NETWORK),
    (_node("DatasetFromGraph"), HIDDEN),
    (_node("Abort"), PROCESS),
    (_node("XlaCallModule", module=b"ML\xefR xla_ffi_python_cpu_callback\0"), PYTHON),
    (_node("XlaCallModule", module=b"ML\xefR stablehlo.custom_call\0Sharding\0"), None),
    (_node("FixedUnigramCandidateSampler", vocab_file=b"/etc/passwd"), READS),
    (_node("FixedUnigramCandidateSampler"), None),
  ],
)
def test_nodes_with_and_without_an_effect(graph: Any, effect: str | None) -> None:
  assert [each.effect for each in outside.in_graph(graph).values()] == [effect] * bool(effect)


# Ops whose operands are called so, and that touch no file.
_HARMLESS = {
  "RegexFullMatch",
  "RegexReplace",
  "StaticRegexFullMatch",
  "StaticRegexReplace",
  "OptionsDataset",
}


def test_the_table_has_each_op_of_files_and_addresses() -> None:
  """By the names of operands in TensorFlow's registry, so that an op of a new release is not
  overlooked."""
  known = op_def_pb2.OpList.FromString(
    pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
  )
  suspicious = re.compile(
    r"file(s|name|names|path)?$|path$|_path|dir$|address|^prefix$|url|pattern|graph_def|mlir_module"
  )
  found = set()
  for op in known.op:
    operands = [each.name for each in op.input_arg] + [
      each.name for each in op.attr if each.type in ("string", "list(string)")
    ]
    found |= {op.name} if any(map(suspicious.search, operands)) else set()
  assert len(found) > 50
  assert found - OPS.keys() - _HARMLESS == set()
  assert OPS.keys() <= {op.name for op in known.op} | {"DatasetFromGraph"}


class _Writes(tf.saved_model.experimental.TrackableResource):
  """Writes a file when the model is loaded."""

  def __init__(self, path: Path):
    super().__init__()
    self._path = str(path)

  def _create_resource(self) -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[])

  def _initialize(self) -> None:
    tf.io.write_file(self._path, "written")

  def _destroy_resource(self) -> None:
    pass


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
  """(a model of jax2tf with a resource of another kind inside, the file that it writes when it is
  loaded)."""
  folder = tmp_path_factory.mktemp("evil")
  module, written = tf.Module(), folder / "written"
  module.resource = _Writes(written)
  module.handle = module.resource.resource_handle
  double = tf.function(lambda x: {"y": 2 * x}, input_signature=[NUMBERS])
  tf.saved_model.save(module, str(folder / "m" / "1"), signatures=double.get_concrete_function())
  good = saved_model.save(
    lambda w, x: w * x, np.float32(2), folder / "good", inputs={"x": "f32[b,2]"}, outputs=["y"]
  )
  (folder / "m" / "1" / "assets.extra").mkdir()
  (folder / "m" / "1" / "assets.extra" / "jax2tf.json").write_bytes(
    (good / "assets.extra" / "jax2tf.json").read_bytes()
  )
  written.unlink(missing_ok=True)
  return folder / "m", written


def test_the_server_refuses_before_anything_runs(
  evil: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
  folder, written = evil
  monkeypatch.setattr(models, "POLL_SECONDS", 1e9)
  with pytest.raises(
    RuntimeError,
    match=r"reaches outside of the model: WriteFile writes files \(in "
    r"'__inference__initializer_\d+'\)",
  ):
    models.Models(lambda: {"m": config.Source(folder)})
  assert not written.exists()
  served = models.Models(lambda: {"m": config.Source(folder, allow_ops=frozenset(["WriteFile"]))})
  assert served.get("m", None).version == 1
  assert written.exists()
  written.unlink()


def test_batch_refuses_before_anything_runs(evil: tuple[Path, Path]) -> None:
  folder, written = evil
  with pytest.raises(ValueError, match="if you trust its author, give --allow-ops WriteFile"):
    model.Runner(str(folder))
  assert not written.exists()
  answer = model.Runner(str(folder), allow_ops=["WriteFile"])({"x": np.ones((1, 2), np.float32)})
  np.testing.assert_array_equal(answer.outputs["y"], [[2, 2]])
  written.unlink()


def test_names_of_a_model_do_not_control_the_terminal(
  evil: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  model = saved_model_pb2.SavedModel.FromString((evil[0] / "1" / "saved_model.pb").read_bytes())
  name = "\x1b]0;title\x07\x1b[2J[bold red]y[/]"
  [graph] = model.meta_graphs
  graph.signature_def["serving_default"].outputs[name].CopyFrom(
    graph.signature_def["serving_default"].outputs["y"]
  )
  (tmp_path / "saved_model.pb").write_bytes(model.SerializeToString())
  with pytest.raises(SystemExit):
    command.main(["inspect", str(tmp_path)])
  said = capsys.readouterr().out
  assert "\x1b" not in said
  assert "[bold red]y[/]" in said
  for i, function in enumerate(graph.graph_def.library.function):
    function.signature.name = f"{name} {i}"
  (tmp_path / "saved_model.pb").write_bytes(model.SerializeToString())
  with pytest.raises(ValueError, match="WriteFile writes files") as caught:
    outside.check(tmp_path)
  assert "\x1b" not in str(caught.value)


def test_inspect_lists_them(evil: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
  for flags in (["--json"], []):
    with pytest.raises(SystemExit):
      command.main(["inspect", str(evil[0]), *flags])
    said = capsys.readouterr().out
    assert "writes files" in said
    if flags:
      [(op, each)] = json.loads(said)["outside"].items()
      assert (op, each["effect"], each["in"][0].startswith("__inference__initializer_")) == (
        "WriteFile",
        "writes files",
        True,
      )
  assert not evil[1].exists()


@pytest.mark.parametrize(
  "verb", [["serve", "m"], ["batch", "m", "rows.npy", "out"]], ids=["serve", "batch"]
)
def test_an_op_that_nothing_refuses(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
  with pytest.raises(SystemExit) as ended:
    command.main([*verb, "--allow-ops", "ReadFile,Wrte"])
  assert ended.value.code == 2
  assert "--allow-ops has 'Wrte', which is no op that is refused" in capsys.readouterr().err
  assert outside.named(["ReadFile, WriteFile", "PyFunc"]) == ["ReadFile", "WriteFile", "PyFunc"]


class _Assets(tf.Module):
  """Looks words up in a file, and reads another one, both of which are copied into the
  SavedModel."""

  def __init__(self, file: Path):
    super().__init__()
    words = tf.lookup.TextFileInitializer(
      str(file),
      tf.string,
      tf.lookup.TextFileIndex.WHOLE_LINE,
      tf.int64,
      tf.lookup.TextFileIndex.LINE_NUMBER,
    )
    self.table = tf.lookup.StaticHashTable(words, -1)
    self.asset = tf.saved_model.Asset(str(file))
    self.bias = tf.Variable(1)

  @tf.function(input_signature=[TEXT])
  def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {
      "i": self.table.lookup(x),
      "n": tf.strings.length(tf.io.read_file(self.asset.asset_path)) + self.bias,
    }


@pytest.fixture(scope="module")
def with_assets(tmp_path_factory: pytest.TempPathFactory) -> meta_graph_pb2.MetaGraphDef:
  folder = tmp_path_factory.mktemp("assets")
  (folder / "words.txt").write_text("a\nb\n")
  model = _Assets(folder / "words.txt")
  tf.saved_model.save(model, str(folder / "1"), signatures=model.__call__)
  [graph] = saved_model_pb2.SavedModel.FromString(
    (folder / "1" / "saved_model.pb").read_bytes()
  ).meta_graphs
  return graph


def _changed(graph: Any, change: Callable[[Any], object]) -> list[str]:
  copy = meta_graph_pb2.MetaGraphDef.FromString(graph.SerializeToString())
  change(copy)
  return [*outside.in_graph(copy)]


def _functions(graph: Any, part: str) -> list[Any]:
  return [
    function for function in graph.graph_def.library.function if part in function.signature.name
  ]


def _read_constants(graph: Any) -> None:
  """The same ops, of a file that is no asset."""
  for function in graph.graph_def.library.function:
    for node in function.node_def:
      if node.op == "ReadFile":
        constant = function.node_def.add(name="path", op="Const")
        constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto("/etc/passwd"))
        node.input[0] = "path:output:0"


def _rename_assets(name: str) -> Callable[[Any], None]:
  def change(graph: Any) -> None:
    for asset in graph.asset_file_def:
      asset.filename = name

  return change


def _capture_a_variable(graph: Any) -> None:
  nodes = graph.object_graph_def.nodes
  variable = next(i for i, node in enumerate(nodes) if node.HasField("variable"))
  for function in graph.object_graph_def.concrete_functions.values():
    function.bound_inputs[:] = [
      variable if nodes[i].HasField("asset") else i for i in function.bound_inputs
    ]


def _save_in_a_signature(graph: Any) -> None:
  """A signature that calls the function which saves the checkpoint."""
  graph.signature_def["save"].outputs["y"].name = graph.saver_def.save_tensor_name


def _restore_in_a_concrete_function(graph: Any) -> None:
  graph.object_graph_def.concrete_functions[
    _functions(graph, "traced_restore")[0].signature.name
  ].bound_inputs.append(0)


def _named_as_the_graph(graph: Any) -> None:
  """A function with the name and the nodes of what is not refused."""
  save = next(
    node
    for node in graph.graph_def.node
    if node.name == graph.saver_def.save_tensor_name.partition(":")[0]
  )
  evil = graph.graph_def.library.function.add()
  evil.signature.name = "the graph"
  evil.node_def.add(name=save.name, op="SaveV2", input=["a", "b", "c"])


ASSET_OPS = ["InitializeTableFromTextFileV2", "ReadFile"]


@pytest.mark.parametrize(
  ("change", "expected"),
  [
    (lambda _: None, []),
    (_read_constants, ["ReadFile"]),
    (_rename_assets("../../secret"), ASSET_OPS),
    (_rename_assets("/etc/passwd"), ASSET_OPS),
    (_capture_a_variable, ASSET_OPS),
    (_save_in_a_signature, ["MergeV2Checkpoints", "SaveV2"]),
    (_restore_in_a_concrete_function, ["RestoreV2"]),
    (_named_as_the_graph, ["SaveV2"]),
  ],
  ids=["as saved", "constants", "outside", "absolute", "variable", "save", "restore", "the graph"],
)
def test_assets_and_checkpoints_are_of_the_model(
  with_assets: Any, change: Callable[[Any], object], expected: list[str]
) -> None:
  assert _changed(with_assets, change) == expected


def test_a_graph_of_tensorflow_1(tmp_path: Path) -> None:
  (tmp_path / "words.txt").write_text("a\nb\n")
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    x, _ = tf.compat.v1.placeholder(tf.string, [None]), tf.compat.v1.get_variable("v", [2])
    index = tf.lookup.TextFileIndex
    words = tf.lookup.TextFileInitializer(
      str(tmp_path / "words.txt"), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
    )
    y = tf.lookup.StaticHashTable(words, -1).lookup(x)
    session.run([tf.compat.v1.global_variables_initializer(), tf.compat.v1.tables_initializer()])
    init = tf.compat.v1.tables_initializer()
    tf.compat.v1.saved_model.simple_save(
      session, str(tmp_path / "1"), {"x": x}, {"y": y}, legacy_init_op=init
    )
  assert outside.in_directory(tmp_path / "1") == {}


def test_models_of_jax2tf_reach_nothing(tmp_path: Path) -> None:
  """With a state, and as a native module, which calls nothing of the host."""
  state = saved_model.Model({}, state=np.int32(0)).add(
    lambda _, n, x: (n + 1, x), inputs={"x": "f32[b]"}, stateful=True
  )
  outside.check(state.save(tmp_path / "state"))
  native = _graph(
    jax2tf.convert(jnp.sort, native_serialization=True), tf.TensorSpec([2, 2], tf.float32)
  )
  assert "XlaCallModule" in {
    node.op for function in native.graph_def.library.function for node in function.node_def
  }
  assert outside.in_graph(native) == {}


def test_a_damaged_file(tmp_path: Path, with_assets: meta_graph_pb2.MetaGraphDef) -> None:
  with pytest.raises(ValueError, match="two nodes or functions named"):
    _changed(
      with_assets,
      lambda graph: graph.graph_def.library.function.add(
        signature=graph.graph_def.library.function[0].signature
      ),
    )
  (tmp_path / "saved_model.pb").write_bytes(b"\xff\xff")
  with pytest.raises(ValueError, match="is damaged, so TensorFlow cannot parse it"):
    outside.check(tmp_path)
