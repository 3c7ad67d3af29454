"""The `jax2tf` command: as typed in docs/reference/command-line.md, and when it is typed wrong."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorflow as tf

from jax2tf.examples import minilm
from jax2tf.tools.cli import _devices, _loading, _weights
from jax2tf.tools.cli.main import main
from tests.support import documents

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "jax2tf.tools.cli")
# In one process: importing TensorFlow for each takes as long as what they do.
VERBS = """
import json, sys
from jax2tf.tools.cli.main import main
for words in json.loads(sys.argv[1]):
  try:
    main(words)
  except SystemExit as ended:
    assert not ended.code, (words, ended.code)
  print(end=chr(0), flush=True)
"""

MODULE = """
import jax, jax.numpy as jnp, numpy as np
from jax import lax

def params():
  return {"encoder": {"w": np.ones((4, 2), np.float32)}, "b": np.zeros(2, np.float32)}

def probabilities(params, x):
  return jax.nn.softmax(x)

def predict(params, x):
  return lax.erfc(jnp.sin(x @ params["encoder"]["w"]) + params["b"])

def state():
  return {"n": np.int32(0)}

def counted(params, state, x):
  return {"n": state["n"] + 1}, predict(params, x) * state["n"]

def factor(params, x):
  return jnp.abs(jnp.linalg.eigvals(x.T @ x + 4 * jnp.eye(4)))

def prints(params, x):
  jax.debug.print("{x}", x=x)
  return x

def cleans(params, x):
  return jnp.nan_to_num(x)

def keeps(params, x):
  return x

def calls(params, x):
  jax.debug.callback(print, x)
  return x

number = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
  """A working directory with a module of its own name."""
  name = "model_" + re.sub(r"\W", "_", tmp_path.name)
  (tmp_path / f"{name}.py").write_text(MODULE)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.setenv("MODEL", name)
  return tmp_path


def run(*args: str, code: int = 0) -> None:
  """In this process: importing TensorFlow for each would take minutes."""
  with pytest.raises(SystemExit) as ended:
    main([a.replace("MODEL", os.environ["MODEL"]) for a in args])
  assert ended.value.code == code


CONVERT = (
  "convert",
  "MODEL:predict",
  "--input",
  "x=f32[b,4]",
  "--out",
  "out",
  "--output",
  "y",
  "--constraint",
  "b<=8",
)


def save_params(kind: str) -> str:
  tree = {"encoder/w": np.ones((4, 2), np.float32), "b": np.zeros(2, np.float32)}
  if kind == "npz":
    np.savez("params.npz", **tree)
    return "params.npz"
  if kind == "safetensors":
    import safetensors.numpy  # noqa: PLC0415  (one of four)

    safetensors.numpy.save_file(
      {name.replace("/", "."): x for name, x in tree.items()}, "params.safetensors"
    )
    return "params.safetensors"
  if kind == "orbax":
    import orbax.checkpoint  # noqa: PLC0415  (seconds)

    orbax.checkpoint.PyTreeCheckpointer().save(
      Path("checkpoint").absolute(), {"encoder": {"w": tree["encoder/w"]}, "b": tree["b"]}
    )
    return "checkpoint"
  return "MODEL:params"


@pytest.mark.parametrize("kind", ["npz", "safetensors", "orbax", "factory"])
def test_convert_takes_parameters_of_many_kinds(kind: str, here: Path, capsys: Any) -> None:
  run(*CONVERT, "--params", save_params(kind), "--json")
  path = json.loads(capsys.readouterr().out)["path"]
  assert Path(path) == Path("out/1")
  y = tf.saved_model.load(path).signatures["serving_default"](x=tf.ones([1, 4]))["y"]
  np.testing.assert_allclose(y, jax.lax.erfc(np.sin(np.full((1, 2), 4, np.float32))), rtol=1e-5)


@pytest.mark.parametrize(
  ("names", "haiku", "tree"),
  [
    (["a/b", "c"], False, {"a": {"b": 0}, "c": 1}),
    (["a.0.w", "a.1.w"], False, {"a": [{"w": 0}, {"w": 1}]}),
    (["mlp/~/linear_0/w", "mlp/~/linear_0.b"], False, {"mlp/~/linear_0": {"w": 0, "b": 1}}),
    (["outer/inner/w", "linear.b"], True, {"outer/inner": {"w": 0}, "linear": {"b": 1}}),
  ],
)
def test_names_become_trees(names: list[str], haiku: bool, tree: Any) -> None:
  assert _loading.nested({name: i for i, name in enumerate(names)}, haiku) == tree


LIBRARIES = """
import equinox, flax.linen, haiku, jax
import numpy as np
from flax import nnx

x = np.ones((1, 4), np.float32)
ones = lambda tree: jax.tree.map(lambda v: np.ones(v.shape, v.dtype), tree)
class Net(nnx.Module):
  def __init__(self, rngs):
    self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)])
  def __call__(self, x):
    return self.layers[1](self.layers[0](x))
make = lambda: Net(nnx.Rngs(0))
linen = flax.linen.Dense(2)
variables = lambda: ones(linen.init(jax.random.key(0), x))
class Normed(haiku.Module):
  def __init__(self):
    super().__init__()
    self.mlp = haiku.nets.MLP([2])
    self.norm = haiku.BatchNorm(create_scale=False, create_offset=False, decay_rate=0.9)
  def __call__(self, x):
    return self.norm(self.mlp(x), is_training=False)
hk = haiku.transform_with_state(lambda x: Normed()(x))
batch = equinox.nn.Linear(4, 2, key=jax.random.key(0))
class Stateful(equinox.Module):
  linear: equinox.nn.Linear
  norm: equinox.nn.BatchNorm
  def __call__(self, x, state):
    return self.norm(self.linear(x), state)
norm = lambda: equinox.nn.BatchNorm(2, "batch", mode="ema", channelwise_affine=False)
with_state = lambda: equinox.nn.make_with_state(lambda: Stateful(batch, norm()))()
"""


def test_models_of_libraries_by_name(here: Path, capsys: Any) -> None:
  """Guessed where it is clear; an .npz with numbers in its names restores lists."""
  (here / f"{os.environ['MODEL']}.py").write_text(LIBRARIES)
  shapes = {"0/kernel": (4, 4), "0/bias": (4,), "1/kernel": (4, 2), "1/bias": (2,)}
  np.savez(
    "weights.npz",
    **{f"layers/{name}": np.ones(shape, np.float32) for name, shape in shapes.items()},
  )
  np.savez("linear.npz", weight=np.ones((2, 4), np.float32), bias=np.ones(2, np.float32))
  np.savez(
    "stateful.npz",
    **{"linear/weight": np.ones((2, 4), np.float32), "linear/bias": np.ones(2, np.float32)},
  )
  mlp, ema = (
    {"linear_0/w": np.ones((4, 2), np.float32), "linear_0/b": np.ones(2, np.float32)},
    "normed/~/batch_norm/~",
  )
  np.savez("haiku.npz", **{f"normed/~/mlp/~/{name}": array for name, array in mlp.items()})
  statistics = {
    "hidden": np.zeros((1, 2), np.float32),
    "average": np.ones((1, 2), np.float32),
    "counter": np.int32(0),
  }
  np.savez(
    "state.npz",
    **{
      f"{ema}/{kind}_ema/{name}": array
      for kind in ("mean", "var")
      for name, array in statistics.items()
    },
  )
  for i, (name, shape, expected, options) in enumerate(
    [
      ("make", "f32[b,4]", [[21, 21]], ("--library", "nnx", "--params", "weights.npz")),
      ("linen", "f32[b,4]", [[5, 5]], ("--params", "MODEL:variables")),
      ("hk", "f32[b,4]", [[4, 4]], ("--params", "haiku.npz", "--state", "state.npz")),
      ("batch", "f32[4]", [5, 5], ("--params", "linear.npz")),
      (
        "with_state",
        "f32[b,4]",
        [[5 / 1e-5**0.5] * 2],
        ("--library", "equinox", "--batched", "--params", "stateful.npz"),
      ),
    ]
  ):
    run("convert", f"MODEL:{name}", "--input", f"x={shape}", "--out", f"out{i}", "--json", *options)
    path = json.loads(capsys.readouterr().out)["path"]
    y = tf.saved_model.load(path).signatures["serving_default"](
      tf.ones((*np.shape(expected)[:-1], 4))
    )["output"]
    np.testing.assert_allclose(y, expected, rtol=1e-5)
  run("verify", "out1", "MODEL:linen", "--params", "MODEL:variables", "--samples", "1")
  run("convert", "MODEL:linen", "--input", "x=f32[b,4]", "--out", "out", code=2)
  assert (
    "is a model of linen, which holds no parameters; give the result of its init as --params"
    in capsys.readouterr().err
  )
  np.savez("other.npz", weight=np.ones((2, 3), np.float32))
  run(
    "convert", "MODEL:batch", "--input", "x=f32[4]", "--out", "out", "--params", "other.npz", code=2
  )
  assert (
    "model/weight has shape (2, 3), the model has (2, 4), model/bias is missing"
    in capsys.readouterr().err
  )
  for name, words in (
    ("make --library nnx", "is not for a model of nnx; the model holds its state, so leave it out"),
    ("linen", "is not for a model of linen; --params holds the collections of the state too"),
    ("batch", "is not for a model of equinox; name a factory that returns (model, state)"),
  ):
    run(
      "convert",
      *f"MODEL:{name}".split(),
      "--input",
      "x=f32[b,4]",
      "--out",
      "out",
      "--state",
      "state.npz",
      code=2,
    )
    assert f"--state=state.npz {words}" in capsys.readouterr().err
  run("convert", "MODEL:linen", "--library", "nnx", "--input", "x=f32[b,4]", "--out", "out", code=2)
  words = (
    "--library=nnx: it takes a flax.nnx.Module, and this is of type Dense, which is a model of "
    "linen; use --library=linen"
  )
  assert words in capsys.readouterr().err


@pytest.mark.parametrize(
  ("target", "file", "options"),
  [
    ("onnx", "out.onnx", ("--opset", "20", "--precision", "float16", "--no_keep_io_types")),
    (
      "tflite",
      "out.tflite",
      (
        "--quantization",
        "int8",
        "--representative_dataset",
        "data.npz",
        "--inference_input_type",
        "int8",
      ),
    ),
    ("tfjs", "out", ("--quantization", "float16")),
  ],
)
@pytest.mark.usefixtures("tfjs_packages")
def test_convert_to_other_runtimes(
  target: str, file: str, options: tuple[str, ...], here: Path, capsys: Any
) -> None:
  np.savez("data.npz", x=np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32))
  command = (
    "convert",
    "MODEL:predict",
    "--input",
    "x=f32[b,4]",
    "--params",
    "MODEL:params",
    "--out",
    file,
    "--to",
    target,
  )
  run(*command, *options, "--json")
  found = json.loads(capsys.readouterr().out)
  assert found["path"] == file
  assert found["bytes"] >= Path(file).stat().st_size > 0
  if target == "onnx":
    assert (found["oldest_runtime"], found["oldest_runtime_for_nan"]) == ("1.17", "1.27")
  run(*command, code=2)
  assert f"{file} exists already" in capsys.readouterr().err.replace("there", "already")
  run(*command, "--overwrite")
  said = capsys.readouterr().out
  assert said.startswith(f"saved {file} (")
  assert ("; for ONNX Runtime 1.14 or newer" in said) == (target == "onnx")


def test_the_version_may_be_zero_and_replaced(here: Path, capsys: Any) -> None:
  run(*CONVERT, "--params", "MODEL:params", "--version", "0")
  run(*CONVERT, "--params", "MODEL:params", "--version", "0", code=2)
  run(*CONVERT, "--params", "MODEL:params", "--version", "0", "--overwrite")
  assert [path.name for path in Path("out").iterdir()] == ["0"]


def test_convert_with_the_idioms_that_are_asked_for(here: Path, capsys: Any) -> None:
  for idioms in ("exact", "fused", "softmax,gelu"):
    run(
      "convert", "MODEL:probabilities", "--input", "x=f32[b,4]", "--out", idioms, "--idioms", idioms
    )
    run("inspect", f"{idioms}/1")
    assert capsys.readouterr().out.endswith(f"; idioms: {idioms}\n")


def test_inspect_and_diff(here: Path, capsys: Any) -> None:
  run(*CONVERT, "--params", "MODEL:params", "--warmup", "3")
  run(*CONVERT, "--params", "MODEL:params", "--warmup", "3")
  run(*CONVERT[:5], "out", "--params", "MODEL:params", "--output", "z", "--with_gradient")
  capsys.readouterr()
  run("inspect", "out/1", "--json")
  found = json.loads(capsys.readouterr().out)
  assert found["signatures"]["serving_default"]["inputs"] == {"x": "float32[?,4]"}
  assert found["variables"]["encoder/w"] == {"dtype": "float32", "shape": [4, 2], "trainable": True}
  assert found["ops"]["MatMul"] >= 1
  assert found["warmup_requests"] == 3
  assert found["manifest"]["constraints"] == ["b<=8"]
  assert found["manifest"]["signatures"]["serving_default"]["inputs"] == {"x": "f32[b,4]"}
  run("inspect", "out")  # the newest
  printed = capsys.readouterr().out
  assert "out/3" in printed
  assert "encoder/w" in printed
  run("diff", "out/1", "out/2")
  assert capsys.readouterr().out == "no difference\n"
  run("diff", "out/1", "out/3", "--json", code=1)
  places = {d["what"] for d in json.loads(capsys.readouterr().out)["differences"]}
  other = {"encoder/w": np.ones((4, 2), np.float32), "b": np.float32([0, 0.5])}
  np.savez("other.npz", **other)
  run(*CONVERT, "--params", "other.npz", "--warmup", "3")
  capsys.readouterr()
  run("diff", "out/1", "out/4", "--weights", "--json", code=1)
  said = json.loads(capsys.readouterr().out)
  assert [d["what"] for d in said["differences"]] == ["manifest/weights", "values/b"]
  assert [(d["path"], d["differing"], d["max_abs"]) for d in said["weights"]] == [("b", 1, 0.5)]
  run("diff", "out/1", "out/4", "--weights", code=1)
  assert re.search(r"^\s*b\s+1\s+0\.5\s", capsys.readouterr().out, re.MULTILINE)
  assert {
    "signatures/serving_default/outputs/y",
    "signatures/serving_default/outputs/z",
    "gradients",
    "warmup_requests",
  } <= places


def _constant(folder: Path, name: str, value: float) -> str:
  (folder / f"{name}.py").write_text(
    f"import numpy as np\ndef predict(params, x):\n  return x - np.float32([1, 2, 3, {value}])\n"
  )
  run("convert", f"{name}:predict", "--input", "x=f32[b,4]", "--out", name)
  return f"{name}/1"


def _foreign(name: str, function: Any, *, entry: str = "value", words: str = "word") -> str:
  """A model of TensorFlow's own, with two variables of one name, a table and an asset."""
  module = tf.Module()
  module.first, module.second = (
    tf.Variable(tf.ones([4, 4]), name="w"),
    tf.Variable(tf.ones([4, 4]), name="w"),
  )
  module.table = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(["key"], [entry]), "none"
  )
  Path("words.txt").write_text(words)
  module.asset = tf.saved_model.Asset("words.txt")
  spec = tf.TensorSpec([None, 4], tf.float32, "x")
  serve = tf.function(
    lambda x: {"y": function(x, module.first, module.second)},
    input_signature=[spec],
    autograph=False,
  )
  tf.saved_model.save(module, name, signatures=serve)
  return name


def test_diff_sees_constants_wiring_tables_and_assets(here: Path, capsys: Any) -> None:
  def differences(before: str, after: str) -> set[str]:
    capsys.readouterr()
    with pytest.raises(SystemExit):
      main(["diff", before, after, "--json"])
    return {d["what"] for d in json.loads(capsys.readouterr().out)["differences"]}

  first, same, other = (
    _constant(here, "first", 4),
    _constant(here, "same", 4),
    _constant(here, "other", 5),
  )
  assert differences(first, same) == set()
  assert differences(first, other) == {
    "functions/of_parameters",
    "functions/signature serving_default",
  }
  base = _foreign("base", lambda x, v, w: x @ v - w[0])
  assert differences(base, _foreign("again", lambda x, v, w: x @ v - w[0])) == set()
  assert differences(base, _foreign("order", lambda x, v, w: w[0] - x @ v)) == {
    "functions/signature serving_default"
  }
  assert differences(base, _foreign("swapped", lambda x, v, w: x @ w - v[0])) == {
    "functions/signature serving_default"
  }
  table = differences(base, _foreign("table", lambda x, v, w: x @ v - w[0], entry="other"))
  assert table == {"functions/_initializer", "functions/signature __saved_model_init_op"}
  assert differences(base, _foreign("asset", lambda x, v, w: x @ v - w[0], words="another")) == {
    "assets/words.txt"
  }
  tf.saved_model.save(tf.Module(), "empty")
  assert {what for what in differences(base, "empty") if what.startswith("v")} >= {
    "variables/w",
    "variables/w (2)",
  }


def test_diff_sees_the_loops_of_tensorflow_1(here: Path, capsys: Any) -> None:
  for name, factor in (("one", 2.0), ("two", 3.0)):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
      x, v = (
        tf.compat.v1.placeholder(tf.float32, [None], "x"),
        tf.compat.v1.get_variable("v", [1], use_resource=False),
      )
      tf.compat.v1.disable_control_flow_v2()
      try:
        y = tf.compat.v1.while_loop(
          lambda i, _: i < 3, lambda i, y, factor=factor, v=v: (i + 1, y * factor + v), [0, x]
        )[1]
      finally:
        tf.compat.v1.enable_control_flow_v2()
      session.run(v.assign([1.0]))
      tf.compat.v1.saved_model.simple_save(session, name, {"x": x}, {"y": y})
  run("diff", "one", "two", "--json", code=1)
  assert [d["what"] for d in json.loads(capsys.readouterr().out)["differences"]] == [
    "functions/signature serving_default"
  ]


@pytest.mark.parametrize(
  ("before", "after", "expected"),
  [
    (np.array([2**53, 1]), np.array([2**53 + 1, 1]), (1, 1, 2**-53)),
    (np.array([-(2**63)]), np.array([2**63 - 1]), (1, 2**64 - 1, 2.0)),
    (np.array([2**64 - 1], np.uint64), np.array([2**64 - 2], np.uint64), (1, 1, 2.0**-64)),
    (np.float32([0, 1]), np.float32([-0.0, 1]), (1, 0.0, 0.0)),
    (np.float32([np.inf, 1]), np.float32([np.inf, 1.5]), (1, 0.5, 0.5)),
    (np.float32([1]), np.float32([np.nan]), (1, np.inf, np.inf)),
    (np.array([b"a", b"bc"], object), np.array([b"a", b"b"], object), (1, None, None)),
    (np.array([True]), np.array([False]), (1, None, None)),
  ],
  ids=str,
)
def test_figures_of_two_variables(
  before: np.ndarray, after: np.ndarray, expected: tuple[Any, ...]
) -> None:
  assert tuple(_weights._figures(before, after).values()) == expected


def test_variables_of_one_side_or_of_another_shape_differ(monkeypatch: pytest.MonkeyPatch) -> None:
  models = {
    "a": {"x": np.ones(2), "y": np.array([b"s"], object)},
    "b": {"x": np.ones(3), "y": np.array([b"s"], object), "z": np.ones(1)},
  }
  monkeypatch.setattr(_weights.values, "meta_graph", lambda path: None)
  monkeypatch.setattr(
    _weights.values, "readers", lambda path, _: {n: lambda x=x: x for n, x in models[path].items()}
  )
  found = {d["path"]: (d["before"] is None, d["differing"]) for d in _weights.differences("a", "b")}  # type: ignore[arg-type]
  assert found == {"x": (False, None), "z": (True, None)}


@pytest.mark.usefixtures("tfjs_packages")
def test_check_names_each_gap_with_the_line_and_writes_nothing(here: Path, capsys: Any) -> None:
  before = sorted(here.iterdir())
  inputs = ("--input", "x=f32[b,4]", "--params", "MODEL:params")
  run("check", "MODEL:predict", *inputs, "--for", "serving")
  assert capsys.readouterr().out == "serving: nothing is missing\n"
  # though none of the three has Erfc
  run("check", "MODEL:predict", *inputs, "--for", "tflite,onnx,tfjs")
  assert [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()] == [
    "nothing is missing"
  ] * 3
  run("check", "MODEL:factor", *inputs, "--for", "serving,tflite,onnx,tfjs", "--json", code=1)
  found = json.loads(capsys.readouterr().out)["targets"]
  line = (
    MODULE.splitlines().index("  return jnp.abs(jnp.linalg.eigvals(x.T @ x + 4 * jnp.eye(4)))") + 1
  )
  assert found.pop("serving") == []
  for target, gaps in found.items():
    assert ("Eig", "eig") in {(gap["op"], gap["primitive"]) for gap in gaps}, target
    assert all(f".py:{line}:" in gap["where"] and "(factor)" in gap["where"] for gap in gaps), gaps
    assert all(gap["reason"] and gap["advice"] for gap in gaps), gaps
  run("check", "MODEL:factor", *inputs, "--for", "serving,onnx", "--quick")  # which only lowers
  assert (
    capsys.readouterr().out.splitlines()[1]
    == "onnx: nothing is missing in TensorFlow; without --quick it is exported too"
  )
  run("check", "MODEL:prints", *inputs, "--for", "serving,onnx")
  line = r" at .*\.py:\d+:\d+ "
  assert re.fullmatch(
    r"serving: nothing is missing\nonnx: nothing is missing\n  left out \(of "
    rf"'debug_print'\){line}\(prints\)\n",
    capsys.readouterr().out,
  )
  run("check", "MODEL:calls", *inputs, "--for", "serving,onnx", code=1)
  assert (
    len(
      re.findall(
        rf"PyFunc \(of 'debug_callback \(print\)'\){line}\(calls\)", capsys.readouterr().out
      )
    )
    == 2
  )
  assert [p for p in sorted(here.iterdir()) if p.name != "__pycache__"] == before


def test_verify_says_no_to_another_function(
  here: Path, capsys: Any, without_jax: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(sys, "executable", without_jax)
  run(*CONVERT, "--params", "MODEL:params")
  run(
    "verify",
    "out",
    "MODEL:predict",
    "--params",
    "MODEL:params",
    "--samples",
    "1",
    "--report",
    "report",
    "--constraint",
    "b<=3",
  )
  sizes = {
    row["sizes"]["b"] for row in json.loads(Path("report/verification.json").read_text())["rows"]
  }
  assert max(sizes) == 3
  assert {p.suffix for p in Path("report").iterdir()} >= {".html", ".json"}
  capsys.readouterr()
  run(
    "verify", "out", "MODEL:prints", "--params", "MODEL:params", "--samples", "1", "--json", code=1
  )
  assert json.loads(capsys.readouterr().out)  # and nothing that the function prints


def test_verify_notes_hostile_inputs_unless_asked(
  here: Path, capsys: Any, without_jax: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(sys, "executable", without_jax)
  run("convert", "MODEL:cleans", "--input", "x=f32[b,4]", "--out", "out")
  of = (
    "out",
    "MODEL:keeps",
    "--samples",
    "1",
    "--size",
    "b=3",
    "--signature",
    "serving_default",
    "--json",
  )
  for options, ok in (((), True), (("--hostile",), False)):
    capsys.readouterr()
    run("verify", *of, *options, code=int(not ok))
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] == ok and {row["sizes"]["b"] for row in found["rows"]} == {3}
    assert ("and 1 of hostile inputs" in found["verdict"]) == ok


def test_check_and_inspect_say_what_stays_on_a_device(here: Path, capsys: Any) -> None:
  of = ("MODEL:predict", "--input", "x=f32[b,4]", "--params", "MODEL:params")
  run("check", *of, "--device", "gpu", "--with_gradient")
  assert re.match(
    r"gpu: of \d+ ops: 0 ops without a kernel, 0 bounces to the host, .*\nread from the kernels of "
    r"GPU in TensorFlow \S+; nothing ran there\n",
    capsys.readouterr().out,
  )
  run("check", "MODEL:calls", *of[1:], "--device", "tpu", "--json", code=1)
  found = json.loads(capsys.readouterr().out)
  assert found["verdict"] == "1 ops without a kernel, 0 bounces on the tpu"
  (finding,) = found["device"]["findings"]
  assert (finding["op"], finding["primitive"]) == ("PyFunc", "debug_callback")
  assert ".py:" in finding["where"]
  run("check", *of, "--device", "gpu", "--for", "onnx", code=2)
  run("convert", *of, "--out", "out")
  capsys.readouterr()
  run("inspect", "out", "--device", "gpu", "--json")
  found = json.loads(capsys.readouterr().out)
  assert found["verdict"] == "serving_default: every op stays on the gpu"


def test_check_runs_on_a_device(here: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
  """The CPU stands for the device, which the tests do not have."""
  of = ("MODEL:predict", "--input", "x=f32[b,4]", "--params", "MODEL:params", "--size", "b=3")
  run("check", *of, "--device", "gpu", "--run", code=2)
  assert "TensorFlow has no GPU:0 here, only CPU:0" in capsys.readouterr().err
  times = _devices.times
  monkeypatch.setattr(_devices, "times", lambda *args: times(*args[:-1], "CPU:0"))
  run("check", *of, "--device", "gpu", "--run", "--with_gradient", "--json")
  ran = json.loads(capsys.readouterr().out)["device"]["run"]
  assert (ran["on"], {*ran["ops"]}, ran["copies"]) == ("CPU:0", {"CPU"}, {})
  assert ran["milliseconds"] > 0 and ran["jax"]["milliseconds"] > 0


def test_a_state_is_converted_shown_checked_and_verified(
  here: Path, capsys: Any, without_jax: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(sys, "executable", without_jax)
  of = ("MODEL:counted", "--params", "MODEL:params", "--state", "MODEL:state")
  run("convert", *of, "--input", "x=f32[2,4]", "--out", "out")
  run("verify", "out", *of, "--samples", "2")
  capsys.readouterr()
  run("verify", "out", *of[:3], code=2)
  assert capsys.readouterr().err.endswith(
    "is stateful; pass the initial state, or choose others with --signature\n"
  )
  run("inspect", "out", "--json")
  assert json.loads(capsys.readouterr().out)["manifest"]["state"] == {"n": "i32[]"}
  run("check", *of, "--input", "x=f32[2,4]", "--for", "serving,onnx", code=1)
  assert "onnx: 1 gaps" in (text := capsys.readouterr().out)
  assert "cannot keep what signature 'serving_default' writes" in text


@pytest.mark.parametrize(
  "args",
  [
    (),
    ("bogus",),
    ("convert",),
    ("inspect", "a", "b"),
    ("convert", "m:f", "--input", "x=f32[]", "--out", "o", "--no"),
  ],
)
def test_bad_flags(args: tuple[str, ...], capsys: Any) -> None:
  with pytest.raises(SystemExit) as ended:
    main(args)
  assert ended.value.code == 2
  error = capsys.readouterr().err
  assert error.startswith("jax2tf" if args else "Usage: jax2tf ")
  assert error.count("\n") == 1 or not args


def test_the_docs_as_typed(tmp_path: Path) -> None:
  """MiniLM by the command line alone, and a query of the stock gRPC client; quiet all the way."""
  text = (ROOT / "docs" / "reference" / "command-line.md").read_text()
  block = re.search(r"```sh\n(.*?)```", text, re.DOTALL)[1].replace("\\\n", " ")  # type: ignore[index]
  commands = [shlex.split(line) for line in block.splitlines()]
  assert [c[:2] for c in commands] == [
    ["jax2tf", name] for name in ("convert", "inspect", "check", "verify", "serve")
  ]
  environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
  verbs = [sys.executable, "-c", VERBS, json.dumps([command[1:] for command in commands[:-1]])]
  done = subprocess.run(
    verbs, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=900
  )
  assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
  assert "cuda" not in done.stderr.lower(), done.stderr
  said = dict(zip((command[1] for command in commands), done.stdout.split("\0"), strict=False))
  assert said["convert"] == "saved build/minilm/1\n"
  assert "embedding" in said["inspect"]
  assert said["check"].splitlines() == [
    f"{target}: nothing is missing" for target in ("serving", "onnx", "tflite")
  ]

  serve = {"cwd": tmp_path, "env": environment, "stdout": subprocess.PIPE, "text": True}
  with (
    documents.default_ports(),
    subprocess.Popen([*COMMAND, *commands[-1][1:]], **serve) as server,
  ):
    try:
      assert server.stdout
      assert server.stdout.readline()  # one line when it is ready
      typed: dict[str, Any] = {}
      exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], typed)  # type: ignore[index]
      expected = jax.jit(minilm.encode)(minilm.parameters(), typed["ids"], typed["mask"])
      np.testing.assert_allclose(typed["embedding"], expected, atol=1e-5)
    finally:
      server.send_signal(signal.SIGTERM)
      assert server.wait(timeout=120) == 0
