"""On-device training: a .tflite file whose parameters are variables of the interpreter, with a
signature that runs a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import tree_util

from jax2tf.messages import ArgumentError

from ..bundle import manifest, progress
from ..export.source import ExportError, Source
from ..saved_model import draws
from ..saved_model.arguments import Arguments, input_specs
from ..saved_model.builder import Model
from ..saved_model.domain import Domain
from ..verify import answers as compare
from ..verify import plan, references
from ..verify.report import Report
from . import flatbuffer, runtime
from .replacements import TABLE
from .runtime import RUNTIME, TARGET

_SIZE = 4  # the default size of a symbolic dimension


@dataclass(frozen=True)
class Training:
  """A model to train.

  Attributes:
    params: the initial parameters.
    names: the names of the parameter tensors.
    step: (params, *batch) -> {"loss": f32[], name: new parameter}.
    source: the signatures "step" and "infer", which take the parameters and then their own inputs.
  """

  params: Any
  names: tuple[str, ...]
  step: Callable[..., dict[str, Any]]
  fun: Callable[..., Any]
  source: Source

  @classmethod
  def of(
    cls,
    loss: Callable[..., Any],
    fun: Callable[..., Any],
    params: Any,
    batch: Mapping[str, Any],
    inputs: Mapping[str, Any],
    outputs: Sequence[str] | Mapping[str, str] | None,
    learning_rate: float,
  ) -> Training:
    """Makes "step" and "infer" functions without variables. JAX computes the gradient in "step".

    Raises:
      ValueError: a parameter is not float32, two tensors have one name, or the loss is not a
        scalar.
    """
    leaves, tree = tree_util.tree_flatten(params)
    specs = [jax.ShapeDtypeStruct(np.shape(x), jnp.result_type(x)) for x in leaves]
    arguments = Arguments.of(
      {"params": tree_util.tree_unflatten(tree, specs)}, {}, jax.export.SymbolicScope()
    )
    names = tuple(name.removeprefix("params_") for name in arguments.names)
    if wrong := [
      f"{name} is {spec.dtype}"
      for name, spec in zip(names, specs, strict=True)
      if spec.dtype != np.float32
    ]:
      raise ArgumentError(
        "params",
        problem=f"{wrong[0]}, and LiteRT trains float32",
        advice="cast it, or close over what is not to be trained",
      )
    if twice := sorted({*names, "loss"} & {*batch, *inputs}) or (
      ["loss"] if "loss" in names else []
    ):
      raise ValueError(
        f"{twice[0]!r} is the name of two tensors; rename the argument or the parameter"
      )

    def step(params: Any, *arguments: Any) -> dict[str, Any]:
      value, gradient = jax.value_and_grad(loss)(params, *arguments)
      after = jax.tree.map(lambda p, g: p - learning_rate * g, params, gradient)
      return {"loss": value, **dict(zip(names, jax.tree.leaves(after), strict=True))}

    model = Model({})
    of_leaves = dict(zip(names, specs, strict=True))

    def taking_leaves(function: Callable[..., Any]) -> Callable[..., Any]:
      return lambda _, *args: function(
        tree_util.tree_unflatten(tree, args[: len(names)]), *args[len(names) :]
      )

    model.add(taking_leaves(step), inputs={**of_leaves, **batch}, signatures="step")
    model.add(
      taking_leaves(fun), inputs={**of_leaves, **inputs}, outputs=outputs, signatures="infer"
    )
    return cls(params, names, references.jitted(step), references.jitted(fun), Source.of(model))

  def converted(self) -> bytes:
    """The .tflite model.

    Raises:
      ExportError: LiteRT lacks ops.
    """
    module = tf.Module()
    module.parameters = [
      tf.Variable(x, name=name)
      for name, x in zip(self.names, jax.tree.leaves(self.params), strict=True)
    ]
    variables = dict(zip(self.names, module.parameters, strict=True))
    frozen = {name: one.frozen(TABLE) for name, one in self.source.signatures.items()}

    def train(**batch: tf.Tensor) -> dict[str, tf.Tensor]:
      outputs = frozen["step"](**batch, **{name: v.read_value() for name, v in variables.items()})
      for name, variable in variables.items():
        variable.assign(outputs[name])
      return {"loss": outputs["loss"]}

    def infer(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
      return frozen["infer"](**inputs, **{name: v.read_value() for name, v in variables.items()})

    def parameters(unused: tf.Tensor) -> dict[str, tf.Tensor]:
      # Without the sum the converter drops the input, and then the signature.
      return {name: v.read_value() + tf.cast(unused, v.dtype) * 0 for name, v in variables.items()}

    def restore(**values: tf.Tensor) -> dict[str, tf.Tensor]:
      for name, variable in variables.items():
        variable.assign(values[name])
      return {"restored": tf.constant(len(variables))}

    signatures = {
      "train": runtime.concrete(train, self._own_specs(frozen["step"])),
      "infer": runtime.concrete(infer, self._own_specs(frozen["infer"])),
      "parameters": runtime.concrete(parameters, {"unused": tf.TensorSpec([], tf.int32, "unused")}),
      "restore": runtime.concrete(
        restore, {name: tf.TensorSpec(v.shape, v.dtype, name) for name, v in variables.items()}
      ),
    }

    def refuse(lacking: Mapping[str, str]) -> ExportError:
      return self.source.signatures["step"].refuse(TARGET, RUNTIME, lacking)

    model = runtime.converted(signatures, runtime.with_variables, refuse, module)
    step, inference = (self.source.signatures[name].record for name in ("step", "infer"))
    return flatbuffer.with_complex(model, {"train": step, "infer": inference})

  def _own_specs(self, frozen: Any) -> dict[str, tf.TensorSpec]:
    """The specs of the inputs that are not parameters."""
    return {name: spec for name, spec in input_specs(frozen).items() if name not in self.names}

  def compared(
    self,
    file: Path,
    steps: int,
    sizes: Mapping[str, int],
    examples: draws.Examples,
    versions: Mapping[str, str],
    rtol: float | None,
    atol: float | None,
  ) -> Report:
    """Trains in LiteRT and in JAX: infers, runs steps, infers, reads the parameters, restores the
    initial ones, infers.

    Raises:
      ExportError: a loss, a parameter or an output differs.
    """
    runs, expected = zip(*self._runs(steps, sizes, examples), strict=True)
    with progress.bar("compare training"):
      answered = runtime.answers(file, runs)
    rows = tuple(
      compare.rows(runs, answered, [compare.Expected(outputs) for outputs in expected], rtol, atol)
    )
    report = Report(f"training in {RUNTIME}", rows, (), {}, {"jax": jax.__version__, **versions})
    if wrong := [row for row in rows if row.problem]:
      lines = "\n".join(f"  {row.place}: {row.problem}" for row in wrong[:8])
      raise ExportError(
        TARGET, f"{RUNTIME} trains differently from JAX, so nothing was written:\n{lines}"
      )
    return report

  def _runs(
    self, steps: int, sizes: Mapping[str, int], examples: draws.Examples
  ) -> Iterator[tuple[plan.Run, dict[str, np.ndarray]]]:
    """The runs, each with the results of JAX."""
    rng = np.random.default_rng(0)
    params = self.params

    def run(
      signature: str, number: int, inputs: dict[str, np.ndarray], result: Mapping[str, Any]
    ) -> Any:
      outputs = {name: np.asarray(x) for name, x in result.items()}
      record = manifest.SignatureRecord({}, dict.fromkeys(outputs, ""), [], [], "", False, False)
      subject = plan.Subject(signature, record, self.step, list(inputs))
      return plan.Run(subject, {"step": number}, "given", inputs, timed=False), outputs

    def infer(number: int, inputs: dict[str, np.ndarray]) -> Any:
      one = self.source.signatures["infer"]
      results = list(one.record.outputs)
      return run(
        "infer",
        number,
        inputs,
        dict(zip(results, jax.tree.leaves(self.fun(params, *inputs.values())), strict=True)),
      )

    def named(params: Any) -> dict[str, np.ndarray]:
      return {
        name: np.asarray(x) for name, x in zip(self.names, jax.tree.leaves(params), strict=True)
      }

    inputs = self._drawn("infer", rng, sizes, examples)
    yield infer(0, inputs)
    for number in range(1, steps + 1):
      batch = self._drawn("step", rng, sizes, examples)
      result = self.step(params, *batch.values())
      yield run("train", number, batch, {"loss": result["loss"]})
      params = tree_util.tree_unflatten(
        tree_util.tree_structure(params), [result[name] for name in self.names]
      )
    yield infer(steps, inputs)
    yield run("parameters", steps, {"unused": np.zeros((), np.int32)}, named(params))
    params = self.params
    yield run("restore", steps + 1, named(params), {"restored": np.int32(len(self.names))})
    yield infer(steps + 1, inputs)

  def _drawn(
    self,
    signature: str,
    rng: np.random.Generator,
    sizes: Mapping[str, int],
    examples: draws.Examples,
  ) -> dict[str, np.ndarray]:
    """Random inputs of a signature, without the parameters."""
    record = self.source.signatures[signature].record
    domain = Domain(record, self.source.constraints)
    shapes = domain.shapes({name: sizes.get(name, _SIZE) for name in domain.variables})
    batch = {}
    for name, shape in shapes.items():
      if name in self.names:
        continue
      dtype = np.dtype(domain.avals[name].dtype)
      example = examples.get(name)
      drawn = example(rng, shape, dtype) if callable(example) else example
      batch[name] = (
        draws.draw(rng, shape, dtype, "ordinary", 0) if drawn is None else np.asarray(drawn, dtype)
      )
    return batch
