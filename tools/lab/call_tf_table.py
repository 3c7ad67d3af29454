"""Compares TensorFlow functions by `call_tf` with the same functions in JAX: the report
call-tf-table.

Usage: python -m jax2tf.tools.lab.call_tf_table [--only="tf.sort;tf.einsum"]. Each JAX version
writes its own cells to the JSON; the document shows all of them.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import click
import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from tqdm import tqdm

import jax2tf
from jax2tf.tools.lab import reports
from jax2tf.tools.lab.call_tf_rows import ROWS, TRACKED

TOLERANCE = 1e-5
# Not tf.linalg.det and tf.math.cumprod: TF 2.21's own gradients of these lack a conjugate
# (docs/guide/call-tf.md).
_COMPLEX = ("tf.linalg.inv", "tf.linalg.solve", "tf.einsum", "tf.custom_gradient")

Fun = Callable[[Any], Any]


def _weighted(y: Any) -> Any:
  return jnp.sum(jnp.cos(jnp.arange(y.size)).reshape(y.shape) * y)


def _grad(f: Fun, order: int) -> Fun:
  return jax.grad(lambda x: _weighted((f if order == 1 else _grad(f, order - 1))(x)))


def _jvp(f: Fun, order: int) -> Fun:
  return lambda x: jax.jvp(f if order == 1 else _jvp(f, order - 1), (x,), (jnp.cos(x),))[1]


def _complex(f: Fun) -> Fun:
  return jax.grad(lambda x: _weighted(f(x + 0.1j * jnp.cos(x))).imag)


DERIVATIVES: dict[str, Callable[[Fun], Fun]] = {
  "value": lambda f: f,
  **{f"grad {n}": functools.partial(_grad, order=n) for n in (1, 2, 3, 4)},
  **{f"jvp {n}": functools.partial(_jvp, order=n) for n in (1, 2, 3)},
  "jacfwd": jax.jacfwd,
  "jacrev": jax.jacrev,
  "hessian": lambda f: jax.hessian(lambda x: _weighted(f(x))),
  "complex": _complex,
}


def all_of(f: Fun, names: Sequence[str]) -> Fun:
  """A function from x to {name of a derivative: its value}."""
  return lambda x: {name: DERIVATIVES[name](f)(x) for name in names}


def _saved(fun: Fun, x: Any, tracked: Any) -> Any:
  """The function of a SavedModel that was saved and loaded again."""
  module = tf.Module()
  converted = jax2tf.convert(fun, with_gradient=False)
  module.f = tf.function(
    converted, autograph=False, input_signature=[tf.TensorSpec(x.shape, x.dtype)]
  )
  module.tracked = tracked
  with tempfile.TemporaryDirectory() as folder:
    tf.saved_model.save(module, folder)
    loaded = tf.saved_model.load(folder)  # it holds the variables
    return loaded.f(x)


def answers(name: str, way: str, derivatives: Sequence[str]) -> Any:
  """The values of derivatives of a row, computed one way."""
  f, _, x = ROWS[name]
  if way == "saved":
    return _saved(all_of(jax2tf.call_tf(f), derivatives), x, TRACKED.get(name, lambda: None)())
  if way == "eager":
    return all_of(jax2tf.call_tf(f), derivatives)(x)
  if way == "vmap":
    batch = np.stack([x, 1.1 * x])
    return jax.tree.map(
      lambda y: y[0], jax.jit(jax.vmap(all_of(jax2tf.call_tf(f), derivatives)))(batch)
    )
  return jax.jit(all_of(jax2tf.call_tf(f, under_jit=way), derivatives))(x)


def expected(name: str, derivatives: Sequence[str]) -> Any:
  """The same values for the function in JAX."""
  _, f, x = ROWS[name]
  return jax.jit(all_of(f, derivatives))(jnp.asarray(x))


def difference(found: Any, expected: Any) -> float:
  """The largest difference, relative to the largest value of each derivative, or to 1."""

  def one(a: Any, b: Any) -> float:
    a, b = np.asarray(a), np.asarray(b)
    return (
      float("inf") if a.shape != b.shape else float(np.abs(a - b).max() / max(1.0, np.abs(b).max()))
    )

  return max(one(found[name], b) for name, b in expected.items())


WAYS = ("eager", "inline", "callback", "vmap", "saved")


def cells(name: str) -> dict[str, str]:
  """{way: the largest difference, with the derivatives that exist if some are missing, or the
  reason}."""
  wanted = [d for d in DERIVATIVES if d != "complex" or name in _COMPLEX]
  have, reason = _those_with_values(name, wanted)
  reference, found = expected(name, have), {}
  for way in WAYS:
    try:
      found[way] = f"{difference(answers(name, way, have), reference):.0e}"
    except ValueError as error:
      if way != "inline":
        raise
      found[way] = _words(error)
  return {"derivatives": "all" if have == wanted else f"{', '.join(have)}. {reason}", **found}


def _those_with_values(name: str, wanted: list[str]) -> tuple[list[str], str]:
  """(the derivatives that exist, why the others do not)."""
  try:
    answers(name, "callback", wanted)
    return wanted, ""
  except LookupError as error:
    if len(wanted) == 1:
      return [], _words(error)
  found = [_those_with_values(name, [derivative]) for derivative in wanted]
  return [d for have, _ in found for d in have], next(reason for _, reason in found if reason)


def _words(error: Exception) -> str:
  return str(error).splitlines()[0].partition(": ")[2][:200].replace("|", "/")


def report(data: dict[str, Any]) -> str:
  """The document in Markdown."""
  versions = sorted(data)
  lines = [
    "# TensorFlow functions in JAX",
    "",
    "Generated by `make call-tf`; do not edit. Each function is also written in JAX "
    "(`tools/lab/call_tf_rows.py`), as the reference.",
    "",
    "A cell is the largest difference from JAX in float32, relative to the largest value, or to "
    "1. It covers the value, `jax.grad` up to",
    "fourth order, `jax.jvp` up to third order, `jacfwd`, `jacrev` and `hessian`, and for some "
    "functions gradients by complex arguments.",
    "The columns: `eager`; `inline`, under jit with XLA's code of the function; `callback`, under "
    "jit by a callback; `vmap`, under jit for",
    "a batch; `saved`, a SavedModel of `convert` after loading. If some derivatives are missing, "
    "the column `Derivatives` lists those that",
    "exist, with TensorFlow's reason.",
    "",
    "| Function | Derivatives | "
    + " | ".join(f"{way}, JAX {v}" for v in versions for way in WAYS)
    + " |",
    "|---|---|" + "---|" * (len(versions) * len(WAYS)),
  ]
  for name in ROWS:
    known = [data[v].get(name, {}) for v in versions]
    said = next((k["derivatives"] for k in known if k), "")
    lines.append(
      f"| {name} | {said} | "
      + " | ".join(k.get(way, "not run") for k in known for way in WAYS)
      + " |"
    )
  return "\n".join(lines) + "\n"


@click.command
@click.option("--only", default="", help="Names of functions, separated by semicolons.")
def main(only: str) -> None:
  """Measures all rows, and writes the report after each."""
  for name in tqdm([name for name in ROWS if not only or name in only.split(";")]):
    found = cells(name)
    print(name, found, flush=True)
    data = reports.read("call-tf-table")  # the other JAX version may write it at the same time
    data.setdefault(jax.__version__, {})[name] = found
    reports.keep("call-tf-table", data, report)


if __name__ == "__main__":
  main()
