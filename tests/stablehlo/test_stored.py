"""The stored artifacts can be read, and those within JAX's window compute what they did."""

import jax
import numpy as np
import pytest

from tests.support import stored_artifacts as stored
from tests.support.archives import npz


@pytest.mark.parametrize("version", stored.VERSIONS)
def test_each_release_has_its_cases(version):
  assert len(stored.cases(version)) >= 14
  for case in stored.cases(version):
    found = stored.artifact(version, case)
    assert found.blob and found.results
    assert len(found.about["in_avals"]) == len(found.arguments)
    assert bool(found.gradients) == bool(found.about["vjp_order"])


def test_jax_computes_the_stored_results():
  found = stored.artifact("0.10.2", "orders")
  results = jax.tree.leaves(jax.export.deserialize(bytearray(found.blob)).call(*found.arguments))
  for result, expected in zip(results, found.results, strict=True):
    np.testing.assert_allclose(result, expected, 1e-5, 1e-6)


def test_closed_models(tmp_path):
  models = stored.closed_models(tmp_path)
  assert len(models) >= 20
  assert all((model / "saved_model.pb").is_file() for model in models)
  assert all(npz(f"{model}.npz") for model in models)


def test_torch_modules():
  for module, arrays in stored.torch_modules().values():
    assert module.startswith(b"ML\xefR")  # MLIR bytecode
    assert arrays["y"].shape[0] == arrays["x"].shape[0] == 2
