"""How do workers without JAX run a preprocessing step that is written in JAX?

The step computes log-mel spectrograms of sounds. The tf.data service sends its graph to two
workers, processes with TensorFlow only, and the trainer reads their results. Each worker has one
core, so that the picture shows the gain of the second one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

import numpy as np

from jax2tf.examples import quiet

with quiet.startup():
  import jax
  import jax.numpy as jnp
  import tensorflow as tf

  import jax2tf
  from jax2tf.examples.gallery import chart, processes
  from jax2tf.examples.palette import COLOURS

service = tf.data.experimental.service
RATE, FRAME, HOP, MELS = 16_000, 512, 128, 64
SERVER = """
import os, sys
sys.modules["jax"] = None  # prevents TensorFlow from importing JAX
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # hides TensorFlow's messages about its build
import tensorflow as tf; service = tf.data.experimental.service
if len(sys.argv) == 1:
  server = service.DispatchServer()
  print(server.target.partition("://")[2], flush=True)
else:
  os.sched_setaffinity(0, {int(sys.argv[2])})
  server = service.WorkerServer(service.WorkerConfig(sys.argv[1]))
  print("ready", flush=True)
sys.stdin.read()  # waits until the example ends
"""


def filters() -> np.ndarray:
  """Triangular filters of equal width on the mel scale, f32[FRAME/2+1,MELS]."""
  top = 2595 * np.log10(1 + RATE / 2 / 700)
  edges = 700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1)
  hertz = np.fft.rfftfreq(FRAME, 1 / RATE)[:, None]
  low, peak, high = edges[:-2], edges[1:-1], edges[2:]
  return np.maximum(
    0, np.minimum((hertz - low) / (peak - low), (high - hertz) / (high - peak))
  ).astype(np.float32)


def spectrogram(sounds: jax.Array) -> jax.Array:
  """sounds f32[b,n] -> f32[b,frames,MELS], in decibels below the loudest."""
  places = jnp.arange(0, sounds.shape[1] - FRAME + 1, HOP)[:, None] + jnp.arange(FRAME)
  power = jnp.abs(jnp.fft.rfft(sounds[:, places] * jnp.hanning(FRAME))) ** 2
  decibels = 10 * jnp.log10(power @ filters() + 1e-6)
  return decibels - decibels.max(axis=(1, 2), keepdims=True)


def chirps(count: int, seconds: float) -> np.ndarray:
  """Sounds f32[count,n] with three overtones whose pitch rises and falls."""
  rng, t = np.random.default_rng(0), np.arange(int(seconds * RATE)) / RATE
  start, depth, speed = (
    rng.uniform(200, 900, (count, 1)),
    rng.uniform(50, 180, (count, 1)),
    rng.uniform(1, 5, (count, 1)),
  )
  phase = 2 * np.pi * (start * t + depth / speed * np.sin(2 * np.pi * speed * t) / (2 * np.pi))
  sound = sum(np.sin(k * phase) / k for k in (1, 2, 4)) * np.sin(np.pi * t / seconds)
  return (sound + 0.01 * rng.standard_normal(sound.shape)).astype(np.float32)


def read(dataset: tf.data.Dataset, address: str) -> tuple[np.ndarray, np.ndarray, float]:
  """(indices of the sounds, their spectrograms, the seconds from the first batch to the last)."""
  remote = dataset.apply(service.distribute(service.ShardingPolicy.DYNAMIC, f"grpc://{address}"))
  batches = remote.as_numpy_iterator()
  found, start = [next(batches)], time.perf_counter()
  found += batches
  seconds = time.perf_counter() - start
  return (
    np.concatenate([i for i, _ in found]),
    np.concatenate([x for _, x in found]),
    seconds / (len(found) - 1) * len(found),
  )


def main(arguments: Sequence[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
  """(spectrograms of the workers, those of jax.jit)."""
  parser = chart.parser(__doc__, "tf_data_service")
  parser.add_argument("--sounds", type=int, default=1024)
  parser.add_argument("--seconds", type=float, default=2.0, help="of each sound")
  options = parser.parse_args(arguments)
  sounds = chirps(options.sounds, options.seconds)

  spectrogram_tf = jax2tf.convert(spectrogram, polymorphic_shapes="b, _", with_gradient=False)
  numbered = tf.data.Dataset.from_tensor_slices((np.arange(len(sounds)), sounds)).batch(16)
  dataset = numbered.map(lambda i, x: (i, spectrogram_tf(x)))

  rates, cores = [], sorted(os.sched_getaffinity(0))
  for workers in (1, 2):
    with contextlib.ExitStack() as stack:
      address = stack.enter_context(processes.started("-c", SERVER))
      for worker in range(workers):
        stack.enter_context(
          processes.started("-c", SERVER, address, str(cores[worker % len(cores)]))
        )
      numbers, found, seconds = read(dataset, address)
    rates.append(len(sounds) / seconds)
    print(f"{workers} worker{'s'[: workers - 1]}: {rates[-1]:,.0f} sounds/s")
  assert sorted(numbers) == [*range(len(sounds))], "each sound should come once"
  found, expected = found[np.argsort(numbers)], np.asarray(jax.jit(spectrogram)(sounds))
  print(f"within {np.abs(found - expected).max():.1e} dB of jax.jit")

  figure, axes = chart.subplots(1, 4, size=(12, 3.4), width_ratios=(3, 3, 3, 2))
  for i, panel in enumerate(axes[:3]):
    extent = (0, options.seconds, 0, MELS)
    image = panel.imshow(
      found[i].T, origin="lower", aspect="auto", extent=extent, vmin=-60, vmax=0, cmap="magma"
    )
    panel.set(title=f"sound {i}", xlabel="time (s)", ylabel="mel band" if i == 0 else "")
  figure.colorbar(image, ax=axes[2], label="dB below the loudest")
  bars = axes[3].bar(["1 worker", "2 workers"], rates, color=(COLOURS["native"], COLOURS["ours"]))
  axes[3].bar_label(bars, fmt="{:,.0f}")
  axes[3].set(title="A core a worker", ylabel="sounds a second")
  chart.save(figure, options.picture)
  return found, expected


if __name__ == "__main__":
  main()
