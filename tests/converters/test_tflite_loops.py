"""Loops that exchange arrays, in LiteRT, which copies the results of a step one after another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import interpreter
from jax import lax

import jax2tf
from jax2tf.converters import saved_model, tflite
from jax2tf.converters.tflite import binding, loops, runtime
from jax2tf.converters.tflite.parts import Parts

pytestmark = [pytest.mark.usefixtures("one_step"), pytest.mark.one_python]
RNG = np.random.default_rng(0)


def turned(state: Any, steps: int = 7) -> list[Any]:
  return list(lax.fori_loop(0, steps, lambda _, c: (*c[1:], c[0]), tuple(state)))


def turned_back(state: Any) -> list[Any]:
  return list(lax.fori_loop(0, 7, lambda _, c: (c[-1], *c[:-1]), tuple(state)))


def delayed(x: Any) -> list[Any]:
  """The second array is the first one of the step before, and the third that of two steps."""
  return list(lax.fori_loop(0, 7, lambda _, c: (jnp.sin(c[0] + c[2]), *c[:2]), (x, 2 * x, 3 * x)))


def scanned(x: Any) -> Any:
  def step(c: Any, i: Any) -> Any:
    return (c[1], c[0]), c[0] + i

  return lax.scan(step, (x, 2 * x), jnp.arange(60.0))


def until(x: Any, n: Any) -> Any:
  return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[2], c[1]), (0, x, 2 * x))[1:]


def nested(x: Any) -> list[Any]:
  def outer(_: int, c: Any) -> Any:
    return [c[1] + 1, turned(c)[0]]

  return lax.fori_loop(0, 5, outer, [x, 2 * x])


def in_a_branch(x: Any, n: Any) -> list[Any]:
  return lax.cond(n > 0, lambda x: turned((x, 2 * x)), lambda x: [2 * x, x], x)


def of_a_branch(x: Any, n: Any) -> Any:
  def step(i: Any, c: Any) -> Any:
    return lax.cond(i % 2 < n, lambda a, b: (b, a), lambda a, b: (a, b), *c)

  return lax.fori_loop(0, 7, step, (x, 2 * x))


def twice_the_same(x: Any) -> Any:
  """Two results are one argument, and one argument stays."""
  return lax.fori_loop(0, 7, lambda _, c: (c[2] + c[3], c[0], c[0], c[3]), (x, 2 * x, 3 * x, x))


def without_moving(x: Any) -> Any:
  """The ops that the converter removes: they return their operand."""

  def step(_: int, c: Any) -> Any:
    return c[1].reshape(x.shape), lax.stop_gradient(c[0]).reshape(-1)[: x.size].reshape(x.shape)

  return lax.fori_loop(0, 7, step, (x, 2 * x))


WAYS: dict[str, Callable[..., Any]] = {
  "exchanged": lambda x, n: turned((x, 2 * x)),
  "turned": lambda x, n: turned((x, 2 * x, 3 * x)),
  "turned back": lambda x, n: turned_back((x, 2 * x, 3 * x)),
  "delayed": lambda x, n: delayed(x),
  "scanned": lambda x, n: scanned(x),
  "until": until,
  "nested": lambda x, n: nested(x),
  "in a branch": in_a_branch,
  "of a branch": of_a_branch,
  "twice the same": lambda x, n: twice_the_same(x),
  "numbers": lambda x, n: turned((n, 2 * n, 3 * n)),
}
NUMBERS = {"n": lambda rng, shape, dtype: rng.integers(1, 4, shape, dtype)}
DTYPES = ("bool", "i8", "i32", "u16", "bf16", "c64")


def test_every_way_to_exchange(tmp_path: Path) -> None:
  def fun(_: Any, x: jax.Array, n: jax.Array) -> dict[str, Any]:
    ways = {name: way(x, n) for name, way in WAYS.items()}
    return ways | {"without moving": without_moving(x)}

  made = tflite.save(
    fun,
    {},
    tmp_path / "m.tflite",
    inputs={"x": "f32[5]", "n": "i32[]"},
    examples=NUMBERS,
    samples=1,
  )
  assert made.report.ok


def test_symbolic_sizes_and_dtypes(tmp_path: Path) -> None:
  inputs = {f"{name}{i}": f"{name}[b,c]" for name in DTYPES for i in range(2)}

  def fun(_: Any, x: jax.Array, n: jax.Array, *xs: jax.Array) -> dict[str, Any]:
    pairs = zip(DTYPES, xs[::2], xs[1::2], strict=True)
    of_dtypes = {dtype: turned(pair) for dtype, *pair in pairs}
    return of_dtypes | {name: WAYS[name](x, n) for name in ("scanned", "until")}

  made = tflite.save(
    fun,
    {},
    tmp_path / "m.tflite",
    inputs={"x": "f32[b,c]", "n": "i32[]", **inputs},
    sizes={"b": 2, "c": 3},
    examples=NUMBERS,
    samples=1,
  )
  assert made.report.ok


def test_signatures_of_a_folder_and_weights_behind_the_file(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(binding, "LARGE", 1024)
  monkeypatch.setattr(binding, "_LEAST", 1024)
  params = {name: RNG.standard_normal((20, 20)).astype(np.float32) / 5 for name in "vw"}

  def first(params: Any, x: jax.Array) -> Any:
    """Exchanges weights, too."""
    v, w, x = turned((params["v"], params["w"], x))
    return x @ v - w

  def second(params: Any, x: jax.Array) -> Any:
    def step(_: int, c: Any) -> Any:
      return jnp.tanh(c[1] @ params["w"]), c[0]

    return lax.fori_loop(0, 5, step, (x, 2 * x))

  model = saved_model.Model(params)
  model.add(first, inputs={"x": "f32[20,20]"}, signatures="first")
  model.add(second, inputs={"x": "f32[b,20]"}, signatures="second")
  model.save(tmp_path / "saved")
  made = tflite.save_model(tmp_path / "saved", tmp_path / "m.tflite", sizes={"b": 3}, samples=1)
  assert made.report.ok


def test_integers_are_calibrated_on_what_the_loop_computes(tmp_path: Path) -> None:
  w = RNG.standard_normal((16, 16)).astype(np.float32) / 4

  def fun(w: Any, x: jax.Array) -> Any:
    return [y @ w for y in turned((x @ w, 0.01 * x))]

  data = [{"x": RNG.standard_normal((8, 16)).astype(np.float32)} for _ in range(8)]
  made = tflite.save(
    fun,
    w,
    tmp_path / "m.tflite",
    inputs={"x": "f32[8,16]"},
    quantization="int8",
    representative_dataset=data,
  )
  assert made.report.ok


def in_interpreter(contents: bytes, x: np.ndarray) -> list[np.ndarray]:
  made = interpreter.Interpreter(model_content=contents)
  made.resize_tensor_input(made.get_input_details()[0]["index"], x.shape)
  made.allocate_tensors()
  made.set_tensor(made.get_input_details()[0]["index"], x)
  made.invoke()
  return [made.get_tensor(output["index"]) for output in made.get_output_details()]


def converter(fun: Callable[..., Any], shape: list[int | None]) -> tf.lite.TFLiteConverter:
  function = tf.function(fun, autograph=False, input_signature=[tf.TensorSpec(shape, name="x")])
  return tflite.converter([function.get_concrete_function()])


def test_scripts() -> None:
  made = converter(jax2tf.convert(lambda x: turned((x, 2 * x))), [3])
  x = np.arange(3, dtype=np.float32)
  with runtime.quiet():
    results = in_interpreter(made.convert(), x)
  np.testing.assert_array_equal(results, [2 * x, x])


def test_arrays_that_grow() -> None:
  """LiteRT gives the arrays of a step other sizes, and memory, before it copies the first one."""

  def fun(x: tf.Tensor) -> list[tf.Tensor]:
    unknown = tf.TensorShape([None])
    return tf.while_loop(
      lambda i, a, b: i < 6,
      lambda i, a, b: (i + 1, b, tf.concat([a, b + 1.0], 0)),
      [tf.constant(0), x, 2 * x],
      shape_invariants=[tf.TensorShape([]), unknown, unknown],
    )[1:]

  x = np.arange(2000, dtype=np.float32)
  with runtime.quiet():
    results = in_interpreter(converter(fun, [None]).convert(), x)
  for result, expected in zip(results, fun(tf.constant(x)), strict=True):
    np.testing.assert_array_equal(result, expected)


def test_only_what_is_overwritten_is_copied() -> None:
  """Each result of this loop is copied before its argument is overwritten."""

  def fun(x: Any) -> Any:
    return lax.fori_loop(0, 7, lambda _, c: (c[1], c[2], c[2] + c[3], c[3]), (x, 2 * x, 3 * x, x))

  with runtime.quiet():
    contents = converter(jax2tf.convert(fun), [3]).convert()
  parts = Parts.of(contents)
  kinds = [parts.kind(op) for graph in parts.model.subgraphs for op in graph.operators]
  assert "WHILE" in kinds and "BITCAST" not in kinds
  assert loops.with_copies(contents) is contents
