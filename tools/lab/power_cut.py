"""Power cuts while models are saved: docs/reports/serving.md.

Usage, as root on Linux: python -m jax2tf.tools.lab.power_cut [--cuts=100]

The models are saved to ext4 on a loop device. EXT4_IOC_SHUTDOWN cuts it off: from then on nothing
reaches the device, and what the system still holds in memory is lost, as when the power fails. Then
the file system is mounted again, which replays its journal, and the models are read. Before half of
the cuts another program syncs a file of its own, which writes the journal with the names of the
saver's files. The same cuts without fsync (`os.fsync` does nothing) show that the simulation finds
half models.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
import tensorflow as tf
from rich.progress import track

from jax2tf.converters import onnx, saved_model, tflite
from jax2tf.converters.bundle import durable, publish, versions
from jax2tf.tools.lab import pages, reports
from jax2tf.tools.lab.pages.serving import WITH, WITHOUT

# ext4.h: EXT4_IOC_SHUTDOWN, and its flag for "without writing the journal".
_SHUTDOWN, _NO_JOURNAL = 0x8004587D, 2
_SIZE = "64M"
_WIDTH = 64
_DELAYS = (0.0, 0.0, 0.1, 1.0)  # seconds between the end of a save and the cut

_fsync = os.fsync  # of the system, where the saver's does nothing


class PowerCutError(BaseException):
  """Ends a save at the moment of the cut; no handler of the saver catches it."""


@dataclass(frozen=True)
class Kind:
  """A way to save.

  Attributes:
    name: for the report.
    save: saves the model in a folder, and replaces the one before where the way says so.
    read: the number that the model in the folder multiplies by; None if there is no model. It
      raises for half a model.
    exchanges: whether the file system can exchange two folders at once.
  """

  name: str
  save: Callable[[saved_model.Model, Path], Any]
  read: Callable[[Path], float | None]
  exchanges: bool = True


class Disk:
  """A file system on a loop device."""

  def __init__(self, folder: Path):
    self._image, self.place = folder / "image", folder / "disk"
    self.place.mkdir()
    _run("truncate", "-s", _SIZE, self._image)
    _run("mkfs.ext4", "-q", self._image)
    _run("mount", "-o", "loop", self._image, self.place)

  def cut(self, journal: bool) -> None:
    """Cuts the power off. `journal`: another program synced a file just before."""
    if journal:
      neighbour = os.open(self.place / "neighbour", os.O_CREAT | os.O_WRONLY)
      os.write(neighbour, b"a line of its log\n")
      _fsync(neighbour)
      os.close(neighbour)
    place = os.open(self.place, os.O_RDONLY)
    fcntl.ioctl(place, _SHUTDOWN, struct.pack("I", _NO_JOURNAL))
    os.close(place)

  def restart(self) -> None:
    """Mounts the file system again."""
    _run("umount", self.place)
    _run("mount", "-o", "loop", self._image, self.place)

  def close(self) -> None:
    """Unmounts it."""
    _run("umount", self.place)


def _run(*command: object) -> None:
  subprocess.run([*map(str, command)], check=True)


def kinds() -> list[Kind]:
  """All ways to save."""
  once: dict[str, Any] = {"sizes": {"b": 1}, "samples": 1, "overwrite": True}
  return [
    Kind("SavedModel, a new version", lambda model, folder: model.save(folder), _of_saved_model),
    Kind("SavedModel, overwrite=True", _overwrite, _of_saved_model),
    Kind(
      "SavedModel, overwrite=True, where folders cannot be exchanged",
      _overwrite,
      _of_saved_model,
      exchanges=False,
    ),
    Kind(
      "ONNX with a data file",
      lambda model, folder: onnx.save_model(
        model, folder / "model.onnx", external_data_threshold=0, **once
      ),
      _of_onnx,
    ),
    Kind(
      "LiteRT",
      lambda model, folder: tflite.save_model(model, folder / "model.tflite", **once),
      _of_tflite,
    ),
  ]


def _overwrite(model: saved_model.Model, folder: Path) -> Path:
  return model.save(folder, version=1, overwrite=True)


def _of_saved_model(folder: Path) -> float | None:
  # a half version would be seen by a server, also beside a newer one
  for version in versions.numbered(folder):
    tf.saved_model.load(str(folder / str(version)))
  try:
    newest = publish.saved_model_in(folder)
  except FileNotFoundError:
    return None
  serve = tf.saved_model.load(str(newest)).signatures["serving_default"]
  return float(serve(x=tf.ones([1, _WIDTH]))["y"][0, 0])


def _of_onnx(folder: Path) -> float | None:
  file = folder / "model.onnx"
  return float(onnx.run(file, _INPUT)["y"][0, 0]) if file.exists() else None


def _of_tflite(folder: Path) -> float | None:
  file = folder / "model.tflite"
  return float(tflite.run(file, _INPUT)["y"][0, 0]) if file.exists() else None


_INPUT = {"x": np.ones((1, _WIDTH), np.float32)}


def _model() -> saved_model.Model:
  return saved_model.Model(_weights(0), trainable=False).add(
    lambda w, x: x @ w, inputs={"x": f"f32[b,{_WIDTH}]"}, outputs=["y"]
  )


def _weights(number: int) -> np.ndarray:
  return np.eye(_WIDTH, dtype=np.float32) * number


@contextlib.contextmanager
def _calls(before: Callable[[], None], sync: bool, exchanges: bool) -> Iterator[None]:
  """Has `before` called before each call of the system that makes a file durable or gives it its
  name."""

  def watched(original: Callable[..., Any], works: bool = True) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
      before()
      return original(*args, **options) if works else None

    return call

  def cannot(written: Path, target: Path) -> bool:
    del target
    durable.sync(written)
    return False

  with contextlib.ExitStack() as stack:
    stack.enter_context(mock.patch.object(os, "fsync", watched(os.fsync, sync)))
    for name in ("rename", "replace", "mkdir"):
      stack.enter_context(mock.patch.object(os, name, watched(getattr(os, name))))
    stack.enter_context(
      mock.patch.object(durable, "exchange", watched(durable.exchange) if exchanges else cannot)
    )
    yield


class Cutter:
  """Saves models one after the other and cuts each save, or the time after it.

  Args:
    disk: where to.
    kind: the way to save.
    sync: whether the saver's fsync does anything.
    seed: of the moments.
  """

  def __init__(self, disk: Disk, kind: Kind, sync: bool, seed: int):
    self._disk, self._kind, self._sync, self._random = disk, kind, sync, random.Random(seed)
    self._folder, self._model, self._number = disk.place / "model", _model(), 0
    self._steps, self._left = 0, 0
    self._start()

  def _start(self) -> None:
    """Saves a model that is safely on the disk."""
    shutil.rmtree(self._folder, ignore_errors=True)
    self._save(-1)
    durable.sync(self._folder)  # also where the saver's fsync does nothing
    durable.sync_names(self._disk.place)
    self._before = self._number

  def _save(self, cut_before: int, journal: bool = False) -> bool:
    """Saves the next model. Cuts before a call of the system, counted from 0. Returns whether the
    save ended."""
    self._number += 1
    self._model.update(_weights(self._number))
    steps = 0

    def before() -> None:
      nonlocal steps
      steps += 1
      if steps - 1 == cut_before:
        self._disk.cut(journal)
        raise PowerCutError

    try:
      with _calls(before, self._sync, self._kind.exchanges):
        self._kind.save(self._model, self._folder)
    except PowerCutError:
      return False
    self._steps = steps
    return True

  def cut(self) -> str:
    """One save and one cut. Returns what is there afterwards, one of `serving.CUTS`."""
    journal, after = self._random.random() < 0.5, self._random.random() < 0.5
    ended = self._save(-1 if after else self._random.randrange(self._steps), journal)
    if ended:
      time.sleep(self._random.choice(_DELAYS))
      self._disk.cut(journal)
    gc.collect()  # of the file system
    self._disk.restart()
    found = self._outcome(ended)
    if found in ("old", "new"):
      self._before = self._number if found == "new" else self._before
      for version in versions.numbered(self._folder)[:-2]:
        shutil.rmtree(self._folder / str(version))
    else:
      self._start()
    return found

  def _outcome(self, ended: bool) -> str:
    try:
      found = self._kind.read(self._folder)
    except Exception:  # each reader has its own errors
      return "half"
    if found is None:
      return "none"
    if found == self._number:
      return "new"
    return "half" if found != self._before else "lost" if ended else "old"


def outcomes(kind: Kind, cuts: int, sync: bool, seed: int) -> Counter[str]:
  """How often each outcome of `Cutter.cut` came."""
  with (
    tempfile.TemporaryDirectory(prefix="jax2tf-power-") as folder,
    contextlib.closing(Disk(Path(folder))) as disk,
  ):
    cutter = Cutter(disk, kind, sync, seed)
    return Counter(cutter.cut() for _ in track(range(cuts), kind.name))


@click.command
@click.option(
  "--cuts",
  type=click.IntRange(5),
  default=100,
  help="How many saves to cut, with fsync and as often without.",
)
def main(cuts: int) -> None:
  """Cuts and writes the report. Exits with 1 if a model was half, gone or lost."""
  if sys.platform != "linux" or os.geteuid() != 0:
    sys.exit("this mounts a loop device, so it needs Linux and root")
  ways, found = kinds(), {}
  for i, kind in enumerate(ways):
    share = cuts // len(ways) + (i < cuts % len(ways))
    found[kind.name] = {way: dict(outcomes(kind, share, way == WITH, i)) for way in (WITH, WITHOUT)}
    print(f"{kind.name}: {found[kind.name]}")
  reports.keep("power-cut", {"cuts": found})
  pages.write("serving")
  wrong = {
    way: sum(
      by_way[way].get(bad, 0) for by_way in found.values() for bad in ("half", "none", "lost")
    )
    for way in (WITH, WITHOUT)
  }
  print(f"{wrong[WITH]} of {cuts} wrong with fsync, {wrong[WITHOUT]} without")
  sys.exit(int(wrong[WITH] > 0 or wrong[WITHOUT] == 0))


if __name__ == "__main__":
  main()
