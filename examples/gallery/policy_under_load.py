"""How fast does a server answer many concurrent clients?

JAX trains a policy that balances a pole on a cart, by the gradient through a simulation. `jax2tf
serve` serves the SavedModel. Each client simulates a cart and requests every push from the server.
The picture shows the latency and the angles of the poles.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from jax2tf.examples import quiet, train_step

with quiet.startup():
  import jax
  import jax.numpy as jnp
  import optax

  from jax2tf.converters import saved_model
  from jax2tf.examples.gallery import chart, processes
  from jax2tf.examples.palette import COLOURS

SECONDS_A_STEP, STRENGTH = 0.02, 10.0


def move(state: Any, push: Any) -> Any:
  """The cart-pole of Barto, Sutton and Anderson (1983): state [4] of position, speed, angle and
  angular speed; push [] in newtons."""
  _, speed, angle, turning = state
  sin, cos = jnp.sin(angle), jnp.cos(angle)
  force = (push + 0.05 * turning**2 * sin) / 1.1
  bend = (9.8 * sin - cos * force) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
  return state + SECONDS_A_STEP * jnp.stack([speed, force - 0.05 * bend * cos / 1.1, turning, bend])


def policy(params: Any, state: jax.Array) -> jax.Array:
  """state f32[b,4] -> f32[b], the push in newtons."""
  return STRENGTH * jnp.tanh(jnp.tanh(state @ params["in"] + params["bias"]) @ params["out"])


def starts(rng: np.random.Generator, *shape: int) -> np.ndarray:
  """Carts in the middle with slightly tilted poles: f32[...,4]."""
  return rng.uniform(-0.2, 0.2, (*shape, 4)).astype(np.float32)


def train(updates: int, width: int = 32) -> Any:
  def loss(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    def step(states: jax.Array, _: Any) -> tuple[jax.Array, jax.Array]:
      states = jax.vmap(move)(states, policy(params, states))
      return states, jnp.mean(jnp.minimum(states**2, 1) @ jnp.array([0.1, 0.01, 1.0, 0.01]))

    return jax.lax.scan(step, batch["states"], length=100)[1].mean()

  rng, optimiser = (
    np.random.default_rng(0),
    optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)),
  )
  params = {
    "in": rng.standard_normal((4, width)),
    "bias": np.zeros(width),
    "out": rng.standard_normal(width) / width,
  }
  params, batches = jax.tree.map(np.float32, params), {"states": starts(rng, updates, 64)}
  params, _, losses = train_step.train(
    train_step.make_step(loss, optimiser),
    params,
    optimiser.init(params),
    batches,
    "training in JAX",
  )
  print(f"loss {losses[0]:.5f} -> {losses[-1]:.5f}")
  return params


def balance(port: int, start: np.ndarray, steps: int) -> np.ndarray:
  """One client: requests a push, then simulates a step. Returns the latency in ms and the angle in
  degrees of each step, f64[steps,2]."""
  state, found, step = start, [], jax.jit(move)
  with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
    for _ in range(steps):
      begin = time.perf_counter()
      connection.request(
        "POST", "/v1/models/policy:predict", json.dumps({"instances": [state.tolist()]})
      )
      (push,) = json.load(connection.getresponse())["predictions"]
      latency = time.perf_counter() - begin
      state = np.asarray(step(state, np.float32(push)))
      found.append((1e3 * latency, np.degrees(state[2])))
  return np.array(found)


def main(arguments: Sequence[str] | None = None) -> dict[int, np.ndarray]:
  """{clients: the latencies in ms and the angles in degrees, f64[clients,steps,2]}."""
  parser = chart.parser(__doc__, "policy_under_load")
  parser.add_argument("--updates", type=int, default=300, help="of the policy")
  parser.add_argument("--steps", type=int, default=200, help="requests of each client")
  parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
  options = parser.parse_args(arguments)
  model, found = options.picture.parent / "policy", {}
  saved_model.save(
    policy,
    train(options.updates),
    model,
    inputs={"state": "f32[b,4]"},
    outputs=["push"],
    version=1,
    overwrite=True,
  )
  grpc_port, port = processes.free_ports()
  flags = (f"--grpc_port={grpc_port}", f"--http_port={port}", "--replicas=1", "--batch_wait_ms=1")
  with processes.started("-m", "jax2tf.tools.cli", "serve", str(model), *flags):
    balance(port, np.zeros(4, np.float32), 5)  # the first requests warm up client and server
    for count in options.clients:
      begin = time.perf_counter()
      with ThreadPoolExecutor(count) as pool:
        carts = pool.map(
          lambda start: balance(port, start, options.steps),
          starts(np.random.default_rng(count), count),
        )
        found[count] = np.stack([*carts])
      rate, (middle, most) = (
        count * options.steps / (time.perf_counter() - begin),
        np.percentile(found[count][..., 0], (50, 99)),
      )
      print(
        f"{count:3} clients: {rate:5.0f} requests/s, median {middle:.1f} ms, 99% within "
        f"{most:.1f} ms"
      )

  figure, (times, poles) = chart.subplots(1, 2, size=(10, 3.8))
  for percent, colour in ((99, COLOURS["onnx"]), (95, COLOURS["tflite"]), (50, COLOURS["ours"])):
    values = [np.percentile(x[..., 0], percent) for x in found.values()]
    times.plot([*found], values, color=colour, marker="o", label=f"{percent} % are faster")
  times.set(
    title="An answer of the policy, by HTTP",
    xlabel="clients at once",
    ylabel="milliseconds",
    xscale="log",
    yscale="log",
  )
  times.set_xticks([*found], map(str, found))
  times.set_yticks(ticks := [2, 5, 10, 20, 50, 100, 200, 500, 1000], map(str, ticks))
  times.minorticks_off()
  times.set_ylim(min(values) / 2, None)  # of the fastest
  times.legend(loc="lower right")
  poles.plot(
    SECONDS_A_STEP * np.arange(options.steps),
    found[max(found)][..., 1].T,
    COLOURS["ours"],
    lw=0.7,
    alpha=0.6,
  )
  poles.set(
    title=f"The poles of {max(found)} clients",
    xlabel="time of the simulation (s)",
    ylabel="angle (degrees)",
  )
  chart.save(figure, options.picture)
  return found


if __name__ == "__main__":
  main()
