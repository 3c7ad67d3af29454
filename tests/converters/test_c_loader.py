"""Saved models in a program without Python: tests/c/run_saved_model.c, which loads them as
TensorFlow Serving does.

Its answers are those of the same signature in Python to the last bit, and JAX's to 1e-5.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tensorflow as tf

from jax2tf.converters import saved_model
from jax2tf.examples import minilm, minilm_text, train_step
from tests.support import c_programs
from tests.support.c_programs import COMPILER

RNG = np.random.default_rng(0)

Arrays = dict[str, np.ndarray]


def compiled(program: Path, *options: str) -> Path:
  """The program; skips where it cannot be made."""
  if problem := c_programs.missing():
    pytest.skip(reason=problem)
  warnings = ["-Wall", "-Wextra", "-Werror"]
  return c_programs.compiled(c_programs.RUN_SAVED_MODEL, program, "-O1", *options, *warnings)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
  return compiled(tmp_path_factory.mktemp("c") / "run_saved_model")


def execute(
  program: Path, *arguments: object, **environment: str
) -> subprocess.CompletedProcess[str]:
  env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
  return subprocess.run(
    [program, *map(str, arguments)],
    env=env,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )


def folders(tmp_path: Path, calls: Sequence[Arrays]) -> list[Path]:
  """For each call a folder with its inputs, and one for its outputs."""
  pairs = [(tmp_path / f"inputs_{i}", tmp_path / f"outputs_{i}") for i in range(len(calls))]
  for (inputs, outputs), arrays in zip(pairs, calls, strict=True):
    inputs.mkdir()
    outputs.mkdir()
    for name, array in arrays.items():
      np.save(inputs / f"{name}.npy", array)
  return [folder for pair in pairs for folder in pair]


def answers(
  program: Path,
  directory: Path,
  signature: str,
  calls: Sequence[Arrays],
  tmp_path: Path,
  **environment: str,
) -> list[Arrays]:
  """What the program writes for each call, all in one session."""
  places = folders(tmp_path, calls)
  run = execute(program, directory, signature, *places, **environment)
  assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
  return [{file.stem: np.load(file) for file in outputs.iterdir()} for outputs in places[1::2]]


def answers_in_python(directory: Path, signature: str, calls: Sequence[Arrays]) -> list[Arrays]:
  loaded = tf.saved_model.load(str(directory))
  function = loaded.signatures[signature]
  results = [
    function(**{name: tf.constant(array) for name, array in arrays.items()}) for arrays in calls
  ]
  return [{name: tensor.numpy() for name, tensor in result.items()} for result in results]


def assert_same(found: Sequence[Arrays], expected: Sequence[Arrays]) -> None:
  """The same names, dtypes, shapes and bytes."""

  def plain(arrays: Arrays) -> dict[str, tuple[np.dtype, tuple[int, ...], bytes]]:
    return {name: (array.dtype, array.shape, array.tobytes()) for name, array in arrays.items()}

  for f, e in zip(found, expected, strict=True):
    assert plain(f) == plain(e), {
      name: np.abs(f[name].astype(float) - e[name].astype(float)).max()
      for name in f.keys() & e.keys()
    }


def normal(*shape: int) -> np.ndarray:
  return RNG.standard_normal(shape).astype(np.float32)


def positive_definite(*batch: int, n: int) -> np.ndarray:
  x = normal(*batch, n, n)
  return x @ np.swapaxes(x, -1, -2) + n * np.eye(n, dtype=np.float32)


def mlp(params: Any, x: jax.Array) -> jax.Array:
  for w, b in params:
    x = jax.nn.gelu(x @ w + b)
  return jax.nn.softmax(x)


def control_flow(scale: Any, xs: jax.Array) -> dict[str, jax.Array]:
  """xs f32[t,n]: a scan over t, a branch that depends on the data, and as many rounds as the data
  need."""
  carry, states = jax.lax.scan(
    lambda carry, x: (jnp.tanh(carry + scale * x),) * 2, jnp.zeros(xs.shape[1]), xs
  )
  chosen = jax.lax.cond(carry.sum() > 0, jnp.sin, lambda x: x - 1, carry)
  rounds, small = jax.lax.while_loop(
    lambda c: jnp.abs(c[1]).max() > 1e-2, lambda c: (c[0] + 1, c[1] / 2), (0, chosen)
  )
  return {"states": states, "rounds": rounds, "small": small}


def indexing(table: Any, x: jax.Array, rows: jax.Array) -> dict[str, jax.Array]:
  order = jnp.argsort(x, axis=1)
  return {
    "order": order,
    "sorted": jnp.take_along_axis(x, order, axis=1),
    "rows": table[rows],
    "sums": jnp.cumsum(x, axis=1),
  }


def random_numbers(shift: Any, seed: jax.Array) -> dict[str, jax.Array]:
  key, other = jax.random.split(jax.random.key(seed))
  return {"normal": shift + jax.random.normal(key, (64,)), "bits": jax.random.bits(other, (8,))}


def division(divisor: Any, x: jax.Array, flags: jax.Array) -> tuple[jax.Array, jax.Array]:
  return jnp.where(flags, x // divisor, -x), (x % divisor).astype(jnp.uint8)


def linear_algebra(noise: Any, a: jax.Array, y: jax.Array) -> dict[str, jax.Array]:
  """The posterior mean of a Gaussian process, and the log determinant."""
  factor = jnp.linalg.cholesky(a + noise * jnp.eye(a.shape[-1]))
  half = jax.scipy.linalg.solve_triangular(factor, y, lower=True)
  return {
    "mean": jax.scipy.linalg.solve_triangular(factor, half, lower=True, trans=1),
    "logdet": 2 * jnp.log(jnp.linalg.diagonal(factor)).sum(-1),
  }


@dataclass(frozen=True)
class Model:
  """A model to save, and the calls to make in one session.

  Attributes:
    fun, params, inputs, outputs: as `saved_model.save` takes them; `params` is called for its
      value.
    calls: the inputs of each call.
    options: more arguments of `saved_model.save`.
  """

  fun: Callable[..., Any]
  params: Callable[[], Any]
  inputs: Mapping[str, str]
  calls: Sequence[Arrays]
  outputs: Sequence[str] | None = None
  options: Mapping[str, Any] = field(default_factory=dict)


MODELS = {
  "mlp": Model(
    mlp,
    lambda: [(normal(784, 64) / 28, normal(64)), (normal(64, 10), normal(10))],
    {"x": "f32[b,784]"},
    [{"x": normal(b, 784)} for b in (1, 7)],
    ["probabilities"],
  ),
  "control_flow": Model(
    control_flow,
    lambda: np.float32(0.5),
    {"xs": "f32[t,3]"},
    [{"xs": sign * abs(normal(t, 3))} for t, sign in ((4, 1), (9, -1))],
  ),
  "indexing": Model(
    indexing,
    lambda: normal(20, 4),
    {"x": "f32[b,n]", "rows": "i32[b]"},
    [{"x": normal(b, n), "rows": RNG.integers(0, 20, b, np.int32)} for b, n in ((2, 5), (3, 40))],
  ),
  "random": Model(
    random_numbers,
    lambda: np.float32(3),
    {"seed": "i32[]"},
    [{"seed": np.array(seed, np.int32)} for seed in (0, 42)],
  ),
  "two_outputs": Model(
    division,
    lambda: np.int32(7),
    {"x": "i32[n,2]", "flags": "bool[n,1]"},
    [
      {"x": RNG.integers(-100, 100, (n, 2), np.int32), "flags": RNG.random((n, 1)) < 0.5}
      for n in (3, 1)
    ],
    ["quotient", "remainder"],
  ),
  "linear_algebra": Model(
    linear_algebra,
    lambda: np.float32(0.1),
    {"a": "f32[b,6,6]", "y": "f32[b,6,2]"},
    [{"a": positive_definite(b, n=6), "y": normal(b, 6, 2)} for b in (1, 4)],
  ),
  "minilm": Model(
    minilm.encode,
    minilm.parameters,
    {"input_ids": "i32[b,s]", "attention_mask": "i32[b,s]"},
    [
      dict(
        zip(
          ("input_ids", "attention_mask"),
          minilm_text.tokenize(minilm_text.BATCHES[name]),
          strict=True,
        )
      )
      for name in ("one", "three")
    ],
    ["embedding"],
    {"polymorphic_constraints": [f"s <= {minilm_text.MAX_TOKENS}"]},
  ),
}


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_pythons_and_jaxs(name: str, program: Path, tmp_path: Path) -> None:
  model, params = MODELS[name], MODELS[name].params()
  directory = saved_model.save(
    model.fun,
    params,
    tmp_path / "model",
    inputs=model.inputs,
    outputs=model.outputs,
    **model.options,
  )
  found = answers(program, directory, "serving_default", model.calls, tmp_path)
  in_python = answers_in_python(directory, "serving_default", model.calls)
  # without oneDNN, the partial sums of a large product depend on the threads of its session
  if name == "minilm":
    for f, e in zip(found, in_python, strict=True):
      np.testing.assert_allclose(f["embedding"], e["embedding"], rtol=0, atol=1e-6)
  else:
    assert_same(found, in_python)

  for arrays, results in zip(model.calls, found, strict=True):
    expected = jax.jit(model.fun)(params, *arrays.values())
    leaves = jax.tree.leaves(expected)
    names = model.outputs or sorted(expected)
    assert set(results) == set(names)
    for output, leaf in zip(names, leaves, strict=True):
      assert results[output].dtype == leaf.dtype
      np.testing.assert_allclose(results[output], leaf, rtol=1e-5, atol=1e-5, err_msg=output)


def test_variables_live_as_long_as_the_session(program: Path, tmp_path: Path) -> None:
  """The step of training of examples/train_step.py: each call reads what the one before it
  assigned."""
  rng, optimiser = np.random.default_rng(1), optax.adam(3e-3)
  params, data = train_step.init(rng), train_step.batches(rng)
  step, opt_state = train_step.make_step(train_step.loss, optimiser), optimiser.init(params)
  calls = [{name: np.ascontiguousarray(x[0]) for name, x in data.items()}] * 2
  train_step.save(train_step.Trainer(step, params, opt_state, calls[0]), tmp_path / "model")

  found = answers(program, tmp_path / "model", "train_step", calls, tmp_path)
  assert_same(found, answers_in_python(tmp_path / "model", "train_step", calls))
  _, _, losses = train_step.train(
    step, params, opt_state, {name: np.stack([x, x]) for name, x in calls[0].items()}, "JAX"
  )
  assert losses[1] < losses[0] - 0.01
  np.testing.assert_allclose([results["loss"] for results in found], losses, rtol=1e-5)


def test_every_dtype_comes_and_goes(program: Path, tmp_path: Path) -> None:
  dtypes = [np.dtype(code).name for code in "?bhilBHILefdFD"]
  module = tf.Module()
  specs = {dtype: tf.TensorSpec(None, tf.as_dtype(dtype), dtype) for dtype in dtypes}
  module.same = tf.function(
    lambda **tensors: {f"{name}_out": tf.identity(x) for name, x in tensors.items()}
  ).get_concrete_function(**specs)
  tf.saved_model.save(module, str(tmp_path / "model"), signatures={"same": module.same})
  calls = [
    {dtype: (100 * normal(*shape)).astype(dtype) for dtype in dtypes}
    for shape in ((), (2, 0, 3), (5,), (2, 1, 1, 3))
  ]
  found = answers(program, tmp_path / "model", "same", calls, tmp_path)
  assert_same(found, [{f"{name}_out": array for name, array in arrays.items()} for arrays in calls])


@pytest.fixture(scope="module")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
  path = tmp_path_factory.mktemp("affine")
  return saved_model.save(
    lambda w, x: jnp.sin(x @ w), normal(4, 2), path, inputs={"x": "f32[b,4]"}, outputs=["y"]
  )


@pytest.mark.parametrize(
  ("change", "line"),
  [
    (
      lambda a: a | {"model": a["inputs"]},
      "cannot load {inputs}: Could not find SavedModel .pb or .pbtxt",
    ),
    (
      lambda a: a | {"signature": "predict"},
      "the model has no signature 'predict'; name one of its own: serving_default",
    ),
    (
      lambda a: a | {"inputs": "nowhere"},
      "cannot open nowhere/x.npy: No such file or directory; a call needs both of its folders",
    ),
    (
      lambda a: a | {"outputs": "nowhere"},
      "cannot open nowhere/y.npy: No such file or directory; a call needs both of its folders",
    ),
    (
      lambda a: {"model": a["model"]},
      "1 arguments; write run_saved_model MODEL SIGNATURE INPUTS OUTPUTS",
    ),
  ],
  ids=["model", "signature", "inputs", "outputs", "usage"],
)
def test_a_wrong_argument_is_one_line(
  change: Callable[[dict[str, Any]], dict[str, Any]],
  line: str,
  affine: Path,
  program: Path,
  tmp_path: Path,
) -> None:
  inputs, outputs = folders(tmp_path, [{"x": normal(3, 4)}])
  arguments = change(
    {"model": affine, "signature": "serving_default", "inputs": inputs, "outputs": outputs}
  )
  assert_one_line(execute(program, *arguments.values()), line.format(inputs=inputs))


@pytest.mark.parametrize(
  ("edit", "line"),
  [
    (lambda data: data[:-4], "{file} ends after 44 of its 48 bytes of data; write it anew"),
    (lambda data: data + b"\0", "{file} goes on after its 48 bytes of data; write it anew"),
    (lambda data: data[:20], "{file} has no whole header; write it anew"),
    (lambda data: b"x = 1", "{file} is no .npy file of version 1.0; write it with numpy.save"),
    (
      lambda data: data.replace(b"<f4", b"<i4"),
      "{file} has the dtype <i4 and the signature takes <f4",
    ),
    (
      lambda data: data.replace(b"<f4", b"<M8"),
      "{file} has the dtype <M8, which is none of TensorFlow's numbers",
    ),
    (
      lambda data: data.replace(b"False", b"True "),
      "{file} has the header {{'descr': '<f4', 'fortran_order': True , ",
    ),
    (
      lambda data: data.replace(b"(3, 4)", b"(-3,4)"),
      "{file} has the header {{'descr': '<f4', 'fortran_order': False, 'shape': (-3,4)",
    ),
    (
      lambda data: data.replace(b"(3, 4)", b"(4, 3)"),
      "cannot run the signature on {file.parent}: ",
    ),
  ],
  ids=[
    "truncated",
    "too_long",
    "header",
    "format",
    "dtype",
    "no_number",
    "order",
    "shape",
    "other_shape",
  ],
)
def test_a_wrong_input_is_one_line(
  edit: Callable[[bytes], bytes], line: str, affine: Path, program: Path, tmp_path: Path
) -> None:
  inputs, outputs = folders(tmp_path, [{"x": normal(3, 4)}])
  file = inputs / "x.npy"
  file.write_bytes(edit(file.read_bytes()))
  assert_one_line(
    execute(program, affine, "serving_default", inputs, outputs), line.format(file=file)
  )
  assert list(outputs.iterdir()) == []


def assert_one_line(run: subprocess.CompletedProcess[str], line: str) -> None:
  assert (run.returncode, run.stdout) == (1, "")
  assert run.stderr.startswith(f"run_saved_model: {line}")
  assert run.stderr.count("\n") == 1
  assert run.stderr.endswith("\n")


def test_frees_all_that_it_allocates(affine: Path, tmp_path: Path) -> None:
  if (
    COMPILER is not None
    and not Path(
      subprocess.check_output([COMPILER, "-print-file-name=libasan.so"], text=True).strip()
    ).is_absolute()
  ):
    pytest.skip(reason=f"needs AddressSanitizer, and {COMPILER} has no libasan.so")
  program = compiled(
    tmp_path / "run_saved_model", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
  )
  calls = [{"x": normal(b, 4)} for b in (1, 3)]
  found = answers(
    program, affine, "serving_default", calls, tmp_path, ASAN_OPTIONS="detect_leaks=1"
  )
  assert [results["y"].shape for results in found] == [(1, 2), (3, 2)]
