"""Quiet TensorFlow before anything imports it, and what several tests need."""

import gc
import importlib.metadata
import os
import pathlib
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import pytest

from tests.support import optional, warm_python

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# Its default depends on the processor; the tests also hold with 0, but for what Grappler fuses.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# JAX compiles each reference for one run: as JAX's own tests, without the optimisations, which take
# a third of that time.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# TensorFlow's XLA compiles for one run too: the optimisations of LLVM, behind all of XLA's own,
# take a third of its time.
os.environ.setdefault(
  "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
# Equinox reads it when it is imported: its checks are callbacks otherwise, which no graph can hold.
os.environ.setdefault("EQX_ON_ERROR", "nan")

# The garbage of one test is small beside what TensorFlow and JAX hold: looking for it less often
# takes 3 % of the time in place of 5 %.
gc.set_threshold(20_000, 20, 20)


# Tests that see neither JAX's version nor a lowering rule, by the beginning of their names:
# `.ci/run` has them on its first Python only.
ONE_PYTHON = {
  "tests/call_tf/test_in_workers.py": "processes of a fork server and of Ray",
  "tests/converters/test_c_loader.py": "C code that loads a SavedModel",
  "tests/converters/test_complex_exports.py": "TensorFlow's ops, as pairs of real numbers",
  "tests/converters/test_inspection.py": "files",
  "tests/converters/test_linear_algebra.py": "TensorFlow's ops, expanded",
  "tests/converters/test_on_disk.py": "files, and when they are there",
  "tests/converters/test_gamma_functions.py": "TensorFlow's ops, expanded",
  "tests/converters/test_onnx_attention.py": "masks, and what ONNX Runtime makes of them",
  "tests/converters/test_onnx_functions.py": "names of nodes; other tests have their values",
  "tests/converters/test_onnx_layouts.py": "files",
  "tests/converters/test_onnx_opsets.py": "files",
  "tests/converters/test_onnx_quantized.py": "ONNX Runtime's quantizer",
  "tests/converters/test_onnx_transposes.py": "TensorFlow's ops, and a graph of tf2onnx",
  "tests/converters/test_onnx_weights.py": "files",
  "tests/converters/test_onnx_sorting.py": "TensorFlow's ops, replaced",
  "tests/converters/test_pairs.py": "TensorFlow's ops, as pairs of real numbers",
  "tests/converters/test_publish.py": "files, and when they are there",
  "tests/converters/test_replacements.py": "TensorFlow's ops, replaced",
  "tests/converters/test_same_bytes.py": "files",
  "tests/converters/test_tflite_weights.py": "flatbuffers of TensorFlow's converter",
  "tests/converters/test_tfjs.py": (
    "TensorFlow's ops; test_fused_exports.py has models of each JAX"
  ),
  "tests/converters/test_tfjs_page.py": "a page for the browser",
  "tests/converters/test_verify.py": "processes without JAX, and comparisons of numbers",
  "tests/batch/test_batch": "processes without JAX, and files",
  "tests/documents/test_browser.py": "a browser",
  "tests/command_line/test_command_line.py::test_the_docs_as_typed": (
    "other tests run each command, in one process"
  ),
  "tests/serving/test_deploy.py": "files of other servers",
  "tests/documents/test_documents.py": "links and names",
  "tests/documents/test_gallery.py": "pictures; other tests run all that is in them",
  "tests/documents/test_guides.py": "documents; other tests have what they show",
  "tests/documents/test_site.py": "a browser",
  "tests/serving/test_generation": "a server without JAX",
  "tests/serving/test_serve": "a server without JAX",
  "tests/devices/test_strategies.py": "processes of TensorFlow's clusters",
  "tests/serving/test_tf_serving.py": "another server",
  "tests/generation/test_adapters.py": "models of libraries",
  "tests/generation/test_litert_lm.py": "LiteRT and its engine",
  "tests/generation/test_onnxruntime_genai.py": "ONNX Runtime's engine",
  "tests/generation/test_openvino_genai.py": "OpenVINO's engine",
  "tests/house/test_wheel.py": "what is packed, and where",
  "tests/lab/test_workers.py": "processes",
}
# Tests of 10 to 80 s, and a file of 50 s, by the beginning of their names: `make test` leaves them
# out.
LONG = {
  "tests/call_tf/test_in_workers.py::test_of_ray": "other tests have workers of a fork server",
  "tests/conformance/test_harnesses.py::test_nothing_else_is_lost": "whole tables",
  "tests/converters/test_complex_exports.py::test_models[onnx-spin": "LiteRT has the same row",
  "tests/converters/test_complex_exports.py::test_models[tfjs-spin": "LiteRT has the same row",
  "tests/converters/test_linear_algebra.py::test_decompositions[onnx": "LiteRT has the same rows",
  "tests/converters/test_linear_algebra.py::test_linear_systems[onnx-20]": "other rows have loops",
  "tests/converters/test_linear_algebra.py::test_linear_systems[tfjs-20]": "other rows have loops",
  "tests/converters/test_linear_algebra.py::test_qr_least": "rows of ops have its parts",
  "tests/converters/test_on_disk.py::test_a_model_above_two_gigabytes": "its size",
  "tests/converters/test_onnx_opsets.py::test_a_newer_number_has_the_answers_of_the_oldest": (
    "other tests have each kind of node"
  ),
  "tests/converters/test_same_bytes.py": "nine exports, a third of them in another process",
  "tests/models/test_minilm.py::test_values_over_a_hundred_sizes": "other tests have some sizes",
  "tests/documents/test_browser.py::test_the_page_computes_jaxs_embeddings[webgl]": (
    "other pages have WebGL"
  ),
  "tests/command_line/test_command_line.py::test_the_docs_as_typed": (
    "other tests have each command"
  ),
  "tests/documents/test_gallery.py": "pictures; other tests run all that is in them",
  "tests/documents/test_generate.py::test_the_example_runs_to_its_last_line": (
    "other tests have its parts"
  ),
  "tests/gradients/test_training.py::test_the_example_trains_on": "other tests have its parts",
  "tests/house/test_wheel.py::test_the_command_of_an_installed_wheel": (
    "other tests have each command"
  ),
  "tests/house/test_wheel.py::test_the_start_page_as_typed": "other tests have each command",
}

_FEW = 6  # `make test` runs one row in so many
_OMITTED = pytest.StashKey[bool]()  # whether `make test` leaves a test out


def pytest_addoption(parser: pytest.Parser) -> None:
  parser.addoption(
    "--one-row-in",
    type=int,
    choices=(1, 2, _FEW),
    default=1,
    help="of each parametrized test, run one row in this many; another one with each JAX",
  )
  parser.addoption(
    "--rows-until",
    type=float,
    default=float("inf"),
    metavar="TIME",
    help="skip what `make test` leaves out after this time, in seconds since 1970",
  )
  parser.addoption(
    "--update-golden",
    action="store_true",
    help="write the op counts of tests/golden, as `make golden` does, instead of comparing them",
  )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
  """Skips a file that imports an optional package which is not installed."""
  report = yield
  error = report.call.excinfo.value if report.call and report.call.excinfo else None
  if report.outcome == "failed" and error and (reason := optional.reason(error)):
    report.outcome, report.longrepr = "skipped", (str(report.fspath), 0, f"Skipped: {reason}")
  return report


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, object, object]:
  """Skips a test whose fixture imports such a package."""
  return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
  """Skips a test that imports such a package."""
  return (yield from _skipping())


def _skipping() -> Generator[None, object, object]:
  try:
    return (yield)
  except ImportError as error:
    if reason := optional.reason(error):
      pytest.skip(reason)
    raise


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
  """Marks what one Python is enough for and what `make test` leaves out, and leaves out what
  --one-row-in does not ask for."""
  for item in items:
    if item.nodeid.startswith(tuple(ONE_PYTHON)):
      item.add_marker(pytest.mark.one_python)
  # A process takes the next file when it is done with one: whatever is long comes first.
  long_files = {item.path for item in items if item.nodeid.startswith(tuple(LONG))}
  items.sort(key=lambda item: item.path not in long_files)
  turn = int(int(importlib.metadata.version("jax").split(".")[1]) >= 12)
  few = selected(items, _FEW, turn)
  for item in items:
    item.stash[_OMITTED] = item not in few
  asked = selected(items, config.getoption("--one-row-in"), turn)
  config.hook.pytest_deselected(items=[item for item in items if item not in asked])
  items[:] = [item for item in items if item in asked]


def selected(items: Sequence[pytest.Item], one_row_in: int, turn: int) -> set[pytest.Item]:
  """What a run of one row in so many has: of each parametrized test at least one row, and of two
  turns in halves each row once. What one Python is enough for has no halves.

  Args:
    items: all tests.
    one_row_in: 1, 2 or 6. With 6 the longest tests and those of clusters are left out.
    turn: 0 or 1.
  """
  tests: dict[str, list[pytest.Item]] = {}
  for item in items:
    is_long = item.get_closest_marker("pipelines") or item.nodeid.startswith(tuple(LONG))
    if not (is_long and one_row_in == _FEW):
      tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
  found = set()
  for test, rows in tests.items():
    is_whole = one_row_in == 2 and test.startswith(tuple(ONE_PYTHON))
    each = 1 if is_whole else min(one_row_in, len(rows))
    # Without an order of the table, which may repeat in the same steps.
    rows.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
    found.update(rows[turn % each :: each])
  return found


def pytest_runtest_setup(item: pytest.Item) -> None:
  """Skips what `make test` leaves out when the time of --rows-until is over."""
  if item.stash[_OMITTED] and time.time() > item.config.getoption("--rows-until"):
    pytest.skip("the time of --rows-until is over, and `make test` leaves this out")


@pytest.fixture(autouse=True, scope="module")
def what_is_left() -> None:
  """Graphs and functions of earlier tests, which TensorFlow and JAX keep: LiteRT's converter would
  search them for garbage at each call."""
  gc.collect()
  gc.freeze()


@pytest.fixture(autouse=True)
def few_latencies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
  """Has exports and verifications measure no latency, except in tests with the mark `latencies`: a
  call would be repeated for a second, on both sides, at each assignment of sizes."""
  plan = sys.modules.get("jax2tf.converters.verify.plan")
  if plan is None or request.node.get_closest_marker("latencies"):
    return
  series = plan.Subject.series

  def untimed(subject: Any, count: int) -> list[tuple[bool, bool]]:
    return [(False, continues) for _, continues in series(subject, count)]

  monkeypatch.setattr(plan.Subject, "series", untimed)


@pytest.fixture(autouse=True, scope="session")
def no_equality_of_tensors() -> Iterator[None]:
  """Has `tensor == x` and `tensor != x` fail in jax2tf: graphs of TensorFlow 1 compare objects."""
  tf = sys.modules.get("tensorflow")
  if tf is None:  # no test of this session needs it
    yield
    return

  def refusing(operator: Any) -> Any:
    def compare(tensor: Any, other: Any) -> Any:
      caller = sys._getframe(1)
      if caller.f_globals.get("__name__", "").startswith("jax2tf."):
        line = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        pytest.fail(f"{line} compares tensors by == or !=: use tf.equal, tf.not_equal or `is`")
      return operator(tensor, other)

    return compare

  with pytest.MonkeyPatch.context() as patch:
    for name in ("__eq__", "__ne__"):
      patch.setattr(tf.Tensor, name, refusing(getattr(tf.Tensor, name)))
    yield


@pytest.fixture(scope="session")
def without_jax() -> Iterator[str]:
  """The executable of a Python that has imported TensorFlow and can import no JAX."""
  # A socket's name has to be short, so it is not in pytest's folder.
  with (
    tempfile.TemporaryDirectory(prefix="warm-") as folder,
    warm_python.started(pathlib.Path(folder)) as executable,
  ):
    yield executable


@pytest.fixture
def one_step(monkeypatch: pytest.MonkeyPatch) -> None:
  """An iteration of a loop makes one step, so that no loop of few steps is unrolled."""
  from jax2tf.lowering import control_flow  # noqa: PLC0415  (TensorFlow and JAX)

  monkeypatch.setattr(control_flow, "_MAX_EQUATIONS_PER_ITERATION", 1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
  """Headless Chromium. Without it, tests are skipped; they fail if JAX2TF_BROWSER=required, which
  .ci/run sets where it can install it."""
  from playwright import sync_api  # noqa: PLC0415  (which few sessions need)

  chromium = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
  )
  if chromium is None:
    if os.environ.get("JAX2TF_BROWSER") == "required":
      pytest.fail("there is no chromium: apt-get install chromium", pytrace=False)
    pytest.skip(reason="there is no chromium: apt-get install chromium")
  with sync_api.sync_playwright() as playwright:
    opened = playwright.chromium.launch(
      executable_path=chromium, args=["--no-sandbox", "--enable-unsafe-swiftshader"]
    )
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def tfjs_packages() -> pathlib.Path:
  """TF.js itself, from npm; a machine that cannot have it says so."""
  from jax2tf.converters import tfjs  # noqa: PLC0415  (TensorFlow, which few sessions without such a test need)

  try:
    return tfjs.packages()
  except ImportError as error:
    pytest.skip(reason=f"needs TF.js: {error}")
