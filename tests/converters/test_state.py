"""The state of a SavedModel, in one process, in threads, in a session as TF Serving has it, and
beside JAX."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from flax import nnx

import jax2tf
from jax2tf.converters import onnx, saved_model, tfjs, tflite, verify
from jax2tf.converters.export import freezing
from jax2tf.converters.export.source import ExportError
from jax2tf.converters.saved_model import manifest, warmup
from jax2tf.converters.saved_model.batching import Batching
from jax2tf.tools.cli import _inspection

PARAMS = {"w": np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)}
STATE = {"key": jax.random.key(3), "n": 0, "total": jnp.arange(2.0)}
X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)


def noisy(params: Any, state: Any, x: Any) -> Any:
  """A random key, a counter and a running sum."""
  key, mine = jax.random.split(state["key"])
  y = x @ params["w"] + jax.random.normal(mine, (2,)) + state["total"]
  return {"key": key, "n": state["n"] + 1, "total": state["total"] + y.sum(0)}, {
    "y": y,
    "n": state["n"],
  }


def plain(params: Any, x: Any) -> Any:
  return x @ params["w"]


def model() -> saved_model.Model:
  made = saved_model.Model(PARAMS, state=STATE)
  made.add(noisy, inputs={"x": "f32[b,4]"}, stateful=True, method="step").add(
    plain, inputs={"x": "f32[b,4]"}, signatures="plain"
  )
  return made.add_reset()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
  return model().save(tmp_path_factory.mktemp("noisy"))


def chain(
  fun: Callable[..., Any], params: Any, state: Any, *inputs: Any, steps: int = 3
) -> Iterator[tuple[Any, Any]]:
  """(state, outputs) after each call by JAX."""
  jitted = jax.jit(fun)
  for _ in range(steps):
    state, outputs = jitted(params, state, *inputs)
    yield state, outputs


def test_a_call_reads_the_state_and_keeps_the_new_one(path: Path) -> None:
  loaded = tf.saved_model.load(str(path))
  serve, calls = loaded.signatures["serving_default"], list(chain(noisy, PARAMS, STATE, X))
  for state, outputs in calls:
    found = serve(x=tf.constant(X))
    np.testing.assert_allclose(found["y"], outputs["y"], rtol=1e-5)
    assert found["n"] == outputs["n"]
    key, n, total = loaded.state_variables
    np.testing.assert_array_equal(key, jax.random.key_data(state["key"]))
    assert n.numpy() == state["n"]
    np.testing.assert_allclose(total, state["total"], rtol=1e-5)
  assert [v.name for v in loaded.state_variables] == ["state/key:0", "state/n:0", "state/total:0"]
  assert not any(v.trainable for v in loaded.state_variables)
  loaded.signatures["plain"](x=tf.constant(X))  # does not move it
  assert loaded.state_variables[1].numpy() == len(calls)
  assert loaded.signatures["reset"]()["reset"] == 3
  np.testing.assert_allclose(loaded.step(X)["y"], calls[0][1]["y"], rtol=1e-5)


def test_the_builder_has_the_state_too(tmp_path: Path) -> None:
  made = model()
  made.signatures["serving_default"](x=tf.constant(X))
  [(after, _)] = chain(noisy, PARAMS, STATE, X, steps=1)
  state = made.state()
  assert jax.random.key_data(state["key"]).tolist() == jax.random.key_data(after["key"]).tolist()
  made.update({"w": PARAMS["w"] * 2})  # new parameters; the state stays
  loaded = tf.saved_model.load(str(made.save(tmp_path)))
  assert loaded.state_variables[1].numpy() == 1
  loaded.signatures["reset"]()  # to what Model was given
  np.testing.assert_array_equal(loaded.state_variables[2], STATE["total"])
  assert saved_model.Model(PARAMS).state() is None


def counting(params: Any, state: Any, x: Any) -> Any:
  return {"n": state["n"] + x, "copies": state["copies"] + x}, {
    "n": state["n"],
    "copies": state["copies"],
  }


def _asked(call: Callable[[], Any], threads: int, calls: int) -> list[Any]:
  """What `call` answers in several threads at once."""
  found: list[Any] = []

  def ask() -> None:
    found.extend(call() for _ in range(calls))

  started = [threading.Thread(target=ask) for _ in range(threads)]
  for thread in started:
    thread.start()
  for thread in started:
    thread.join()
  return found


@pytest.mark.parametrize(("way", "calls"), [("eager", 1_000), ("session", 250)])
def test_sixteen_threads_lose_nothing_and_see_whole_states(
  tmp_path: Path, way: str, calls: int
) -> None:
  state = {"n": jnp.int32(0), "copies": jnp.zeros(64, jnp.int32)}
  path = str(
    saved_model.Model({}, state=state)
    .add(counting, inputs={"x": "i32[]"}, stateful=True)
    .save(tmp_path)
  )
  if way == "eager":
    serve, one = tf.saved_model.load(path).signatures["serving_default"], tf.constant(1)
    found = [(y["n"].numpy(), y["copies"].numpy()) for y in _asked(lambda: serve(x=one), 16, calls)]
  else:  # as TF Serving runs a model
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
      signature = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def[
        "serving_default"
      ]
      names = [signature.outputs[name].name for name in ("n", "copies")]
      run = session.make_callable(names, [signature.inputs["x"].name])
      found = _asked(lambda: run(np.int32(1)), 16, calls)
  assert sorted(int(n) for n, _ in found) == list(range(16 * calls))
  assert all((copies == n).all() for n, copies in found)


def test_what_fails_writes_nothing_and_unlocks(tmp_path: Path) -> None:
  finite = jax2tf.call_tf(lambda y: tf.debugging.check_numerics(y, "not finite"))

  # the new state is there long before the output fails
  def fun(params: Any, n: Any, x: Any) -> Any:
    return n + 1, finite(jax.lax.fori_loop(0, 2_000, lambda i, y: jnp.sin(y), x)) + n

  made = saved_model.Model({}, state=jnp.int32(0)).add(fun, inputs={"x": "f32[2]"}, stateful=True)
  loaded = tf.saved_model.load(str(made.save(tmp_path)))
  serve = loaded.signatures["serving_default"]
  with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
    serve(x=tf.constant([0, np.nan]))
  assert serve(x=tf.zeros([2]))["output"].numpy().tolist() == [0, 0]
  assert [v.name for v in loaded.state_variables] == ["state/state:0"]


def test_derivatives_move_the_state_once(tmp_path: Path) -> None:
  def fun(params: Any, n: Any, x: Any) -> Any:
    return n + 1, jnp.sin(params * x) * n

  made = saved_model.Model(
    jnp.float32(2), state=jnp.float32(1), with_gradient=True, gradient_orders=2
  )
  made.add(fun, inputs={"x": "f32[2]"}, stateful=True)
  loaded = tf.saved_model.load(str(made.save(tmp_path)))
  x = tf.constant([1.0, 2.0])
  with tf.GradientTape() as outer:
    outer.watch(x)
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = loaded(x)
    first = tape.gradient(y, x)
  with tf.autodiff.ForwardAccumulator(x, tf.ones([2])) as forward:
    y = loaded(x)
  np.testing.assert_allclose(first, 2 * np.cos([2, 4]), rtol=1e-6)
  np.testing.assert_allclose(outer.gradient(first, x), -4 * np.sin([2, 4]), rtol=1e-6)
  np.testing.assert_allclose(forward.jvp(y), 2 * first, rtol=1e-6)  # for the state was 2
  assert loaded.state_variables[0].numpy() == 3


@pytest.mark.parametrize(
  ("fun", "words"),
  [
    (
      lambda p, s, x: (s, x, x),
      r"stateful, so it returns a pair: \(state, outputs\); it returns tuple",
    ),
    (
      lambda p, s, x: ({"key": s["key"], "m": s["n"]}, x),
      r"another structure.*\n  m: not in the model\n  n: missing\n  total: missing",
    ),
    (
      lambda p, s, x: ({**s, "total": s["total"] + x.sum(1)[:, None]}, x),
      r"\n  total: f32\[b,2\], the model has f32\[2\]",
    ),
    (
      lambda p, s, x: ({**s, "n": s["n"] + 0.5}, x),
      r"'<lambda>' returns has other shapes.*\n  n: f32\[\], the model has i32\[\]",
    ),
    (
      lambda p, s, x: ({**s, "key": jax.random.key_data(s["key"])}, x),
      r"\n  key: u32\[2\], the model has key<fry>\[\]",
    ),
  ],
  ids=["no pair", "structure", "shape", "dtype", "key"],
)
def test_a_new_state_that_does_not_fit_is_named(fun: Callable[..., Any], words: str) -> None:
  with pytest.raises(ValueError, match=words):
    saved_model.Model(PARAMS, state=STATE).add(fun, inputs={"x": "f32[b,4]"}, stateful=True)


def test_what_does_not_go_with_a_state_is_refused(tmp_path: Path) -> None:
  made = saved_model.Model(PARAMS, state=STATE)
  with pytest.raises(ValueError, match="no signature takes it"):
    made.add(plain, inputs={"x": "f32[b,4]"}).save(tmp_path)
  with pytest.raises(ValueError, match="batching and stateful=True exclude each other"):
    made.add(
      noisy,
      inputs={"x": "f32[b,4]"},
      signatures="noisy",
      stateful=True,
      batching=Batching(max_batch_size=2),
    )
  with pytest.raises(ValueError, match="stateful = True: the model has no state"):
    saved_model.Model(PARAMS).add(noisy, inputs={"x": "f32[b,4]"}, stateful=True)
  with pytest.raises(ValueError, match="no state to reset"):
    saved_model.Model(PARAMS).add_reset()
  with pytest.raises(ValueError, match="'serving_default' already exists"):
    made.add_reset("serving_default")
  with pytest.raises(ValueError, match="no leaves"):
    saved_model.Model(PARAMS, state={})


def test_warm_up_does_not_move_the_state(tmp_path: Path) -> None:
  made = model()
  assert list(warmup.from_specs(made)) == ["plain"]
  with pytest.raises(ValueError, match="'serving_default' would change the state"):
    made.save(tmp_path, warmup_requests=[{"x": X}])


@pytest.mark.parametrize(
  "target", [onnx, tfjs, tflite], ids=lambda target: target.__name__.rpartition(".")[2]
)
def test_exporters_refuse_what_writes_by_name(tmp_path: Path, path: Path, target: Any) -> None:
  with pytest.raises(
    ExportError, match=r"cannot keep what signature 'serving_default' writes \(AssignVariableOp\)"
  ):
    target.save_model(path, tmp_path / "model", signatures=["serving_default"])
  assert not list(tmp_path.iterdir())


def test_a_generator_of_tensorflow_is_refused_too(tmp_path: Path) -> None:
  generator = tf.random.Generator.from_seed(1)
  drawn = jax2tf.call_tf(lambda x: x + generator.normal([2]))
  with pytest.raises(ExportError, match=r"writes \(RngReadAndSkip\)"):
    onnx.save_model(
      saved_model.Model({}).add(lambda p, x: drawn(x), inputs={"x": "f32[2]"}),
      tmp_path / "model.onnx",
    )


def remembering(params: Any, state: Any, x: Any) -> Any:
  """One leaf of each dtype that LiteRT's variables take, and a key, whose words they do not."""
  key, _ = jax.random.split(state["key"])
  cache = jax.lax.dynamic_update_slice(state["cache"], x @ params["w"], (state["n"], 0))
  return {
    "key": key,
    "n": state["n"] + 1,
    "cache": cache,
    "even": jnp.logical_not(state["even"]),
  }, cache.sum()


@pytest.mark.latencies
def test_litert_keeps_the_state(tmp_path: Path) -> None:
  state = {"key": jax.random.key(3), "n": 0, "cache": jnp.zeros((4, 2)), "even": True}
  made = (
    saved_model.Model(PARAMS, state=state)
    .add(remembering, inputs={"x": "f32[1,4]"}, stateful=True)
    .add_reset()
  )
  # has run it in LiteRT, and raises where it differs
  report = tflite.save_model(made, tmp_path / "model.tflite", samples=3).report
  assert {
    ("serving_default", "state/cache"),
    ("serving_default", "state/key"),
    ("reset", "state/even"),
  } <= {(row.signature, row.output) for row in report.rows}
  assert all(row.samples == 3 for row in report.rows if row.signature == "serving_default")
  kept = tflite.run(tmp_path / "model.tflite", {}, signature="state")
  assert set(kept) == {"state_0_cache", "state_1_even", "state_2_key", "state_3_n"}
  np.testing.assert_array_equal(kept["state_2_key"], jax.random.key_data(state["key"]))


def test_litert_refuses_a_state_that_it_cannot_hold(tmp_path: Path) -> None:
  made = saved_model.Model({}, state=jnp.zeros(3, jnp.bfloat16)).add(
    lambda p, s, x: (s + 1, x), inputs={"x": "f32[2]"}, stateful=True
  )
  with pytest.raises(ExportError, match=r"no variables for the state state: bf16\[3\]"):
    tflite.save_model(made, tmp_path / "model.tflite")
  with pytest.raises(ExportError, match="LiteRT with quantization='float16' cannot keep"):
    tflite.save_model(made, tmp_path / "model.tflite", quantization="float16")


def test_a_replay_writes_no_state_in_a_branch() -> None:
  variable = tf.Variable(0)

  def branch(x: tf.Tensor) -> dict[str, tf.Tensor]:
    return {"y": tf.cond(x > 0, lambda: variable.assign(x), lambda: x)}

  concrete = tf.function(branch, autograph=False).get_concrete_function(
    x=tf.TensorSpec([], tf.int32, "x")
  )
  with pytest.raises(ValueError, match="in a loop or a branch"):
    freezing.frozen(concrete, {}, state={"state": variable})


def test_no_write_vanishes_in_a_replay(path: Path) -> None:
  loaded = tf.saved_model.load(str(path))
  with pytest.raises(ValueError, match=r"it writes variables \(AssignVariableOp\)"):
    freezing.frozen(loaded.signatures["serving_default"], {})


def test_the_manifest_and_inspect_know_the_state(path: Path) -> None:
  record = manifest.read(path)
  assert record.state == {"key": "u32[2]", "n": "i32[]", "total": "f32[2]"}
  assert {name: (one.stateful, one.resets) for name, one in record.signatures.items()} == {
    "serving_default": (True, False),
    "plain": (False, False),
    "reset": (True, True),
  }
  text = _inspection.text(_inspection.inspect(path))
  assert "state of serving_default, reset" in text
  assert "u32[2]" in text


def test_diff_tells_of_another_state(tmp_path: Path, path: Path) -> None:
  other = saved_model.Model(PARAMS, state={**STATE, "n": 1})
  other.add(noisy, inputs={"x": "f32[b,4]"}, stateful=True, method="step").add(
    plain, inputs={"x": "f32[b,4]"}, signatures="plain"
  )
  said, values = _inspection.diff(path, other.add_reset().save(tmp_path))
  # `reset` writes the first state, which its graph holds.
  assert [each["what"] for each in said] == [
    "functions/signature reset",
    "manifest/state_values",
    "values/state/n",
  ]
  assert [(each["path"], each["differing"], each["max_abs"]) for each in values] == [
    ("state/n", 1, 1.0)
  ]


@pytest.mark.latencies
def test_verify_compares_sequences_of_calls(
  path: Path, without_jax: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(sys, "executable", without_jax)
  reference: dict[str, Callable[..., Any]] = {"serving_default": noisy, "plain": plain}
  report = verify.verify(
    path, reference, params=PARAMS, state=STATE, sizes={"b": 2}, samples=3, hostile=True
  )
  report.raise_for_mismatch()
  compared = {(row.signature, row.output) for row in report.rows}
  assert {
    ("serving_default", "state/key"),
    ("serving_default", "y"),
    ("reset", "state/total"),
    ("plain", "output"),
  } <= compared
  assert not report.skipped

  # from the third call on, and nowhere but in the state
  def wrong(params: Any, state: Any, x: Any) -> Any:
    after, outputs = noisy(params, state, x)
    return {**after, "n": after["n"] + (state["n"] > 1)}, outputs

  report = verify.verify(
    path, wrong, params=PARAMS, state=STATE, sizes={"b": 2}, signatures=["serving_default"]
  )
  assert {row.output for row in report.rows if not row.ok} == {"state/n"}
  with pytest.raises(ValueError, match="state = None: signature 'serving_default' is stateful"):
    verify.verify(path, reference, params=PARAMS)
  with pytest.raises(ValueError, match="pass the state that the model was created with"):
    verify.verify(path, reference, params=PARAMS, state={"n": 0})


def test_verify_takes_processors_and_a_state_together(
  tmp_path: Path, without_jax: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(sys, "executable", without_jax)

  def doubled(outputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {"y": outputs["y"] * 2}

  made = saved_model.Model(PARAMS, state=STATE).add(
    noisy, inputs={"x": "f32[b,4]"}, stateful=True, postprocess=doubled
  )

  def reference(params: Any, state: Any, x: Any) -> Any:
    after, outputs = noisy(params, state, x)
    return after, outputs["y"] * 2

  report = verify.verify(
    made.save(tmp_path), reference, params=PARAMS, state=STATE, inputs={"x": X}
  )
  report.raise_for_mismatch()
  assert {row.samples for row in report.rows} == {3}


def _same(fun: Callable[..., Any], params: Any, state: Any, x: np.ndarray, folder: Path) -> None:
  """A few calls of the saved function are those of JAX, state and all."""
  made = saved_model.Model(params, state=state).add(
    fun, inputs={"x": jax.ShapeDtypeStruct(x.shape, x.dtype)}, stateful=True
  )
  loaded = tf.saved_model.load(str(made.save(folder)))
  calls = list(chain(fun, params, state, x))
  for _, outputs in calls:
    found = loaded.signatures["serving_default"](x=tf.constant(x))
    np.testing.assert_allclose(found["output"], outputs, rtol=1e-4, atol=1e-6)
  for variable, leaf in zip(loaded.state_variables, jax.tree.leaves(calls[-1][0]), strict=True):
    words = (
      jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
    )
    np.testing.assert_allclose(variable, words, rtol=1e-4, atol=1e-6)


class Nnx(nnx.Module):
  def __init__(self, rngs: nnx.Rngs):
    self.linear, self.norm, self.dropout = (
      nnx.Linear(4, 3, rngs=rngs),
      nnx.BatchNorm(3, rngs=rngs),
      nnx.Dropout(0.5, rngs=rngs),
    )

  def __call__(self, x: Any) -> Any:
    return self.dropout(self.norm(self.linear(x)))


def test_flax_nnx(tmp_path: Path) -> None:
  # the rest: statistics, and the key and counter of Dropout
  graph, params, state = nnx.split(Nnx(nnx.Rngs(0)), nnx.Param, ...)

  def step(params: Any, state: Any, x: Any) -> Any:
    net = nnx.merge(graph, params, state)
    net.train()
    y = net(x)
    return nnx.state(net, nnx.Not(nnx.Param)), y

  _same(step, params, state, X, tmp_path)


def test_flax_nnx_of_refs(tmp_path: Path) -> None:
  with nnx.var_defaults(ref=True):
    graph, *both = nnx.split(Nnx(nnx.Rngs(0)), nnx.Param, ...)
  params, state = jax.tree.map(lambda ref: ref[...], both)

  def step(params: Any, refs: Any, x: Any) -> Any:
    net = nnx.merge(graph, jax.tree.map(jax.new_ref, params), refs)
    net.train()
    return net(x)

  _same(saved_model.refs_as_state(step), params, state, X, tmp_path)


def test_flax_linen(tmp_path: Path) -> None:
  class Net(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
      y = nn.BatchNorm(use_running_average=False)(nn.Dense(3)(x))
      last = self.variable("cache", "last", jnp.zeros, (8, 3))
      last.value = jax.lax.dynamic_update_slice(last.value, y.mean(0, keepdims=True), (1, 0))
      return y + last.value.sum()

  net = Net()
  state = net.init(jax.random.key(0), X)
  params = state.pop("params")

  def step(params: Any, state: Any, x: Any) -> Any:
    y, after = net.apply({"params": params, **state}, x, mutable=["batch_stats", "cache"])
    return after, y

  _same(step, params, state, X, tmp_path)


def test_equinox(tmp_path: Path) -> None:
  class Net(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __call__(self, x: Any, state: Any) -> Any:
      return self.norm(self.linear(x), state)

  net, state = eqx.nn.make_with_state(
    lambda key: Net(eqx.nn.Linear(4, 3, key=key), eqx.nn.BatchNorm(3, axis_name="b", mode="batch"))
  )(jax.random.key(0))
  params, rest = eqx.partition(net, eqx.is_array)

  def step(params: Any, state: Any, x: Any) -> Any:
    y, after = jax.vmap(
      eqx.combine(params, rest), in_axes=(0, None), out_axes=(0, None), axis_name="b"
    )(x, state)
    return after, y

  _same(step, params, state, X, tmp_path)


def test_a_function_of_refs(tmp_path: Path) -> None:
  def step(params: Any, refs: Any, x: Any) -> Any:
    refs["n"][...] += 1
    jax.lax.fori_loop(0, x.shape[0], lambda i, _: refs["total"].addupdate(x[i] @ params["w"]), None)
    return refs["total"][...] * refs["n"][...]

  _same(
    saved_model.refs_as_state(step), PARAMS, {"n": jnp.int32(0), "total": jnp.zeros(2)}, X, tmp_path
  )
