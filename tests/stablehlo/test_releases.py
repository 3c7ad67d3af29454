"""Every artifact that an older JAX wrote is read, also those that JAX itself refuses as expired."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf import stablehlo
from jax2tf.converters import onnx, tflite
from tests.support import stored_artifacts as stored

_CASES = [(version, case) for version in stored.VERSIONS for case in stored.cases(version)]


@pytest.mark.parametrize(("version", "case"), _CASES)
def test_release(version, case):
  if not stored.is_readable(version):
    pytest.skip("this jaxlib cannot read StableHLO of a newer one")
  found = stored.artifact(version, case)
  function = stablehlo.load(found.blob)
  args, kwargs = jax.tree.unflatten(function.in_tree, found.arguments)
  results = jax.tree.leaves(function(*args, **kwargs))
  _same(results, found.results)
  if found.gradients:
    gradients = jax.grad(_total(function), argnums=tuple(range(len(args))))(*args)
    _same(jax.tree.leaves(gradients), found.gradients)


def _total(function):
  def total(*args):
    leaves = jax.tree.leaves(function(*args))
    return sum(jnp.sum(jnp.sin(x)) for x in leaves if jnp.issubdtype(x.dtype, jnp.floating))

  return total


def _same(results, expected):
  for result, wanted in zip(map(_bare, results), map(_bare, expected), strict=True):
    assert result.dtype == wanted.dtype
    if wanted.dtype.kind in "fcV":
      wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
      tolerance = 2e-5 if wanted.dtype.itemsize > 2 else 2**-7  # XLA has changed where it rounds
      np.testing.assert_allclose(result.astype(wide), wanted.astype(wide), tolerance, tolerance)
    else:
      np.testing.assert_array_equal(result, wanted)


def _bare(value):
  is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
  return np.asarray(jax.random.key_data(value) if is_key else value)


def test_modules_of_pytorch():
  for module, arrays in stored.torch_modules().values():
    function = stablehlo.load(module)
    weights = [arrays[f"w{index}"] for index in range(sum(name[0] == "w" for name in arrays))]
    operands = [*weights, arrays["x"]]
    result = function(*(operands[index] for index in arrays["kept"]))
    np.testing.assert_allclose(jax.tree.leaves(result)[0], arrays["y"], 1e-4, 1e-5)


@pytest.mark.one_python
@pytest.mark.parametrize("target", [onnx, tflite])
def test_a_module_of_pytorch_is_exported(target, tmp_path):
  """Its weights are constants of the file."""
  module, arrays = stored.torch_modules()["resnet"]
  function = stablehlo.load(module)
  weights = [arrays[f"w{index}"] for index in range(sum(name[0] == "w" for name in arrays))]

  def predict(weights, x):
    operands = [*weights, x]
    return function(*(operands[index] for index in arrays["kept"]))

  x = arrays["x"]
  file = tmp_path / "model"
  exported = target.save(predict, weights, file, inputs={"x": jax.typeof(x)}, outputs=["y"])
  assert exported.report.ok
  np.testing.assert_allclose(target.run(file, {"x": x})["y"], arrays["y"], 1e-4, 1e-5)
