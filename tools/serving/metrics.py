"""The metrics of the proxies, in Prometheus' text format. Each proxy writes its own files; the one
that is asked adds them up."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jax2tf.tools.serving import child
from jax2tf.tools.serving.balance import Served
from jax2tf.tools.serving.streams import Part

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# From a small model without load to a large one behind a long queue.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# Tokens a second, from a large model under load to a tiny one.
_SPEEDS = (1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0)


class Metrics:
  """The metrics of one proxy, in files in `folder`."""

  def __init__(self, folder: Path, under_way: Callable[[], int], replicas: Callable[[], int]):
    # prometheus_client (0.26) reads it at import
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
    import prometheus_client  # noqa: PLC0415
    from prometheus_client import multiprocess  # noqa: PLC0415

    self._folder = folder
    self._text = prometheus_client.generate_latest
    self._registry = prometheus_client.CollectorRegistry()
    multiprocess.MultiProcessCollector(self._registry, str(folder))
    own = prometheus_client.CollectorRegistry()
    labels = ("interface", "method", "model", "version", "signature")
    self._requests = prometheus_client.Counter(
      "jax2tf_requests", "Requests by what became of them.", (*labels, "code"), registry=own
    )
    self._seconds = prometheus_client.Histogram(
      "jax2tf_request_seconds",
      "Time from a request to its answer.",
      labels,
      registry=own,
      buckets=_SECONDS,
    )
    self._under_way = prometheus_client.Gauge(
      "jax2tf_requests_under_way",
      "Requests that were taken and are not answered.",
      registry=own,
      multiprocess_mode="livesum",
    )
    self._replicas = prometheus_client.Gauge(
      "jax2tf_replicas", "Replicas that can be reached.", registry=own, multiprocess_mode="livemax"
    )
    self._sessions = prometheus_client.Gauge(
      "jax2tf_sessions", "Texts in the making.", registry=own, multiprocess_mode="livesum"
    )
    self._cache_bytes = prometheus_client.Gauge(
      "jax2tf_cache_bytes",
      "Bytes of the caches of texts in the making.",
      registry=own,
      multiprocess_mode="livesum",
    )
    of_model = ("model", "version")
    self._tokens = prometheus_client.Counter(
      "jax2tf_generated_tokens", "Tokens that were generated.", of_model, registry=own
    )
    self._first_token = prometheus_client.Histogram(
      "jax2tf_first_token_seconds",
      "Time from a request to its first token.",
      of_model,
      registry=own,
      buckets=_SECONDS,
    )
    self._speed = prometheus_client.Histogram(
      "jax2tf_tokens_per_second",
      "Tokens a second of a text, after its first token.",
      of_model,
      registry=own,
      buckets=_SPEEDS,
    )
    self._read = {self._under_way: under_way, self._replicas: replicas}

  def count(self, interface: str, method: str, served: Served, code: str, seconds: float) -> None:
    """Counts one request."""
    labels = interface, method, served.model, served.version, served.signature
    self._requests.labels(*labels, code).inc()
    self._seconds.labels(*labels).observe(seconds)

  @contextlib.contextmanager
  def session(self, start: float) -> Iterator[Callable[[Part], None]]:
    """Measures one text in the making during the block, by the parts that the block tells.

    Args:
      start: when its request came, by time.monotonic.
    """
    session = first = last = Part()

    def note(part: Part) -> None:
      nonlocal session, first, last
      if part.model:
        session = part
        self._sessions.inc()
        self._cache_bytes.inc(session.cache_bytes)
      if part.tokens > last.tokens:
        labels = session.model, session.version
        if not last.tokens:
          first = part
          self._first_token.labels(*labels).observe(time.monotonic() - start)
        self._tokens.labels(*labels).inc(part.tokens - last.tokens)
        last = part

    try:
      yield note
    finally:
      if session.model:
        self._sessions.dec()
        self._cache_bytes.dec(session.cache_bytes)
      if last.tokens > first.tokens:
        # by the replica's clock, for a proxy may see several parts at once
        speed = (last.tokens - first.tokens) / (last.seconds - first.seconds)
        self._speed.labels(session.model, session.version).observe(speed)

  def look(self) -> None:
    """Updates the gauges of this proxy."""
    for gauge, read in self._read.items():
      gauge.set(read())

  def text(self) -> bytes:
    """The metrics of all proxies. The gauges of dead ones do not count."""
    self.look()
    for file in self._folder.glob("gauge_live*_*.db"):
      if not child.is_alive(Path(file.stem.rpartition("_")[2])):
        file.unlink(missing_ok=True)
    return self._text(self._registry)
