"""Rows of a table at indices that may be outside: JAX's values, without a Where over the rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf.converters import onnx
from tests.support.onnx_files import nodes, opened

N, D = 50, 200
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((N, D)).astype("f")
INSIDE = RNG.integers(-N, N, (4, 8)).astype("i")
HOSTILE = INSIDE.copy()
HOSTILE[0, :7] = [-1, -N, -N - 1, N, N - 1, 2**31 - 1, -(2**31)]
BATCHES = [INSIDE, HOSTILE, HOSTILE[:1], INSIDE[:0]]


def saved(path: Path, fun: Callable[..., Any], params: Any = TABLE, **options: Any) -> Any:
  """A session of fun(params, i)."""
  onnx.save(fun, params, path, inputs={"i": "i32[b,8]"}, samples=1, **options)
  return opened(path)


def check(session: Any, fun: Callable[..., Any], params: Any = TABLE) -> None:
  for i in BATCHES:
    expected = jax.tree.leaves(jax.jit(fun)(params, i))
    for found, y in zip(session.run(None, {"i": i}), expected, strict=True):
      np.testing.assert_array_equal(found, np.asarray(y, found.dtype))


def size(folder: Path) -> int:
  return sum(file.stat().st_size for file in folder.iterdir())


def taken(table: Any, i: Any) -> Any:
  return jnp.take(table, i, axis=0)


def twice(table: Any, i: Any) -> Any:
  return jnp.take(table, i, axis=0) + jnp.take(table, i + 1, axis=0)


def in_a_loop(table: Any, i: Any) -> Any:
  def step(total: Any, row: Any) -> Any:
    return total + jnp.take(table, row, axis=0), ()

  return jax.lax.scan(step, 0 * table[:8], i)


@pytest.mark.parametrize("threshold", [2**30, 16], ids=["inside", "beside"])
@pytest.mark.parametrize("fun", [taken, twice])
def test_a_parameter_has_a_last_row_for_indices_outside(
  tmp_path: Path, fun: Callable[..., Any], threshold: int
) -> None:
  session = saved(tmp_path / "m.onnx", fun, external_data_threshold=threshold)
  check(session, fun)
  assert "If" not in nodes(tmp_path / "m.onnx")
  assert TABLE.nbytes < size(tmp_path) < TABLE.nbytes + 4 * D + 8000


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32"])
def test_of_other_dtypes(tmp_path: Path, dtype: str) -> None:
  table = jnp.asarray(10 * TABLE, dtype)
  check(saved(tmp_path / "m.onnx", taken, table, external_data_threshold=16), taken, table)
  assert "If" not in nodes(tmp_path / "m.onnx")


def tied(table: Any, i: Any) -> Any:
  return jnp.take(table, i, axis=0)[:, 0] @ table.T


def of_columns(table: Any, i: Any) -> Any:
  return jnp.take(table, i, axis=1)


def two_numbers(table: Any, i: Any) -> Any:
  return table.at[i].get(mode="fill", fill_value=7), table.at[i].get(mode="fill")


def computed(table: Any, i: Any) -> Any:
  return jnp.take(table + jnp.float32(i.shape[0]), i, axis=0)


@pytest.mark.parametrize("fun", [of_columns, two_numbers, computed, in_a_loop])
def test_other_selections_are_in_a_branch(tmp_path: Path, fun: Callable[..., Any]) -> None:
  check(saved(tmp_path / "m.onnx", fun, external_data_threshold=16), fun)
  if fun is not in_a_loop:
    assert "If" in (ops := nodes(tmp_path / "m.onnx"))
    assert ops.count("Where") == 1  # of negative indices


def test_a_table_with_other_uses_is_in_the_file_once(tmp_path: Path) -> None:
  session = saved(tmp_path / "m.onnx", tied, external_data_threshold=16)
  for i in BATCHES:
    (found,) = session.run(None, {"i": i})
    # sums of 200 products
    np.testing.assert_allclose(found, jax.jit(tied)(TABLE, i), rtol=1e-5, atol=1e-4)
  assert size(tmp_path) < TABLE.nbytes + 8000 and "If" in nodes(tmp_path / "m.onnx")


def test_few_elements_are_selected_as_they_were(tmp_path: Path) -> None:
  """A branch takes longer than a Where of few elements."""

  def fun(table: Any, i: Any) -> Any:
    return jnp.take(table[:, :2] * i[0, 0], i[0], axis=0)

  saved(tmp_path / "m.onnx", fun)
  assert "If" not in nodes(tmp_path / "m.onnx")
