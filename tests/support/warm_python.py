"""A Python that has imported TensorFlow, and JAX too or can import none: what it is asked to run,
it runs in a fork of itself.

The import takes longer than most of what tests run in a process of its own. `started` gives an
executable that takes `-c program` or a script, with arguments; standard streams, environment and
folder are the caller's.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

CLIENT = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()])
socket.send_fds(server, [request.encode()], [0, 1, 2])
sys.exit(int(server.recv(16) or 70))
"""


@contextlib.contextmanager
def started(folder: Path, *, jax: bool = False) -> Iterator[str]:
  """The executable, in `folder`, for as long as the context; with `jax` it has imported JAX and
  this package."""
  address, client = str(folder / "socket"), folder / "python"
  client.write_text(CLIENT.format(python=sys.executable, address=address))
  client.chmod(0o700)
  with subprocess.Popen(
    [sys.executable, "-P", __file__, address, *["jax"] * jax],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
  ) as server:
    assert server.stdout and server.stdout.readline() == b"ready\n"
    yield str(client)
    server.communicate()  # the end of its input is its end


def _serve(address: str, with_jax: bool) -> None:
  if with_jax:
    from jax2tf.converters import saved_model  # noqa: F401, PLC0415  (with JAX and TensorFlow, whose threads start in the forks)
  else:
    for package in ("jax", "jaxlib", "jax2tf"):
      sys.modules[package] = None  # type: ignore[assignment]
    import tensorflow  # noqa: F401, PLC0415  (behind the lines that hide JAX; its threads start in the forks)

  with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.bind(address)
    server.listen()
    print("ready", flush=True)
    while server in select.select([server, sys.stdin], [], [])[0]:
      connection, _ = server.accept()
      if os.fork() == 0:
        _answer(connection)
      connection.close()
      with contextlib.suppress(ChildProcessError):  # none is left
        while os.waitpid(-1, os.WNOHANG)[0]:
          pass


def _answer(connection: socket.socket) -> None:
  """Runs what is asked for in a process that may end as it likes, and says how it ended."""
  request, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
  arguments, environment, folder = json.loads(request)
  if (child := os.fork()) == 0:
    for number, stream in enumerate(streams):
      os.dup2(stream, number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    code = 0
    try:
      _run(arguments)
    except SystemExit as ended:
      code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
      traceback.print_exc()
      code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
  connection.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) % 256).encode())
  os._exit(0)


def _run(arguments: list[str]) -> None:
  safe = arguments[0] == "-P"
  arguments = arguments[safe:]
  sys.argv = arguments
  if arguments[0] == "-c":
    sys.argv = ["-c", *arguments[2:]]
    exec(arguments[1], {"__name__": "__main__"})
    return
  if not safe:
    sys.path.insert(0, str(Path(arguments[0]).parent))
  runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
  _serve(sys.argv[1], "jax" in sys.argv[2:])
