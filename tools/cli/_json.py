"""Results of a command as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


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
