"""docs/reports/generation.md: language models of libraries in the engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax2tf.tools.lab.generation_rows import trained
from jax2tf.tools.lab.generation_rows.decoders import CONTEXT, LAYERS, VOCABULARY
from jax2tf.tools.lab.generation_rows.models import TARGETS
from jax2tf.tools.lab.pages import Rows, sections, table

_ABOUT = """# Language models

Generated from the numbers in `docs/reports/data`; do not edit. `make generation-models` measures
all of it again.
"""

_MODELS = f"""## Models of libraries in each engine

Small models with random weights ({LAYERS} layers, {VOCABULARY} tokens, a cache of {CONTEXT} rows;
"plain JAX" is a model of our tests). `generation.save` writes every model. The model then generates
greedily in the engine: prompts of several lengths in pieces, one that ends at the cache's end, and
one conversation of two turns. A cell has the number of tokens that equal JAX's without a cache, of
all tokens. A target with two engines counts both. In int8 files, other tokens are expected where
two are nearly as probable, which is frequent with random weights. "Pieces": the model's own JAX
function computes a different result from a prompt in pieces than from the whole prompt, so the
file is compared with JAX in pieces. "SDPA": the engine's paged attention would not compute this
model's attention, or chose other tokens, so the other backend runs it.
"""
_TRAINED = f"""## Rounded weights of a trained decoder

A decoder of {trained.LAYERS} layers of {trained.WIDTH} that has learned Python's language reference
in {trained.STEPS:,} steps, but for its last tenth. From that tenth are {trained.PROMPTS} prompts of
{trained.READ} tokens. *Equal*: the engine's greedy tokens that are JAX's, {trained.NEW} behind each
prompt. *Margin*: by how much JAX's choice exceeds the engine's where they differ, at most, in JAX's
logits. *Right*: how often the first token is the text's, for the file and for JAX in float32.
"""
_NOTES = {"own_pieces": "pieces", "paged_attention": "SDPA"}


def text() -> str:
  """The page."""
  tables = {"models": (_MODELS, _of), "trained": (_TRAINED, _of_trained)}
  return "\n".join([*_ABOUT.splitlines(), *sections("generation", tables), ""])


def _of(rows: Rows) -> Sequence[str]:
  names = list(dict.fromkeys(row.partition(" @ ")[0] for row in rows))
  cells = []
  for name in names:
    of_model = {target: rows.get(f"{name} @ {target}") for target in TARGETS}
    versions = {row["version"] for row in of_model.values() if row and "version" in row}
    cells.append([name, ", ".join(sorted(versions)), *map(_cell, of_model.values())])
  refusals = [f"- {name}: {row['refused']}" for name, row in rows.items() if "refused" in row]
  lines = table(["model", "version", *TARGETS], cells, words=2)
  return [*lines, *(["", "Refused:", "", *refusals] if refusals else [])]


def _of_trained(rows: Rows) -> Sequence[str]:
  cells = []
  for name, row in rows.items():
    target, _, scheme = name.partition(" ")
    if "refused" in row:
      cells.append([target, scheme, "**no**", "", "", "", ""])
      continue
    shares = [f"{row[key]:.1%}" for key in ("right", "jax")]
    equal = "{} of {}".format(*row["tokens"])
    megabytes = f"{row['bytes'] / 1e6:.2f}"
    cells.append([target, scheme, megabytes, equal, f"{row['margin']:.2g}", *shares])
  head = ["target", "weights", "MB", "equal", "margin", "right", "right in JAX"]
  refusals = [f"- {name}: {row['refused']}" for name, row in rows.items() if "refused" in row]
  return [*table(head, cells, words=2), *(["", "Refused:", "", *refusals] if refusals else [])]


def _cell(row: Any) -> str:
  if row is None:
    return ""
  if "refused" in row:
    return "**no**"
  equal, of = row["tokens"]
  return f"{equal} of {of}" + "".join(f" ({_NOTES[name]})" for name in row["with"])
