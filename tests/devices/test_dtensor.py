"""Sharding annotations as layouts of DTensor; what runs on several devices, in processes of their
own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax.sharding import AbstractMesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import jax2tf
from jax2tf import dtensor
from jax2tf.placement.dtensors import layout
from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
AUTO = jax.sharding.AxisType.Auto
MESH = AbstractMesh((1, 1), ("x", "y"), axis_types=(AUTO, AUTO))


@pytest.fixture(scope="module")
def mesh():
  return tf.experimental.dtensor.create_mesh([("x", 1), ("y", 1)], devices=["CPU:0"])


LONG = [
  pytest.param(*case, marks=pytest.mark.pipelines)
  for case in (
    ("encoder", 1),
    ("shard_map", 1),
    ("data parallel", 1),
    ("minilm", 1),
    ("minilm", 2),
    ("minilm data parallel", 1),
    ("cholesky of rows", 1),
    ("bfloat16", 1),
  )
]


@pytest.mark.parametrize(("name", "processes"), [("mlp", 1), *LONG])
def test_four_devices_give_the_values_of_jax(name, processes):
  """Of tests/devices/dtensor_cases.py."""
  command = [sys.executable, "-m", "tests.devices.dtensor_cases", name]
  jobs = (
    {}
    if processes == 1
    else {"DTENSOR_JOBS": ",".join(f"localhost:{port}" for port in free_ports(processes))}
  )
  with contextlib.ExitStack() as stack:
    started = []
    for i in range(processes):
      environment = (
        os.environ
        | jobs
        | ({"DTENSOR_CLIENT_ID": str(i), "DTENSOR_NUM_CLIENTS": str(processes)} if jobs else {})
      )
      pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
      started.append(
        stack.enter_context(subprocess.Popen(command, cwd=ROOT, env=environment, **pipes))
      )
      stack.callback(started[-1].kill)
    for process in started:
      out, err = process.communicate(timeout=180)
      assert process.returncode == 0, err[-3000:]
      assert out.split()[-1] == "equal"


@pytest.mark.pipelines
@pytest.mark.parametrize(
  ("name", "words"),
  [
    ("output channels", "Filter for convolution must have fully replicated layout"),
    ("column of rows", "Outer dimensions of indices and update must match"),
    ("tensor-parallel gradient", "SPMD needs communication is not supported yet"),
  ],
)
def test_errors_of_dtensor_that_the_guide_lists(name, words):
  """TensorFlow 2.21; when one of them works, move it to the cases with values."""
  done = subprocess.run(
    [sys.executable, "-m", "tests.devices.dtensor_cases", name],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=180,
    check=False,
  )
  assert done.returncode == 1 and words in done.stderr, done.stderr[-3000:]


def test_layouts(mesh):
  specs = {
    (): ["unsharded"] * 2,
    ("x",): ["x", "unsharded"],
    (None, ("y",)): ["unsharded", "y"],
    (P.UNCONSTRAINED, "x"): ["match", "x"],
  }
  for spec, expected in specs.items():
    assert layout(NamedSharding(MESH, P(*spec)), 2, mesh).sharding_specs == expected


@pytest.mark.parametrize(
  ("sharding", "words"),
  [
    (NamedSharding(MESH, P(("x", "y"))), "over 2 axes, and DTensor over one"),
    (
      NamedSharding(AbstractMesh((1,), ("z",)), P("z")),
      "names the axis 'z', and the DTensor mesh has x, y",
    ),
    (
      NamedSharding(AbstractMesh((2,), ("x",)), P("x")),
      "'x' has 2 devices in JAX's mesh, and 1 in the DTensor mesh",
    ),
    (SingleDeviceSharding(jax.devices()[0]), "SingleDeviceSharding names no axes"),
  ],
)
def test_what_is_no_layout_is_said(sharding, words, mesh):
  with pytest.raises(ValueError, match=words):
    layout(sharding, 2, mesh)


def test_what_dtensor_lacks_is_refused_with_its_line(mesh):
  def stacked(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c), c), x, None, length=3)[1]

  with pytest.raises(
    jax2tf.LoweringError,
    match=r"'scan' not implemented: DTensor has no layout(.|\n)*test_dtensor.py",
  ) as caught:
    jax2tf.convert(stacked, dtensor_mesh=mesh)(np.ones(2, np.float32))
  assert "write each step's row into the carry" in str(caught.value)


@pytest.mark.parametrize(
  ("fun", "x", "words"),
  [
    (
      lambda x: jax.lax.dynamic_slice(x, (0, 1), (2, 2)),
      np.ones((2, 4), np.float32),
      "'dynamic_update_slice' not implemented: DTensor crashes",
    ),
    (
      jnp.linalg.cholesky,
      np.eye(2, dtype=np.float32),
      "'triangular_solve' not implemented: DTensor has no layout for triangular systems",
    ),
  ],
)
def test_gradients_that_dtensor_lacks_are_refused_with_their_lines(fun, x, words, mesh):
  variable = tf.Variable(x)
  with tf.GradientTape() as tape:
    y = jax2tf.convert(fun, dtensor_mesh=mesh)(variable)
  with pytest.raises(jax2tf.LoweringError, match=words) as caught:
    tape.gradient(y, variable)
  assert "test_dtensor.py" in str(caught.value)


def test_each_device_gets_its_shard(mesh):
  place = {"x": 2, "y": 1}
  wanted = types.SimpleNamespace(
    mesh=types.SimpleNamespace(dim_size={"x": 4, "y": 2}.__getitem__),
    sharding_specs=["unsharded", "x", "y"],
  )
  assert dtensor._shard((3, 8, 4), wanted, place) == (slice(None), slice(4, 6), slice(2, 4))
  with pytest.raises(ValueError, match="size 6 cannot be split over the 4 devices of 'x'"):
    dtensor._shard((3, 6, 4), wanted, place)


@pytest.mark.parametrize("option", [{"keep_shardings": True}, {"native_serialization": True}])
def test_one_meaning_of_shardings_at_a_time(option, mesh):
  with pytest.raises(ValueError, match="choose one"):
    jax2tf.convert(jnp.sin, dtensor_mesh=mesh, **option)
