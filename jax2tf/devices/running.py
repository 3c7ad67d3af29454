"""Runs a graph on a device, and says how long each op takes and where it ran."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

_CALLS = 10


@dataclass(frozen=True)
class Run:
  """What a call of a graph took.

  Attributes:
    device: that was asked for.
    milliseconds: of a call, the median of ten, its arguments and results on the host.
    nodes: (the name of an op as TensorFlow runs it, its device, milliseconds), of one traced call.
    copies: {kind of a copy between the host and a GPU: (number, milliseconds)}, of that call.
  """

  device: str
  milliseconds: float
  nodes: tuple[tuple[str, str, float], ...]
  copies: dict[str, tuple[int, float]]

  def of(self, name: str) -> tuple[int, float]:
    """(how often, milliseconds) of the op of this name in its function, wherever it is called."""
    # TensorFlow puts the names of the calls before it, and a number behind a copy
    called = re.compile(rf"(?:.*/)?{re.escape(name)}(?:_\d+)?(?:/_\d+)?")
    times = [ms for node, _, ms in self.nodes if called.fullmatch(node)]
    return len(times), sum(times)

  def devices(self) -> dict[str, int]:
    """{type of a device: the number of ops that ran there}."""
    counts: dict[str, int] = {}
    for _, device, _ in self.nodes:
      counts[device] = counts.get(device, 0) + 1
    return counts


def run(concrete: Any, arrays: Sequence[np.ndarray], device: str) -> Run:
  """Runs a concrete function on a device. TensorFlow puts ops without a kernel there on the CPU.

  Args:
    concrete: a tf.ConcreteFunction without variables.
    arrays: its flat arguments.
    device: such as "GPU:0".

  Raises:
    ValueError: TensorFlow has no such device.
  """
  known = {each.name.removeprefix("/device:") for each in tf.config.list_logical_devices()}
  if device not in known:
    raise ValueError(
      f"TensorFlow has no {device} here, only {', '.join(sorted(known))}; without --run the "
      "kernels are read, which needs no device"
    )
  graph, of = tf.Graph(), concrete.graph
  with graph.as_default(), tf.device(f"/device:{device}"):
    tf.graph_util.import_graph_def(of.as_graph_def(), name="")
  captured = [outer.numpy() for outer, _ in of.captures]
  feeds = {
    graph.get_tensor_by_name(x.name): array
    for x, array in zip(of.inputs, [*arrays, *captured], strict=True)
  }
  fetches = [graph.get_tensor_by_name(y.name) for y in of.outputs]
  config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
  config.gpu_options.allow_growth = True
  with tf.compat.v1.Session(graph=graph, config=config) as session:
    duration = milliseconds(lambda: session.run(fetches, feeds))
    metadata = tf.compat.v1.RunMetadata()
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    session.run(fetches, feeds, options=options, run_metadata=metadata)
  return Run(device, duration, *_steps(metadata.step_stats))


def milliseconds(call: Callable[[], Any]) -> float:
  """The median time of ten calls, after one that optimises or compiles; each waits for its
  result."""
  call()
  times: list[float] = []
  for _ in range(_CALLS):
    start = time.perf_counter()
    call()
    times.append(1e3 * (time.perf_counter() - start))
  return statistics.median(times)


def _steps(stats: Any) -> tuple[tuple[tuple[str, str, float], ...], dict[str, tuple[int, float]]]:
  """The ops and the copies of a traced call."""
  nodes, copies = [], dict[str, tuple[int, float]]()
  for device in stats.dev_stats:
    for step in device.node_stats:
      ms = step.all_end_rel_micros / 1e3
      # On the streams of a GPU a copy is "...:MEMCPYHtoD"; the rest there are kernels of the ops.
      kind = re.search(r"MEMCPY(\w+)", f"{step.node_name} {step.timeline_label}")
      if kind:
        count, total = copies.get(kind[1], (0, 0.0))
        copies[kind[1]] = count + 1, total + ms
      elif "stream" not in device.device:
        nodes.append((step.node_name, device.device.split("device:")[-1].split(":")[0], ms))
  return tuple(nodes), copies
