"""`jax2tf convert FILE`: artifacts of other releases, in other runtimes."""

import json

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner
from jax import export

from jax2tf.converters.saved_model import manifest
from jax2tf.tools.cli.main import command
from tests.support import stored_artifacts as stored


def _converted(tmp_path, version, case, *options):
  file = tmp_path / "exported.bin"
  file.write_bytes(stored.artifact(version, case).blob)
  return CliRunner().invoke(command, ["convert", str(file), *options])


@pytest.mark.parametrize(
  ("version", "case", "to"), [("0.4.26", "mlp", "tflite"), ("0.12.0.1", "wide", "onnx")]
)
def test_a_file_of_jax_export(tmp_path, version, case, to):
  path = tmp_path / f"model.{to}"
  done = _converted(tmp_path, version, case, "--to", to, "--out", str(path), "--json")
  assert done.exit_code == 0, done.output
  assert "agree" in json.loads(done.stdout)["verdict"]
  assert path.exists()


def test_a_file_has_its_own_inputs(tmp_path):
  done = _converted(
    tmp_path, "0.10.2", "mlp", "--out", str(tmp_path / "m"), "--input", "x=f32[b,4]"
  )
  assert "--input is for MODULE:FUNCTION" in done.output


def test_typed_keys_are_refused(tmp_path):
  done = _converted(tmp_path, "0.10.2", "typed_key", "--out", str(tmp_path / "m"))
  assert "typed PRNG key" in done.output


def test_the_constraints_of_a_file_stay(tmp_path):
  """Those that are given come on top."""
  shape = export.symbolic_shape("b, 2*c", constraints=["b <= 8"])
  exported = export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(shape, jnp.float32))
  file = tmp_path / "exported.bin"
  file.write_bytes(exported.serialize())
  options = ["--out", str(tmp_path / "m"), "--version", "1", "--constraint", "c <= 3"]
  done = CliRunner().invoke(command, ["convert", str(file), *options])
  assert done.exit_code == 0, done.output
  assert manifest.read(tmp_path / "m" / "1").constraints == ["b <= 8", "c <= 3"]
