"""Many clients at once against examples/serve_ray.py, every answer checked: docs/serving-load.json.

Usage: python -m jax2tf.tools.load [--seconds=30] [--concurrency=200] from a checkout. Serves a model with one replica, with two, and with
two of which one is killed while the requests come; requests have mixed batch sizes and go by gRPC.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
import tempfile
from collections.abc import Sequence
from typing import Any

from absl import app, flags, logging

from jax2tf.tools import clients, measure

_SECONDS = flags.DEFINE_float("seconds", 30.0, "How long each run sends requests.", lower_bound=1.0)
_CONCURRENCY = flags.DEFINE_integer("concurrency", 200, "How many requests wait for an answer at any time.", lower_bound=1)
_MAX_ROWS = flags.DEFINE_integer("max_rows", 32, "Requests have 1 to so many rows.", lower_bound=1)
_REPORT = flags.DEFINE_string("report", str(measure.DOCS / "serving-load.json"), "Where the figures go.")


async def _load_with_kill(server: clients.Server, questions: Sequence[clients.Question], kill: bool) -> clients.Tally:
  running = asyncio.create_task(clients.load(server.grpc_port, questions, _CONCURRENCY.value, _SECONDS.value, progress=True))
  if kill:
    await asyncio.sleep(_SECONDS.value / 3)
    os.kill(server.replicas[0], signal.SIGKILL)
  return await running


def main(argv: Sequence[str]) -> None:
  """Prints and writes the figures of each run; raises SystemExit if an answer was lost or wrong."""
  del argv
  logging.set_verbosity(logging.WARNING)
  report: dict[str, Any] = {
    "seconds": _SECONDS.value,
    "concurrency": _CONCURRENCY.value,
    "rows": [1, _MAX_ROWS.value],
    "cores": os.cpu_count(),
  }
  faults = []
  with tempfile.TemporaryDirectory() as folder:
    model = pathlib.Path(folder, "mlp")
    questions = clients.save_mlp(model, _MAX_ROWS.value)
    for name, replicas, kill in (("one replica", 1, False), ("two replicas", 2, False), ("two replicas, one killed", 2, True)):
      with clients.serving(model, f"--replicas={replicas}") as server:
        asyncio.run(clients.load(server.grpc_port, questions, _CONCURRENCY.value, 1.0))  # the first requests optimise the graph
        tally = asyncio.run(_load_with_kill(server, questions, kill))
      report[name] = tally.summary()
      faults += tally.errors + ["a wrong answer"] * tally.wrong
      print(f"{name:26}" + ", ".join(f"{key} {value}" for key, value in report[name].items()), flush=True)
  pathlib.Path(_REPORT.value).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
  if faults:
    raise SystemExit(f"{len(faults)} requests were lost or answered wrongly, such as: {faults[0]}")


if __name__ == "__main__":
  app.run(main)
