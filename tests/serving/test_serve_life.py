"""The processes of `jax2tf serve`, each without the others: which hang, why they died, what they
may open, and the server's folder."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import mmap
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import ray

from jax2tf.tools.serving import (
  child,
  connections,
  deaths,
  place,
  ray_settings,
  signals,
  supervisor,
  watchdog,
)
from tests.serving.serve_models import options
from tests.support.ports import free_ports


class Process:
  """A process that answers health calls when it is told to. It stands for another one, which has
  another process id."""

  def __init__(self, run: Path):
    self.pid, self.cpu = os.getpid(), 0.0
    self._listener = socket.socket(socket.AF_UNIX)
    self._listener.bind(str(run / f"{self.pid}{watchdog.SUFFIX}"))
    self._listener.listen()
    self._connection: socket.socket | None = None

  def answer(self) -> None:
    if self._connection is None:
      self._connection, _ = self._listener.accept()
      self._connection.setblocking(False)
    with contextlib.suppress(BlockingIOError):
      self._connection.send(self._connection.recv(16))

  def close(self) -> None:
    for each in (self._listener, self._connection):
      if each:
        each.close()


@pytest.fixture
def short() -> Iterator[Path]:
  """A folder whose path is short enough for sockets."""
  with tempfile.TemporaryDirectory(dir="/tmp") as folder:
    yield Path(folder)


@pytest.fixture
def process(short: Path) -> Iterator[Process]:
  made = Process(short)
  yield made
  made.close()


@pytest.fixture
def watched(short: Path) -> Iterator[Callable[..., watchdog.Watchdog]]:
  """Makes the watchdog of the folder."""
  with contextlib.ExitStack() as stack:

    def make(*arguments: Any) -> watchdog.Watchdog:
      made = watchdog.Watchdog(short, *arguments)
      stack.callback(made.close)
      return made

    yield make


def _hangs_after(
  watched: Any,
  process: Process,
  share: float = 0.0,
  step: float = 0.1,
  waits: bool = False,
  limits: Any = types.MappingProxyType({}),
) -> float:
  """The seconds until the watchdog finds that a process hangs which answers for 5 s and then uses
  `share` of a core; at most 90."""
  now = 1000.0
  dog = watched(lambda: now, lambda _: process.cpu, lambda _: waits)
  for _ in range(50):
    assert dog.look(limits) == {}
    process.answer()
    now += 0.1
  begin = now
  while now < begin + 90:
    now += step
    process.cpu += share * step
    if process.pid in dog.look(limits):
      break
  return now - begin


@pytest.mark.parametrize(
  ("expected", "how"),
  [
    (1.5, {}),
    (1.5, {"share": 0.01}),
    (60, {"share": 0.9}),
    (60, {"waits": True}),
    (30, {"limits": {os.getpid(): 30.0}}),
    (40, {"step": 10.0}),
  ],
  ids=[
    "stopped",
    "almost",
    "computes",
    "no processor is free",
    "cluster",
    "the server was stopped too",
  ],
)
def test_which_process_hangs(watched: Any, process: Process, expected: float, how: Any) -> None:
  """One that does not answer and does not compute; one that computes may hold Python's lock, so it
  has more time."""
  assert expected <= _hangs_after(watched, process, **how) <= expected + how.get("step", 1)


def test_a_process_that_computes_waits_for_the_machine() -> None:
  with (
    subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy,
    subprocess.Popen(["sleep", "60"]) as idle,
  ):
    while not watchdog._waits_for_machine(busy.pid):
      time.sleep(0.01)
    while watchdog._waits_for_machine(idle.pid):
      time.sleep(0.01)
    for each in (busy, idle):
      each.kill()


def test_a_process_that_ends_does_not_hang(watched: Any, process: Process) -> None:
  now = 0.0
  dog = watched(lambda: now, lambda _: 0.0, lambda _: False)
  dog.look({})
  process.answer()
  process.close()
  for now in range(1, 100):  # noqa: B007  (the clock)
    assert dog.look({}) == {}


def test_a_process_answers_beside_its_work_and_not_while_its_check_fails(short: Path) -> None:
  works = [True, False, True]

  def check() -> None:
    if not works.pop(0):
      raise RuntimeError("the node of Ray is dead")

  busy_until = threading.Event()

  async def checks_left() -> list[int]:
    async with await watchdog.answer(short, check):
      reader, writer = await asyncio.open_unix_connection(short / f"{os.getpid()}{watchdog.SUFFIX}")
      found = []
      busy = asyncio.create_task(asyncio.to_thread(busy_until.wait, 60))  # the work
      for _ in range(2):
        writer.write(b"?")
        assert await asyncio.wait_for(reader.read(1), 10) == b"?"
        found.append(len(works))
      assert not busy.done()
      busy_until.set()
      writer.close()
      await writer.wait_closed()
      await asyncio.sleep(0.1)  # the other end closes too
      return found

  assert asyncio.run(checks_left()) == [2, 0]  # the second answer waited for the third check


@pytest.mark.parametrize(
  ("program", "words"),
  [
    ("os._exit(3)", "it ended with exit code 3"),
    ("os.kill(os.getpid(), signal.SIGKILL)", "it was killed by SIGKILL"),
    ("deaths.fail(options, 'no\\nmemory'); os._exit(3)", "no memory"),
    (
      "deaths.enter(options, 1); os.kill(os.getpid(), signal.SIGSEGV)",
      "Fatal Python error: Segmentation fault",
    ),
  ],
  ids=["exit", "signal", "said", "crash"],
)
def test_why_a_process_died(tmp_path: Path, program: str, words: str) -> None:
  start = (
    "import os, signal, types; from jax2tf.tools.serving import deaths; options = "
    "types.SimpleNamespace(run='.'); "
  )
  done = subprocess.Popen(
    [sys.executable, "-c", start + program],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": os.getcwd()},
  )
  assert deaths.Deaths(tmp_path).reason(done.pid, done.wait(30)) == words
  assert [file.suffix for file in tmp_path.iterdir()] in ([], [".replica"])


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
  """Starts a process that does nothing."""
  with contextlib.ExitStack() as stack:

    def start() -> subprocess.Popen[bytes]:
      process = subprocess.Popen(["sleep", "60"], start_new_session=True)
      stack.callback(process.wait)
      stack.callback(process.kill)
      return process

    yield start


@pytest.mark.parametrize(
  ("how", "reason"),
  [
    ("killed", "it was killed, or ended without a word"),
    ("killed before it is seen", "it was killed, or ended without a word"),
    ("hung", "it did not answer"),
    ("with its cluster", "its cluster ended"),
    ("without memory", f"it was killed, or ended without a word; {deaths._MEMORY}"),
  ],
)
def test_why_a_replica_died(
  how: str, reason: str, sleeper: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  """It is no child of the server, so there is no exit code."""
  kills = [3]
  monkeypatch.setattr(deaths, "_memory_kills", lambda: kills[0])
  monkeypatch.setattr(deaths, "_TELL_AFTER_SECONDS", 0.2)
  replica, cluster, other = sleeper(), sleeper(), sleeper()
  for each in (replica, other):
    (tmp_path / f"{each.pid}.replica").write_text(f'{{"cluster": {cluster.pid}}}')
  seen = deaths.Deaths(tmp_path)
  if how != "killed before it is seen":
    assert seen.of_replicas() == []
  if how == "hung":
    seen.kill(replica.pid, "it did not answer")
  for each in (replica, *([cluster] if how == "with its cluster" else [])):
    each.kill()
    each.wait()
  kills[0] += how == "without memory"
  found: list[tuple[int, str]] = []
  for _ in range(20):
    found += seen.of_replicas()
    time.sleep(0.02)
  assert found == [(replica.pid, reason)]
  assert not (tmp_path / f"{replica.pid}.replica").exists()


def test_a_process_that_dies_again_and_again_waits_longer(
  tmp_path: Path, sleeper: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  monkeypatch.setattr(supervisor, "start", lambda *_: sleeper())
  now = 100.0
  monkeypatch.setattr(supervisor, "time", types.SimpleNamespace(monotonic=lambda: now))
  proxy, seen = supervisor.Child("proxy", options(tmp_path)), deaths.Deaths(tmp_path)
  pauses: list[float] = []
  for _ in range(6):
    dead, begin = proxy.process, now
    dead.kill()
    dead.wait()
    while proxy.process is dead:
      proxy.keep_alive(seen)
      now += 0.5
    pauses.append(now - begin)
  assert pauses == [3.0, 4.5, 8.5, 16.5, 30.5, 30.5]
  said = capsys.readouterr().err.splitlines()
  assert [line.partition(") ")[2] for line in said] == [
    "ended and restarts: it was killed by SIGKILL"
  ] * 6


def test_a_start_whose_replicas_die_fails(
  tmp_path: Path, sleeper: Any, capsys: pytest.CaptureFixture[str]
) -> None:
  for _ in range(supervisor._DEATHS_OF_A_START):
    dead = sleeper()
    (tmp_path / f"{dead.pid}.replica").write_text(f'{{"cluster": {os.getpid()}}}')
    dead.kill()
    dead.wait()
  with pytest.raises(
    ValueError, match="the server cannot start: 3 replicas ended while they started: it was killed"
  ):
    supervisor._wait(options(tmp_path), [], signals.Signals(), deaths.Deaths(tmp_path))
  assert (
    capsys.readouterr().err.count(
      "ended while it started: it was killed, or ended without a word\n"
    )
    == 3
  )


def test_a_start_whose_workers_die_before_they_load_a_model_fails(
  tmp_path: Path, sleeper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
  """No file of the server has their names: Ray's memory monitor, for example, kills a worker that
  imports."""
  logs = tmp_path / "ray" / "session_2026" / "logs"
  logs.mkdir(parents=True)
  lives = sleeper()
  (logs / f"worker-ab-01-{lives.pid}.err").write_text(":job_id:01\n")
  for _ in range(supervisor._LOST_OF_A_START):
    dead = sleeper()
    dead.kill()
    dead.wait()
    assert deaths.Deaths(tmp_path).lost_workers() < supervisor._LOST_OF_A_START
    (logs / f"worker-cd-01-{dead.pid}.err").write_text(":job_id:01\n")
  monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "250")
  words = (
    "10 processes of Ray ended before they loaded a model; RAY_memory_monitor_refresh_ms=250 .*"
  )
  with pytest.raises(ValueError, match=words + "unset it, or free memory$"):
    supervisor._wait(options(tmp_path), [], signals.Signals(), deaths.Deaths(tmp_path))
  monkeypatch.delenv("RAY_memory_monitor_refresh_ms")
  with pytest.raises(ValueError, match=r"10 processes of Ray ended before they loaded a model$"):
    supervisor._wait(options(tmp_path), [], signals.Signals(), deaths.Deaths(tmp_path))


def test_a_start_fails_with_the_last_words_of_ray(
  tmp_path: Path, sleeper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(supervisor, "start", lambda *_: sleeper())
  cluster = supervisor.Child("cluster", options(tmp_path))
  cluster.process.kill()
  cluster.process.wait()
  logs = tmp_path / "ray" / "session_2026" / "logs"
  logs.mkdir(parents=True)
  (logs / "gcs_server.err").write_text("first\nno memory\n")
  words = "a cluster ended: it was killed by SIGKILL; gcs_server.err of Ray ends with: no memory"
  with pytest.raises(ValueError, match=words):
    supervisor._wait(options(tmp_path), [cluster], signals.Signals(), deaths.Deaths(tmp_path))


def test_nothing_of_a_session_is_left() -> None:
  """Also a process whose parent has died, as those of Ray."""
  orphan = (
    "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid)"
  )
  parent = subprocess.run(
    [sys.executable, "-c", orphan],
    stdout=subprocess.PIPE,
    text=True,
    check=True,
    start_new_session=True,
  )
  child_id = int(parent.stdout)
  leader = os.getsid(child_id)
  deaths.end_sessions({leader})
  assert (
    not psutil.pid_exists(child_id) or psutil.Process(child_id).status() == psutil.STATUS_ZOMBIE
  )


def test_the_folder_of_a_server_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """Nobody else can enter it, Unix sockets fit into it, and nothing is left, although a process
  still writes there."""
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 20)))
  (tmp_path / ("long" * 20)).mkdir()
  with place.private() as name:
    folder = Path(name)
    assert folder.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as longest:
      (folder / place._LONGEST[1:]).parent.mkdir(parents=True)
      longest.bind(f"{folder}{place._LONGEST}")
    writes = subprocess.Popen(
      ["sh", "-c", f"for i in $(seq 20); do touch {folder}/$i; sleep 0.02; done"]
    )
  assert not folder.exists()
  assert writes.wait() == 0
  assert not folder.exists()


def test_a_temporary_directory_with_a_long_path(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(place, "parents", lambda: [tmp_path / ("long" * 20)])
  with (
    pytest.raises(
      ValueError,
      match="is too long a path for Unix sockets; set TMPDIR to a folder of at most 17 bytes",
    ),
    place.private(),
  ):
    pass


@pytest.mark.filterwarnings("ignore")  # Ray imports what is deprecated
def test_the_private_names_of_ray_are_there() -> None:
  """If one is gone, see what this release of Ray does in its place, and change
  tools/serving/ray_settings.py."""
  assert ray_settings.missing() == []


@pytest.mark.parametrize(
  "name",
  [
    "memory_monitor_refresh_ms",
    "worker_oom_score_adjustment",
    "worker_niceness",
    "gcs_rpc_server_reconnect_timeout_s",
  ],
)
def test_ray_has_the_settings(name: str) -> None:
  raylet = Path(ray.__file__).parent / "core/src/ray/raylet/raylet"
  with raylet.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
    assert content.find(b"RAY_" + name.encode() + b"\0") > 0
  assert f"RAY_{name}" in ray_settings.environment({}, "/run")


def test_the_memory_monitor_is_off_unless_the_user_turns_it_on() -> None:
  assert ray_settings.environment({}, "/run")["RAY_memory_monitor_refresh_ms"] == "0"
  given = {"RAY_memory_monitor_refresh_ms": "250", "RAY_TMPDIR": "/elsewhere"}
  found = ray_settings.environment(given, "/run")
  assert (found["RAY_memory_monitor_refresh_ms"], found["RAY_TMPDIR"]) == ("250", "/run")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Node.start_monitor", "add_port_to_grpc_server"])
def test_a_private_name_that_is_gone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
  """A service less to leave out is no harm. A port that others can reach is."""
  owner = ray_settings._owner(*next(key for key in ray_settings.PRIVATE if key[1] == name))
  monkeypatch.delattr(owner, name.rpartition(".")[2])
  assert [each.rpartition(name)[1] for each in ray_settings.missing()] == [name]
  if name == "add_port_to_grpc_server":
    with pytest.raises(
      RuntimeError,
      match=r"this Ray has no ray.serve._private.replica.add_port_to_grpc_server, so a port would "
      r"be open",
    ):
      ray_settings.listen_on_loopback()


def test_the_soft_limit_of_open_files_is_raised() -> None:
  limits = "import resource as r, sys; r.setrlimit(r.RLIMIT_NOFILE, (64, int(sys.argv[1]))); "
  program = (
    limits + "from jax2tf.tools.serving import connections as c; c.raise_limit(); print(c.most())"
  )
  commands = [[sys.executable, "-c", program, hard] for hard in ("1024", "100")]
  assert [
    subprocess.run(each, capture_output=True, text=True, check=True).stdout for each in commands
  ] == ["448\n", "1\n"]


def _connect(port: int, greeting: bytes) -> socket.socket:
  connection = socket.create_connection(("127.0.0.1", port), timeout=10)
  connection.sendall(greeting)
  return connection


def _rest_status(port: int) -> int:
  connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
  connection.request("GET", "/-/healthz")
  with contextlib.closing(connection):
    return connection.getresponse().status


def test_silent_connections_take_no_place_of_others(short: Path) -> None:
  """Each of the proxy's ports has 32 places, and stays open to others by REST at once, by gRPC when
  there is one."""
  grpc_port, http_port = free_ports(2)
  before = resource.getrlimit(resource.RLIMIT_NOFILE)
  # which the process inherits
  resource.setrlimit(resource.RLIMIT_NOFILE, (connections._OWN_FILES + 64, before[1]))
  process = child.start("proxy", options(short, grpc_port=grpc_port, http_port=http_port))
  resource.setrlimit(resource.RLIMIT_NOFILE, before)
  with process, contextlib.ExitStack() as stack:
    stack.callback(process.kill)
    while not any(short.glob("*.health")):
      time.sleep(0.05)
    silent = [_connect(http_port, b"") for _ in range(150)]
    half = [
      _connect(http_port, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
      for _ in range(150)
    ]
    for _ in range(5):
      assert _rest_status(http_port) == 503  # no replica is ready
    greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    silent_grpc = [_connect(grpc_port, greeting) for _ in range(150)]
    assert _rest_status(http_port) == 503
    assert len(os.listdir(f"/proc/{process.pid}/fd")) < connections._OWN_FILES + 64
    for connection in (*silent, *half, *silent_grpc):
      connection.close()
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
      # NOT_SERVING
      assert (
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20, wait_for_ready=True)
        == b"\x08\x02"
      )
    assert process.poll() is None
