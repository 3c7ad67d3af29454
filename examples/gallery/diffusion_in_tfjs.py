"""How does JavaScript sample from a diffusion model that is written in JAX?

JAX trains a small network to remove noise from handwritten digits. The program exports one sampling
step to TF.js. Node.js runs the steps from noise to an image of each digit. In a web page this is
`model.execute({x, labels, step}, "x")` in a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits

from jax2tf.examples import quiet, train_step

with quiet.startup():
  import jax
  import jax.numpy as jnp
  import optax

  from jax2tf.converters import tfjs
  from jax2tf.examples.gallery import chart

SAMPLING = 24  # steps from noise to an image
Params = dict[str, Any]


def init(width: int) -> Params:
  shapes = {"labels": (10, width), "times": (17, width), "in": (64, width), "out": (width, 64)}
  shapes |= {f"{part}_{i}": (width, width) for i in range(3) for part in ("up", "down")}
  keys = jax.random.split(jax.random.key(0), len(shapes))
  made = {
    name: jax.random.normal(key, shape) / np.sqrt(shape[0])
    for key, (name, shape) in zip(keys, shapes.items(), strict=True)
  }
  return made | {"out": jnp.zeros((width, 64))}


def signal(time: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The weights of image and noise at a time from 0 to 1: f32[b] -> (f32[b,1], f32[b,1])."""
  angle = jnp.pi / 2 * time[:, None]
  return jnp.cos(angle), jnp.sin(angle)


def denoise(params: Params, x: jax.Array, labels: jax.Array, time: jax.Array) -> jax.Array:
  """x f32[b,64], labels i32[b], time f32[b] -> f32[b,64], the velocity, which separates image and
  noise in x."""
  waves = time[:, None] * jnp.pi * 2.0 ** jnp.arange(8)
  known = jnp.concatenate([jnp.sin(waves), jnp.cos(waves), time[:, None]], axis=1)
  h = x @ params["in"] + known @ params["times"] + params["labels"][labels]
  for i in range(3):
    h += jax.nn.silu(jax.nn.standardize(h) @ params[f"up_{i}"]) @ params[f"down_{i}"]
  return jax.nn.standardize(h) @ params["out"]


def sample_step(params: Params, x: jax.Array, labels: jax.Array, step: jax.Array) -> jax.Array:
  """One sampling step without new noise (DDIM, https://arxiv.org/abs/2010.02502): step i32[] from 0
  to SAMPLING - 1."""
  time = jnp.broadcast_to(1 - step.astype(jnp.float32) / SAMPLING, labels.shape)
  velocity = denoise(params, x, labels, time)
  here, noise_here = signal(time)
  there, noise_there = signal(time - 1 / SAMPLING)
  return there * (here * x - noise_here * velocity) + noise_there * (
    noise_here * x + here * velocity
  )


def train(pictures: np.ndarray, labels: np.ndarray, width: int, steps: int) -> Params:
  def loss(params: Params, batch: dict[str, jax.Array]) -> jax.Array:
    x, of_noise = all_pictures[batch["rows"]], jax.random.key(batch["seed"])
    noise, time = (
      jax.random.normal(of_noise, x.shape),
      jax.random.uniform(jax.random.fold_in(of_noise, 1), x.shape[:1]),
    )
    a, b = signal(time)
    return jnp.mean(
      (denoise(params, a * x + b * noise, all_labels[batch["rows"]], time) - (a * noise - b * x))
      ** 2
    )

  params, optimiser = init(width), optax.adam(optax.cosine_decay_schedule(2e-3, steps))
  batches = {
    "rows": np.random.default_rng(0).integers(0, len(pictures), (steps, 128)),
    "seed": np.arange(steps),
  }
  all_pictures, all_labels = jnp.array(pictures), jnp.array(labels)
  params, _, losses = train_step.train(
    train_step.make_step(loss, optimiser),
    params,
    optimiser.init(params),
    batches,
    "training in JAX",
  )
  print(f"loss {np.mean(losses[:10]):.3f} -> {np.mean(losses[-50:]):.3f}")
  return params


def main(arguments: Sequence[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
  """The images after each step, f32[steps,10,64], in TF.js and in JAX."""
  parser = chart.parser(__doc__, "diffusion_in_tfjs")
  parser.add_argument("--width", type=int, default=384)
  parser.add_argument("--steps", type=int, default=6000, help="of training")
  parser.add_argument(
    "--sampling", type=int, default=SAMPLING, help=f"steps of sampling, at most {SAMPLING}"
  )
  options = parser.parse_args(arguments)
  pictures, labels = load_digits(return_X_y=True)
  params = train(
    (pictures / 8 - 1).astype(np.float32), labels.astype(np.int32), options.width, options.steps
  )

  specs = {"x": "f32[b,64]", "labels": "i32[b]", "step": "i32[]"}
  numbers = {"step": lambda rng, shape, dtype: rng.integers(0, SAMPLING, shape, dtype)}
  folder = options.picture.with_suffix("")
  exported = tfjs.save(
    sample_step,
    params,
    folder,
    inputs=specs,
    outputs=["x"],
    examples=numbers,
    backends=["wasm"],
    overwrite=True,
  )
  print(f"{exported.path}: {exported.size / 1e6:.1f} MB")

  digits, in_jax = np.arange(10, dtype=np.int32), jax.jit(sample_step)
  x = np.random.default_rng(2).standard_normal((10, 64), np.float32)
  drawn, expected = [x], [x]
  for i in track(range(options.sampling), "sampling in TF.js", console=Console(stderr=True)):
    drawn.append(
      tfjs.run(exported.path, {"x": drawn[-1], "labels": digits, "step": np.int32(i)})["x"]
    )
    expected.append(np.asarray(in_jax(params, expected[-1], digits, np.int32(i))))
  print(
    f"after {options.sampling} steps the pictures are within "
    f"{np.abs(drawn[-1] - expected[-1]).max():.1e} of JAX's, black to white is 2"
  )

  shown = np.unique(np.linspace(0, options.sampling, 9, dtype=int))
  tiles = np.stack([drawn[i] for i in shown]).reshape(len(shown), 10, 8, 8)
  whole = (
    np.pad(tiles, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1)
    .swapaxes(1, 2)
    .reshape(10 * len(shown), 100)
  )
  figure, axes = chart.subplots(size=(7, 0.62 * len(shown) + 0.8))
  axes.imshow(whole, cmap="gray_r", vmin=-1, vmax=1)
  axes.set(
    title="Ten digits, from noise to a picture, in TF.js",
    xlabel="the digit that is asked for",
    ylabel="steps of sampling",
  )
  axes.set_xticks(4.5 + 10 * digits, digits)
  axes.set_yticks(4.5 + 10 * np.arange(len(shown)), shown)
  axes.tick_params(length=0)
  chart.save(figure, options.picture)
  return np.stack(drawn), np.stack(expected)


if __name__ == "__main__":
  main()
