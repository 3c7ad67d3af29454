"""Each model of the zoo at each target, at two sizes of each dimension.

A model and a target run in another process with a time limit, so that a crash costs one row.
"""

from __future__ import annotations

import functools
import pathlib
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jax2tf.converters import verify
from jax2tf.converters.export.source import ExportError
from jax2tf.tools.lab import workers
from tests.support import models, runtimes

# {"reason": why it failed, or nothing, "error": the largest difference from jax.jit, over all
# outputs and sizes, "of_tolerance": that as a fraction of the tolerance, "size": of the written
# files in bytes, "latency": the time of a call relative to jax.jit in the same process, for both
# sizes together}
Numbers = dict[str, Any]

_SECONDS = 300  # the time limit of a row


def rows() -> list[str]:
  """Each model with each target."""
  return [f"{model} {target}" for model in models.NAMES for target in runtimes.TARGETS]


def measured(names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
  """Runs each model at each target."""
  runtimes.CACHE.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(prefix="jax2tf-zoo-") as folder:
    tasks = [(*name.split(), folder) for name in names]
    # The targets of a model share its files, and TensorFlow frees no memory.
    renewed_after = len(runtimes.TARGETS)
    yield from workers.each(_row, tasks, _lost, renewed_after=renewed_after, seconds=_SECONDS)


@functools.lru_cache(maxsize=1)
def _case(model: str, folder: str) -> runtimes.Case:
  # All targets compare with the same compiled function.
  jax.config.update("jax_compilation_cache_dir", str(runtimes.CACHE / "compiled"))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
  return runtimes.Case(model, pathlib.Path(folder, model))


def _row(model: str, target: str, folder: str) -> tuple[str, Numbers]:
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      exported = runtimes.TARGETS[target][1](_case(model, folder))
  except (ExportError, verify.VerificationError) as error:
    return _missed(model, target, str(error))
  except Exception as error:
    return _missed(model, target, f"{type(error).__name__}: {error}")
  rows, latencies = exported.report.rows, exported.report.latencies
  ours, jaxs = sum(x.model for x in latencies), sum(x.reference for x in latencies)
  return f"{model} {target}", {
    "reason": "",
    "error": max((row.max_abs for row in rows if row.max_abs is not None), default=None),
    "of_tolerance": max(
      (row.of_tolerance for row in rows if row.of_tolerance is not None), default=None
    ),
    "size": exported.size,
    "latency": ours / jaxs if latencies else None,
  }


def _lost(error: workers.LostError, model: str, target: str, _: str) -> tuple[str, Numbers]:
  return _missed(model, target, str(error))


def _missed(model: str, target: str, reason: str) -> tuple[str, Numbers]:
  """A row without numbers, and why."""
  lines = _brief(reason.replace(f"{runtimes.REPOSITORY}/", ""))
  nothing = dict.fromkeys(("error", "of_tolerance", "size", "latency"))
  return f"{model} {target}", {"reason": "\n".join(lines), **nothing}


def _brief(reason: str) -> Iterator[str]:
  """The lines of a reason, with only the first line for each op."""
  seen: set[str] = set()
  more = 0
  for line in reason.splitlines():
    op = re.match(r"  (\S+) \(of '", line)
    if op and op[1] in seen:
      more += 1
      continue
    seen.update([op[1]] if op else [])
    yield line[:300]
  if more:
    yield f"  and {more} more uses of the same ops"
