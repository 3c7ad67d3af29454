"""Native modules in older TensorFlow releases.

For each release it writes a SavedModel of every function and installs the release in a new
environment without JAX. There it loads, runs and differentiates the SavedModels.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

import jax2tf
from jax2tf import native
from jax2tf.tools.lab import environments

_X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
_KERNEL = jnp.asarray(np.random.default_rng(1).standard_normal((3, 3, 1, 2)), jnp.float32)

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
  "sin, matmul": lambda x: jnp.sin(x) @ x.T,
  "scan": lambda x: lax.scan(lambda c, y: (jnp.sin(c) + y, c), x[0], x)[1],
  "sort": lambda x: jnp.cumsum(jnp.sort(x), 0) * x.shape[0],
  "top_k": lambda x: lax.top_k(x, 2)[0],
  "erf, gelu": lambda x: lax.erf(x) + jax.nn.gelu(x, approximate=False),
  "random.normal": lambda x: jax.random.normal(jax.random.key(0), x.shape) * x,
  "conv": lambda x: lax.conv_general_dilated(
    x[None, :, :, None], _KERNEL, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
  ),
}

# This program runs in the other environment and prints {name: results} for the SavedModels in a
# folder.
_READ = """
import json, pathlib, sys
import numpy as np, tensorflow as tf
folder, found = pathlib.Path(sys.argv[1]), {}
x = tf.constant(np.load(folder / "x.npy"))
for path in sorted(folder.iterdir()):
  if path.is_dir():
    with tf.GradientTape() as tape:
      tape.watch(x)
      y = (model := tf.saved_model.load(str(path))).f(x)
    found[path.name] = {"y": y.numpy().tolist(), "g": tape.gradient(y, x).numpy().tolist()}
print(json.dumps({"tensorflow": tf.__version__, "found": found}))
"""


def write(release: str, folder: pathlib.Path) -> dict[str, str]:
  """Saves every function for a release. Returns {name: reason} for the refused ones."""
  refused = {}
  np.save(folder / "x.npy", _X)
  for name, fun in FUNCTIONS.items():
    module = tf.Module()
    options: dict[str, Any] = {
      "polymorphic_shapes": ["b, c"],
      "polymorphic_constraints": ["c >= 2"],
    }
    converted = jax2tf.convert(fun, **options, native_serialization=True, stablehlo_version=release)
    module.f = tf.function(
      converted, autograph=False, input_signature=[tf.TensorSpec([None, None])]
    )
    with tf.GradientTape() as tape:  # while saving, TensorFlow hides errors of gradient functions
      try:
        tape.gradient(module.f(x := tf.Variable(_X)), x)
      except NotImplementedError as error:
        refused[name] = str(error)
        continue
    tf.saved_model.save(
      module,
      str(folder / name),
      options=tf.saved_model.SaveOptions(experimental_custom_gradients=True),
    )
  return refused


def read(release: str, folder: pathlib.Path) -> dict[str, Any]:
  """The results of a TensorFlow release for the SavedModels in a folder."""
  python = environments.installed(
    folder / "environment",
    [f"tensorflow-cpu=={release}.*"],
    environments.interpreters(sys.executable),
  )
  run = subprocess.run(
    [str(python), "-c", _READ, str(folder / "models")], capture_output=True, text=True, check=False
  )
  if run.returncode:
    raise RuntimeError(f"TensorFlow {release} does not read them: {run.stderr[-1500:]}")
  return json.loads(run.stdout.splitlines()[-1])


def compare(found: dict[str, Any]) -> dict[str, float]:
  """The largest difference of values and gradients from jax.jit."""
  errors = {}
  for name, result in found.items():
    fun = FUNCTIONS[name]
    expected = {"y": jax.jit(fun)(_X), "g": jax.jit(jax.grad(lambda x, fun=fun: fun(x).sum()))(_X)}
    errors[name] = max(
      float(np.abs(np.asarray(result[key]) - expected[key]).max()) for key in expected
    )
  return errors


def rows() -> list[str]:
  """The releases of TensorFlow."""
  return [f"2.{minor}" for minor in range(14, 22)]


def measured(names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
  """Writes and reads all modules: the differences from JAX, or what is refused."""
  for release in names:
    with tempfile.TemporaryDirectory() as place:
      folder = pathlib.Path(place)
      (folder / "models").mkdir()
      refused = write(release, folder / "models")
      answer = read(release, folder)
    errors = compare(answer["found"])
    cells = {
      name: f"{errors[name]:.1e}" if name in errors else f"refused: {_word(refused[name])}"
      for name in FUNCTIONS
    }
    stablehlo = native.stablehlo_version(release)
    yield release, {"release": answer["tensorflow"], "StableHLO": stablehlo, "functions": cells}


def _word(refusal: str) -> str:
  """The operation that the version lacks."""
  return refusal.split("function: ")[1].split("'")[1]
