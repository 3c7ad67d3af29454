"""Exports a function as a LiteRT (TFLite) model of builtin ops, and compares its outputs in
LiteRT's interpreter with JAX's.

`replacements` replaces ops that LiteRT lacks or computes differently. TensorFlow's converter then
translates the graph op by op. Floating point models are compared within rtol and atol, quantised
models by the cosine of each output with JAX's (`LEAST_COSINE`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax2tf.idioms import fused as fused_idioms

from ..bundle import paths
from ..export import pipeline
from ..export.pipeline import Exported
from ..saved_model.builder import Model
from ..verify.plan import Comparison
from ..verify.report import Report
from . import runtime, training
from .quantized import Quantization
from .target import File, TFLite, versions

# LiteRT 2.3: its MAX_POOL_2D and SELU ignore NaN. With the other fused idioms the values are JAX's.
IDIOMS = fused_idioms.without("attention", "max_pool", "selu")


def save(
  fun: Callable[..., Any],
  params: Any,
  path: str | os.PathLike[str],
  *,
  inputs: Mapping[str, Any],
  outputs: Sequence[str] | Mapping[str, str] | None = None,
  polymorphic_constraints: Sequence[str] = (),
  idioms: str = IDIOMS,
  overwrite: bool = False,
  quantization: str | None = None,
  representative_dataset: Any = None,
  least_cosine: float | None = None,
  least_top_1: float | None = None,
  scores: Sequence[str] | None = None,
  narrow_inputs: Sequence[str] = (),
  inference_input_type: str | None = None,
  inference_output_type: str | None = None,
  sizes: Mapping[str, int | Sequence[int]] | None = None,
  samples: int = 2,
  examples: Mapping[str, Any] | None = None,
  rtol: float | None = None,
  atol: float | None = None,
) -> Exported:
  """Exports `fun(params, *inputs)` as a LiteRT model.

  Args:
    fun, params, inputs, outputs, polymorphic_constraints: as for `saved_model.save`.
    idioms: as for `jax2tf.convert`. By default, the fused idioms for which the runtime computes
      JAX's values (docs/guide/fused.md).
    path, overwrite, quantization, representative_dataset: as for `save_model`.
    least_cosine, least_top_1, scores, narrow_inputs: as for `save_model`.
    inference_input_type, inference_output_type: as for `save_model`.
    sizes, samples, examples, rtol, atol: as for `save_model`.

  Returns:
    as `save_model`.

  Raises:
    ExportError, FileExistsError, IsADirectoryError, OSError, ImportError, ValueError: as
      `save_model`.
    NotImplementedError: a `jax2tf.LoweringError` that lists all primitives without a lowering.

  Examples:
    >>> import jax.numpy as jnp, numpy as np
    >>> from jax2tf.converters import tflite
    >>> w = np.eye(2, dtype=np.float32)
    >>> made = tflite.save(
    ...   lambda w, x: jnp.tanh(x @ w), w, "model.tflite", inputs={"x": "f32[1,2]"}, outputs=["y"]
    ... )
    >>> made.path.name
    'model.tflite'
  """
  target = TFLite(
    overwrite,
    Comparison(sizes, samples, examples, rtol, atol),
    Quantization(
      quantization,
      representative_dataset,
      least_cosine,
      least_top_1,
      scores,
      narrow_inputs,
      inference_input_type,
      inference_output_type,
    ),
  )
  return pipeline.exported_function(
    target,
    fun,
    params,
    path,
    inputs=inputs,
    outputs=outputs,
    polymorphic_constraints=polymorphic_constraints,
    idioms=idioms,
  )


def save_model(
  model: Model | str | os.PathLike[str],
  path: str | os.PathLike[str],
  *,
  signatures: Sequence[str] | None = None,
  reference: Any = None,
  params: Any = None,
  idioms: str | None = None,
  overwrite: bool = False,
  quantization: str | None = None,
  representative_dataset: Any = None,
  least_cosine: float | None = None,
  least_top_1: float | None = None,
  scores: Sequence[str] | None = None,
  narrow_inputs: Sequence[str] = (),
  inference_input_type: str | None = None,
  inference_output_type: str | None = None,
  sizes: Mapping[str, int | Sequence[int]] | None = None,
  samples: int = 2,
  examples: Mapping[str, Any] | None = None,
  rtol: float | None = None,
  atol: float | None = None,
) -> Exported:
  """Exports the signatures of a model as one file, which keeps the names of signatures, inputs and
  outputs.

  Stateful signatures of a builder become signatures that share variables of the interpreter. The
  file gets a further signature, `state`, which returns the variables.

  Args:
    model: a `saved_model.Model`, or the directory of any SavedModel. A SavedModel of XlaCallModule
      ops is opened first, as by `opened.save`.
    path: the file, `model.tflite`, or its address in another file system of TensorFlow.
    signatures: names of the signatures to export. By default all; if a function has several names,
      the first of them.
    reference: for a directory, the JAX function `fun(params, *inputs)`, or {signature: function}.
      By default, the SavedModel run by TensorFlow.
    params: the parameters of `reference`.
    idioms: the idioms with which the model must have been converted. By default, any.
    overwrite: whether to replace an existing file.
    quantization: None; "float16": weights, dequantised to float32 when the model is loaded;
      "dynamic_int8": weights, and activations at run time; "int8": weights and activations,
      calibrated, for ops with int8 kernels; "int4": weights, by ai-edge-quantizer.
    representative_dataset: typical inputs of the model: an iterable of {input: array}, {signature:
      iterable} for several signatures, or a function without arguments that returns one of them.
      "int8" needs them unless the function has quant.fake_quant of Qwix; the other schemes use them
      for the comparison. "int8" holds back every fifth sample from the calibration, and compares
      these with the reference. If there are fewer than five samples, it calibrates with all and
      compares all.
    least_cosine: the smallest permitted cosine between an output of a quantised model and the
      reference's output. By default `LEAST_COSINE[quantization]`. On representative samples the
      cosine without the mean of the outputs must be at least 1 - 10 * (1 - least_cosine).
    least_top_1: the smallest permitted share of representative rows in which the class with the
      largest score is the reference's, or in which an integer output is equal. By default
      `LEAST_TOP_1[quantization]`.
    scores: the outputs that are scores of classes, along the last axis. By default, the outputs
      whose values in the reference are at least 0 and have the sum 1.
    narrow_inputs: the 8-bit inputs of rank 3 and more whose representative values may lie within 32
      numbers, as the values of masks do.
    inference_input_type, inference_output_type: for "int8", "int8" or "uint8": the dtype of the
      floating point inputs or outputs of the file. Its quantization parameters are in the file:
      `get_input_details()[name]["quantization"]` of a signature runner. By default they keep their
      dtypes.
    sizes: {dimension variable: size or sizes} at which to compare. By default several.
    samples: the number of random inputs per kind and size.
    examples: {input: array, or callable(rng, shape, dtype)}, in place of random inputs.
    rtol, atol: |file - jax| <= atol + rtol * |jax|. By default, tolerances of the coarsest dtype
      that the computation uses. A quantised model takes neither.

  Returns:
    the file, the report of the comparison and the size.

  Raises:
    ExportError: LiteRT lacks ops, all listed with their source lines; or an output differs from the
      reference's.
    FileExistsError: the file exists and `overwrite` is False.
    IsADirectoryError: `path` is a folder.
    OSError: the file cannot be written.
    FileNotFoundError: `model` is a path without a SavedModel.
    ImportError: a package of jax2tf[tflite] is missing.
    ValueError: a signature or `quantization` is unknown; `quantization` lacks its data, or an
      option does not apply to it; `representative_dataset` does not fit the inputs, has one value
      everywhere, or images of few values; the function calls back into Python.

  Examples:
    >>> from jax2tf.converters import saved_model, tflite
    >>> model = saved_model.Model({"w": 2.0})
    >>> model = model.add(
    ...   lambda params, x: params["w"] * x,
    ...   inputs={"x": "f32[4]"},
    ...   outputs=["y"],
    ...   signatures=["scale"],
    ... )
    >>> model = model.add(
    ...   lambda params, x: x - params["w"],
    ...   inputs={"x": "f32[4]"},
    ...   outputs=["y"],
    ...   signatures=["shift"],
    ... )
    >>> made = tflite.save_model(model, "model.tflite", samples=1)
    >>> made.path.name, made.report.ok
    ('model.tflite', True)
  """
  target = TFLite(
    overwrite,
    Comparison(sizes, samples, examples, rtol, atol),
    Quantization(
      quantization,
      representative_dataset,
      least_cosine,
      least_top_1,
      scores,
      narrow_inputs,
      inference_input_type,
      inference_output_type,
    ),
  )
  return pipeline.exported(
    target, model, path, signatures=signatures, reference=reference, params=params, idioms=idioms
  )


def run(
  path: str | os.PathLike[str], inputs: Mapping[str, Any], *, signature: str = "serving_default"
) -> dict[str, np.ndarray]:
  """Runs a signature once in LiteRT on CPU, in a separate process.

  Args:
    path: the .tflite file.
    inputs: {input: array}. A complex input c64[b] is f32[b,2] in the file, and may be passed in
      this form.
    signature: the name of the signature.

  Returns:
    {output: array}. Outputs that are complex in JAX are complex here.

  Raises:
    FileNotFoundError, IsADirectoryError, ValueError: `path` is not a file, or is in a file system
      that TensorFlow does not have.
    ImportError: ai-edge-litert is missing.
    RuntimeError: LiteRT fails. The message quotes it.

  Examples:
    >>> import numpy as np
    >>> from jax2tf.converters import tflite
    >>> made = tflite.save(
    ...   lambda params, x: 2 * x, None, "model.tflite", inputs={"x": "f32[b]"}, outputs=["y"]
    ... )
    >>> tflite.run("model.tflite", {"x": np.ones(3, np.float32)})
    {'y': array([2., 2., 2.], dtype=float32)}
  """
  runtime.extra("ai_edge_litert")
  with paths.opened(path) as model:
    return pipeline.single(functools.partial(runtime.answers, model), inputs, signature)


def save_training(
  loss: Callable[..., Any],
  fun: Callable[..., Any],
  params: Any,
  path: str | os.PathLike[str],
  *,
  batch: Mapping[str, Any],
  inputs: Mapping[str, Any],
  learning_rate: float,
  outputs: Sequence[str] | Mapping[str, str] | None = None,
  steps: int = 3,
  sizes: Mapping[str, int] | None = None,
  examples: Mapping[str, Any] | None = None,
  overwrite: bool = False,
  rtol: float | None = None,
  atol: float | None = None,
) -> Exported:
  """Exports a model for on-device training: its parameters are variables of the interpreter.

  The file has four signatures. `train` runs one step of stochastic gradient descent on a batch, and
  returns the `loss` before the step. `infer` runs `fun` with the current parameters. `parameters`
  returns the parameters, and `restore` sets them. LiteRT's builtin ops neither read nor write
  files, so the application stores the parameters. A parameter tensor is named by its path,
  `encoder_0_kernel`. A LiteRT signature needs an input, so `parameters` takes a number and ignores
  it.

  Args:
    loss: `loss(params, *batch)` -> f32[], differentiable in JAX.
    fun: `fun(params, *inputs)`, the function to infer with.
    params: a pytree of float32 arrays, the initial parameters.
    path: the file, `model.tflite`.
    batch, inputs: {name: spec} for the arguments of `loss` and of `fun`, as `inputs` of
      `saved_model.save`.
    learning_rate: a step adds -learning_rate times the gradient.
    outputs: names for the leaves of the result of `fun`.
    steps: the number of steps to compare with JAX, on random batches.
    sizes: {dimension variable: size} for the comparison. By default 4.
    examples: {argument: array, or callable(rng, shape, dtype)}, in place of random values.
    overwrite: whether to replace an existing file.
    rtol, atol: the tolerances of losses, parameters and outputs: |tflite - jax| <= atol + rtol *
      |jax|.

  Returns:
    the file, the report of the comparison and the size.

  Raises:
    ExportError: LiteRT lacks ops; or losses, parameters or outputs differ from the same steps in
      JAX.
    FileExistsError: the file exists and `overwrite` is False.
    IsADirectoryError: `path` is a folder.
    OSError: the file cannot be written.
    ImportError: a package of jax2tf[tflite] is missing.
    ValueError: a parameter is not float32, or the loss is not a scalar.
    NotImplementedError: a `jax2tf.LoweringError` that lists all primitives without a lowering.

  Examples:
    >>> import jax.numpy as jnp, numpy as np
    >>> from jax2tf.converters import tflite
    >>> predict = lambda params, x: x @ params["w"]
    >>> loss = lambda params, x, y: jnp.mean((predict(params, x) - y) ** 2)
    >>> batch, inputs = {"x": "f32[b,2]", "y": "f32[b]"}, {"x": "f32[b,2]"}
    >>> params = {"w": np.zeros(2, np.float32)}
    >>> made = tflite.save_training(
    ...   loss, predict, params, "model.tflite", batch=batch, inputs=inputs, learning_rate=0.1
    ... )
    >>> made.report.ok
    True
  """
  final, target = paths.of(path), TFLite(overwrite, Comparison())
  target.check_path(final)
  target.check()
  trained = training.Training.of(loss, fun, params, batch, inputs, outputs, learning_rate)

  def write(place: Path) -> File:
    place.write_bytes(trained.converted())
    return File(place)

  def compare(written: File) -> Report:
    return trained.compared(
      written.path, steps, sizes or {}, examples or {}, versions(), rtol, atol
    )

  return pipeline.completed(target, final, write, compare)
