"""Low-rank adapters (LoRA) added to the weights that they belong to.

A model trained with adapters computes `x @ w + scale * (x @ a) @ b`. It can be exported as it is;
its adapters then are arrays of the file like others. Merged, it is as fast as without adapters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from jax2tf.messages import ArgumentError, ArgumentTypeError

from .cache import matches

# Qwix, and so Tunix: "w", "w_lora_a", "w_lora_b" in one dict.
_SUFFIXES = ("_lora_a", "_lora_b")
# flax.nnx.LoRALinear: "kernel", and "lora" with these two.
_KERNEL, _NESTED, _NAMES = "kernel", "lora", frozenset({"lora_a", "lora_b"})


def merged_lora(
  params: Mapping[str, Any], scale: float, *, contracted: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Any]:
  """Returns the parameters of a model without adapters that computes the same.

  It recognises the names of Qwix and Tunix (`w`, `w_lora_a`, `w_lora_b`) and of
  `flax.nnx.LoRALinear` (`kernel` beside `lora/lora_a` and `lora/lora_b`). The sum is computed in
  float32, or in the weight's dtype if that is wider.

  Pass the function with adapters as the `reference` of a `Decoder` with merged parameters: the
  export then compares both.

  Args:
    params: nested dicts of arrays; of an nnx model `nnx.to_pure_dict(state)`.
    scale: the factor of the adapters, which is `alpha / rank` in Qwix and 1 in Flax.
    contracted: {path of a weight, or its end: its axes that the input is contracted with}, for
      weights whose shape allows several, such as square ones: `{"kernel": [0]}`.

  Returns:
    Nested dicts, without the adapters. Weights keep shapes and dtypes.

  Raises:
    ValueError: there is no adapter; one lacks its other half or its weight; its shape does not fit
      the weight, or fits in several ways.
    TypeError: a weight with an adapter is not an array of floats, such as a quantized weight:
      export such a model with its adapters.

  Examples:
    >>> import numpy as np
    >>> from jax2tf.converters import generation
    >>> w, a, b = (np.ones(shape, np.float32) for shape in ((3, 2), (3, 1), (1, 2)))
    >>> params = {"w": w, "w_lora_a": a, "w_lora_b": b}
    >>> {name: x.tolist() for name, x in generation.merged_lora(params, 0.5).items()}
    {'w': [[1.5, 1.5], [1.5, 1.5], [1.5, 1.5]]}
  """
  if not isinstance(params, Mapping):
    raise ArgumentTypeError("params", params, advice="give nested dicts of arrays")
  found: list[str] = []
  result = _merged(params, float(scale), contracted or {}, "", found)
  if not found:
    raise ArgumentError(
      "params",
      problem="they have no adapters",
      advice="adapters are w_lora_a and w_lora_b beside a weight w, or lora/lora_a and lora/lora_b "
      "beside a kernel",
    )
  for name in contracted or {}:
    if not any(matches(path, name) for path in found):
      raise ArgumentError(
        "contracted",
        problem=f"no weight with an adapter is called {name!r}",
        advice=f"there are {', '.join(found)}",
      )
  return result


def _merged(
  node: Mapping[str, Any],
  scale: float,
  contracted: Mapping[str, Sequence[int]],
  place: str,
  found: list[str],
) -> dict[str, Any]:
  """The dict without adapters; appends the paths of weights that have one to `found`."""
  adapters = dict(_adapters(node, place))
  halves = {f"{name}{suffix}" for name in adapters for suffix in _SUFFIXES}
  result: dict[str, Any] = {}
  for name, value in node.items():
    path = f"{place}{name}"
    if name in adapters:
      result[name] = _sum(value, *adapters[name], scale, contracted, path)
      found.append(path)
    elif name not in halves and not _is_nested(name, value):
      is_dict = isinstance(value, Mapping)
      result[name] = _merged(value, scale, contracted, f"{path}/", found) if is_dict else value
  return result


def _adapters(node: Mapping[str, Any], place: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
  """(name of a weight of this dict, its adapter)."""
  first, second = _SUFFIXES
  ended = {
    name[: -len(suffix)]: suffix
    for suffix in _SUFFIXES
    for name in map(str, node)
    if name.endswith(suffix)
  }
  for name in ended:
    _check_complete(node, place, [name, name + first, name + second])
    yield name, (node[name + first], node[name + second])
  nested: Any = node.get(_NESTED)
  if _is_nested(_NESTED, nested):
    _check_complete(node, place, [_KERNEL])
    yield _KERNEL, (nested["lora_a"], nested["lora_b"])


def _is_nested(name: str, value: Any) -> bool:
  return name == _NESTED and isinstance(value, Mapping) and set(value) == _NAMES


def _check_complete(node: Mapping[str, Any], place: str, names: Sequence[str]) -> None:
  for name in names:
    if name not in node:
      raise ArgumentError(
        "params", problem=f"there is an adapter in {place or 'params'!r}, and no {name!r} beside it"
      )


def _sum(
  weight: Any, a: Any, b: Any, scale: float, contracted: Mapping[str, Sequence[int]], path: str
) -> Any:
  """weight f32[...] + scale * (a f32[...,r] times b f32[r,...])."""
  if not (hasattr(weight, "dtype") and jnp.issubdtype(weight.dtype, jnp.floating)):
    raise ArgumentTypeError(
      "params",
      problem=f"the weight {path!r} of an adapter is no array of floats: {type(weight).__name__}",
      advice="export a quantized model with its adapters, which is not merged",
    )
  axes = _axes(weight.shape, a.shape, b.shape, contracted, path)
  others = [axis for axis in range(weight.ndim) if axis not in axes]
  rank = a.shape[-1]
  dtype = jnp.promote_types(weight.dtype, jnp.float32)
  left, right = (
    jnp.asarray(half, dtype).reshape(shape) for half, shape in ((a, (-1, rank)), (b, (rank, -1)))
  )
  product = jnp.matmul(left, right, precision="highest")
  in_order = product.reshape([weight.shape[axis] for axis in (*axes, *others)])
  delta = jnp.transpose(in_order, [(*axes, *others).index(i) for i in range(weight.ndim)])
  return (jnp.asarray(weight, dtype) + scale * delta).astype(weight.dtype)


def _axes(
  shape: tuple[int, ...],
  of_a: tuple[int, ...],
  of_b: tuple[int, ...],
  contracted: Mapping[str, Sequence[int]],
  path: str,
) -> tuple[int, ...]:
  """The axes of the weight that `a` has; `b` has the others."""
  fitting = [
    axes
    for count in range(1, len(shape))
    for axes in itertools.combinations(range(len(shape)), count)
    if _fits(shape, of_a, of_b, axes)
  ]
  named = [axes for name, axes in contracted.items() if matches(path, name)]
  wanted = [tuple(sorted(axis % len(shape) for axis in axes)) for axes in named]
  chosen = [axes for axes in fitting if not wanted or axes in wanted]
  if len(chosen) == 1:
    return chosen[0]
  shapes = f"{path!r} has shape {list(shape)}, and its adapter {list(of_a)} and {list(of_b)}"
  if not chosen:
    raise ArgumentError("contracted" if wanted else "params", problem=f"{shapes}, which do not fit")
  ways = " or ".join(str(list(axes)) for axes in chosen)
  raise ArgumentError(
    "contracted",
    problem=f"{shapes}, which fit for a product over axes {ways}",
    advice=f"say which ones the input is contracted with, as in "
    f'{{"{path.rpartition("/")[2]}": {list(chosen[0])}}}',
  )


def _fits(
  shape: tuple[int, ...], of_a: tuple[int, ...], of_b: tuple[int, ...], axes: tuple[int, ...]
) -> bool:
  """Whether `a` has these axes, and `b` the others, each in order or flattened to one."""
  here = tuple(shape[axis] for axis in axes)
  there = tuple(size for axis, size in enumerate(shape) if axis not in axes)
  fits_a = of_a[:-1] in (here, (math.prod(here),))
  return fits_a and of_b[1:] in (there, (math.prod(there),)) and of_a[-1] == of_b[0]
