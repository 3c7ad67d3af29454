"""How do I continue a training in TensorFlow, without JAX?

A small transformer learns to reverse its input with optax.adam. JAX takes the first 50 steps. Then
the program converts the whole step (loss, gradient, update) as one function and saves it with the
parameters and the optimiser state. train_step_serve.py, which never imports JAX, loads it and
continues. JAX continues with the same batches, and build/train_step/loss.png shows both curves.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from jax2tf.examples import quiet

with quiet.startup():
  import jax
  import matplotlib
  import optax
  import tensorflow as tf

  import jax2tf

matplotlib.use("Agg")  # draws to files, without a display
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
BUILD = Path("build", "train_step")
VOCABULARY, LENGTH, WIDTH, HEADS = 10, 8, 32, 4
STEPS_IN_JAX, STEPS = 50, 250

Batch = dict[str, Any]
Step = Callable[[Any, Any, Batch], tuple[Any, Any, Any]]


def init(rng: np.random.Generator) -> dict[str, Any]:
  """The parameters of two layers."""

  def matrix(*shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / np.sqrt(shape[-2])).astype(np.float32)

  def layer() -> dict[str, np.ndarray]:
    return {
      "qkv": matrix(3, WIDTH, WIDTH),
      "out": matrix(WIDTH, WIDTH),
      "up": matrix(WIDTH, 2 * WIDTH),
      "down": matrix(2 * WIDTH, WIDTH),
    }

  tables = {
    "tokens": matrix(VOCABULARY, WIDTH),
    "places": matrix(LENGTH, WIDTH),
    "head": matrix(WIDTH, VOCABULARY),
  }
  return {**tables, "layers": [layer(), layer()]}


def logits(params: dict[str, Any], tokens: jax.Array) -> jax.Array:
  """tokens i32[b,s] -> f32[b,s,v]."""
  x = params["tokens"][tokens] + params["places"]
  for layer in params["layers"]:
    query, key, value = (jax.nn.standardize(x) @ layer["qkv"][:, None]).reshape(
      3, *x.shape[:2], HEADS, -1
    )
    x += jax.nn.dot_product_attention(query, key, value).reshape(x.shape) @ layer["out"]
    x += jax.nn.gelu(jax.nn.standardize(x) @ layer["up"]) @ layer["down"]
  return jax.nn.standardize(x) @ params["head"]


def loss(params: dict[str, Any], batch: Batch) -> jax.Array:
  return optax.softmax_cross_entropy_with_integer_labels(
    logits(params, batch["tokens"]), batch["targets"]
  ).mean()


def batches(rng: np.random.Generator, size: int = 32) -> Batch:
  """A batch for each step. The target is the reversed input."""
  tokens = rng.integers(0, VOCABULARY, (STEPS, size, LENGTH), np.int32)
  return {"tokens": tokens, "targets": tokens[:, :, ::-1]}


def make_step(loss: Callable[[Any, Batch], Any], optimiser: optax.GradientTransformation) -> Step:
  """One training step in JAX: (params, optimiser state, batch) -> (params, optimiser state,
  loss)."""

  def train_step(params: Any, opt_state: Any, batch: Batch) -> tuple[Any, Any, Any]:
    value, gradient = jax.value_and_grad(loss)(params, batch)
    updates, opt_state = optimiser.update(gradient, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value

  return train_step


def train(
  step: Step, params: Any, opt_state: Any, batches: Batch, description: str
) -> tuple[Any, Any, np.ndarray]:
  """Trains in JAX. Returns (params, optimiser state, the loss before each step)."""
  step, losses = jax.jit(step), []
  steps = range(len(next(iter(batches.values()))))
  for i in track(steps, description, console=Console(stderr=True)):
    params, opt_state, value = step(params, opt_state, {name: x[i] for name, x in batches.items()})
    losses.append(value)
  return params, opt_state, np.array(losses)


class Trainer(tf.Module):
  """A converted training step with its parameters and optimiser state.

  Attributes:
    state: the leaves of (params, optimiser state) as tf.Variables.
    train_step: the signature: batch -> {"loss"}; a call updates the state.
  """

  def __init__(self, step: Step, params: Any, opt_state: Any, batch: Batch):
    super().__init__()
    leaves, tree = jax.tree.flatten((params, opt_state))
    # a list, because tf.Module does not know optax's pytrees
    self.state = [tf.Variable(leaf) for leaf in leaves]
    # The gradient is inside; TensorFlow has nothing to differentiate.
    converted = jax2tf.convert(step, polymorphic_shapes=[None, None, "b, ..."], with_gradient=False)
    specs = {name: tf.TensorSpec([None, *x.shape[1:]], x.dtype, name) for name, x in batch.items()}

    @tf.function(autograph=False)
    def train_step(**batch: tf.Tensor) -> dict[str, tf.Tensor]:
      *state, value = converted(*jax.tree.unflatten(tree, self.state), batch)
      for variable, new in zip(self.state, jax.tree.leaves(state), strict=True):
        variable.assign(new)
      return {"loss": value}

    self.train_step = train_step.get_concrete_function(**specs)


def save(trainer: Trainer, directory: Path) -> None:
  tf.saved_model.save(trainer, str(directory), signatures={"train_step": trainer.train_step})


def train_without_jax(directory: Path, batches: Batch) -> np.ndarray:
  """The losses of the saved step on the batches, in a process that cannot import JAX."""
  np.savez(directory / "batches.npz", **batches)
  files = directory, directory / "batches.npz", directory / "losses.npy"
  subprocess.run([sys.executable, str(HERE / "train_step_serve.py"), *map(str, files)], check=True)
  return np.load(files[-1])


def main(build: Path = BUILD) -> None:
  optimiser, rng = optax.adam(3e-3), np.random.default_rng(0)
  step, data, params = make_step(loss, optimiser), batches(rng), init(rng)
  first, rest = (
    {name: x[part] for name, x in data.items()}
    for part in (slice(STEPS_IN_JAX), slice(STEPS_IN_JAX, None))
  )

  params, opt_state, before = train(step, params, optimiser.init(params), first, "JAX")
  save(Trainer(step, params, opt_state, {name: x[0] for name, x in data.items()}), build)
  print(
    f"after {STEPS_IN_JAX} steps in JAX the loss is {before[-1]:.3f}; saved {build}", flush=True
  )

  without_jax = train_without_jax(build, rest)
  _, _, in_jax = train(step, params, opt_state, rest, "JAX, to compare")
  difference = np.abs(without_jax - in_jax) / in_jax
  print(
    f"after {STEPS} steps the loss is {in_jax[-1]:.4f} in JAX, {without_jax[-1]:.4f} without it"
  )
  print(
    f"largest relative difference of the losses: {difference[:20].max():.1e} in the first 20 "
    f"steps, {difference.max():.1e} in all"
  )
  draw(before, in_jax, without_jax, build / "loss.png")
  assert difference[:20].max() < 1e-5, "the first steps should agree to a few roundings"
  # tests/gradients/test_training.py says why they grow
  assert difference.max() < 1e-3, "the roundings should not grow beyond this"


def draw(before: np.ndarray, in_jax: np.ndarray, without_jax: np.ndarray, file: Path) -> None:
  steps = np.arange(len(before), len(before) + len(in_jax))
  figure, (losses, differences) = plt.subplots(
    2, 1, sharex=True, height_ratios=(3, 1), figsize=(8, 5), layout="constrained"
  )
  losses.semilogy(before, "0.6", label="JAX, before the conversion")
  losses.semilogy(steps, in_jax, linewidth=4, alpha=0.4, label="JAX, trained on")
  losses.semilogy(steps, without_jax, "k--", linewidth=1, label="TensorFlow without JAX")
  losses.set(title="One step of training, converted: the loss on the same batches", ylabel="loss")
  losses.legend()
  differences.semilogy(
    steps, np.maximum(np.abs(without_jax - in_jax) / in_jax, 1e-8), "k", linewidth=1
  )
  differences.set(xlabel="step", ylabel="relative difference")
  figure.savefig(file, dpi=120)
  plt.close(figure)
  print(f"both curves: {file}")


if __name__ == "__main__":
  main(*map(Path, sys.argv[1:]))
