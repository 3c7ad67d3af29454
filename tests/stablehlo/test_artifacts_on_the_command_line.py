"""`jax2tf convert FILE`: artifacts of other releases, in other runtimes."""

import json

import pytest
from click.testing import CliRunner

from jax2tf.tools.cli.main import command
from tests.stablehlo import stored


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
