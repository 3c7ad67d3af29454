"""How does a JAX model run in a web page, without a model server?

Exports the sentence encoder all-MiniLM-L6-v2 to TF.js and writes it to build/browser/ with a page
that compares sentences. With --serve it serves the page on http://127.0.0.1:8000.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import shutil
import subprocess
from pathlib import Path

import numpy as np

from jax2tf.examples import minilm, minilm_text, quiet

with quiet.startup():
  from jax2tf.converters import tfjs

HERE = Path(__file__).resolve().parent
BUILD = Path("build", "browser")
_SCRIPTS = (
  "tfjs/dist/tf.min.js",
  "tfjs-backend-wasm/dist/tf-backend-wasm.min.js",
  "tfjs-backend-wasm/dist/tfjs-backend-wasm.wasm",
  "tfjs-backend-wasm/dist/tfjs-backend-wasm-simd.wasm",
  "tfjs-backend-wasm/dist/tfjs-backend-wasm-threaded-simd.wasm",
)


def main(build: Path = BUILD) -> tfjs.Exported:
  """Writes the folder. Any static file server can serve it."""
  ids, mask = minilm_text.tokenize(minilm_text.SENTENCES[:4])
  exported = tfjs.save(
    minilm.encode,
    minilm.parameters(),
    build / "model",
    inputs={"input_ids": "i32[b,s]", "attention_mask": "i32[b,s]"},
    outputs=["embedding"],
    polymorphic_constraints=[f"s <= {minilm_text.MAX_TOKENS}"],
    examples={"input_ids": ids, "attention_mask": mask},
    backends=["wasm"],
    overwrite=True,
  )
  (latency,) = exported.report.latencies
  largest = np.max([row.max_abs for row in exported.report.rows])
  print(
    f"{exported.path}: {exported.size / 1e6:.1f} MB, within {largest:.1e} of JAX on "
    f"{ids.shape[0]} sentences"
  )
  print(f"{1e3 * latency.model:.0f} ms on wasm in node, {1e3 * latency.reference:.0f} ms in JAX")
  for name in (
    "index.html",
    "app.js",
    "search.html",
    "search.js",
    "embed.js",
    "package.json",
    "package-lock.json",
  ):
    shutil.copy(HERE / name, build / name)
  for name in ("tokenizer.json", "tokenizer_config.json"):
    shutil.copy(minilm_text.directory() / name, build / name)
  for name in _SCRIPTS:
    shutil.copy(tfjs.packages() / "node_modules" / "@tensorflow" / name, build)
  subprocess.run(
    ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], cwd=build, check=True
  )
  shutil.copy(build / "node_modules/@huggingface/tokenizers/dist/tokenizers.min.mjs", build)
  return exported


def server(folder: Path, port: int = 0) -> http.server.ThreadingHTTPServer:
  """A server of static files on the loopback interface. Port 0 chooses a free port."""
  handler = functools.partial(_Handler, directory=str(folder))
  return http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)


class _Handler(http.server.SimpleHTTPRequestHandler):
  def log_message(self, format: str, *args: object) -> None:
    """Prints no line for each request."""


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("build", nargs="?", type=Path, default=BUILD)
  parser.add_argument(
    "--serve", action="store_true", help="serve the page on http://127.0.0.1:8000"
  )
  options = parser.parse_args()
  main(options.build)
  if options.serve:
    print("http://127.0.0.1:8000")
    server(options.build, 8000).serve_forever()
