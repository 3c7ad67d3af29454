"""The private folder of a running server: the files and sockets of its processes, and those of Ray.

Only its owner can enter it (mode 0700): Ray (2.60) lets every user write into its own folders, also
where its sockets are.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jax2tf.tools.serving.child import is_alive

_PREFIX = "jax2tf-serve-"
_RANDOM = len("abcdefgh")  # what tempfile adds
# Linux takes so many bytes for the path of a Unix socket. In the folder, the longest one is of Ray
# (2.60).
_SOCKET_BYTES = 107
_LONGEST = "/ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_REMOVAL_SECONDS = 5.0


def parents() -> list[Path]:
  """Where the folder may be: the temporary directory, and short ones for systems where that has a
  long path."""
  candidates = (tempfile.gettempdir(), "/tmp", "/var/tmp", os.environ.get("XDG_RUNTIME_DIR", ""))
  return [
    Path(each) for each in dict.fromkeys(candidates) if each and os.access(each, os.W_OK | os.X_OK)
  ]


def _fits(parent: Path) -> bool:
  return (
    len(os.fsencode(parent)) + len("/") + len(_PREFIX) + _RANDOM + len(_LONGEST) <= _SOCKET_BYTES
  )


@contextlib.contextmanager
def private() -> Iterator[str]:
  """A new folder during the block. Raises ValueError if every temporary directory has too long a
  path for Unix sockets."""
  parent = next(filter(_fits, parents()), None)
  if parent is None:
    longest = _SOCKET_BYTES - len("/") - len(_PREFIX) - _RANDOM - len(_LONGEST)
    raise ValueError(
      f"{tempfile.gettempdir()} is too long a path for Unix sockets; set TMPDIR to a folder of at "
      f"most {longest} bytes"
    )
  folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
  try:
    yield folder
  finally:
    remove(Path(folder))


def remove(folder: Path) -> None:
  """Removes the folder, again and again for a while: processes that are ending may still write
  there."""
  end = time.monotonic() + _REMOVAL_SECONDS
  shutil.rmtree(folder, ignore_errors=True)
  while folder.exists() and time.monotonic() < end:
    time.sleep(0.1)
    shutil.rmtree(folder, ignore_errors=True)


def ports_of_killed() -> set[int]:
  """The ports of killed servers. Their proxies listen until they have answered the accepted
  requests; then their folders are removed."""
  ports: set[int] = set()
  for file in (file for parent in parents() for file in parent.glob(f"{_PREFIX}*/*.server")):
    with contextlib.suppress(FileNotFoundError):  # another server may remove it at the same time
      if file.parent.stat().st_uid == os.geteuid() and not is_alive(file):
        ports |= {*json.loads(file.read_text(encoding="utf-8"))}
        if not any(is_alive(proxy) for proxy in file.parent.glob("*.ready")):
          shutil.rmtree(file.parent, ignore_errors=True)
  return ports
