"""The program of a layer: serializable TensorFlow functions of its weights and inputs. Nothing here
imports JAX."""

from __future__ import annotations

import base64
import io
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# (parameters, state, seed or nothing, inputs) -> (new state, outputs); all but the outputs are
# lists of tensors.
Call = Callable[[list[Any], list[Any], list[Any], list[Any]], tuple[Sequence[Any], Any]]


@dataclass(frozen=True)
class Weight:
  """A leaf of the parameters or of the state.

  Attributes:
    path: "encoder/0/kernel", of parts that TensorFlow takes as names.
    shape, dtype: as the JAX function was given it.
    trainable: whether an optimiser changes it.
    value: the initial value; None in a layer loaded from a file, whose weights are loaded later.
  """

  path: str
  shape: tuple[int, ...]
  dtype: str
  trainable: bool = False
  value: Any = field(default=None, compare=False, repr=False)

  def initial(self) -> Any:
    """The value; NaN without one, so that a layer without weights is noticed."""
    if self.value is not None:
      return self.value
    dtype = tf.as_dtype(self.dtype)
    return np.full(
      self.shape, np.nan if dtype.is_floating or dtype.is_complex else 0, dtype.as_numpy_dtype
    )


@dataclass(frozen=True)
class Program:
  """A function in inference and training mode.

  Attributes:
    inputs: {name: its type, where an unknown size is None}.
    params, state: the weights, in the order of the calls.
    draws: whether the call (without, with training) takes a seed.
    calls: (inference, training); equal if the mode makes no difference.
    text: the serialized calls of a loaded layer; otherwise empty.
  """

  inputs: dict[str, tf.TensorSpec]
  params: tuple[Weight, ...]
  state: tuple[Weight, ...]
  draws: tuple[bool, bool]
  calls: tuple[Call, Call]
  text: str | None = None

  def without_values(self) -> Program:
    """The program without initial values, because the layer's variables hold them now."""
    params, state = (
      tuple(replace(w, value=None) for w in weights) for weights in (self.params, self.state)
    )
    return replace(self, params=params, state=state)

  def config(self, compute_dtype: str) -> dict[str, Any]:
    """A JSON-compatible dict for `loaded`, without the values of the weights."""

    def described(weights: Sequence[Weight]) -> list[dict[str, Any]]:
      return [{k: v for k, v in asdict(w).items() if k != "value"} for w in weights]

    return {
      "inputs": {
        name: [spec.shape.as_list(), spec.dtype.name] for name, spec in self.inputs.items()
      },
      "params": described(self.params),
      "state": described(self.state),
      "draws": list(self.draws),
      "graphs": self.text or self._packed(compute_dtype),
    }

  def _packed(self, compute_dtype: str) -> str:
    """The calls as a SavedModel without variables, zipped, in base64."""
    module = tf.Module()
    for name, call, draws in zip(("inference", "training"), self.calls, self.draws, strict=True):
      if name == "training" and call is self.calls[0]:
        module.training = module.inference
        break
      # Parameters and inputs in the dtypes that the layer passes; the state keeps its dtypes.
      signature = (
        [tf.TensorSpec(w.shape, computed(w.dtype, compute_dtype)) for w in self.params],
        [tf.TensorSpec(w.shape, w.dtype) for w in self.state],
        [tf.TensorSpec([2], tf.uint32)] * draws,
        [
          tf.TensorSpec(x.shape, computed(x.dtype.name, compute_dtype), name)
          for name, x in self.inputs.items()
        ],
      )
      setattr(module, name, tf.function(call, input_signature=signature, autograph=False))
    packed = io.BytesIO()
    with (
      tempfile.TemporaryDirectory() as folder,
      zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
      tf.saved_model.save(module, folder)
      for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
        archive.write(file, file.relative_to(folder))
    return base64.b64encode(packed.getvalue()).decode()


def computed(dtype: str, compute_dtype: str) -> str:
  """The dtype in which the function receives a value of `dtype`: for float32, that of Keras'
  policy."""
  return compute_dtype if dtype == "float32" else dtype


def loaded(config: dict[str, Any]) -> Program:
  """Restores a program and its seed from `Program.config`."""
  with tempfile.TemporaryDirectory() as folder:
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(config["graphs"]))) as archive:
      archive.extractall(folder)
    module = tf.saved_model.load(folder)
  params, state = (
    tuple(Weight(**{**w, "shape": tuple(w["shape"])}) for w in config[kind])
    for kind in ("params", "state")
  )
  inputs = {
    name: tf.TensorSpec(shape, dtype, name) for name, (shape, dtype) in config["inputs"].items()
  }
  return Program(
    inputs,
    params,
    state,
    tuple(config["draws"]),
    (module.inference, module.training),
    config["graphs"],
  )
