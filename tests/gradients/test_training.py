"""A whole step of training, converted, saved and run in a process without JAX: its loss curve is
JAX's.

What may differ: XLA and TensorFlow round sums in another order, 1e-7 a step. SGD carries such a
difference on and descent damps it. Adam divides by the root of the second moment, so that where a
gradient is nearly 0 a rounding decides about a whole step. Measured with JAX 0.10 and 0.12,
relative to the loss: 3e-6 in the first 20 steps, 1e-5 in all 200. Allowed: 1e-5 and 1e-4.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

from jax2tf.examples import train_step

STEPS = 200


def picks(x: np.ndarray, y: np.ndarray, size: int) -> dict[str, np.ndarray]:
  """A batch of `size` random rows for each step."""
  rows = np.random.default_rng(1).integers(0, len(x), (STEPS, size))
  return {"x": x[rows], "y": y[rows]}


def regression_data() -> dict[str, np.ndarray]:
  rng = np.random.default_rng(0)
  x = rng.standard_normal((500, 8)).astype(np.float32)
  y = x @ np.arange(8, dtype=np.float32) + 3 + rng.standard_normal(500).astype(np.float32) / 10
  return picks(x, y, 50)


def regression_loss(params: Any, batch: Any) -> Any:
  return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)


def digits() -> dict[str, np.ndarray]:
  images, labels = load_digits(return_X_y=True)
  return picks((images / 16).astype(np.float32), labels.astype(np.int32), 64)


def mlp_init() -> Any:
  rng = np.random.default_rng(0)

  def layer(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    return (rng.standard_normal((n, m)) / np.sqrt(n)).astype(np.float32), np.zeros(m, np.float32)

  return [layer(64, 48), layer(48, 32), layer(32, 10)]


def mlp_loss(params: Any, batch: Any) -> Any:
  x = batch["x"]
  for w, b in params[:-1]:
    x = jax.nn.relu(x @ w + b)
  w, b = params[-1]
  return optax.softmax_cross_entropy_with_integer_labels(x @ w + b, batch["y"]).mean()


def transformer_data() -> dict[str, np.ndarray]:
  return {name: x[:STEPS] for name, x in train_step.batches(np.random.default_rng(2)).items()}


@dataclass(frozen=True)
class Training:
  """One model, its data and how it is trained.

  Attributes:
    init: () -> params.
    loss: (params, batch) -> f32.
    data: () -> {name: one batch for each step}.
    optimiser: optax's.
    learns: the loss ends below this part of its start.
  """

  init: Callable[[], Any]
  loss: Callable[[Any, Any], Any]
  data: Callable[[], dict[str, np.ndarray]]
  optimiser: optax.GradientTransformation
  learns: float


def regression_init() -> Any:
  return {"w": np.zeros(8, np.float32), "b": np.float32(0)}


TRAININGS = {
  "regression_sgd": Training(
    regression_init, regression_loss, regression_data, optax.sgd(0.05, momentum=0.5), 1e-2
  ),
  "regression_adam": Training(
    regression_init, regression_loss, regression_data, optax.adam(0.1), 1e-2
  ),
  "digits_momentum": Training(
    mlp_init, mlp_loss, digits, optax.sgd(0.05, momentum=0.9, nesterov=True), 0.2
  ),
  "digits_adam": Training(mlp_init, mlp_loss, digits, optax.adam(1e-3), 0.2),
  "transformer_adamw": Training(
    lambda: train_step.init(np.random.default_rng(3)),
    train_step.loss,
    transformer_data,
    optax.chain(
      optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(3e-3, STEPS))
    ),
    0.5,
  ),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_loss_curve_without_jax_is_jaxs(
  name: str, tmp_path: Path, without_jax: str, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(sys, "executable", without_jax)
  training = TRAININGS[name]
  data, params = training.data(), training.init()
  step, opt_state = (
    train_step.make_step(training.loss, training.optimiser),
    training.optimiser.init(params),
  )
  train_step.save(
    train_step.Trainer(step, params, opt_state, {name: x[0] for name, x in data.items()}), tmp_path
  )
  without_jax = train_step.train_without_jax(tmp_path, data)
  _, _, in_jax = train_step.train(step, params, opt_state, data, name)

  difference = np.abs(without_jax - in_jax) / in_jax
  print(
    f"{name}: {in_jax[0]:.3f} -> {in_jax[-1]:.4f}; differs by {difference[:20].max():.1e} in 20, "
    f"{difference.max():.1e} in all steps"
  )
  assert without_jax.shape == (STEPS,)
  assert in_jax[-20:].mean() < training.learns * in_jax[0]
  assert difference[:20].max() < 1e-5
  assert difference.max() < 1e-4


def test_the_example_trains_on(tmp_path: Path) -> None:
  run = subprocess.run(
    [sys.executable, train_step.__file__, str(tmp_path)],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
  )
  assert run.returncode == 0, run.stderr[-4000:]
  assert "largest relative difference" in run.stdout
  assert (tmp_path / "loss.png").stat().st_size > 10_000
