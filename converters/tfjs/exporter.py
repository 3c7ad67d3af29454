"""Exports a function as a TF.js graph model, and compares its outputs in TF.js on Node.js with
JAX's.

The model is a folder for `tf.loadGraphModel("model.json")`: model.json, and the weights in
group1-shard1of3.bin ... TF.js has only float32, int32 and bool. Inputs and outputs of other dtypes
are float32 for floats, int32 of the same value for narrow integers, int32 of the same bits for
uint32, and float32[b,2] for complex64[b]. Loops and branches need `model.executeAsync`:
`model.metadata.asynchronous` says whether there are any. `model.metadata.backends` lists the
backends that can run the model, `compared` those in which it was compared, and `constraints` the
conditions on its sizes.
"""

from __future__ import annotations

import functools
import json
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
from .target import BACKENDS, MODEL, TFJS

# TF.js 4.22: its MaxPool ignores NaN, and so does Relu fused with the product before it. With the
# other fused idioms the values are JAX's.
IDIOMS = fused_idioms.without("attention", "max_pool", "relu")


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
  quantization: str | None = None,
  backends: Sequence[str] = BACKENDS,
  sizes: Mapping[str, int | Sequence[int]] | None = None,
  samples: int = 2,
  examples: Mapping[str, Any] | None = None,
  rtol: float | None = None,
  atol: float | None = None,
) -> Exported:
  """Exports `fun(params, *inputs)` as a TF.js model.

  Args:
    fun, params, inputs, outputs, polymorphic_constraints: as for `saved_model.save`.
    idioms: as for `jax2tf.convert`. By default, the fused idioms for which the runtime computes
      JAX's values (docs/guide/fused.md).
    path, overwrite, quantization, backends: as for `save_model`.
    sizes, samples, examples, rtol, atol: as for `save_model`.

  Returns:
    as `save_model`.

  Raises:
    ExportError, FileExistsError, OSError, ImportError, RuntimeError, ValueError: as `save_model`.
    NotImplementedError: a `jax2tf.LoweringError` that lists all primitives without a lowering.

  Examples:
    >>> import jax.numpy as jnp, numpy as np
    >>> from jax2tf.converters import tfjs
    >>> w = np.eye(2, dtype=np.float32)
    >>> options = {"backends": ["wasm"], "sizes": {"b": 2}, "samples": 1}
    >>> made = tfjs.save(
    ...   lambda w, x: jnp.tanh(x @ w),
    ...   w,
    ...   "tfjs",
    ...   inputs={"x": "f32[b,2]"},
    ...   outputs=["y"],
    ...   **options,
    ... )
    >>> sorted(file.name for file in made.path.iterdir())
    ['group1-shard1of1.bin', 'model.json']
  """
  comparison = Comparison(sizes, samples, examples, rtol, atol)
  return pipeline.exported_function(
    TFJS(overwrite, comparison, quantization, backends),
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
  backends: Sequence[str] = BACKENDS,
  sizes: Mapping[str, int | Sequence[int]] | None = None,
  samples: int = 2,
  examples: Mapping[str, Any] | None = None,
  rtol: float | None = None,
  atol: float | None = None,
) -> Exported:
  """Exports a signature. The model keeps the names of inputs and outputs.

  Args:
    model: a `saved_model.Model`, or the directory of any SavedModel. A SavedModel of XlaCallModule
      ops is opened first, as by `opened.save`.
    path: the folder of the TF.js model, or its address in another file system of TensorFlow.
    signatures: [name], if the model has several signatures. A TF.js model has one.
    reference: for a directory, the JAX function `fun(params, *inputs)`. By default, the SavedModel
      run by TensorFlow.
    params: the parameters of `reference`.
    idioms: the idioms with which the model must have been converted. By default, any.
    overwrite: whether to replace the folder of an earlier TF.js model, atomically. Not possible at
      an address.
    quantization: the dtype that stores large weights: "uint8", "uint16" or "float16". TF.js
      computes in float32. The model is compared twice: without quantisation within the usual
      tolerances, and with it.
    backends: the backends of the comparison: "wasm", "cpu" or both. "cpu" is plain JavaScript, and
      slow.
    sizes: {dimension variable: size or sizes} at which to compare. By default several.
    samples: the number of random inputs per kind and size.
    examples: {input: array, or callable(rng, shape, dtype)}, in place of random inputs.
    rtol, atol: |file - jax| <= atol + rtol * |jax|, for the written model. By default, tolerances
      of the coarsest dtype that the computation uses; with quantisation 0.1 for uint8, 1e-3 for
      uint16, and 1e-2 for float16.

  Returns:
    the path of the folder, the report of the comparison, and the size.

  Raises:
    ExportError: TF.js lacks ops or dtypes, all listed with their source lines; or an output differs
      from the reference's.
    FileExistsError: the folder exists and `overwrite` is False, or it holds no TF.js model.
    OSError: the folder cannot be written.
    FileNotFoundError: `model` is a path without a SavedModel.
    RuntimeError: TF.js does not load the model, or does not answer in time.
    ImportError: Node.js or npm is missing, or npm cannot install TF.js.
    ValueError: there are several signatures; `signatures`, `quantization` or `backends` is invalid;
      the function calls back into Python.

  Examples:
    >>> from jax2tf.converters import saved_model, tfjs
    >>> model = saved_model.Model({"w": 2.0}).add(
    ...   lambda params, x: params["w"] * x, inputs={"x": "f32[b]"}, outputs=["y"]
    ... )
    >>> made = tfjs.save_model(model, "model", backends=["wasm"], samples=1)
    >>> made.path.name, made.report.ok
    ('model', True)
  """
  comparison = Comparison(sizes, samples, examples, rtol, atol)
  return pipeline.exported(
    TFJS(overwrite, comparison, quantization, backends),
    model,
    path,
    signatures=signatures,
    reference=reference,
    params=params,
    idioms=idioms,
  )


def run(
  path: str | os.PathLike[str], inputs: Mapping[str, Any], *, backend: str = "wasm"
) -> dict[str, np.ndarray]:
  """Runs a model once in TF.js on Node.js.

  Args:
    path: the folder of the model.
    inputs: {input: array}. A complex input may be passed as its parts, f32[b,2] for c64[b].
    backend: "wasm" or "cpu".

  Returns:
    {output: array}. Outputs that are complex in JAX are complex here.

  Raises:
    FileNotFoundError: the folder has no model.json.
    ValueError: the folder is in a file system that TensorFlow does not have.
    ImportError: Node.js or npm is missing, or npm cannot install TF.js.
    RuntimeError: TF.js fails. The message quotes it.

  Examples:
    >>> import numpy as np
    >>> from jax2tf.converters import tfjs
    >>> options = {"inputs": {"x": "f32[b]"}, "outputs": ["y"], "backends": ["wasm"], "samples": 1}
    >>> made = tfjs.save(lambda params, x: 2 * x, None, "model", **options)
    >>> tfjs.run("model", {"x": np.ones(3, np.float32)})
    {'y': array([2., 2., 2.], dtype=float32)}
  """
  with paths.fetched(paths.of(path)) as folder:
    if not (folder / MODEL).is_file():
      raise FileNotFoundError(
        f"path = {os.fspath(path)!r} holds no {MODEL}; pass the folder of a TF.js model"
      )
    outputs = json.loads((folder / MODEL).read_text(encoding="utf-8"))["userDefinedMetadata"][
      "outputs"
    ]
    return pipeline.single(
      functools.partial(runtime.answers, runtime.packages(), folder, backend, outputs), inputs
    )
