"""Programs with each public function of JAX, Flax and Equinox that has a value.

The process of the other converter reads this file by its path: it imports no TensorFlow. A row is
an expression; the names of one letter in it are its inputs. Of a module, the inputs stand behind
the bar.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

SIZES = (3, 256)  # of the dimension b: where to compare, and where to compare and measure


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
  return rng.standard_normal(shape)


def _between(low: float, high: float) -> Callable[..., np.ndarray]:
  return lambda rng, shape: rng.uniform(low, high, shape)


def _positive_definite(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
  x = rng.standard_normal(shape)
  return x @ x.T / shape[0] + np.eye(shape[0])


# {input: (dtype, shape, its values)}
INPUTS: Mapping[str, tuple[str, tuple[str | int, ...], Callable[..., np.ndarray]]] = {
  # a symbolic batch
  "x": ("f32", ("b", 256), _normal),
  "y": ("f32", ("b", 256), _normal),
  "z": ("f32", ("b", 256), _normal),
  "p": ("f32", ("b", 256), _between(0.5, 3)),
  "u": ("f32", ("b", 256), _between(-0.95, 0.95)),
  "h": ("f16", ("b", 256), _normal),
  "i": ("i32", ("b", 256), _between(1, 20)),
  "j": ("i32", ("b", 256), _between(1, 6)),
  "q": ("bool", ("b", 256), _between(0, 2)),
  "r": ("bool", ("b", 256), _between(0, 2)),
  "c": ("f32", ("b", 32, 16), _normal),  # sequences
  "e": ("i32", ("b", 32), _between(0, 16)),  # tokens
  "g": ("f32", ("b", 16, 16, 8), _normal),  # images
  "d": ("f32", ("b", 4, 6, 6, 8), _normal),  # volumes
  "a": ("f32", ("b", 16, 2, 8), _normal),  # heads of attention
  # static
  "X": ("f32", (64, 128), _normal),
  "Y": ("f32", (64, 128), _normal),
  "I": ("i32", (64, 128), _between(0, 20)),
  "V": ("f32", (64,), _normal),
  "W": ("f32", (64,), _normal),
  "P": ("f32", (64,), _between(0.5, 3)),
  "N": ("i32", (6,), _between(0, 60)),
  "k": ("i32", (), _between(0, 20)),
  "S": ("f32", (8, 8), _positive_definite),
  "M": ("f32", (8, 8), _normal),
  "B": ("f32", (8, 3), _normal),
  "T": ("f32", (4, 64, 32), _normal),
  "K": ("f32", (3, 3, 8, 16), _normal),  # a kernel of a convolution
  "L": ("f32", (3, 16, 16), _normal),
}
DTYPES = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "bool": np.bool_}

# What the expressions name, besides their inputs.
_NAMES = {
  "eqx": eqx,
  "jax": jax,
  "jnp": jnp,
  "lax": lax,
  "nn": nn,
  "nnx": nnx,
  "np": np,
  "NHWC": ("NHWC", "HWIO", "NHWC"),
  "NWC": ("NWC", "WIO", "NWC"),
  "ROWS": lax.ScatterDimensionNumbers((1,), (0,), (0,)),
  "COMPLEX": lax.complex,
  "RNG": jax.random.key,
  "KEY": jax.random.key(0),
}


def _rows(text: str) -> Iterator[tuple[str, str]]:
  """(row, library) of each expression, to which the library is prefixed."""
  for section in text.split("\n[")[1:]:
    library, _, expressions = section.partition("]")
    prefix = "" if library == "array" else f"{library}."
    for expression in " ".join(expressions.split()).split("; "):
      yield f"{prefix}{expression}", library


ROWS: Mapping[str, str] = dict(_rows(Path(__file__).with_suffix(".txt").read_text()))


@dataclasses.dataclass(frozen=True)
class Program:
  """A function of arrays, and the names of its inputs."""

  fun: Callable[..., Any]
  inputs: tuple[str, ...]

  def arrays(self, batch: int) -> list[np.ndarray]:
    """Ordinary inputs, with this size of the dimension b."""
    arrays: list[np.ndarray] = []
    for name in self.inputs:
      dtype, shape, values = INPUTS[name]
      rng = np.random.default_rng(ord(name))
      sizes = tuple(batch if size == "b" else size for size in shape)
      arrays.append(np.asarray(values(rng, sizes)).astype(DTYPES[dtype]))
    return arrays


def spec(name: str) -> str:
  """An input in jaxpr notation."""
  dtype, shape, _ = INPUTS[name]
  return f"{dtype}[{','.join(map(str, shape))}]"


def program(row: str) -> Program:
  """The program of a row. Parameters of a module are constants of it."""
  module, _, given = row.partition(" | ")
  names = sorted(
    {node.id for node in ast.walk(ast.parse(given or row)) if isinstance(node, ast.Name)}
    & {*INPUTS}
  )
  arguments = _evaluated(f"lambda {', '.join(names)}: {f'({given},)' if given else row}")
  if not given:
    return Program(_real(arguments), tuple(names))
  adapt = {"nnx": _of_nnx, "nn": _of_linen, "eqx.nn": _of_equinox}[ROWS[row]]
  shapes = arguments(*Program(arguments, tuple(names)).arrays(2))
  call = adapt(_evaluated(module), shapes)
  return Program(_real(lambda *arrays: call(*arguments(*arrays))), tuple(names))


def _evaluated(expression: str) -> Any:
  # nnx.Rngs counts what it has drawn: a new one gives each module of a row the same parameters.
  return eval(expression, {**_NAMES, "RNGS": nnx.Rngs(0)})


def _of_nnx(module: Any, arguments: Any) -> Any:
  module.eval()
  if not isinstance(module, (nnx.RNN, nnx.Bidirectional, nnx.SpectralNorm, nnx.WeightNorm)):
    return module
  # These change their state, which must belong to the trace: a copy made there.
  parts = nnx.split(module)
  options: dict[str, Any] = {"update_stats": False} if isinstance(module, nnx.SpectralNorm) else {}
  return lambda *inputs: nnx.merge(*parts, copy=True)(*inputs, **options)


def _of_linen(module: Any, arguments: Any) -> Any:
  return functools.partial(module.apply, module.init(jax.random.key(0), *arguments))


def _of_equinox(module: Any, arguments: Any) -> Any:
  return jax.vmap(eqx.nn.inference_mode(module))


def _real(fun: Callable[..., Any]) -> Callable[..., Any]:
  """The arrays of the results; of a complex one its two parts, which every file can hold."""

  def real(*arrays: Any) -> list[Any]:
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(fun(*arrays))]
    parts = [_parts(leaf) for leaf in leaves]
    return [part for of_leaf in parts for part in of_leaf]

  return real


def _parts(array: Any) -> list[Any]:
  if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
    return [jax.random.key_data(array)]
  return [array.real, array.imag] if jnp.iscomplexobj(array) else [array]
