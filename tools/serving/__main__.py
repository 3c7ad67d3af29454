"""A process of the server: `python -m jax2tf.tools.serving KIND` runs `main` of the module KIND.
`child.start` starts it."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from jax2tf.tools.serving import child, deaths


def main(kind: str) -> int:
  """Returns the exit code. An error, also of an import, is written to PID.failed for the server,
  which says it in one line."""
  options = child.options()
  try:
    return int(importlib.import_module(f"{__package__}.{kind}").main(options))
  except Exception as error:
    # such as the reason of a replica, of which Ray makes a traceback
    if not any(Path(options.run).glob("*.failed")):
      deaths.fail(options, f"{kind}: {type(error).__name__}: {error}")
    return 1


if __name__ == "__main__":
  code = main(sys.argv[1])
  sys.stdout.flush()
  os._exit(code)  # Ray's processes die with this one; its exit handlers would wait for dead ones
