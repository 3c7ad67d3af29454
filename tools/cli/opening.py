"""`jax2tf open`: writes a closed SavedModel as an ordinary one."""

from __future__ import annotations

from collections.abc import Sequence

import click

from jax2tf.tools.cli._verb import Answer, takes_sizes, verb


@verb
@click.argument("source", metavar="MODEL")
@click.option("--out", "path", required=True, metavar="FOLDER", help="The SavedModel to write.")
@click.option("--overwrite", is_flag=True, help="Replace what is in the folder.")
@takes_sizes
def opening(source: str, path: str, overwrite: bool, sizes: Sequence[str]) -> Answer:
  """Writes a SavedModel of XlaCallModule ops (StableHLO) as one of ordinary TensorFlow ops.

  MODEL was saved by jax.experimental.jax2tf, by Keras on the JAX backend, or natively by jax2tf.
  Signatures, variables, assets and saved gradients stay. The result is compared with MODEL, and
  written only if it agrees.

  \b
  Example:
    jax2tf open keras_export --out build/opened
  """
  from jax2tf.converters import opened  # noqa: PLC0415
  from jax2tf.tools.cli import _loading  # noqa: PLC0415

  made = opened.save(
    source, path, overwrite=overwrite, sizes=_loading.sizes(sizes) or None, untrusted=True
  )
  answer = {
    "verdict": made.report.verdict,
    "path": str(made.path),
    "opened": made.count,
    "notes": list(made.notes),
  }
  words = [f"opened {made.count} ops: saved {made.path}; {made.report.verdict}", *made.notes]
  return answer, "\n".join(words), 0
