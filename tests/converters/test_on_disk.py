"""What is on disk, and when: savers that are killed, that run side by side, and models that are
large."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from jax2tf.converters import saved_model
from jax2tf.converters.saved_model import manifest

MODEL = """
import json, os, random, signal, sys, time
import jax.numpy as jnp, numpy as np
import jax2tf.api  # else each child imports it
from jax2tf.converters import saved_model

def save(folder, **options):
  model = saved_model.Model({"w": np.ones((300, 300), np.float32)})
  model = model.add(lambda p, x: jnp.sin(x @ p["w"]), inputs={"x": "f32[b,300]"})
  os.write(1, b"saving\\n")  # whole, also where Python does not buffer
  return model.save(folder, **options)
"""

# TensorFlow is imported once, and starts its threads in the children, of which each saves and is
# killed on the way.
KILLED = """
folder, moments, killed, whole = sys.argv[1], json.loads(sys.argv[2]), 0, None
for moment in [None, None, *moments]:  # the first is slower
  there, here = os.pipe()
  if (pid := os.fork()) == 0:
    os.dup2(here, 1)
    save(folder)
    os._exit(0)
  os.close(here)
  assert os.read(there, 100).startswith(b"saving")
  start = time.time()
  if moment is None:  # how long a save takes here
    assert os.waitpid(pid, 0)[1] == 0
    whole = time.time() - start
  else:
    time.sleep(moment * whole)
    os.kill(pid, signal.SIGKILL)
    killed += os.WIFSIGNALED(os.waitpid(pid, 0)[1])
  os.close(there)
print(killed)
"""


# The same for savers that run side by side.
SIDE_BY_SIDE = """
for _ in range(2):
  if os.fork() == 0:
    for _ in range(2):
      os.write(1, f"{save(sys.argv[1])}\\n".encode())
    os._exit(0)
assert [os.waitpid(-1, 0)[1] for _ in range(2)] == [0, 0]
"""


def run(program: str, *args: object) -> subprocess.Popen[str]:
  command = [sys.executable, "-W", "ignore", "-c", MODEL + program, *map(str, args)]
  return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output(process: subprocess.Popen[str]) -> str:
  out, err = process.communicate(timeout=900)
  assert process.returncode == 0, err[-3000:]
  return out


def visible(folder: Path) -> list[Path]:
  """The versions that a server would load."""
  return [p for p in folder.iterdir() if p.name.isdecimal()]


def assert_complete(version: Path) -> None:
  """It answers, and has the files that are written last."""
  signature = tf.saved_model.load(str(version)).signatures["serving_default"]
  np.testing.assert_allclose(signature(x=tf.zeros([1, 300]))["output"], np.zeros((1, 300)))
  assert manifest.read(version).weights


def test_killed_at_fifty_moments_no_half_version_is_ever_seen(tmp_path: Path) -> None:
  rng = random.Random(0)
  moments = [rng.uniform(0, 1) for _ in range(50)]  # parts of the time that a save takes
  killed = int(output(run(KILLED, tmp_path, json.dumps(moments))).split()[-1])
  assert killed >= 10  # the others were done before
  versions = visible(tmp_path)
  assert 2 + 50 - killed <= len(versions) < 2 + 50
  for version in versions:
    assert_complete(version)


def test_savers_side_by_side_make_a_version_each(tmp_path: Path) -> None:
  made = [line for line in output(run(SIDE_BY_SIDE, tmp_path)).splitlines() if line != "saving"]
  assert sorted(made) == [str(tmp_path / str(n)) for n in (1, 2, 3, 4)]
  for version in visible(tmp_path):
    assert_complete(version)


def test_replacing_a_version_there_is_one_at_every_moment(tmp_path: Path) -> None:
  saver = run(
    "for _ in range(7): print(save(sys.argv[1], version=7, overwrite=True), flush=True)", tmp_path
  )
  assert saver.stdout and saver.stdout.readline() == "saving\n"
  first = Path(saver.stdout.readline().rstrip())
  # an open descriptor of each folder seen: the file system gives its inode to no other
  held: dict[int, int] = {}
  while saver.poll() is None:
    descriptor = os.open(first, os.O_RDONLY)  # raises where it is not there
    if (inode := os.fstat(descriptor).st_ino) in held:
      os.close(descriptor)
    else:
      held[inode] = descriptor
    assert (first / "saved_model.pb").exists()
  output(saver)
  for descriptor in held.values():
    os.close(descriptor)
  assert len(held) >= 3
  assert [p.name for p in tmp_path.iterdir()] == ["7"]
  assert_complete(first)


# The model is loaded here too: the process of the tests would hold its memory as long as it holds
# the garbage.
LARGE = """
import pathlib
import jax, tensorflow as tf
from tests.support import measure

params = {f"w{i}": jnp.full((2**26,), i, jnp.float32) for i in range(9)}  # 9 of 256 MB: 2.25 GB
jax.block_until_ready(params)
save(sys.argv[1] + "/small")  # what saving anything takes

def large():
  model = saved_model.Model(params)
  model = model.add(lambda p, x: x + sum(w[:2].sum() for w in p.values()), inputs={"x": "f32[b]"})
  return model.save(sys.argv[1] + "/large")

extra = measure.peak_megabytes(large)
files = [f for f in pathlib.Path(sys.argv[1], "large").rglob("*") if f.is_file()]
run = tf.saved_model.load(sys.argv[1] + "/large/1").signatures["serving_default"]
answer = run(x=tf.zeros([2]))["output"].numpy().tolist()
print(json.dumps({"extra": extra, "bytes": sum(f.stat().st_size for f in files), "answer": answer}))
"""


def test_a_model_above_two_gigabytes_with_one_parameter_of_extra_memory(tmp_path: Path) -> None:
  found = json.loads(output(run(LARGE, tmp_path)).splitlines()[-1])
  assert found["bytes"] > 2.25 * 2**30
  # MB: one copy of the largest parameter, and what the saver itself takes
  assert found["extra"] < 1.3 * 256
  assert found["answer"] == [2 * sum(range(9))] * 2


def test_a_watching_server_sees_only_numbers(tmp_path: Path) -> None:
  """What is not finished has a name that is no number."""
  seen = []
  original = tf.saved_model.save

  def watched(model: object, place: str, **options: object) -> None:
    original(model, place, **options)
    seen.extend(p.name for p in tmp_path.iterdir())

  tf.saved_model.save = watched
  try:
    saved_model.save(lambda p, x: x, {}, tmp_path, inputs={"x": "f32[b]"})
  finally:
    tf.saved_model.save = original
  assert len(seen) == 1
  assert seen[0].startswith(".saving-")
  assert [p.name for p in tmp_path.iterdir()] == ["1"]
