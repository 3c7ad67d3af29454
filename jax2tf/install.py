"""`python -m jax2tf.install script.py ...` runs a script in which `jax.experimental.jax2tf` is this
package."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import jax2tf

_USAGE = "usage: python -m jax2tf.install script.py [arguments]"


def main() -> None:
  """Runs the script as `python script.py ...` would."""
  if len(sys.argv) < 2:
    sys.exit(f"no script is named; {_USAGE}")
  if not Path(sys.argv[1]).is_file():
    sys.exit(f"there is no file {sys.argv[1]!r} in {Path.cwd()}; {_USAGE}")
  jax2tf.install()
  del sys.argv[0]
  sys.path[0] = str(Path(sys.argv[0]).parent)
  runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
  main()
# Python makes an imported module the attribute `install` of jax2tf, in place of the function; it
# takes what it finds here
else:
  sys.modules[__name__] = jax2tf.install  # type: ignore[assignment]
