"""The child process of `children`: a module on stdin, canonical bytecode on stdout.

It ends with 1 and the reason on stdout if the module cannot be read, and by SIGXCPU if that takes
longer than the seconds of its argument.
"""

from __future__ import annotations

import sys

from jax2tf.stablehlo import limits, parsing


def main() -> int:
  try:
    with limits.processor(int(sys.argv[1])):
      parsing.canonical(sys.stdin.buffer.read(), sys.stdout.buffer)
  except parsing.UnreadableError as error:
    sys.stdout.write(str(error))
    return 1
  return 0


if __name__ == "__main__":
  sys.exit(main())
