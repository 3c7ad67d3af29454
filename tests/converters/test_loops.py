"""Which inputs a comparison leaves out, because a loop of the function does not end soon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from jax2tf.converters import onnx
from jax2tf.converters.verify import loops

LEAST = np.iinfo(np.int32).min


def count(k: Any) -> Any:
  return lax.while_loop(lambda at: at < 9, lambda at: at + 2, k)


def nested(k: Any) -> Any:
  """The loop in the body ends soon where k is not negative; the outer one always does."""
  return lax.while_loop(
    lambda state: state[0] < 3, lambda state: (state[0] + 1, count(state[1]) - 9), (0, k)
  )


@jax.jit
def called(k: Any) -> Any:
  return jax.jit(count)(k) + 1


@pytest.mark.parametrize("fun", [count, nested, called])
def test_a_loop_ends_soon_or_not(fun: Any) -> None:
  ends = loops.Ends(fun)
  assert ends(jnp.int32(3))
  assert not ends(jnp.int32(LEAST))
  assert ends(jnp.int32(7))


def test_the_greatest_common_divisor_never_ends_for_the_least_integer() -> None:
  ends = loops.Ends(jnp.gcd)
  assert ends(jnp.array([4, 0, -6]), jnp.array([6, 0, 9]))
  assert not ends(jnp.array([4, 0]), jnp.array([6, LEAST]))


@pytest.mark.parametrize(
  "fun",
  [
    jnp.sin,
    lambda x: np.sin(np.asarray(x)),  # JAX does not trace it
    lambda x: lax.fori_loop(0, 2 * loops.MOST_STEPS, lambda _, at: at + x, x),  # a scan
  ],
)
def test_a_function_without_such_loops_ends(fun: Any) -> None:
  assert loops.Ends(fun)(jnp.float32(1))


@pytest.mark.one_python
def test_an_export_leaves_out_inputs_for_which_the_reference_never_ends(tmp_path: Path) -> None:
  with pytest.warns(UserWarning, match="is not compared for .* a loop of the JAX function takes"):
    onnx.save(
      lambda _, i, j: jnp.gcd(i, j),
      {},
      tmp_path / "model.onnx",
      inputs={"i": "i32[b]", "j": "i32[b]"},
      samples=1,
    )
  assert (tmp_path / "model.onnx").exists()
