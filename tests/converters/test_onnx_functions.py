"""onnx.save(functions="modules"): a function for each module, with the values of the plain file."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import equinox
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import onnx as onnx_library
import onnxruntime
import pytest
from flax import nnx

from jax2tf.converters import onnx, saved_model

SPEC = {"x": "f32[b,4,8]"}
SHAPE = (2, 4, 8)


class Block(nn.Module):
  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    y = nn.gelu(nn.Dense(16, name="wide")(nn.LayerNorm()(x)))
    return x + nn.Dense(8, name="narrow")(y)


class Cell(nn.Module):
  """With a loop and a branch inside, which read a parameter."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    w = self.param("w", nn.initializers.normal(), (8, 8))
    _, rows = jax.lax.scan(lambda c, row: (jnp.tanh(c + row @ w), c), x[:, 0], x.swapaxes(0, 1))
    return jax.lax.cond(rows.sum() > 0, lambda: rows @ w, lambda: rows + w[0])


class Net(nn.Module):
  """With one module that is called twice."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for _ in range(2):
      x = Block()(x)
    shared = nn.Dense(8, name="shared")
    x = shared(jnp.tanh(shared(x)))
    return nn.softmax(nn.Dense(3, name="head")(Cell(name="cell")(x).mean(0)))


def random_like(tree: Any) -> Any:
  rng = np.random.default_rng(0)
  return jax.tree.map(lambda x: rng.standard_normal(x.shape).astype("f") / 4, tree)


@pytest.mark.parametrize("threshold", [2**30, 16], ids=["inside", "beside"])
def test_modules_are_functions(tmp_path: Path, threshold: int) -> None:
  net = Net()
  params = random_like(net.init(jax.random.key(0), np.zeros(SHAPE, "f")))
  files = {}
  for functions in (None, "modules"):
    files[functions] = tmp_path / f"{functions}.onnx"
    onnx.save(
      net.apply,
      params,
      files[functions],
      inputs=SPEC,
      functions=functions,
      external_data_threshold=threshold,
      samples=1,
      sizes={"b": 2},
    )
  model = onnx_library.load_model(str(files["modules"]))
  calls = {node.name: node.op_type for node in model.graph.node if node.domain == "modules"}
  names = ["Block_0", "Block_1", "shared", "shared_1", "cell", "head"]
  assert list(calls) == [f"Net/{name}" for name in names]
  # the bodies are equal, with other parameters
  assert calls["Net/Block_0"] == calls["Net/Block_1"] == "Block"
  functions = {function.name: function for function in model.functions}
  block = functions["Block"]
  assert {"wide", "narrow"} <= {node.op_type for node in block.node if node.domain == "modules"}
  assert block.input[0] == "x" and {"wide.kernel", "narrow.bias"} <= set(block.input)
  x = np.random.default_rng(1).standard_normal(SHAPE).astype("f")
  plain, structured = (
    onnxruntime.InferenceSession(str(file)).run(None, {"x": x}) for file in files.values()
  )
  np.testing.assert_array_equal(plain[0], structured[0])  # ONNX Runtime inlines functions
  ops = [onnx.inspect(file).ops() for file in files.values()]
  counts = [{op: row["count"] for op, row in each.items()} for each in ops]
  assert counts[0] == counts[1]


class Step(nn.Module):
  @nn.compact
  def __call__(self, carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = Block(name="block")(carry + x)
    return y, y


class Looped(nn.Module):
  """With modules in the body of a loop, and in a loop inside of a loop."""

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    steps = nn.scan(
      Step, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1
    )(name="steps")
    dense = nn.Dense(8, name="dense")
    if self.is_initializing():
      return steps(x[:, 0], dense(x))[1]
    return jax.lax.fori_loop(0, 2, lambda _, y: steps(jnp.tanh(y[:, 0]), dense(y))[1], x)


class Branch(nnx.Module):
  def __init__(self) -> None:
    self.first = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    self.second = nnx.Linear(8, 8, rngs=nnx.Rngs(1))

  def __call__(self, x: jax.Array) -> jax.Array:
    return jax.lax.cond(
      x.sum() > 0, lambda: self.first(x), lambda: self.second(jnp.tanh(self.first(-x)))
    )


def calls_in(graph: Any, *, inside: bool = False) -> list[str]:
  """The functions that are called in loops and branches."""
  calls = [node.op_type for node in graph.node if inside and node.domain == "modules"]
  for node in graph.node:
    for attribute in node.attribute:
      if attribute.HasField("g"):
        calls += calls_in(attribute.g, inside=True)
  return calls


def test_modules_in_loops_and_branches_are_functions(tmp_path: Path) -> None:
  looped, branch = Looped(), Branch()
  params = random_like(looped.init(jax.random.key(0), np.zeros(SHAPE, "f")))
  models = {
    "loop": saved_model.Model(params, idioms=onnx.IDIOMS).add(looped.apply, inputs=SPEC),
    "branch": saved_model.from_flax_nnx(branch, inputs=SPEC, idioms=onnx.IDIOMS),
  }
  calls = {}
  for name, model in models.items():
    made = onnx.save_model(
      model, tmp_path / f"{name}.onnx", functions="modules", samples=1, sizes={"b": 2}
    )
    assert made.report.ok
    proto = onnx_library.load_model(str(made.path))
    onnx_library.checker.check_model(proto, full_check=True)
    calls[name] = calls_in(proto.graph)
  # `second` has other parameters and the same nodes as `first`, so they share a function
  assert calls == {"loop": ["dense", "steps"], "branch": ["first", "first", "first"]}


@pytest.mark.parametrize("library", ["nnx", "equinox"])
def test_modules_of_libraries_without_scopes(library: str, tmp_path: Path) -> None:
  if library == "nnx":
    layers = [nnx.Linear(8, 8, rngs=nnx.Rngs(i)) for i in range(2)]
    model = saved_model.from_flax_nnx(
      nnx.Sequential(*layers, jax.nn.softmax), inputs=SPEC, idioms=onnx.IDIOMS
    )
    expected = ["layers_0", "layers_1"]
  else:
    mlp = equinox.nn.MLP(8, 3, 8, 1, key=jax.random.key(0))
    model = saved_model.from_equinox(mlp, inputs={"x": "f32[b,8]"}, batched=True)
    expected = ["eqx_nn_MLP/layers_0", "eqx_nn_MLP/layers_1"]
  made = onnx.save_model(model, tmp_path / "model.onnx", functions="modules", samples=1)
  proto = onnx_library.load_model(str(made.path))
  assert [node.name for node in proto.graph.node if node.domain == "modules"] == expected


def test_scopes_end_with_the_call() -> None:
  net = nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
  before = nnx.Linear.__call__, nnx.Sequential.__call__
  graph, params = nnx.split(net)
  fun = saved_model.with_module_scopes(lambda params, x: nnx.merge(graph, params)(x), net)
  with pytest.raises(AttributeError):
    fun(params, None)
  jaxpr = jax.make_jaxpr(fun)(params, jnp.ones((1, 2)))
  assert {str(eqn.source_info.name_stack) for eqn in jaxpr.eqns} == {"layers_0"}
  assert (nnx.Linear.__call__, nnx.Sequential.__call__) == before
  with pytest.raises(TypeError, match="of type int"):
    saved_model.with_module_scopes(fun, 3)


def test_scopes_of_two_threads_end() -> None:
  """The second call begins during the first one, if it can, and ends after it."""
  net = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
  before = nnx.Linear.__call__
  events = {name: threading.Event() for name in ("first runs", "second runs", "first ended")}

  def first() -> None:
    events["first runs"].set()
    events["second runs"].wait(timeout=0.2)

  def second() -> None:
    events["second runs"].set()
    events["first ended"].wait(timeout=10)

  other = threading.Thread(target=saved_model.with_module_scopes(first, net))
  other.start()
  events["first runs"].wait(timeout=10)
  last = threading.Thread(target=saved_model.with_module_scopes(second, net))
  last.start()
  other.join()
  events["first ended"].set()
  last.join()
  assert nnx.Linear.__call__ == before


def test_what_has_no_modules_is_refused(tmp_path: Path) -> None:
  folder = saved_model.save(lambda _, x: jnp.tanh(x), None, tmp_path / "saved", inputs=SPEC)
  with pytest.raises(ValueError, match="does not say which name scopes are modules"):
    onnx.save_model(folder, tmp_path / "model.onnx", functions="modules")
  with pytest.raises(ValueError, match="functions = 'all'; give 'modules'"):
    onnx.save(jnp.tanh, None, tmp_path / "model.onnx", inputs=SPEC, functions="all")
