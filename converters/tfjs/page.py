"""A single web page that contains a model and TF.js, and runs the model."""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import extras
from ..bundle import paths
from ..verify.plan import Run
from . import files

_HERE = Path(__file__).parent
_LARGEST_EXAMPLE = 10_000  # numbers in the example of the page
_TEXT = "A cat is asleep on the sofa.\nThe kitten naps on the couch."


@dataclass(frozen=True)
class Page:
  """Options of the web page that `save(..., page=Page(...))` writes.

  Attributes:
    title: the name of the model. By default, the name of its folder.
    labels: names of the classes, for outputs whose last dimension has this size.
    tokenizer: the path of a tokenizer.json. The page then has a text field, and fills int32 inputs
      of rank 1 or 2 with the tokens of the text: the attention mask for names with "mask", zeros
      for names with "type", and the tokens for others.

  Examples:
    >>> import jax
    >>> from jax2tf.converters import tfjs
    >>> page = tfjs.Page(title="Colours", labels=["red", "green", "blue"])
    >>> options = {
    ...   "inputs": {"x": "f32[b,3]"},
    ...   "outputs": ["y"],
    ...   "backends": ["wasm"],
    ...   "samples": 1,
    ... }
    >>> made = tfjs.save(lambda params, x: jax.nn.softmax(x), None, "model", page=page, **options)
    >>> "<title>Colours" in (made.path / "page.html").read_text()
    True
  """

  title: str = ""
  labels: Sequence[str] = ()
  tokenizer: str | os.PathLike[str] | None = None

  def read_tokenizer(self) -> dict[str, Any] | None:
    """The contents of the tokenizer file.

    Raises:
      ValueError: the file is not a tokenizer.json.
    """
    if self.tokenizer is None:
      return None
    try:
      with paths.opened(self.tokenizer, "tokenizer") as file:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
      raise ValueError(f"tokenizer = {os.fspath(self.tokenizer)!r} is not JSON: {error}") from error
    if not isinstance(found, dict) or "model" not in found:
      raise ValueError(
        f"tokenizer = {os.fspath(self.tokenizer)!r} is not a tokenizer.json; save it by "
        "`tokenizers.Tokenizer.save`"
      )
    return found

  def check(self, signature: Mapping[str, Any]) -> None:
    """Checks that the page can use the labels and the tokenizer.

    Args:
      signature: {"inputs"|"outputs": {name: {"dtype", "tensorShape"}}}, as in a model.json.

    Raises:
      ValueError: no output of floats has as many classes as there are labels; there is a tokenizer,
        and no input for tokens.
    """
    sizes = {
      name: _sizes(tensor)
      for name, tensor in signature["outputs"].items()
      if tensor["dtype"] == "DT_FLOAT"
    }
    classes = {name: found[-1] for name, found in sizes.items() if found}
    if self.labels and len(self.labels) not in classes.values():
      widths = (
        ", ".join(
          f"{name!r} has {size if size >= 0 else 'a varying number'}"
          for name, size in classes.items()
        )
        or "none has any"
      )
      raise ValueError(
        f"labels: there are {len(self.labels)} names of classes, and of the outputs {widths}; "
        "give one for each class"
      )
    takes_tokens = any(
      tensor["dtype"] == "DT_INT32" and len(_sizes(tensor)) in (1, 2)
      for tensor in signature["inputs"].values()
    )
    if self.tokenizer is not None and not takes_tokens:
      raise ValueError(
        f"tokenizer: none of the inputs {', '.join(signature['inputs'])} is int32 of rank 1 or 2, "
        "for tokens; leave it out"
      )


def _sizes(tensor: Mapping[str, Any]) -> list[int]:
  return [int(dim["size"]) for dim in tensor["tensorShape"].get("dim", ())]


def template() -> Any:
  """The jinja2 template of the page.

  Raises:
    ImportError: jinja2 is missing.
  """
  text = (_HERE / "page.html.j2").read_text(encoding="utf-8")
  return (
    extras.module("jinja2", "tfjs", "a page for TF.js")
    .Environment(autoescape=True)
    .from_string(text)
  )


def write(
  folder: Path,
  packages: Path,
  given: Page,
  *,
  verified: Sequence[str],
  constraints: Sequence[str] = (),
  runs: Sequence[Run] = (),
) -> Path:
  """Writes `folder`/page.html for the model in `folder`.

  Args:
    verified: the backends of the comparison. The first is the default of the page.
    constraints: conditions on the dimension variables. The page applies upper bounds.
    runs: the runs of the comparison; one becomes the example.

  Raises:
    ImportError: jinja2 is missing.
    ValueError: the tokenizer file is not a tokenizer.json.
  """
  scope = packages / "node_modules" / "@tensorflow"
  wasm = scope / "tfjs-backend-wasm" / "dist"
  model: dict[str, Any] = json.loads((folder / "model.json").read_text(encoding="utf-8"))
  specs = [spec for group in model.pop("weightsManifest") for spec in group["weights"]]
  tokenizer = given.read_tokenizer()
  library = packages / "node_modules/@huggingface/tokenizers/dist/tokenizers.min.mjs"
  truncation, padding = ((tokenizer or {}).get(name) or {} for name in ("truncation", "padding"))
  bounds = (re.fullmatch(r"\s*(\w+)\s*<=\s*(\d+)\s*", constraint) for constraint in constraints)
  page = template().render(
    # Escape end tags inside the script.
    scripts=[
      _script(scope / "tfjs" / "dist" / "tf.min.js"),
      _script(wasm / "tf-backend-wasm.min.js"),
    ],
    wasm=_base64((wasm / "tfjs-backend-wasm-simd.wasm").read_bytes()),
    model=model | {"weightSpecs": specs},
    weights=_base64(files.weights(folder)),
    tokenizers=_base64(library.read_bytes()) if tokenizer else "",
    style=(_HERE / "page.css").read_text(encoding="utf-8"),
    code=_script(_HERE / "page.js"),
    page={
      "title": given.title,
      "labels": [str(label) for label in given.labels],
      "tokenizer": tokenizer,
      "tokens": truncation.get("max_length"),
      "padding": padding.get("pad_id", 0),
      "text": _TEXT,
      "limits": {bound[1]: int(bound[2]) for bound in bounds if bound},
      "examples": _example(runs),
      "verified": [*verified],
      "compared": f"jax2tf compared its answers with the original's on {' and '.join(verified)}.",
      "backends": sorted(
        model["userDefinedMetadata"]["backends"], key=lambda name: [*verified, name].index(name)
      ),
    },
  )
  file = folder / "page.html"
  file.write_text(page, encoding="utf-8")
  return file


def _example(runs: Sequence[Run]) -> Mapping[str, Any]:
  """{input: nested lists} of the smallest run with ordinary numbers."""
  ordinary = [run.inputs for run in runs if run.values in ("ordinary", "given")]
  if not ordinary:
    return {}
  arrays = {
    name: np.asarray(x)
    for name, x in min(
      ordinary, key=lambda inputs: sum(np.size(x) for x in inputs.values())
    ).items()
  }
  return {name: _listed(x) for name, x in arrays.items() if x.size <= _LARGEST_EXAMPLE}


def _listed(x: np.ndarray) -> Any:
  if x.dtype == bool or np.issubdtype(x.dtype, np.integer):
    return x.tolist()
  return np.vectorize(_rounded, otypes=[object])(x.astype(np.float64)).tolist()


def _rounded(value: float) -> float | str:
  """Four digits; "NaN", "Infinity" or "-Infinity", because JSON has no such numbers."""
  if math.isfinite(value):
    return float(f"{value:.4g}")
  return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"


def _base64(data: bytes) -> str:
  return base64.b64encode(data).decode()


def _script(file: Path) -> str:
  # Not splitlines(): strings in TF.js contain characters that Python treats as line ends.
  lines = [
    line
    for line in file.read_text(encoding="utf-8").split("\n")
    if not line.startswith("//# sourceMappingURL")
  ]
  return "\n".join(lines).replace("</script", "<\\/script")
