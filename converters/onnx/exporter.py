"""Exports a function as an ONNX model, and compares its outputs in ONNX Runtime with JAX's.

`replacements` replaces ops that tf2onnx or ONNX Runtime lacks or computes differently. tf2onnx then
translates the graph op by op; `handlers` adds handlers to it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jax2tf.idioms import fused as fused_idioms

from ..bundle import paths
from ..export import pipeline
from ..export.pipeline import Exported
from ..saved_model.builder import Model
from ..verify.plan import Comparison
from . import runtime
from .quantized import Quantization
from .target import FLOAT32, LARGEST, Onnx, answers, data_files

# ONNX Runtime 1.32: MaxPool ignores NaN. With the other fused idioms the values are JAX's.
IDIOMS = fused_idioms.without("attention", "max_pool")


def save(
  fun: Any,
  params: Any,
  path: str | os.PathLike[str],
  *,
  inputs: Mapping[str, Any],
  outputs: Sequence[str] | Mapping[str, str] | None = None,
  polymorphic_constraints: Sequence[str] = (),
  idioms: str = IDIOMS,
  overwrite: bool = False,
  opset: int | None = None,
  external_data_threshold: int = LARGEST,
  precision: str = FLOAT32,
  quantization: str | None = None,
  representative_dataset: Any = None,
  least_cosine: float | None = None,
  least_top_1: float | None = None,
  scores: Sequence[str] | None = None,
  narrow_inputs: Sequence[str] = (),
  functions: str | None = None,
  inputs_as_nchw: Sequence[str] = (),
  outputs_as_nchw: Sequence[str] = (),
  keep_io_types: bool = True,
  attention_nodes: bool = False,
  sizes: Mapping[str, int | Sequence[int]] | None = None,
  samples: int = 2,
  examples: Mapping[str, Any] | None = None,
  rtol: float | None = None,
  atol: float | None = None,
) -> Exported:
  """Exports `fun(params, *inputs)` as an ONNX model.

  Args:
    fun, params, inputs, outputs, polymorphic_constraints: as for `saved_model.save`.
    idioms: as for `jax2tf.convert`. By default, the fused idioms for which the runtime computes
      JAX's values (docs/guide/fused.md).
    path, overwrite, opset, external_data_threshold, precision: as for `save_model`.
    quantization, representative_dataset, least_cosine, least_top_1: as for `save_model`.
    scores, narrow_inputs, functions, inputs_as_nchw, outputs_as_nchw: as for `save_model`.
    keep_io_types, attention_nodes: as for `save_model`.
    sizes, samples, examples, rtol, atol: as for `save_model`.

  Returns:
    as `save_model`.

  Raises:
    ExportError, FileExistsError, IsADirectoryError, OSError, ImportError, ValueError: as
      `save_model`.
    NotImplementedError: a `jax2tf.LoweringError` that lists all primitives without a lowering.

  Examples:
    >>> import jax.numpy as jnp, numpy as np
    >>> from jax2tf.converters import onnx
    >>> w = np.eye(2, dtype=np.float32)
    >>> made = onnx.save(
    ...   lambda w, x: jnp.tanh(x @ w), w, "model.onnx", inputs={"x": "f32[b,2]"}, outputs=["y"]
    ... )
    >>> onnx.run("model.onnx", {"x": np.zeros((1, 2), np.float32)})
    {'y': array([[0., 0.]], dtype=float32)}
  """
  target = Onnx(
    overwrite,
    Comparison(sizes, samples, examples, rtol, atol),
    opset,
    external_data_threshold,
    precision,
    Quantization(
      quantization, representative_dataset, least_cosine, least_top_1, scores, narrow_inputs
    ),
    functions,
    inputs_as_nchw,
    outputs_as_nchw,
    keep_io_types,
    attention_nodes,
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
  opset: int | None = None,
  external_data_threshold: int = LARGEST,
  precision: str = FLOAT32,
  quantization: str | None = None,
  representative_dataset: Any = None,
  least_cosine: float | None = None,
  least_top_1: float | None = None,
  scores: Sequence[str] | None = None,
  narrow_inputs: Sequence[str] = (),
  functions: str | None = None,
  inputs_as_nchw: Sequence[str] = (),
  outputs_as_nchw: Sequence[str] = (),
  keep_io_types: bool = True,
  attention_nodes: bool = False,
  sizes: Mapping[str, int | Sequence[int]] | None = None,
  samples: int = 2,
  examples: Mapping[str, Any] | None = None,
  rtol: float | None = None,
  atol: float | None = None,
) -> Exported:
  """Exports a signature. The file keeps the names of inputs and outputs; symbolic dimensions become
  `dim_param`. A complex input or output c64[b] is f32[b,2] in the file.

  Args:
    model: a `saved_model.Model`, or the directory of any SavedModel. A SavedModel of XlaCallModule
      ops is opened first, as by `opened.save`.
    path: the file, `model.onnx`, or its address in another file system of TensorFlow. Large
      parameters go into a second file beside it, `model-<hash>.data`, to which it refers.
    signatures: [name], if the model has several signatures. An ONNX model has one.
    reference: for a directory, the JAX function `fun(params, *inputs)`. By default, the SavedModel
      run by TensorFlow.
    params: the parameters of `reference`.
    idioms: the idioms with which the model must have been converted. By default, any.
    overwrite: whether to replace an existing file.
    opset: the version of ONNX's operators, from 18 to the newest version that the installed ONNX
      Runtime opens. Newer versions have more operators, such as Gelu and RMSNormalization. By
      default 18, or the oldest version that has the dtypes of the parameters: 19 for float8, 21 for
      dtypes of 4 bits.
    external_data_threshold: the total size of the parameters in bytes above which they go into the
      second file.
    precision: "float32"; or "float16": products and the ops that follow them compute in float16,
      and large weights have half the size. Sums, softmax, norms, exponentials, loops and branches
      stay in float32, and so do inputs and outputs (`keep_io_types`). The comparison uses ordinary
      inputs and `examples`, with the tolerances of float16.
    quantization: None; "dynamic_int8": the weights of products, and their operands at run time;
      "int8": weights and operands of products and convolutions, calibrated, between QuantizeLinear
      and DequantizeLinear. All other ops compute in float32.
    representative_dataset: typical inputs of the model: an iterable of {input: array}, or a
      function without arguments that returns an iterable. "int8" needs them unless the function has
      quant.fake_quant of Qwix; "dynamic_int8" uses them for the comparison. "int8" holds back every
      fifth sample from the calibration, and compares these with the reference. If there are fewer
      than five samples, it calibrates with all and compares all.
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
    functions: "modules" to write an ONNX function for every module of the model, which viewers show
      as one node: modules of Flax linen and Haiku, `jax.named_scope`, and modules of nnx and
      Equinox in models of `saved_model.from_flax_nnx` and `from_equinox`, or in functions of
      `saved_model.with_module_scopes`. It needs the JAX function.
    inputs_as_nchw, outputs_as_nchw: the inputs and outputs f32[b,height,width,channels] of the
      function that are f32[b,channels,height,width] in the file. `sizes`, `examples` and
      `representative_dataset` stay as the function has them.
    keep_io_types: False with `precision="float16"` makes the float32 inputs and outputs of the
      function float16 in the file; WebGPU takes these without a conversion.
    attention_nodes: True writes an Attention node in place of the products and the softmax of
      attention in float32, for readers that have it; ONNX Runtime on a CPU takes the same time. It
      needs opset 23, which is then the default, or newer. Masks must be numbers of at most -1e30,
      or -inf.
    sizes: {dimension variable: size or sizes} at which to compare. By default several.
    samples: the number of random inputs per kind and size.
    examples: {input: array, or callable(rng, shape, dtype)}, in place of random inputs.
    rtol, atol: |file - jax| <= atol + rtol * |jax|. By default, tolerances of the coarsest dtype
      that the computation uses. A quantised model takes neither.

  Returns:
    the path of the file, the report of the comparison, the total size of the files, and the oldest
    releases of ONNX Runtime for it. The metadata of the file also name them.

  Raises:
    ExportError: ONNX or ONNX Runtime lacks ops or dtypes, all listed with their source lines; or an
      output differs from the reference's; or a number is too large for `precision`.
    FileExistsError: the file exists and `overwrite` is False.
    IsADirectoryError: `path` is a folder.
    OSError: the file cannot be written.
    FileNotFoundError: `model` is a path without a SavedModel.
    ImportError: a package of jax2tf[onnx] is missing.
    ValueError: there are several signatures; `signatures`, `opset`, `precision`, `quantization` or
      an address is not valid; `quantization` lacks its data, or an option does not apply to it;
      `representative_dataset` does not fit the inputs, has one value everywhere, or images of few
      values; an input and an output have the same name; the function calls back into Python.

  Examples:
    >>> from jax2tf.converters import onnx, saved_model
    >>> model = saved_model.Model({"w": 2.0}).add(
    ...   lambda params, x: params["w"] * x, inputs={"x": "f32[b]"}, outputs=["y"]
    ... )
    >>> made = onnx.save_model(model, "model.onnx", sizes={"b": [1, 8]})
    >>> made.path.name, made.report.ok
    ('model.onnx', True)
  """
  target = Onnx(
    overwrite,
    Comparison(sizes, samples, examples, rtol, atol),
    opset,
    external_data_threshold,
    precision,
    Quantization(
      quantization, representative_dataset, least_cosine, least_top_1, scores, narrow_inputs
    ),
    functions,
    inputs_as_nchw,
    outputs_as_nchw,
    keep_io_types,
    attention_nodes,
  )
  return pipeline.exported(
    target, model, path, signatures=signatures, reference=reference, params=params, idioms=idioms
  )


def run(path: str | os.PathLike[str], inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """Runs a model once in ONNX Runtime on CPU.

  Args:
    path: the .onnx file.
    inputs: {input: array}. A complex input may be passed as its parts, f32[b,2] for c64[b]. Inputs
      of `inputs_as_nchw` are NCHW, as in any other runtime.

  Returns:
    {output: array}. Outputs that are bfloat16 or complex in JAX have the same dtype here.

  Raises:
    FileNotFoundError, IsADirectoryError, ValueError: `path` is not a file, or is in a file system
      that TensorFlow does not have.
    ImportError: onnxruntime is missing.
    RuntimeError: ONNX Runtime fails. The message quotes it.

  Examples:
    >>> import numpy as np
    >>> from jax2tf.converters import onnx
    >>> made = onnx.save(
    ...   lambda params, x: 2 * x, None, "model.onnx", inputs={"x": "f32[b]"}, outputs=["y"]
    ... )
    >>> onnx.run("model.onnx", {"x": np.ones(3, np.float32)})
    {'y': array([2., 2., 2.], dtype=float32)}
  """
  with paths.opened(path) as file:
    for data in data_files(paths.of(path)):
      if isinstance(data, paths.Address):
        data.fetch(file.parent)
    session = runtime.session(os.fspath(file))
    return pipeline.single(functools.partial(answers, session, as_in_file=True), inputs)
