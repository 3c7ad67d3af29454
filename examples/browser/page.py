"""How do I try an exported model in a web page, and hand it on as one file?

Writes page.html into the folder of any model that `tfjs.save` wrote. The page contains the model
and TF.js, and needs no server and no network. A model and its page:

  jax2tf convert model:predict --input "x=f32[b,8]" --to tfjs --out build/model_js
  python -m jax2tf.examples.browser.page build/model_js --title Birds --labels birds.txt
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from jax2tf.examples import quiet

with quiet.startup():
  from jax2tf.converters import tfjs

_HERE = Path(__file__).parent
_LARGEST_EXAMPLE = 10_000  # numbers in the example of the page
_TEXT = "A cat is asleep on the sofa.\nThe kitten naps on the couch."


def write(
  folder: str | os.PathLike[str],
  *,
  title: str = "",
  labels: Sequence[str] = (),
  tokenizer: Path | None = None,
  examples: Mapping[str, Any] | None = None,
) -> Path:
  """Writes `folder`/page.html for the model in `folder`.

  Args:
    folder: a folder that `tfjs.save` wrote.
    title: the name of the model. By default, the name of its folder.
    labels: names of the classes, for outputs whose last dimension has this size.
    tokenizer: a tokenizer.json. The page then has a text field, and fills int32 inputs of rank 1 or
      2 with the tokens of the text: the attention mask for names with "mask", zeros for names with
      "type", and the tokens for others.
    examples: {input: array} that the page begins with. By default, random numbers.

  Raises:
    ImportError: npm cannot install TF.js.
    OSError: `folder` holds no model, or cannot be written.
    ValueError: no output of floats has as many classes as there are labels; the tokenizer is not a
      tokenizer.json, or no input takes its tokens.
  """
  folder = Path(folder)
  model: dict[str, Any] = json.loads((folder / "model.json").read_text(encoding="utf-8"))
  text_tokenizer = None if tokenizer is None else read_tokenizer(tokenizer)
  check(model["signature"], labels, text_tokenizer is not None)
  groups = model.pop("weightsManifest")
  weights = b"".join((folder / path).read_bytes() for group in groups for path in group["paths"])
  specs = [spec for group in groups for spec in group["weights"]]
  packages = tfjs.packages() / "node_modules"
  scope = packages / "@tensorflow"
  wasm = scope / "tfjs-backend-wasm" / "dist"
  library = packages / "@huggingface/tokenizers/dist/tokenizers.min.mjs"
  page = _template().render(
    # Escape end tags inside the script.
    scripts=[
      _script(scope / "tfjs" / "dist" / "tf.min.js"),
      _script(wasm / "tf-backend-wasm.min.js"),
    ],
    wasm=_base64((wasm / "tfjs-backend-wasm-simd.wasm").read_bytes()),
    model=model | {"weightSpecs": specs},
    weights=_base64(weights),
    tokenizers=_base64(library.read_bytes()) if text_tokenizer else "",
    style=(_HERE / "page.css").read_text(encoding="utf-8"),
    code=_script(_HERE / "page.js"),
    page={
      "title": title or folder.resolve().name,
      "labels": [str(label) for label in labels],
      "examples": {name: nested(x) for name, x in (examples or {}).items()},
      "text": _TEXT,
      **_of_tokenizer(text_tokenizer),
      **_of_model(model["userDefinedMetadata"]),
    },
  )
  file = folder / "page.html"
  file.write_text(page, encoding="utf-8")
  return file


def read_tokenizer(file: Path) -> dict[str, Any]:
  """The contents of a tokenizer.json.

  Raises:
    ValueError: the file is not one.
  """
  try:
    found = json.loads(file.read_text(encoding="utf-8"))
  except ValueError as error:
    raise ValueError(f"tokenizer = {str(file)!r} is not JSON: {error}") from error
  if not isinstance(found, dict) or "model" not in found:
    raise ValueError(
      f"tokenizer = {str(file)!r} is not a tokenizer.json; save it by `tokenizers.Tokenizer.save`"
    )
  return found


def check(signature: Mapping[str, Any], labels: Sequence[str], with_tokenizer: bool) -> None:
  """Checks that the page can use the labels and the tokenizer.

  Args:
    signature: {"inputs"|"outputs": {name: {"dtype", "tensorShape"}}}, as in a model.json.

  Raises:
    ValueError: it cannot.
  """
  sizes = {
    name: _sizes(tensor)
    for name, tensor in signature["outputs"].items()
    if tensor["dtype"] == "DT_FLOAT"
  }
  classes = {name: found[-1] for name, found in sizes.items() if found}
  if labels and len(labels) not in classes.values():
    widths = [
      f"{name!r} has {size if size >= 0 else 'a varying number'}" for name, size in classes.items()
    ]
    raise ValueError(
      f"labels: there are {len(labels)} names of classes, and of the outputs "
      f"{', '.join(widths) or 'none has any'}; give one for each class"
    )
  takes_tokens = any(
    tensor["dtype"] == "DT_INT32" and len(_sizes(tensor)) in (1, 2)
    for tensor in signature["inputs"].values()
  )
  if with_tokenizer and not takes_tokens:
    raise ValueError(
      f"tokenizer: none of the inputs {', '.join(signature['inputs'])} is int32 of rank 1 or 2, "
      "for tokens; leave it out"
    )


def nested(array: Any) -> Any:
  """The array as nested lists of JSON; None if it is too large for a page."""
  x = np.asarray(array)
  if x.size > _LARGEST_EXAMPLE:
    return None
  if x.dtype == bool or np.issubdtype(x.dtype, np.integer):
    return x.tolist()
  return np.vectorize(_rounded, otypes=[object])(x.astype(np.float64)).tolist()


def _of_tokenizer(tokenizer: Mapping[str, Any] | None) -> dict[str, Any]:
  found = tokenizer or {}
  return {
    "tokenizer": tokenizer,
    "tokens": (found.get("truncation") or {}).get("max_length"),
    "padding": (found.get("padding") or {}).get("pad_id", 0),
  }


def _of_model(metadata: Mapping[str, Any]) -> dict[str, Any]:
  """What the exporter wrote beside the model: where it was compared, and the limits of sizes."""
  compared = metadata["compared"]
  bounds = [re.fullmatch(r"\s*(\w+)\s*<=\s*(\d+)\s*", text) for text in metadata["constraints"]]
  return {
    "limits": {bound[1]: int(bound[2]) for bound in bounds if bound},
    "verified": compared,
    "compared": f"jax2tf compared its answers with the original's on {' and '.join(compared)}.",
    # the first is the default
    "backends": sorted(metadata["backends"], key=lambda name: [*compared, name].index(name)),
  }


def _sizes(tensor: Mapping[str, Any]) -> list[int]:
  return [int(dim["size"]) for dim in tensor["tensorShape"].get("dim", ())]


def _rounded(value: float) -> float | str:
  """Four digits; "NaN", "Infinity" or "-Infinity", because JSON has no such numbers."""
  if math.isfinite(value):
    return float(f"{value:.4g}")
  return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"


def _template() -> jinja2.Template:
  text = (_HERE / "page.html.j2").read_text(encoding="utf-8")
  return jinja2.Environment(autoescape=True).from_string(text)


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


def main(arguments: Sequence[str] | None = None) -> None:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("folder", type=Path, help="the folder of a TF.js model")
  parser.add_argument("--title", default="", help="the name of the model")
  parser.add_argument(
    "--labels", type=Path, help="a file with the names of the classes, a line each"
  )
  parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json, for inputs of tokens")
  options = parser.parse_args(arguments)
  try:
    labels = (
      options.labels.read_text(encoding="utf-8").rstrip().splitlines() if options.labels else ()
    )
    print(write(options.folder, title=options.title, labels=labels, tokenizer=options.tokenizer))
  except (ImportError, OSError, ValueError) as error:
    sys.exit(f"{parser.prog}: {error}")


if __name__ == "__main__":
  main()
