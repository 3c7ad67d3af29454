"""`converters.tflite`: files that LiteRT runs, compared with JAX."""

from __future__ import annotations

import math
import sys
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
from jax2tf.converters.export import freezing, special
from jax2tf.converters.tflite import runtime
from jax2tf.converters.tflite.replacements import TABLE

RNG = np.random.default_rng(0)
MLP = {
  "w1": RNG.standard_normal((64, 128)).astype(np.float32) / 8,
  "b1": np.zeros(128, np.float32),
  "w2": RNG.standard_normal((128, 10)).astype(np.float32) / 11,
}
INPUTS = {"x": "f32[b,64]"}
HOSTILE = np.array(
  [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 30.0, -90.0, 1e10, np.inf, -np.inf, np.nan], np.float32
)
INTEGERS = np.array([0, 1, -1, 2, -7, 7, 31, 100, 2**31 - 1, -(2**31)], np.int32)


def mlp(params: Any, x: jax.Array) -> dict[str, jax.Array]:
  hidden = jax.nn.gelu(x @ params["w1"] + params["b1"], approximate=False)
  return {"probs": jax.nn.softmax(hidden @ params["w2"])}


def runners(path: Path) -> Any:
  return interpreter.Interpreter(model_path=str(path)).get_signature_runner


def in_litert(path: Path, fun: Callable[..., Any], *args: np.ndarray, call: bool = True) -> Any:
  """The results of the exported function of these very shapes, named by their number; `args` are
  also what the export compares. Without `call`, what runs it."""
  names = [f"x{i}" for i in range(len(args))]
  inputs = {
    name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in zip(names, args, strict=True)
  }
  made = tflite.save(
    lambda _, *xs: fun(*xs),
    {},
    path / "m.tflite",
    inputs=inputs,
    examples=dict(zip(names, args, strict=True)),
  )
  assert made.report.ok
  runner = runners(made.path)("serving_default")
  return runner(**dict(zip(names, args, strict=True))) if call else runner


def ulps(found: np.ndarray, expected: np.ndarray) -> float:
  """The largest distance, of results that are not subnormal, in units of the last place of what is
  expected."""
  normal = np.abs(expected) >= np.finfo(np.float32).tiny
  found, expected = found.astype(np.float64)[normal], expected.astype(np.float64)[normal]
  return float((np.abs(found - expected) / np.spacing(np.abs(expected).astype(np.float32))).max())


@pytest.mark.latencies
def test_names_and_dynamic_sizes(tmp_path: Path) -> None:
  made = tflite.save(mlp, MLP, tmp_path / "m.tflite", inputs=INPUTS)
  assert made.report.ok and made.size == made.path.stat().st_size
  assert made.report.latencies[0].model > 0
  runner = runners(made.path)("serving_default")
  for b in (1, 5):
    x = RNG.standard_normal((b, 64)).astype(np.float32)
    np.testing.assert_allclose(runner(x=x)["probs"], mlp(MLP, x)["probs"], atol=1e-6)
  ops = {
    op["op_name"] for op in interpreter.Interpreter(model_path=str(made.path))._get_ops_details()
  }
  assert {"GELU", "SOFTMAX", "FULLY_CONNECTED"} <= ops, "the converter no longer fuses these"


def test_signatures_share_the_file(tmp_path: Path) -> None:
  model = saved_model.Model(MLP).add(mlp, inputs=INPUTS, signatures="predict")
  model.add(lambda p, x: x @ p["w1"], inputs=INPUTS, outputs=["hidden"], signatures="embed")
  directory = model.save(tmp_path / "saved")
  made = tflite.save_model(directory, tmp_path / "m.tflite")
  listed = interpreter.Interpreter(model_path=str(made.path)).get_signature_list()
  assert {name: (s["inputs"], s["outputs"]) for name, s in listed.items()} == {
    "predict": (["x"], ["probs"]),
    "embed": (["x"], ["hidden"]),
  }
  weights = sum(x.nbytes for x in MLP.values())
  assert made.size < 1.5 * weights, "the signatures do not share their weights"


def test_dynamic_sequence_and_loops(tmp_path: Path) -> None:
  def fun(params: Any, x: jax.Array, n: jax.Array) -> dict[str, jax.Array]:
    state, steps = lax.scan(
      lambda h, row: (jnp.tanh(h @ params + row), h.sum()),
      jnp.zeros(x.shape[0::2]),
      x.swapaxes(0, 1),
    )
    grown = lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 1.5), (0, state))[1]
    chosen = lax.switch(n, [lambda y: y, lambda y: -y, jnp.cos], grown)
    return {"nested": {"state": lax.cond(n > 1, jnp.sin, jnp.exp, chosen)}, "steps": steps}

  params = (RNG.standard_normal((8, 8)) / 3).astype(np.float32)
  made = tflite.save(
    fun,
    params,
    tmp_path / "m.tflite",
    inputs={"x": "f32[b,seq,8]", "n": "i32[]"},
    sizes={"b": [1, 3], "seq": [2, 5]},
    examples={"n": lambda rng, *_: rng.integers(0, 4, (), np.int32)},
  )
  assert {row.output for row in made.report.rows} == {"nested_state", "steps"}
  x = RNG.standard_normal((2, 9, 8)).astype(np.float32)
  for n in range(4):
    found = runners(made.path)("serving_default")(x=x, n=np.int32(n))
    np.testing.assert_allclose(
      found["nested_state"], fun(params, x, n)["nested"]["state"], rtol=2e-5, atol=1e-6
    )


def test_missing_ops_are_named_with_their_lines(tmp_path: Path) -> None:
  def fun(_: Any, x: jax.Array) -> jax.Array:
    return jax2tf.call_tf(tf.math.special.dawsn)(x) + jax2tf.call_tf(tf.math.special.spence)(x)

  with pytest.raises(
    tflite.ExportError, match=r"LiteRT cannot take signature 'serving_default'"
  ) as caught:
    tflite.save(fun, {}, tmp_path / "m.tflite", inputs={"x": "f32[4,4]"})
  assert {use.op for use in caught.value.uses} >= {"Dawsn", "Spence"}
  assert all(
    "test_tflite.py" in use.where for use in caught.value.uses if use.op in ("Dawsn", "Spence")
  )
  assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
  ("fun", "x", "message"),
  [
    (
      lambda x: x[:0] * 2,
      np.ones((2, 3), np.float32),
      r"cannot return output '.*', f32\[0,3\], of signature 'serving_default'",
    ),
    (
      lax.population_count,
      np.ones(3, np.int64),
      r"no kernel for PopulationCount of tensor<3xui64>",
    ),
    (jnp.abs, np.ones(3, np.complex128), r"no kernel for Sqrt of tensor<3xf64>"),
  ],
)
def test_refused(fun: Callable[..., Any], x: np.ndarray, message: str, tmp_path: Path) -> None:
  with jax.enable_x64(True), pytest.raises(tflite.ExportError, match=message):
    in_litert(tmp_path, fun, x)
  assert not list(tmp_path.iterdir())


def test_a_wrong_answer_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(special, "_ERF", (*special._ERF[:-1], 1.2))
  with pytest.raises(
    tflite.ExportError,
    match=r"(?s)computes different outputs than the reference, so nothing was written.*elements "
    r"differ",
  ):
    tflite.save(lambda _, x: lax.erf(x), {}, tmp_path / "m.tflite", inputs=INPUTS)
  assert list(tmp_path.iterdir()) == []


def test_a_runtime_that_dies_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(sys, "executable", "/bin/false")
  with pytest.raises(
    tflite.ExportError,
    match=r"LiteRT ended its process with 1 in run 0 of signature 'serving_default'",
  ):
    tflite.save(lambda _, x: x + 1, {}, tmp_path / "m.tflite", inputs=INPUTS)
  assert list(tmp_path.iterdir()) == []


def test_overwriting(tmp_path: Path) -> None:
  file = tmp_path / "m.tflite"
  tflite.save(lambda _, x: x + 1, {}, file, inputs=INPUTS)
  with pytest.raises(FileExistsError, match="overwrite=True"):
    tflite.save(lambda _, x: x, {}, file, inputs=INPUTS)
  tflite.save(lambda _, x: x - 1, {}, file, inputs=INPUTS, overwrite=True)
  assert runners(file)("serving_default")(x=np.ones((1, 64), np.float32))["output"].max() == 0


TRUE = {  # in float64
  "erf": np.vectorize(math.erf),
  "erfc": np.vectorize(math.erfc),
  "rsqrt": lambda x: 1 / np.sqrt(x),
  "sqrt": np.sqrt,
  "asinh": np.arcsinh,
  "acosh": np.arccosh,
  "atanh": np.arctanh,
  "asin": np.arcsin,
  "acos": np.arccos,
  "atan": np.arctan,
} | {name: getattr(np, name) for name in ("tan", "sinh", "cosh", "expm1", "log1p", "log")}


def test_elementary_functions(tmp_path: Path) -> None:
  """Within a few units in the last place of the true values, NaN and infinities in place."""
  sizes = np.concatenate([np.geomspace(1e-30, 80.0, 3000), np.geomspace(80.0, 3.4e38, 1000)])
  x = np.concatenate([sizes, -sizes, [0, np.inf, -np.inf, np.nan, 1, -1]]).astype(np.float32)
  answers = in_litert(tmp_path, lambda x: {name: getattr(lax, name)(x) for name in TRUE}, x)
  for name, true in TRUE.items():
    with np.errstate(all="ignore"):
      expected = true(x.astype(np.float64)).astype(np.float32)
    found, finite = answers[name], np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite], err_msg=name)
    assert ulps(found[finite], expected[finite]) <= 8, name


def test_exponentials_near_the_largest_float(tmp_path: Path) -> None:
  x = np.concatenate([np.linspace(-87, 88.72, 2000), [88.73, 1e4, np.inf, -np.inf, np.nan]]).astype(
    np.float32
  )
  answers = in_litert(tmp_path, lambda x: {"exp": jnp.exp(x), "softplus": jax.nn.softplus(x)}, x)
  with np.errstate(over="ignore", invalid="ignore"):
    expected = {
      "exp": np.exp(x.astype(np.float64)),
      "softplus": np.logaddexp(0, x.astype(np.float64)),
    }
    for name, y in expected.items():  # the error of XNNPACK's exp is 2**-24 of its argument
      np.testing.assert_allclose(answers[name], y.astype(np.float32), rtol=6e-6, err_msg=name)


@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_erf_is_as_near_as_that_of_jax(name: str, tmp_path: Path) -> None:
  x = np.linspace(-9, 9, 4001, dtype=np.float32)
  fun = getattr(lax, name)
  true = np.vectorize(getattr(math, name))(x.astype(np.float64)).astype(np.float32)
  assert ulps(in_litert(tmp_path, fun, x)["output"], true) <= max(ulps(np.asarray(fun(x)), true), 4)


def pairs(values: np.ndarray) -> list[np.ndarray]:
  return [side.ravel() for side in np.meshgrid(values, values)]


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint32"])
def test_integers(dtype: str, tmp_path: Path) -> None:
  info = np.iinfo(dtype)
  values = np.array(
    [
      v
      for v in {*INTEGERS.tolist(), info.min, info.max, info.max // 2 + 1}
      if info.min <= v <= info.max
    ],
    dtype,
  )

  def fun(x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    places = y & jnp.asarray(info.bits - 1, dtype)
    named = {
      "arithmetic": [
        x + y,
        x - y,
        x * y,
        lax.div(x, y),
        lax.rem(x, y),
        x // y,
        x % y,
        lax.max(x, y),
        lax.min(x, y),
      ],
      "order": [x < y, x >= y, x == y],
      "bits": [
        x & y,
        x | y,
        x ^ y,
        ~x,
        lax.shift_left(x, places),
        lax.shift_right_logical(x, places),
        x >> places,
      ],
      "counts": [lax.population_count(x), lax.clz(x)],
      "reductions": [
        x.sum(dtype=x.dtype),
        x.max(),
        x.min(),
        jnp.sort(x),
        jnp.argmax(x),
        jnp.cumsum(x, dtype=x.dtype),
        jnp.cumprod(x[:5]),
      ],
    }
    return named

  x, y = pairs(values)
  found, expected = in_litert(tmp_path, fun, x, y), jax.jit(fun)(x, y)
  for group, results in expected.items():
    for i, result in enumerate(results):
      np.testing.assert_array_equal(found[f"{group}_{i}"], result, err_msg=f"{group} {i}")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_hostile_floats(dtype: str, tmp_path: Path) -> None:
  def fun(x: jax.Array, y: jax.Array) -> list[jax.Array]:
    table = x.reshape(12, 12)
    return [
      jnp.where(x > 0, jnp.log(x), 0),
      jnp.maximum(x, y),
      jnp.minimum(x, y),
      table.max(1),
      table.min(0),
      jnp.exp(x),
      jnp.isinf(x),
      jnp.isnan(y),
      lax.rem(x, y),
      jnp.sort(x),
      jnp.argsort(y),
      jnp.isfinite(table).any(0),
      jnp.isnan(table).all(1),
      jax.nn.sigmoid(x),
    ]

  with np.errstate(over="ignore"):
    x, y = pairs(HOSTILE.astype(jnp.dtype(dtype)))
  found, expected = in_litert(tmp_path, fun, x, y), jax.jit(fun)(x, y)
  for i, result in enumerate(expected):
    wide = np.float32 if jnp.issubdtype(result.dtype, np.floating) else result.dtype
    np.testing.assert_allclose(
      found[f"output_{i}"].astype(wide), np.asarray(result).astype(wide), rtol=1e-2, err_msg=str(i)
    )


def test_indexing_outside(tmp_path: Path) -> None:
  x, i = (
    np.arange(12, dtype=np.float32).reshape(4, 3),
    np.array([0, 3, 4, -1, 99, -99, 2], np.int32),
  )

  def fun(x: jax.Array, i: jax.Array) -> list[jax.Array]:
    rows = jnp.ones((7, 3), x.dtype)
    return [
      x[i],
      x.at[i].get(mode="fill", fill_value=7),
      x.at[i].set(rows, mode="drop"),
      x.at[i].add(rows),
      x.at[i].max(rows * 5),
      x.at[i, 1].min(rows[:, 0]),
      jax.ops.segment_sum(rows, i, 4),
      jax.ops.segment_max(rows, i, 4),
      lax.dynamic_slice(x, (i[4], i[5]), (2, 2)),
      lax.dynamic_update_slice(x, rows[:2], (i[4], i[3])),
      lax.top_k(x, 2)[1],
    ]

  found = in_litert(tmp_path, fun, x, i)
  for k, result in enumerate(jax.jit(fun)(x, i)):
    np.testing.assert_array_equal(found[f"output_{k}"], result, err_msg=str(k))


def test_random_bits_are_those_of_jax(tmp_path: Path) -> None:
  def fun(seed: jax.Array) -> list[jax.Array]:
    key = jax.random.wrap_key_data(seed, impl="threefry2x32")
    first, second = jax.random.split(key)
    bits = jax.random.bits(first, (33,))
    return [bits, jax.random.uniform(second, (9,)), jax.random.key_data(second)]

  seed = np.array([0xFFFFFFFF, 0x80000001], np.uint32)
  found = in_litert(tmp_path, fun, seed)
  for k, result in enumerate(fun(seed)):
    np.testing.assert_array_equal(found[f"output_{k}"], result)


@pytest.mark.parametrize("dtype", [tf.int64, tf.uint64])
def test_bits_of_64(dtype: tf.DType, tmp_path: Path) -> None:
  numbers = np.array(
    [0, 1, -1, 5, -7, 2**31, 2**32 - 1, -(2**33) + 3, 2**63 - 1, -(2**63)], np.int64
  )
  x, n = (side.ravel() for side in np.meshgrid(numbers, np.array([0, 1, 31, 32, 33, 63])))

  def fun(x: tf.Tensor, n: tf.Tensor) -> dict[str, tf.Tensor]:
    x, n = tf.bitcast(x, dtype), tf.bitcast(n, dtype)
    places = [n, *(tf.constant(k, dtype) for k in (0, 7, 32, 63))]
    shifts = [
      shift(x, k) for shift in (tf.bitwise.left_shift, tf.bitwise.right_shift) for k in places
    ]
    pairs = [
      tf.bitwise.bitwise_and(x, n),
      tf.bitwise.bitwise_or(x, n),
      tf.bitwise.bitwise_xor(x, n),
      tf.bitwise.invert(x),
    ]
    return {f"y{k}": tf.bitcast(y, tf.int64) for k, y in enumerate([*shifts, *pairs])}

  specs = {name: tf.TensorSpec([None], tf.int64, name) for name in ("x", "n")}
  frozen = freezing.frozen(tf.function(fun, autograph=False).get_concrete_function(**specs), TABLE)
  file = tmp_path / "m.tflite"
  file.write_bytes(
    runtime.converted(
      {"serving_default": frozen}, lambda converter: None, lambda lacking: ValueError(lacking)
    )
  )
  found, expected = runners(file)("serving_default")(x=x, n=n), fun(tf.constant(x), tf.constant(n))
  for name, result in expected.items():
    np.testing.assert_array_equal(found[name], result, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bool", "uint32", "float16"])
def test_scans_of_rows_of_a_dynamic_size(dtype: str, tmp_path: Path) -> None:
  def fun(_: Any, x: jax.Array) -> list[jax.Array]:
    def turn(c: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
      c = jnp.logical_xor(c, row) if dtype == "bool" else c + row
      return c, c

    return [
      lax.scan(turn, jnp.zeros_like(x[0]), x, reverse=reverse)[1] for reverse in (False, True)
    ]

  made = tflite.save(
    fun,
    {},
    tmp_path / "m.tflite",
    inputs={"x": jax.ShapeDtypeStruct(jax.export.symbolic_shape("n, b, 3"), dtype)},
  )
  for shape in ((1, 1, 3), (7, 4, 3), (2, 5, 3)):
    x = RNG.integers(0, 2 if dtype == "bool" else 9, shape).astype(dtype)
    found = runners(made.path)("serving_default")(x=x)
    for k, result in enumerate(fun(None, jnp.asarray(x))):
      np.testing.assert_array_equal(found[f"output_{k}"], result, err_msg=str(k))


def test_draws_with_a_constant_key(tmp_path: Path) -> None:
  """Whether a difference is of constants is asked once for each op, not once for each path through
  20 rounds of sums."""
  logits = RNG.standard_normal((3, 8), np.float32)
  drawn = in_litert(
    tmp_path, lambda x: {"drawn": jax.random.categorical(jax.random.key(0), x)}, logits
  )
  np.testing.assert_array_equal(drawn["drawn"], jax.random.categorical(jax.random.key(0), logits))


def test_random_numbers_of_a_dynamic_shape(tmp_path: Path) -> None:
  def fun(_: Any, seed: jax.Array, x: jax.Array) -> jax.Array:
    return x + jax.random.normal(jax.random.wrap_key_data(seed, impl="threefry2x32"), x.shape)

  tflite.save(fun, {}, tmp_path / "m.tflite", inputs={"seed": "u32[2]", "x": "f32[b,3]"})


def test_squeezed_convolutions(tmp_path: Path) -> None:
  """The converter joins Squeeze with its neighbours until it has more dimensions than LiteRT
  takes."""
  first, second = (
    RNG.standard_normal(shape).astype(np.float32) for shape in ((8, 4, 3), (8, 8, 3))
  )

  def one(x: jax.Array) -> jax.Array:
    for kernel in (first, second):
      x = jax.nn.relu(lax.conv_general_dilated(x[None], kernel, (1,), "SAME")[0] + 1)
    return x

  tflite.save(lambda _, x: jax.vmap(one)(x), {}, tmp_path / "m.tflite", inputs={"x": "f32[b,4,t]"})


def test_constants_and_transpositions(tmp_path: Path) -> None:
  """TF 2.21's converter has x - 1 and x / 2 for these."""
  x = RNG.uniform(1, 2, (2, 3)).astype(np.float32)

  def fun(x: jax.Array) -> list[jax.Array]:
    return [
      1 - x.T,
      2 / (x.T * 3),
      5 - (x.astype(np.int32) * 3).T,
      -x.astype(np.int32).T,
      0 - x.T,
      lax.erfc(x.T),
      jnp.sort(x.astype(np.int32), 0),
      jnp.arctan2(x, 2.0),
    ]

  found = in_litert(tmp_path, fun, x)
  for k, result in enumerate(jax.jit(fun)(x)):
    np.testing.assert_allclose(found[f"output_{k}"], result, rtol=1e-6, err_msg=str(k))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16, jnp.uint16, jnp.uint32])
def test_moves_of_narrow_dtypes(dtype: Any, tmp_path: Path) -> None:
  """The converter would take the Cast of an operand behind these."""

  def moved(x: jax.Array, i: jax.Array) -> dict[str, jax.Array]:
    return {
      "gathered": x[i],
      "scattered": jax.vmap(lambda row, k, one: row.at[k].set(one))(x, i, x[::-1, 0]),
      "scanned": lax.map(lambda row: row + row, x),
      "broadcast": jnp.broadcast_to(x[:, None], (3, 2, 4)),
    }

  x, i = (
    (RNG.standard_normal((3, 4)) * 100).astype(np.int32).astype(dtype),
    np.array([2, 0, 1], np.int32),
  )
  found = in_litert(tmp_path, moved, x, i)
  for name, expected in jax.jit(moved)(x, i).items():
    np.testing.assert_array_equal(found[name], expected, err_msg=name)


def test_convolutions_of_images_of_a_dynamic_size(tmp_path: Path) -> None:
  kernel = RNG.standard_normal((3, 3, 2, 2)).astype(np.float32)

  def fun(_: Any, x: jax.Array) -> jax.Array:
    for padding in ("VALID", "SAME", "SAME"):
      x = lax.conv_general_dilated(
        x, kernel, (2, 2), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
      )
    return x

  made = tflite.save(
    fun,
    {},
    tmp_path / "m.tflite",
    inputs={"x": "f32[1,h,w,2]"},
    samples=1,
    sizes={"h": [5, 12], "w": [9]},
  )
  assert made.report.ok


def test_a_plain_converter_takes_indices_of_seven_rows() -> None:
  function = tf.function(
    jax2tf.convert(lambda x, i: x[i] + jnp.maximum(jnp.minimum(i, 6), 0)[:, None]), autograph=False
  )
  concrete = function.get_concrete_function(
    tf.TensorSpec([7, 4], name="x"), tf.TensorSpec([9], tf.int32, name="i")
  )
  assert (
    tf.lite.TFLiteConverter.from_concrete_functions([concrete], function).convert()[4:8] == b"TFL3"
  )


def test_high_ranks(tmp_path: Path) -> None:
  x = RNG.standard_normal((2, 1, 3, 1, 2, 3)).astype(np.float32)

  def fun(x: jax.Array) -> list[jax.Array]:
    return [
      x + x.swapaxes(1, 2),
      x.sum((0, 3)),
      jnp.pad(x, [(1, 0)] * 6),
      x.transpose(5, 3, 1, 0, 2, 4),
      x[:, :, ::2, :, 1:],
      x[None] * x[:, None],
    ]

  in_litert(tmp_path, fun, x)


def test_exchanges_of_rows_become_a_permutation(tmp_path: Path) -> None:
  pivots = np.int32([[1, 2, 2], [3, 1, 3]])

  def fun(pivots: jax.Array) -> list[jax.Array]:
    return [lax.linalg.lu_pivots_to_permutation(p, 4) for p in (pivots, pivots[1])]

  found = in_litert(tmp_path, fun, pivots)
  for y, expected in zip(found.values(), fun(pivots), strict=True):
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_window_is_written_in_place(dtype: str, tmp_path: Path) -> None:
  """As JAX: `dynamic_update_slice` moves a window inside, and `at[].set` drops one outside."""

  def fun(x: jax.Array, y: jax.Array, n: jax.Array) -> dict[str, jax.Array]:
    return {
      "rows": lax.dynamic_update_slice(x, y, (0, n, 0, 0)),
      "inner": lax.dynamic_update_slice(x, y[:1, :, 1:], (n, 3, n, 0)),
      "first": lax.dynamic_update_slice(x[0], y[0], (n, 0, 0)),
      "row": x.at[:, n].set(y[:, 0]),
      "one": x.at[1, n].set(y[0, 0]),
    }

  x = RNG.standard_normal((2, 9, 3, 4)).astype(dtype)
  y = RNG.standard_normal((2, 2, 3, 4)).astype(dtype)
  runner = in_litert(tmp_path, fun, x, y, np.int32(4), call=False)
  for n in map(np.int32, (-30, -9, -1, 0, 7, 8, 9, 30)):
    results, expected = runner(x0=x, x1=y, x2=n), fun(*map(jnp.asarray, (x, y, n)))
    for name, result in results.items():
      np.testing.assert_array_equal(result, np.asarray(expected[name]), f"{name} at {n}")
  opened = interpreter.Interpreter(model_path=str(tmp_path / "m.tflite"))
  ops = [op["op_name"] for op in opened._get_ops_details()]
  assert ops.count("DYNAMIC_UPDATE_SLICE") == 5 and "UNSORTED_SEGMENT_MAX" not in ops


def test_training_on_the_device(tmp_path: Path) -> None:
  def loss(params: Any, x: jax.Array, label: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.log(mlp(params, x)["probs"])[jnp.arange(x.shape[0]), label])

  made = tflite.save_training(
    loss,
    mlp,
    MLP,
    tmp_path / "m.tflite",
    batch={"x": "f32[b,64]", "label": "i32[b]"},
    inputs=INPUTS,
    learning_rate=0.5,
    sizes={"b": 16},
  )
  runner = runners(made.path)
  train, infer, restore = runner("train"), runner("infer"), runner("restore")
  x, label = (
    RNG.standard_normal((16, 64)).astype(np.float32),
    RNG.integers(0, 10, 16).astype(np.int32),
  )
  params, losses = MLP, []
  for _ in range(5):
    value, gradient = jax.value_and_grad(loss)(params, x, label)
    losses.append(float(train(x=x, label=label)["loss"]))
    np.testing.assert_allclose(losses[-1], value, rtol=1e-5)
    params = jax.tree.map(lambda p, g: p - 0.5 * g, params, gradient)
  assert losses == sorted(losses, reverse=True) and losses[-1] < 0.9 * losses[0]
  np.testing.assert_allclose(infer(x=x)["probs"], mlp(params, x)["probs"], rtol=1e-4, atol=1e-6)
  kept = runner("parameters")(unused=np.int32(0))
  np.testing.assert_allclose(kept["w1"], params["w1"], rtol=1e-4, atol=1e-6)
  restore(**MLP)
  np.testing.assert_allclose(infer(x=x)["probs"], mlp(MLP, x)["probs"], rtol=1e-4, atol=1e-6)
  restore(**kept)
  np.testing.assert_allclose(infer(x=x)["probs"], mlp(params, x)["probs"], rtol=1e-4, atol=1e-6)


def test_training_that_differs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(special, "_ERF", (*special._ERF[:-1], 1.2))
  with pytest.raises(tflite.ExportError, match="trains differently from JAX"):
    tflite.save_training(
      lambda p, x: jnp.sum(lax.erf(x * p["w"])),
      lambda p, x: x * p["w"],
      {"w": np.float32(0.3)},
      tmp_path / "m.tflite",
      batch={"x": "f32[4]"},
      inputs={"x": "f32[4]"},
      learning_rate=0.1,
    )
  assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
  with pytest.raises(
    ImportError, match=r"exporting to TFLite needs ai_edge_litert: pip install 'jax2tf\[tflite\]'"
  ):
    tflite.save(mlp, MLP, tmp_path / "m.tflite", inputs=INPUTS)
