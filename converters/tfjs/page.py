"""One web page that holds a model and TF.js, and runs it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from .. import extras
from . import files


def template() -> Any:
  """The page, to be rendered.

  Raises:
    ImportError: jinja2 is missing.
  """
  text = Path(__file__).with_name("page.html.j2").read_text(encoding="utf-8")
  return extras.module("jinja2", "tfjs", "a page for TF.js").Environment(autoescape=True).from_string(text)


def write(folder: Path, packages: Path) -> Path:
  """Writes `folder`/page.html for the model in `folder`.

  Raises:
    ImportError: jinja2 is missing.
  """
  scope = packages / "node_modules" / "@tensorflow"
  wasm = scope / "tfjs-backend-wasm" / "dist"
  model: dict[str, Any] = json.loads((folder / "model.json").read_text(encoding="utf-8"))
  specs = [spec for group in model.pop("weightsManifest") for spec in group["weights"]]
  page = template().render(
    # Of a script, nothing but its own end may end it.
    scripts=[_script(scope / "tfjs" / "dist" / "tf.min.js"), _script(wasm / "tf-backend-wasm.min.js")],
    wasm=_base64((wasm / "tfjs-backend-wasm-simd.wasm").read_bytes()),
    model=model | {"weightSpecs": specs},
    weights=_base64(files.weights(folder)),
    metadata=model["userDefinedMetadata"],
    signature=model["signature"],
  )
  file = folder / "page.html"
  file.write_text(page, encoding="utf-8")
  return file


def _base64(data: bytes) -> str:
  return base64.b64encode(data).decode()


def _script(file: Path) -> str:
  # Not splitlines(): TF.js has strings with characters that Python takes for ends of lines.
  lines = [line for line in file.read_text(encoding="utf-8").split("\n") if not line.startswith("//# sourceMappingURL")]
  return "\n".join(lines).replace("</script", "<\\/script")
