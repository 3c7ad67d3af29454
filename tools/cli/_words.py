"""The words of a command's output: messages on one line with flags in place of Python arguments,
and results as JSON."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

# Argument in the messages of the Python API -> flag of the command.
_FLAGS = {
  "inputs": "input",
  "outputs": "output",
  "signatures": "signature",
  "polymorphic_constraints": "constraint",
  "sizes": "size",
}
_OF_THAT_NAME = (
  *(
    "overwrite",
    "version",
    "quantization",
    "opset",
    "samples",
    "params",
    "state",
    "report",
    "with_gradient",
  ),
  *("idioms", "hostile"),
)
_FLAGS |= dict(zip(_OF_THAT_NAME, _OF_THAT_NAME, strict=True))
# What no flag says: a pattern in a message of the Python API -> the words of the command.
_PHRASES = (
  (r"\b(?:path|model) = (?=')", ""),
  (
    r"let preprocess take it \(raw_inputs\), or pass_through",
    "a model with string inputs is saved from Python, with preprocess",
  ),
  (r"give None, or one of", "give one of"),
  (r", or narrow_inputs=\[.*\] if all are so", ""),
  (r" \(least_cosine= and least_top_1= set the limits\)", ""),
  (r"(?<![-\w])representative_dataset\b", "--representative_dataset"),
  (r"sizes=\{'(\w+)': (\d+)\}", r"--size \1=\2"),
  (r"sizes\['(\w+)'\] = \[(.*?)\]", r"--size \1=\2"),
  (r"leave it out with signatures=, or export", "export"),
  (r"\{name: function\}, or choose with signatures=", "one of them as --signature"),
  (r"needs your own .*", "is compared only from Python, with your own reference"),
  (r"leave it out: signatures=\[.*?\]", "choose others with --signature"),
  (r"convert with with_gradient=False", "leave out --with_gradient"),
  (r"from_flax_(nnx|linen)\b|from_(haiku|equinox)\b", lambda m: f"--library={m[1] or m[2]}"),
)
_NAMES = "|".join(_FLAGS)
# In backticks; before a value; before a value that is missing, or the True of a flag; before a
# colon or a verb.
_ARGUMENT = re.compile(
  rf"(?<![-\w.])(?:`(?P<quoted>{_NAMES})`|(?P<given>{_NAMES}) ?= "
  rf"?(?!True\b|[,;]|$)|(?P<bare>{_NAMES}) ?= ?(?:True\b)?"
  r"|(?P<subject>sizes|params|signatures)(?=: | names )|polymorphic_constraints)"
)


def one_line(text: str) -> str:
  """Joins the lines of a message with semicolons, except after a colon."""
  return re.sub(
    r":; |\.; ", lambda m: f"{m[0][0]} ", "; ".join(filter(None, map(str.strip, text.splitlines())))
  )


def as_flags(text: str) -> str:
  """Replaces arguments of the Python API in a message by flags: `samples = 0` becomes
  `--samples=0`."""
  for pattern, words in _PHRASES:
    text = re.sub(pattern, words, text)
  return _ARGUMENT.sub(_flag, text)


def _flag(match: re.Match[str]) -> str:
  name = match["quoted"] or match["given"] or match["bare"] or match["subject"] or match[0]
  return f"--{_FLAGS[name]}{'=' if match['given'] else ''}"


def dumps(value: Any) -> str:
  """JSON of a result. Bytes become text; complex numbers and non-finite floats become their names,
  such as "inf"."""
  return json.dumps(_plain(value), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
  if isinstance(value, Mapping):
    return {str(key): _plain(each) for key, each in value.items()}
  if isinstance(value, list | tuple):
    return [*map(_plain, value)]
  if isinstance(value, bytes):
    return value.decode(errors="backslashreplace")
  return (
    str(value)
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value))
    else value
  )
