"""Complex numbers in files of ONNX, LiteRT and TF.js: inside, as inputs, outputs and parameters.
Each export compares its file with JAX at several sizes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from jax2tf.converters import onnx, saved_model, tfjs, tflite
from jax2tf.converters.export.ends import in_parts, of_parts
from jax2tf.converters.export.source import ExportError
from tests.support import audio
from tests.support.onnx_files import opened

# Sums of products, such as a transform by matrices, spread NaN and infinities to other elements
# than JAX's library does.
pytestmark = pytest.mark.filterwarnings("ignore:.*computes different outputs than JAX for NaN")
RNG = np.random.default_rng(0)
TARGETS: Mapping[str, Any] = {"onnx": onnx, "tflite": tflite, "tfjs": tfjs}
# the comparison of a test takes one backend and few sizes
OPTIONS: Mapping[str, Mapping[str, Any]] = {
  "onnx": {"sizes": {"b": [1, 3]}, "samples": 1},
  "tflite": {"samples": 1},
  "tfjs": {"sizes": {"b": 2}, "samples": 1, "backends": ["wasm"]},
}


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
  if request.param == "tfjs":
    request.getfixturevalue("tfjs_packages")
  return request.param


def saved(
  target: str,
  path: Path,
  fun: Callable[..., Any],
  inputs: Mapping[str, str],
  params: Any = None,
  **options: Any,
) -> Any:
  """What the export returns. LiteRT has fixed sizes here, as in most applications."""
  if target == "tflite":
    inputs = {name: spec.replace("[b", "[3") for name, spec in inputs.items()}
  options = {**OPTIONS[target], **options}
  return TARGETS[target].save(fun, params, path, inputs=inputs, outputs=["out"], **options)


def numbers(*shape: int) -> np.ndarray:
  parts = RNG.standard_normal((2, *shape))
  return (parts[0] + 1j * parts[1]).astype(np.complex64)


@pytest.mark.parametrize("name", audio.FRONTENDS)
def test_audio_frontends(tmp_path: Path, target: str, name: str) -> None:
  frontend = audio.FRONTENDS[name]
  made = saved(target, tmp_path / "m", lambda _, x: frontend(x), {"x": "f32[b,2400]"})
  assert made.report.ok


DECAY = (0.95 * np.exp(1j * np.linspace(0, 3, 16))).astype(np.complex64)


def recurrent_unit(p: Any, x: jax.Array) -> jax.Array:
  """A linear recurrent unit: x f32[b,t,8] -> f32[b,t,8]."""
  driven = x @ p["in"]

  def combine(a: Any, b: Any) -> Any:
    return a[0] * b[0], b[0] * a[1] + b[1]

  decay = jnp.broadcast_to(p["decay"], driven.shape)
  _, states = lax.associative_scan(combine, (decay, driven), axis=1)
  return (states @ p["out"]).real


def state_space(p: Any, x: jax.Array) -> jax.Array:
  """A diagonal state space layer as a convolution by transforms: x f32[b,t] -> f32[b,t]."""
  size = x.shape[-1]
  powers = jnp.exp(jnp.log(p["decay"])[:, None] * jnp.arange(size))
  kernel = 2 * (p["out"][:, 0] @ powers).real
  product = jnp.fft.rfft(x, 2 * size) * jnp.fft.rfft(kernel, 2 * size)
  return jnp.fft.irfft(product, 2 * size)[:, :size]


def scanned_state_space(p: Any, x: jax.Array) -> jax.Array:
  """The same in steps."""

  def step(state: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    state = p["decay"] * state + u[:, None]
    return state, 2 * (state @ p["out"][:, 0]).real

  start = jnp.zeros((x.shape[0], 16), jnp.complex64)
  return lax.scan(step, start, x.T)[1].T


def rotary(p: Any, x: jax.Array) -> jax.Array:
  """Rotary embedding by complex numbers: x f32[b,t,16] -> f32[b,t,16]."""
  angles = np.outer(np.arange(x.shape[1]), 100.0 ** -np.linspace(0, 1, 8)).astype(np.float32)
  halves = x.reshape(*x.shape[:-1], -1, 2)
  turned = lax.complex(halves[..., 0], halves[..., 1]) * jnp.exp(1j * angles)
  return jnp.stack([turned.real, turned.imag], -1).reshape(x.shape)


def spin_chain(_: Any, x: jax.Array) -> jax.Array:
  """Two spins in a field: x f32[b,3] -> probabilities after a time, and Schmidt's coefficients."""
  pauli = np.array([[[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]]], np.complex64)
  field = jnp.einsum("bk,kij->bij", x, np.stack([np.kron(p, np.eye(2)) for p in pauli]))
  coupling = sum(np.kron(p, p.T) for p in pauli)
  energies, states = jnp.linalg.eigh(field + coupling)
  phases = jnp.exp(-1j * energies) * states[:, 0].conj()
  evolved = jnp.einsum("bij,bj->bi", states, phases)
  return jnp.concatenate([abs(evolved) ** 2, jnp.linalg.svdvals(evolved.reshape(-1, 2, 2))], -1)


_MODELS = {
  "recurrent unit": (recurrent_unit, "f32[b,24,8]"),
  "state space": (state_space, "f32[b,48]"),
  "scanned state space": (scanned_state_space, "f32[b,24]"),
  "rotary": (rotary, "f32[b,6,16]"),
  "spin chain": (spin_chain, "f32[b,3]"),
}


@pytest.mark.parametrize("name", _MODELS)
def test_models(tmp_path: Path, target: str, name: str) -> None:
  fun, spec = _MODELS[name]
  params = {"in": numbers(8, 16) * 0.1, "decay": DECAY, "out": numbers(16, 8) * 0.1}
  assert saved(target, tmp_path / "m", fun, {"x": spec}, params).report.ok


def test_complex_inputs_and_outputs(tmp_path: Path, target: str) -> None:
  """In the file they have a last axis of two parts; `run` takes and gives complex arrays."""
  path = tmp_path / "m"
  made = saved(target, path, lambda w, x: jnp.sin(x) @ w, {"x": "c64[b,4]"}, numbers(4, 2))
  assert made.report.ok
  x = numbers(3, 4)
  (out,) = TARGETS[target].run(path, {"x": x}).values()
  assert out.dtype == np.complex64 and out.shape == (3, 2)
  (from_parts,) = TARGETS[target].run(path, {"x": in_parts(x)}).values()
  np.testing.assert_array_equal(out, from_parts)


def test_what_a_file_says_of_them(tmp_path: Path) -> None:
  def fun(_: Any, x: jax.Array, n: jax.Array) -> Any:
    return {"half": x[:, ::2] * n, "size": jnp.abs(x)}

  inputs = {"x": "c64[b,4]", "n": "f32[]"}
  onnx.save(fun, None, tmp_path / "m.onnx", inputs=inputs, samples=1, sizes={"b": 2})
  session = opened(tmp_path / "m.onnx")
  assert session.get_modelmeta().custom_metadata_map["jax2tf.complex"] == "x half"
  assert {y.name: (y.type, y.shape) for y in (*session.get_inputs(), *session.get_outputs())} == {
    "x": ("tensor(float)", ["b", 4, 2]),
    "n": ("tensor(float)", []),
    "half": ("tensor(float)", ["b", 2, 2]),
    "size": ("tensor(float)", ["b", 4]),
  }
  tflite.save(fun, None, tmp_path / "m.tflite", inputs=inputs, samples=1, sizes={"b": 2})
  assert tflite.flatbuffer.complex_names(tmp_path / "m.tflite") == {
    "serving_default": ["x", "half"]
  }


@pytest.mark.usefixtures("tfjs_packages")
def test_what_a_folder_of_tfjs_says_of_them(tmp_path: Path) -> None:
  saved("tfjs", tmp_path / "m", lambda _, x: 1j * x, {"x": "f32[b,4]"})
  metadata = json.loads((tmp_path / "m" / "model.json").read_text())["userDefinedMetadata"]
  assert metadata["outputs"] == {"out": "c64[b,4]"}


def test_parameters_in_a_second_file(tmp_path: Path) -> None:
  """Each complex parameter is two tensors."""
  w = numbers(4, 3)
  made = saved(
    "onnx",
    tmp_path / "m.onnx",
    lambda p, x: x @ p["w"],
    {"x": "f32[b,4]"},
    {"w": w},
    external_data_threshold=0,
  )
  proto = onnx.runtime.extra("onnx").load_model(made.path, load_external_data=False)
  stored = {t.name for t in proto.graph.initializer if t.external_data}
  assert stored == {"w.real", "w.imag"}


def test_a_saved_model_with_tensorflow_as_reference(tmp_path: Path) -> None:
  directory = saved_model.save(
    lambda _, x: jnp.fft.fft(x)[:, :3], None, tmp_path, inputs={"x": "c64[b,12]"}, outputs=["y"]
  )
  made = onnx.save_model(directory, tmp_path / "m.onnx", sizes={"b": 2})
  assert made.report.ok


def test_tensorflows_spectrogram(tmp_path: Path) -> None:
  """By call_tf, in all its parts."""

  def fun(_: Any, x: jax.Array) -> jax.Array:
    return jnp.log(jnp.abs(jax2tf.call_tf(lambda y: tf.signal.stft(y, 100, 50))(x)) + 1e-3)

  inputs = {"x": "f32[2,400]"}
  assert onnx.save(fun, None, tmp_path / "m.onnx", inputs=inputs, outputs=["y"]).report.ok


def test_double_precision(tmp_path: Path) -> None:
  with jax.enable_x64(True):
    made = onnx.save(
      lambda _, x: jnp.fft.ifft(jnp.exp(x)),
      None,
      tmp_path / "m.onnx",
      inputs={"x": "c128[b,20]"},
      outputs=["y"],
      sizes={"b": 2},
    )
    assert made.report.ok
    out = onnx.run(made.path, {"x": np.zeros((1, 20), np.complex128)})["y"]
  assert out.dtype == np.complex128


def test_an_op_without_a_form_is_refused_with_its_line(tmp_path: Path, target: str) -> None:
  def fun(_: Any, x: jax.Array) -> Any:
    return jnp.linalg.eigvals(x)

  with pytest.raises(ExportError, match=r"Eig \(of 'eig'\) at .*test_complex_exports.py:\d+"):
    saved(target, tmp_path / "m", fun, {"x": "c64[3,3]"})
  assert not list(tmp_path.iterdir())


def test_quantised_files_take_real_numbers(tmp_path: Path) -> None:
  with pytest.raises(ExportError, match=r"cannot take complex 'x'.*take and return its parts"):
    saved(
      "tflite", tmp_path / "m", lambda _, x: jnp.abs(x), {"x": "c64[b]"}, quantization="float16"
    )


def test_scripts_take_parts(tmp_path: Path) -> None:
  """A script that calls TensorFlow's converter itself gets f32[...,2] too."""
  function = tf.function(
    jax2tf.convert(lambda x: x * 2j),
    autograph=False,
    input_signature=[tf.TensorSpec([3], tf.complex64, "x")],
  )
  model = tflite.converter([function.get_concrete_function()], tf.Module()).convert()
  (tmp_path / "m.tflite").write_bytes(model)
  x = numbers(3)
  (out,) = tflite.run(tmp_path / "m.tflite", {"x": x}).values()
  np.testing.assert_allclose(of_parts(out), x * 2j, rtol=1e-6)
