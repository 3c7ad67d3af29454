"""`tfjs.save`: what is written is run by TF.js in node, here once more, and compared with JAX."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf.converters import saved_model, tfjs
from jax2tf.converters.bundle import publish
from jax2tf.converters.tfjs import files, runtime
from jax2tf.converters.tfjs.names import SUPPORTED

pytestmark = pytest.mark.usefixtures("tfjs_packages")
RNG = np.random.default_rng(0)


def params() -> dict[str, Any]:
  return {
    "layer": {
      "kernel": RNG.standard_normal((6, 4)).astype(np.float32),
      "bias": np.arange(4, dtype=np.float32),
    }
  }


def dense(p: Mapping[str, Any], x: jax.Array) -> jax.Array:
  return jax.nn.gelu(x @ p["layer"]["kernel"] + p["layer"]["bias"], approximate=False)


def exact(
  fun: Callable[..., Any], path: Path, inputs: Mapping[str, str], **options: Any
) -> tfjs.Exported:
  """Exports, and lets neither hostile inputs nor subnormal ones differ."""
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    exported = tfjs.save(lambda _, *xs: fun(*xs), {}, path, inputs=inputs, **options)
  assert exported.report.ok and len({row.signature for row in exported.report.rows}) == len(
    options.get("backends", tfjs.BACKENDS)
  )
  return exported


@pytest.mark.latencies
def test_a_model_is_a_folder_of_json_and_shards(tmp_path: Path) -> None:
  wide = {"a": RNG.standard_normal((1100, 1000)).astype(np.float32)}
  exported = tfjs.save(
    lambda p, x: {"y": x @ p["a"]},
    wide,
    tmp_path / "m",
    inputs={"tokens": "f32[b,1100]"},
    backends=["wasm"],
  )
  model = json.loads((tmp_path / "m" / "model.json").read_text())
  assert (
    model["format"] == "graph-model"
    and list(model["signature"]["inputs"]) == ["tokens"]
    and list(model["signature"]["outputs"]) == ["y"]
  )
  assert model["signature"]["inputs"]["tokens"]["tensorShape"]["dim"] == [
    {"size": "-1"},
    {"size": "1100"},
  ]
  files = sorted(file.name for file in exported.path.iterdir())
  assert files == ["group1-shard1of2.bin", "group1-shard2of2.bin", "model.json"]
  assert (exported.path / files[0]).stat().st_size == 4 << 20
  assert exported.size == sum(file.stat().st_size for file in exported.path.iterdir()) > 4_400_000
  assert [path.name for path in tmp_path.iterdir()] == ["m"]
  assert exported.report.ok and exported.report.latencies[0].model > 0


@pytest.mark.parametrize(
  ("quantization", "bytes_each", "error"),
  [("uint8", 1, 0.05), ("uint16", 2, 2e-4), ("float16", 2, 2e-3)],
)
def test_weights_may_be_quantized(
  tmp_path: Path, quantization: str, bytes_each: int, error: float
) -> None:
  weights = RNG.standard_normal((128, 64)).astype(np.float32) / 11
  options: dict[str, Any] = {
    "inputs": {"x": "f32[b,128]"},
    "backends": ["wasm"],
    "quantization": quantization,
  }
  exported = tfjs.save(lambda p, x: jnp.tanh(x @ p), weights, tmp_path / "m", **options)
  errors = [row.max_abs or 0 for row in exported.report.rows if row.values == "ordinary"]
  assert 0 < max(errors) < error
  assert (
    sum(file.stat().st_size for file in exported.path.glob("*.bin"))
    < bytes_each * weights.size + 64
  )
  with pytest.raises(tfjs.ExportError, match="computes different outputs"):
    tfjs.save(
      lambda p, x: jnp.tanh(x @ p), weights, tmp_path / "n", atol=1e-9, rtol=1e-9, **options
    )
  assert not (tmp_path / "n").exists()


def test_weights_outside_the_range_of_float16_keep_their_dtype(tmp_path: Path) -> None:
  weights = RNG.standard_normal((128, 64)).astype(np.float32) * 1e6
  options: dict[str, Any] = {
    "inputs": {"x": "f32[b,128]"},
    "backends": ["wasm"],
    "quantization": "float16",
  }
  exported = tfjs.save(
    lambda p, x: jnp.tanh((x @ p) * 1e-7), weights, tmp_path / "m", rtol=1e-5, **options
  )
  assert (
    exported.report.ok
    and sum(file.stat().st_size for file in exported.path.glob("*.bin")) >= weights.nbytes
  )


def test_the_second_result_of_an_op_inside_of_loops_and_branches(tmp_path: Path) -> None:
  def fun(x: jax.Array) -> dict[str, jax.Array]:
    def body(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
      values, places = jax.lax.top_k(row, 2)
      return carry + values[0] + row[places[1]], places

    last, rows = jax.lax.scan(body, jnp.float32(0), x)
    return {
      "last": last,
      "rows": rows,
      "one": jax.lax.cond(
        x[0, 0] < x[1, 1], lambda y: jax.lax.top_k(y, 3)[1], lambda y: jax.lax.top_k(-y, 3)[1], x
      ),
    }

  exact(fun, tmp_path / "m", {"x": "f32[3,5]"}, backends=["wasm"])


def test_a_loop_returns_several_results_of_a_loop_inside(tmp_path: Path) -> None:
  def fun(x: jax.Array) -> dict[str, jax.Array]:
    def turn(carry: Any, k: jax.Array) -> tuple[Any, None]:
      y, z = carry
      return (y * 0.5 + k, z * 0.25 + jnp.roll(z, k)), None

    def several(_: int, carry: Any) -> Any:
      return jax.lax.scan(turn, carry, jnp.arange(3))[0]

    y, z = jax.lax.fori_loop(0, 2, several, (x, x[::-1]))
    return {"y": y, "z": z}

  exact(fun, tmp_path / "m", {"x": "f32[4]"}, backends=["wasm"])


def test_control_flow_with_weights_inside(tmp_path: Path) -> None:
  def fun(p: Any, x: jax.Array, n: jax.Array) -> dict[str, jax.Array]:
    def body(carry: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
      carry = jnp.tanh(carry @ p + jnp.arange(4.0) + row)
      return carry, jax.lax.cond(
        row.sum() > 0, lambda v: v.sum(-1) + 0.5, lambda v: -v[:, 0], carry
      )

    last, rows = jax.lax.scan(body, x, jnp.arange(12.0).reshape(3, 4) - 5, reverse=True)
    many = jax.lax.while_loop(
      lambda c: c[0] < jnp.clip(n, 0, 5), lambda c: (c[0] + 1, c[1] * 1.5), (0, last)
    )[1]
    branches = [lambda v: v, lambda v: v @ p, lambda v: v * jnp.array([1.0, 2.0, 3.0, 4.0])]
    return {"rows": rows, "chosen": jax.lax.switch(n, branches, many)}

  weights = RNG.standard_normal((4, 4)).astype(np.float32)
  exported = tfjs.save(fun, weights, tmp_path / "m", inputs={"x": "f32[b,4]", "n": "i32[]"})
  assert exported.report.ok
  model = json.loads((tmp_path / "m" / "model.json").read_text())
  assert model["userDefinedMetadata"]["asynchronous"]
  names = [spec["name"] for spec in model["weightsManifest"][0]["weights"]]
  assert len(set(names)) == len(names) and any(
    "/" in name and name.split("/")[0] in str(model["modelTopology"]["library"]) for name in names
  )


def test_two_dimensions_and_nested_names(tmp_path: Path) -> None:
  def attention(p: Any, batch: Mapping[str, jax.Array]) -> dict[str, Any]:
    scores = jnp.einsum("bqd,bkd->bqk", batch["x"] @ p, batch["x"])
    scores = jnp.where(batch["mask"][:, None, :] > 0, scores, -1e9)
    return {
      "out": {
        "values": jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), batch["x"]),
        "best": scores.argmax(-1),
      }
    }

  inputs = {"batch": {"x": "f32[b,s,4]", "mask": "i32[b,s]"}}
  exported = tfjs.save(
    attention,
    np.eye(4, dtype=np.float32),
    tmp_path / "m",
    inputs=inputs,
    polymorphic_constraints=["s <= 32"],
  )
  assert {row.output for row in exported.report.rows} == {"out_values", "out_best"}
  assert {key for row in exported.report.rows for key in row.sizes} == {"b", "s"}


def test_integers_as_jax_has_them(tmp_path: Path) -> None:
  def fun(x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    safe = jnp.where(y == 0, 3, y)
    return {
      "wrapped": x * y + x - (x << 3),
      "floor": x // safe,
      "modulo": x % safe,
      "truncated": jax.lax.div(x, y),
      "remainder": jax.lax.rem(x, y),
      "bits": (x & y) ^ (x | 12345),
      "shifts": (x >> 3)
      + jax.lax.shift_right_logical(x, jnp.full_like(x, 7))
      + jax.lax.shift_right_arithmetic(x, jnp.abs(y) % 32),
      "product": (x[:, None] * jnp.arange(6, dtype=jnp.int32).reshape(1, 6)).sum(0),
      "large": x // 7 + x % 1000,
    }

  exact(fun, tmp_path / "m", {"x": "i32[9]", "y": "i32[9]"}, samples=4)


def test_unsigned_and_narrow_integers(tmp_path: Path) -> None:
  def fun(x: jax.Array, y: jax.Array, small: jax.Array, signed: jax.Array) -> dict[str, jax.Array]:
    return {
      "order": jnp.where(x < y, x, y) + jnp.maximum(x, y) - jnp.uint32(5),
      "ratio": x // jnp.where(y == 0, 1, y),
      "rest": x % jnp.uint32(1000003),
      "floats": x.astype(jnp.float32) / 2.0**32,
      "sorted": jnp.sort(x),
      "small": small * small + jnp.uint8(200),
      "scaled": small.astype(jnp.float32) / 255,
      "signed": signed * jnp.int8(3) - jnp.int8(100),
      "back": (signed.astype(jnp.float32) * 1e7).astype(jnp.uint32),
    }

  exact(
    fun,
    tmp_path / "m",
    {"x": "u32[8]", "y": "u32[8]", "small": "u8[8]", "signed": "i8[8]"},
    samples=4,
    backends=["wasm"],
  )


def test_nan_infinity_and_zero(tmp_path: Path) -> None:
  def fun(x: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
    return {
      "maximum": jnp.maximum(x, y) + jax.nn.relu(x) + jnp.minimum(y, 2.0),
      "where": jnp.where(x > 0, jnp.log(x), 0),
      "sign": jnp.sign(x) * jnp.clip(y, -1, 1),
      "sorted": jnp.sort(x, axis=-1),
      "top": jax.lax.top_k(x, 3)[1],
      "argmax": jnp.argmax(x, -1),
      "whole": jnp.round(x).astype(jnp.int32),
      "truth": x.astype(bool),
      "rem": jax.lax.rem(x, y),
      "floor": jnp.floor(x / y),
      "all": jnp.isfinite(x).all(-1),
      "bits": jax.lax.bitcast_convert_type(jnp.where(jnp.isnan(x), 1.0, x), jnp.int32),
    }

  exact(fun, tmp_path / "m", {"x": "f32[8,5]", "y": "f32[8,5]"})


def test_special_functions_and_sums_over_rows(tmp_path: Path) -> None:
  def fun(x: jax.Array) -> dict[str, jax.Array]:
    special = [
      jax.lax.erf_inv(jnp.tanh(x)),
      jax.lax.erfc(3 * x),
      jnp.log1p(jnp.abs(x) * 1e-6) * 1e6,
      jax.lax.lgamma(jnp.abs(x) + 0.1),
    ]
    ids = jnp.array([0, 2, 2, 1])
    segments = [jax.ops.segment_sum(x, ids, 3), jnp.zeros((3, 5)).at[ids].set(x[0])]
    return {
      "special": jnp.stack(special),
      "segments": jnp.stack(segments),
      "sums": jnp.cumsum(x, 1),
      "empty": x[:, :0].sum(1),
    }

  exact(fun, tmp_path / "m", {"x": "f32[4,5]"})


def test_parameters_that_are_written_to(tmp_path: Path) -> None:
  """The cpu backend's kernel overwrites its operand, so that a second call would start from what
  the first one left."""

  def fun(p: Any, x: jax.Array, i: jax.Array) -> dict[str, jax.Array]:
    return {
      "set": p["table"].at[i].set(x),
      "table": p["table"] * 2,
      "added": p["table"].at[i].add(x),
      "mask": (x > 0).at[i].set(True),
    }

  params, inputs = (
    {"table": RNG.standard_normal((3, 4)).astype(np.float32)},
    {"x": "f32[3,4]", "i": "i32[3]"},
  )
  path = tfjs.save(fun, params, tmp_path / "m", inputs=inputs, samples=3).path
  for i in ([0, 2, 1], [1, -4, 3], [2, 7, 2**31 - 1]):
    given = {"x": RNG.standard_normal((3, 4)).astype(np.float32), "i": np.array(i, np.int32)}
    found = tfjs.run(path, given)
    for name, y in jax.jit(fun)(params, **given).items():
      np.testing.assert_array_equal(found[name], y, err_msg=f"{name}, {i}")


def test_random_numbers_are_jaxs_own(tmp_path: Path) -> None:
  def fun(key: jax.Array) -> dict[str, jax.Array]:
    return {"bits": jax.random.bits(key, (3,))}

  exported = exact(fun, tmp_path / "m", {"key": "u32[2]"}, backends=["wasm"], samples=1)
  metadata = json.loads((exported.path / "model.json").read_text())["userDefinedMetadata"]
  assert metadata["backends"] == ["wasm", "cpu"]  # webgl holds integers in float32


def test_convolution_and_pooling(tmp_path: Path) -> None:
  def fun(p: Any, x: jax.Array) -> jax.Array:
    x = jax.lax.conv_general_dilated(
      x, p, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.lax.reduce_window(
      jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
    )

  kernel = RNG.standard_normal((3, 3, 3, 5)).astype(np.float32)
  assert tfjs.save(
    fun,
    kernel,
    tmp_path / "m",
    inputs={"x": "f32[b,16,16,3]"},
    backends=["wasm"],
    sizes={"b": [1, 3]},
  ).report.ok


def test_means_over_symbolic_sizes(tmp_path: Path) -> None:
  """Their count is a product, which is checked without numbers of 64 bits, and without sums of no
  elements: wasm has random ones."""

  def fun(scale: Any, x: Any) -> Any:
    y = x[:, ::2] * scale
    return {"mean": y.mean(), "rows": y.reshape(-1, 3) / y.size}

  assert tfjs.save(
    fun,
    np.float32(2),
    tmp_path / "m",
    inputs={"x": "f32[b,t,3]"},
    backends=["wasm"],
    sizes={"b": [1, 3], "t": [5, 8]},
  ).report.ok


def test_all_that_is_missing_is_named_with_its_lines(tmp_path: Path) -> None:
  def fun(_: Any, x: jax.Array) -> Any:
    y = jax2tf.call_tf(tf.math.special.dawsn)(x)
    return jax2tf.call_tf(tf.math.special.fresnel_cos)(y)

  first = fun.__code__.co_firstlineno
  with pytest.raises(tfjs.ExportError) as refusal:
    tfjs.save(fun, {}, tmp_path / "m", inputs={"x": "f32[3,3]"})
  text = str(refusal.value)
  assert (
    f"Dawsn (of 'call_tf') at {__file__}:{first + 1}" in text
    and f"test_tfjs.py:{first + 2}" in text
    and "FresnelCos" in text
  ), text
  assert refusal.value.target == "tfjs" and not list(tmp_path.iterdir())


def test_wide_inputs_are_refused(tmp_path: Path) -> None:
  with jax.enable_x64(True), pytest.raises(tfjs.ExportError, match=r"input x: f64\[3\]"):
    tfjs.save(lambda _, x: abs(x), {}, tmp_path / "m", inputs={"x": "f64[3]"})
  assert not list(tmp_path.iterdir())


def test_a_wrong_answer_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  write = files._weight

  def wrong(name: str, value: np.ndarray, quantization: str | None) -> tuple[dict[str, Any], bytes]:
    return write(name, value + np.float32(0.01) if value.shape == (6, 4) else value, quantization)

  monkeypatch.setattr(files, "_weight", wrong)
  with pytest.raises(
    tfjs.ExportError,
    match=r"TF.js .*wasm.* computes different outputs than the reference, so nothing was written",
  ):
    tfjs.save(dense, params(), tmp_path / "m", inputs={"x": "f32[b,6]"})
  assert not list(tmp_path.iterdir())


def test_a_model_that_tfjs_cannot_load_leaves_nothing(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(files, "SHARD", -1)
  with pytest.raises(tfjs.ExportError, match="cannot load the model"):
    tfjs.save(dense, params(), tmp_path / "m", inputs={"x": "f32[b,6]"})
  assert not list(tmp_path.iterdir())


def test_a_saved_model_with_several_signatures(tmp_path: Path) -> None:
  model = saved_model.Model(params())
  model.add(dense, inputs={"x": "f32[b,6]"}, outputs=["y"])
  model.add(
    lambda p, x: dense(p, x).sum(-1), inputs={"x": "f32[b,6]"}, outputs=["y"], signatures="total"
  )
  directory = model.save(tmp_path / "saved")
  with pytest.raises(
    ValueError, match=r"signatures: the model has serving_default, total, and .* has one; choose"
  ):
    tfjs.save_model(directory, tmp_path / "m")
  exported = tfjs.save_model(
    directory,
    tmp_path / "m",
    signatures=["total"],
    reference=lambda p, x: dense(p, x).sum(-1),
    params=model.values(),
  )
  assert {row.signature for row in exported.report.rows} == {"total (wasm)", "total (cpu)"}


def test_an_existing_folder_is_replaced_only_on_demand(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  options: dict[str, Any] = {"inputs": {"x": "f32[b,6]"}, "backends": ["wasm"], "sizes": {"b": 2}}
  tfjs.save(dense, params(), tmp_path / "m", **options)
  with pytest.raises(FileExistsError, match="overwrite=True"):
    tfjs.save(dense, params(), tmp_path / "m", **options)
  (tmp_path / "m" / "old").touch()
  there: list[bool] = []  # Ctrl-C at any moment leaves the one or the other
  replace_folder = publish.replace_folder

  def watched(written: Path, target: Path) -> None:
    replace_folder(written, target)
    there.append((written / "old").exists() and (target / "model.json").exists())
    raise KeyboardInterrupt

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(publish, "replace_folder", watched)
    tfjs.save(dense, params(), tmp_path / "m", overwrite=True, **options)
  assert there == [True]
  assert not (tmp_path / "m" / "old").exists() and [path.name for path in tmp_path.iterdir()] == [
    "m"
  ]


def test_what_is_no_model_is_never_replaced(tmp_path: Path) -> None:
  (tmp_path / "photos").mkdir()
  (tmp_path / "photos" / "one.jpg").touch()
  for path in ("photos", "photos/one.jpg"):
    with pytest.raises(
      FileExistsError,
      match=r"exists, and it is not a TF.js model \(model.json\), so it is not replaced",
    ):
      tfjs.save(dense, params(), tmp_path / path, inputs={"x": "f32[b,6]"}, overwrite=True)
  assert (tmp_path / "photos" / "one.jpg").exists()


@pytest.mark.parametrize(
  ("option", "message"),
  [
    ({"quantization": "int4"}, "quantization = 'int4'"),
    ({"backends": ["webgl"]}, "choose from wasm, cpu"),
  ],
)
def test_options_are_checked_before_the_work(
  tmp_path: Path, option: dict[str, Any], message: str
) -> None:
  with pytest.raises(ValueError, match=message):
    tfjs.save(dense, params(), tmp_path / "m", inputs={"x": "f32[b,6]"}, **option)


def test_without_node_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setenv("PATH", str(tmp_path))
  # beside which the extra has its own
  monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
  with pytest.raises(
    ImportError, match=r"^exporting to TF.js needs npm of Node.js: pip install 'jax2tf\[tfjs\]'$"
  ):
    tfjs.save(dense, params(), tmp_path / "m", inputs={"x": "f32[b,6]"})


def test_tfjs_knows_every_op_that_is_let_through() -> None:
  lists = (
    tfjs.packages() / "node_modules/@tensorflow/tfjs-converter/dist/operations/op_list"
  ).glob("*.js")
  known = {
    name
    for file in lists
    for name in re.findall(r"'tfOpName': '(\w+)'", file.read_text(encoding="utf-8"))
  }
  assert known >= SUPPORTED
  assert (
    json.loads((tfjs.packages() / "package.json").read_text())["dependencies"]["@tensorflow/tfjs"]
    == runtime.VERSION
  )


def test_random_numbers_in_a_loop_over_a_symbolic_size(tmp_path: Path) -> None:
  def fun(x: jax.Array) -> jax.Array:
    step = lambda i, v: v + jax.random.uniform(jax.random.fold_in(jax.random.key(1), i), v.shape)  # noqa: E731
    return jax.lax.fori_loop(0, 2, step, x)

  exact(fun, tmp_path / "m", {"x": "f32[b,2]"}, sizes={"b": [1, 3]}, backends=["wasm"])


def test_the_words_of_an_assertion_are_not_blamed(tmp_path: Path) -> None:
  with pytest.raises(tfjs.ExportError) as error:
    tfjs.save(
      lambda _, x: jax2tf.call_tf(tf.math.special.dawsn)(x @ x.T),
      {},
      tmp_path / "m",
      inputs={"x": "f32[b,3]"},
    )
  assert {use.op for use in error.value.uses} == {"Dawsn"}
