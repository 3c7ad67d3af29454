"""Runs a model of the zoo (`tests.support.models`) in the runtime of each target, and compares the
answers with jax.jit."""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

from jax2tf.converters import saved_model, verify
from jax2tf.converters.bundle import calls
from jax2tf.converters.bundle.notation import Spec
from jax2tf.converters.export.pipeline import Exported
from jax2tf.converters.export.source import Runner, Signature, Source
from jax2tf.converters.tfjs import runtime
from jax2tf.converters.verify import plan
from jax2tf.examples.browser import page as model_page
from tests.support import c_programs, models

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
# Kept between runs: rows, compiled functions, the C program.
CACHE = REPOSITORY / "build" / "models"


class Case:
  """A model of the zoo, built and exported once for all targets that read the same files.

  Attributes:
    entry: its entry in the zoo.
    folder: the folder of its files.
  """

  def __init__(self, model: Any, folder: pathlib.Path):
    """From the name of a model, or an entry as the zoo has them."""
    self.entry = models.load(model) if isinstance(model, str) else model
    self.folder = folder

  @functools.cached_property
  def built(self) -> tuple[Callable[..., Any], Any]:
    return self.entry.build()

  @functools.cached_property
  def model(self) -> saved_model.Model:
    fun, params = self.built
    model = saved_model.Model(params, polymorphic_constraints=self.entry.constraints)
    return model.add(fun, inputs=self.entry.inputs, outputs=self.entry.outputs)

  @functools.cached_property
  def directory(self) -> pathlib.Path:
    return self.model.save(self.folder / "saved_model")

  @functools.cached_property
  def source(self) -> Source:
    return Source.of(self.model)

  @property
  def signature(self) -> Signature:
    (signature,) = self.source.signatures.values()
    return signature

  @property
  def comparison(self) -> dict[str, Any]:
    return {"sizes": self.entry.sizes, "rtol": self.entry.rtol, "atol": self.entry.atol}

  @functools.cached_property
  def tfjs(self) -> Exported:
    return self.exported("tfjs", backends=["wasm"])

  def exported(self, target: str, **options: Any) -> Exported:
    """The run of an exporter with its default idioms, which compares with JAX itself."""
    exporter = importlib.import_module(f"jax2tf.converters.{target}")
    given = {
      "inputs": self.entry.inputs,
      "outputs": self.entry.outputs,
      "polymorphic_constraints": self.entry.constraints,
    }
    path = self.folder / f"model.{target}"
    return exporter.save(
      *self.built, path, **given, examples=self.entry.examples, **self.comparison, **options
    )

  def compared(self, answer: Runner, target: str, runtime: str, path: pathlib.Path) -> Exported:
    """The comparison of a file that no exporter compares."""
    report = self.source.compared(
      answer,
      target,
      runtime,
      plan.Comparison(examples=self.entry.examples, **self.comparison),
      versions={},
    )
    return Exported.at(path, report)


def _saved_model(case: Case) -> Exported:
  """Runs in TensorFlow, in a process without JAX."""
  fun, params = case.built
  report = verify.verify(
    case.directory, fun, params=params, inputs=case.entry.examples, hostile=True, **case.comparison
  )
  report.raise_for_mismatch()
  return Exported.at(case.directory, report)


def _c_loader(case: Case) -> Exported:
  """Runs in tests/c/run_saved_model.c, which loads a SavedModel as TF Serving does."""
  program = CACHE / f"run_saved_model-{tf.__version__}"
  if not program.exists():
    c_programs.compiled(c_programs.RUN_SAVED_MODEL, program, "-O2")

  def answer(runs: Sequence[plan.Run]) -> Sequence[calls.Answer]:
    with tempfile.TemporaryDirectory() as place:
      folders = [
        (pathlib.Path(place, f"in_{i}"), pathlib.Path(place, f"out_{i}")) for i in range(len(runs))
      ]
      for run, pair in zip(runs, folders, strict=True):
        for folder in pair:
          folder.mkdir()
        for name, array in run.inputs.items():
          np.save(pair[0] / f"{name}.npy", array)
      command = [
        program,
        case.directory,
        case.signature.name,
        *(folder for pair in folders for folder in pair),
      ]
      done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
      if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"the program ended with {done.returncode}")
      return [
        {
          "outputs": {file.stem: np.load(file) for file in to.iterdir()},
          "error": "",
          "seconds": None,
        }
        for _, to in folders
      ]

  return case.compared(answer, "c", "TensorFlow's C API", case.directory)


def _openvino(case: Case) -> Exported:
  """Runs the SavedModel directly in OpenVINO."""
  # Its import forks and sends telemetry over the network, unless it detects a test.
  with mock.patch.dict(os.environ, CI="true"):
    import openvino  # noqa: PLC0415  (not an extra of ours)

  core = openvino.Core()
  try:
    # On processors with bfloat16 that is OpenVINO's default.
    compiled = core.compile_model(
      core.read_model(str(case.directory)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
  except RuntimeError as error:
    if lacking := re.search(
      r"(?:No conversion rule found for operations|Conversion is failed for): (.*)", str(error)
    ):
      said = re.search(r"OpenVINO TensorFlow Frontend does not .*", str(error))
      ops = dict.fromkeys(lacking[1].split(", "), said[0] if said else "no conversion rule")
      raise case.signature.refuse(
        "openvino", f"OpenVINO {openvino.__version__.split('-')[0]}", ops
      ) from None
    raise

  def outputs(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    named = {
      name: array for key, array in compiled(dict(inputs)).items() for name in key.get_names()
    }
    return {name: np.array(named[name]) for name in case.signature.record.outputs if name in named}

  return case.compared(in_turn(outputs), "openvino", "OpenVINO", case.directory)


def in_turn(outputs: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]) -> Runner:
  """Runs a function of the inputs once for each run, and measures those that are timed."""
  return lambda runs: [
    calls.answered(functools.partial(functools.partial, outputs, run.inputs), run.timed)
    for run in runs
  ]


def _chromium(case: Case) -> Exported:
  """Runs the model in a page in headless Chromium."""
  from playwright import sync_api  # noqa: PLC0415  (an extra)

  exported, outputs = case.tfjs, case.signature.record.outputs
  dtypes = {name: Spec.parse(text).dtype for name, text in outputs.items()}
  html = model_page.write(exported.path, title=case.entry.name)

  def answer(runs: Sequence[plan.Run]) -> Sequence[calls.Answer]:
    with sync_api.sync_playwright() as playwright:
      browser = playwright.chromium.launch(
        executable_path=shutil.which("chromium"), args=["--no-sandbox"]
      )
      page = browser.new_page()
      page.goto(html.as_uri())
      found = [_in_page(page, run) for run in runs]
      browser.close()
    return found

  def _in_page(page: Any, run: plan.Run) -> calls.Answer:
    given = {
      name: {"shape": array.shape, "values": runtime.as_held(array).ravel().tolist()}
      for name, array in run.inputs.items()
    }
    try:
      results = [
        page.evaluate("given => run(given, 'wasm')", given) for _ in range(1 + 5 * run.timed)
      ]
    except sync_api.Error as error:
      return calls.failed(calls.sentence(error))
    arrays = {
      name: np.array(result["values"])
      .astype(np.int64 if dtypes[name].kind in "iu" else float)
      .astype(dtypes[name])
      for name, result in results[0]["answers"].items()
    }
    outputs = {
      name: array.reshape(results[0]["answers"][name]["shape"]) for name, array in arrays.items()
    }
    seconds = (
      float(np.median([result["milliseconds"] for result in results[1:]])) / 1e3
      if run.timed
      else None
    )
    return {"outputs": outputs, "error": "", "seconds": seconds}

  report = case.compared(answer, "tfjs", "TF.js in Chromium (wasm)", exported.path).report
  return Exported(exported.path, report, exported.size)  # the size without the page


TARGETS: Mapping[str, tuple[str, Callable[[Case], Exported]]] = {
  "saved_model": ("SavedModel", _saved_model),
  "c": ("C loader", _c_loader),
  "onnx": ("ONNX Runtime", functools.partial(Case.exported, target="onnx")),
  "tflite": ("LiteRT", functools.partial(Case.exported, target="tflite")),
  "tfjs": ("TF.js, node (wasm)", lambda case: case.tfjs),
  "chromium": ("TF.js, Chromium (wasm)", _chromium),
  "openvino": ("OpenVINO", _openvino),
}
