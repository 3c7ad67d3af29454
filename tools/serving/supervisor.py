"""Starts the processes of the server, replaces those that die or hang, says why, and ends them in
order.

Ray Serve keeps the replicas alive. Two proxies share the ports and two Ray clusters share the
replicas, so there is no single point of failure below the server. On SIGTERM or Ctrl-C it answers
the accepted requests and exits.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jax2tf.tools.serving import config, deaths, ray_settings, watchdog
from jax2tf.tools.serving.child import DRAIN_SECONDS, Options, start
from jax2tf.tools.serving.follower import Follower
from jax2tf.tools.serving.signals import Signals, say

_PROXIES = 2
_CLUSTERS = 2
# Seconds between two lines of progress during the start.
_PROGRESS_SECONDS = 5.0
# So many replicas that die during the start are no accident.
_DEATHS_OF_A_START = 3
# As many processes that die before they become replicas. Ray itself ends a few that it does not
# need.
_LOST_OF_A_START = 10
# The pauses before a process starts again: longer ones if it dies soon after its start.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 30.0
_SOON_SECONDS = 10.0


class Child:
  """A process that is restarted when it ends.

  Attributes:
    kind: "proxy" or "cluster".
    process: the current one.
    sessions: the process ids of all so far, each of which leads a session of the processes that it
      started.
  """

  def __init__(self, kind: str, options: Options):
    self.kind, self._options = kind, options
    self.sessions: set[int] = set()
    self._pause = _PAUSE_SECONDS
    self._start()

  def _start(self) -> None:
    self._started, self._told = time.monotonic(), False
    self.process = start(self.kind, self._options)
    self.sessions.add(self.process.pid)

  def keep_alive(self, seen: deaths.Deaths) -> None:
    """Says why the process ended, if it did, and starts it again after a pause."""
    code = self.process.poll()
    if code is None:
      return
    lived = time.monotonic() - self._started
    if not self._told:
      say(
        f"a {self.kind} (process {self.process.pid}) ended and restarts: "
        f"{seen.reason(self.process.pid, code)}"
      )
      self._told = True
      self._pause = (
        min(2 * self._pause, _LONGEST_PAUSE_SECONDS) if lived < _SOON_SECONDS else _PAUSE_SECONDS
      )
    if lived > self._pause:  # a process that cannot start must not take all the CPU
      self._start()

  def end(self) -> None:
    assert self.process.stdin is not None
    self.process.stdin.close()

  def wait(self, seconds: float, given_up: Callable[[], bool]) -> None:
    """Waits until the process has ended; kills it after so many seconds, or once `given_up()`."""
    end = time.monotonic() + seconds
    while self.process.poll() is None and time.monotonic() < end and not given_up():
      time.sleep(0.02)
    self.process.kill()
    self.process.wait()


def shares(options: Options) -> list[Options]:
  """The options of each cluster: its part of the replicas, and their GPUs, which they take in
  turn."""
  replicas = range(options.replicas)
  parts = [replicas[i::_CLUSTERS] for i in range(_CLUSTERS)]
  names = options.gpus
  return [
    dataclasses.replace(
      options,
      replicas=len(part),
      gpus=list(dict.fromkeys(names[i % len(names)] for i in part if names)),
    )
    for part in parts
    if part
  ]


def serve(options: Options, signals: Signals, as_json: bool) -> None:
  """Serves until a signal comes; prints one line when it is ready. Raises ValueError with the
  reason if the server cannot start."""
  clusters = shares(options)
  seen, dog, follower = (
    deaths.Deaths(Path(options.run)),
    watchdog.Watchdog(Path(options.run)),
    Follower(options),
  )
  follower.look()
  # The proxies are first, because they end first.
  children = [Child("proxy", options) for _ in range(_PROXIES)] + [
    Child("cluster", each) for each in clusters
  ]
  ready = False
  try:
    _wait(options, children, signals, seen)
    ready = True
    _report(options, as_json)
    follower.start()
    while not signals.ended.wait(0.1):
      _look_after(children, seen, dog)
  finally:
    follower.end()
    dog.close()
    _end(options, children, ready, signals)


def _look_after(children: Sequence[Child], seen: deaths.Deaths, dog: watchdog.Watchdog) -> None:
  """Kills the processes that hang, says which have died, and starts proxies and clusters again; Ray
  Serve starts replicas."""
  limits = {
    child.process.pid: watchdog.CLUSTER_SECONDS for child in children if child.kind == "cluster"
  }
  for pid, seconds in dog.look(limits).items():
    seen.kill(pid, f"it did not answer health calls for {seconds:.0f} s, so the server killed it")
  for child in children:
    child.keep_alive(seen)
  for pid, reason in seen.of_replicas():
    say(f"a replica (process {pid}) ended and is replaced: {reason}")


def _end(options: Options, children: Sequence[Child], ready: bool, signals: Signals) -> None:
  """Ends the processes. Raises KeyboardInterrupt after one more SIGINT, which kills them."""
  interrupts = signals.interrupts
  for child in children:
    child.end()
  if ready:
    taken = _taken(Path(options.run))
    wait = (
      f": {taken} accepted requests are answered first, for at most {DRAIN_SECONDS:g} s; "
      "Ctrl-C ends at once"
    )
    say(f"ending{wait if taken else ''}")
  # A cluster ends after the proxies, and one that is starting does not look: then nothing waits for
  # it.
  patience = {"proxy": DRAIN_SECONDS + 5, "cluster": 10.0 if ready else 1.0}
  for child in children:
    child.wait(patience[child.kind], lambda: signals.interrupts > interrupts)
  deaths.end_sessions(set().union(*(child.sessions for child in children)))
  if signals.interrupts > interrupts:
    raise KeyboardInterrupt


def _taken(run: Path) -> int:
  """The number of requests that the ending proxies still have to answer."""
  end = time.monotonic() + 1
  while len(files := list(run.glob("*.ending"))) < _PROXIES and time.monotonic() < end:
    time.sleep(0.02)
  return sum(int(file.read_text(encoding="utf-8")) for file in files)


def _report(options: Options, as_json: bool) -> None:
  """Prints one line on stdout with the served models, and a line on stderr for each model that is
  not served."""
  faults: dict[str, str] = {}
  for file in Path(options.run).glob("*.faults"):
    faults |= json.loads(file.read_text(encoding="utf-8"))
  for name, fault in faults.items():
    say(f"not served: {name!r}: {fault}")
  names = [name for name in config.read(Path(options.run)) if name not in faults]
  scheme = "https" if options.tls_cert else "http"
  path = f"/v1/models/{names[0] if len(names) == 1 else 'NAME'}"
  grpc, rest = (
    f"{options.url_host}:{options.grpc_port}",
    f"{scheme}://{options.url_host}:{options.http_port}",
  )
  verdict = f"serving {', '.join(map(repr, names))}: gRPC {grpc}, REST {rest}{path}"
  value = {"verdict": verdict, "models": names, "not served": faults, "grpc": grpc, "rest": rest}
  print(json.dumps(value) if as_json else verdict, flush=True)


def _wait(
  options: Options, children: Sequence[Child], signals: Signals, seen: deaths.Deaths
) -> None:
  """Waits for all processes. Raises ValueError with the reason if one cannot start."""
  run, begin, told, died = Path(options.run), time.monotonic(), 0.0, 0
  say(
    f"starting {_PROXIES} proxies, Ray and {options.replicas} replicas, which load TensorFlow and "
    f"the models; logs: {run / 'ray/session_latest/logs'}"
  )
  while True:
    proxies, replicas = len(list(run.glob("*.ready"))), len(list(run.glob("*.sock")))
    if replicas >= options.replicas and proxies >= _PROXIES:
      return
    ended = [child for child in children if child.process.poll() is not None]
    for _, reason in deaths.failures(run):
      raise ValueError(f"the server cannot start: {reason}")
    for child in ended:
      reason = seen.reason(child.process.pid, child.process.returncode)
      raise ValueError(f"the server cannot start: a {child.kind} ended: {reason}{_last_words(run)}")
    for pid, reason in seen.of_replicas():
      died += 1
      say(f"a replica (process {pid}) ended while it started: {reason}")
      if died == _DEATHS_OF_A_START:
        raise ValueError(
          f"the server cannot start: {died} replicas ended while they started: "
          f"{reason}{_last_words(run)}"
        )
    if (lost := seen.lost_workers()) >= _LOST_OF_A_START:
      raise ValueError(
        f"the server cannot start: {lost} processes of Ray ended before they loaded a model"
        f"{ray_settings.memory_monitor(os.environ)}{_last_words(run)}"
      )
    seconds = time.monotonic() - begin
    if seconds > told + _PROGRESS_SECONDS:
      told = seconds
      say(
        f"starting: {seconds:.0f} s, {proxies} of {_PROXIES} proxies, {replicas} of "
        f"{options.replicas} replicas are ready"
      )
    signals.pause()


def _last_words(run: Path) -> str:
  """What Ray wrote last into its logs of errors, which are removed with the folder."""
  files = sorted(run.glob("ray/session_2*/logs/*.err"), key=lambda file: -file.stat().st_mtime)
  for file in files:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    # Ray marks whose lines follow: ":job_id:01000000".
    if words := [line for line in lines if line.strip() and not line.startswith(":")]:
      return f"; {file.name} of Ray ends with: {words[-1][:500]}"
  return ""
