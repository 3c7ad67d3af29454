"""`jax2tf batch`: runs files of rows through a SavedModel."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import click

from jax2tf.converters.bundle import paths
from jax2tf.tools import gpus
from jax2tf.tools.cli._failures import NO, failures, say, warnings_as_lines
from jax2tf.tools.cli._json import dumps
from jax2tf.tools.cli._verb import ALLOW_OPS, needs_posix, takes_debug


@click.command(context_settings={"show_default": True})
@click.argument("model")
@click.argument("inputs", metavar="FILES...", nargs=-1, required=True)
@click.argument("directory", metavar="DIR")
@click.option(
  "--workers",
  type=click.IntRange(1),
  help="The number of processes; by default the number of cores, or of GPUs.",
  show_default=False,
)
@click.option("--device", type=click.Choice(gpus.DEVICES), default=gpus.AUTO, help=gpus.DEVICE_HELP)
@click.option(
  "--threads",
  type=click.IntRange(1),
  default=1,
  help="The number of TensorFlow threads in each process, within ops and between them.",
)
@click.option("--signature", default="serving_default", help="The signature of the model to run.")
@click.option(
  "--column",
  "columns",
  multiple=True,
  help="INPUT=COLUMN, or INPUT=A,B,C to stack columns; may be repeated.",
)
@click.option(
  "--output", "outputs", multiple=True, help="An output to write; may be repeated. By default all."
)
@click.option(
  "--mask",
  default="",
  help="The input that marks the valid elements of a padded row by 1, or none; by default mask or "
  "attention_mask.",
)
@click.option(
  "--batch_size", type=click.IntRange(1), default=256, help="The largest number of rows in a call."
)
@click.option(
  "--stall_seconds",
  type=click.IntRange(10),
  default=600,
  help="Kill a process that runs no rows for this long, or does not load the model, and repeat its "
  "file.",
)
@click.option("--allow-ops", multiple=True, metavar="OP,OP", help=ALLOW_OPS)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, also for a failure.")
@takes_debug
def batch(
  model: str,
  inputs: tuple[str, ...],
  directory: str,
  workers: int | None,
  device: str,
  threads: int,
  stall_seconds: int,
  columns: tuple[str, ...],
  allow_ops: tuple[str, ...],
  as_json: bool,
  debug: bool,
  **asked: object,
) -> int:
  """Runs every row of FILES (Parquet, TFRecord, CSV, JSON lines or .npy) and writes a file of the
  same name into DIR for every file.

  Columns that are not inputs are copied to the results. A second run continues where the first one
  ended.

  \b
  Example:
    jax2tf batch build/model rows/*.parquet answers
  """
  with failures(debug=debug), warnings_as_lines():
    needs_posix()
    from jax2tf.tools import outside  # noqa: PLC0415
    from jax2tf.tools.batch import plan, supervisor  # noqa: PLC0415  (NumPy)

    named, allowed = dict(map(_column, columns)), outside.named(allow_ops)
    folder = os.path.abspath(paths.local(model, "model"))
    names = gpus.chosen(device, os.environ)
    options = plan.Asked(model=folder, columns=named, allow_ops=allowed, **asked)  # type: ignore[arg-type]
    files = [str(paths.local(each, "inputs")) for each in inputs]
    with plan.opened(files, paths.local(directory, "directory"), options) as opened_plan:
      processes = supervisor.Processes(workers or len(names) or _cores(), threads, device, names)
      outcome = supervisor.run(opened_plan, processes, stall_seconds)
    value = {"verdict": _verdict(outcome, len(opened_plan.shards))} | dataclasses.asdict(outcome)
    say(dumps(value) if as_json else "\n".join([value["verdict"], *_failed(outcome)]))
  return NO if outcome.failed else 0


def _cores() -> int:
  """Those that this process may use, where the system tells (Linux does, macOS does not)."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _column(text: str) -> tuple[str, list[str]]:
  name, equals, columns = text.partition("=")
  if not (name and equals and columns):
    raise ValueError(f"--column={text!r} is not of the form INPUT=COLUMN")
  return name, columns.split(",")


def _verdict(outcome: Any, shards: int) -> str:
  if not outcome.shards and not outcome.failed:
    return f"nothing to do: {shards} shards are there"
  bad = f", {outcome.bad:,} bad ones, which the _*.bad.jsonl name" if outcome.bad else ""
  rate = outcome.rows / max(1e-9, outcome.seconds - outcome.started)
  return f"{outcome.shards} of {shards} shards, {outcome.rows:,} rows{bad}, {rate:,.0f} rows/s"


def _failed(outcome: Any) -> list[str]:
  return [f"{name} failed three times: {reason}" for name, reason in sorted(outcome.failed.items())]
