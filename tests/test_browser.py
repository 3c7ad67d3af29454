"""examples/browser and the page of `tfjs.save`, in headless Chromium."""

from __future__ import annotations

import importlib.util
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf.converters import tfjs
from jax2tf.examples import minilm, minilm_text

sync_api = pytest.importorskip("playwright.sync_api", reason="needs Python's playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
REPOSITORY = Path(__file__).resolve().parent.parent
SENTENCES = [*minilm_text.SENTENCES[:8], "Naïve café: 東京, 12.5% — ok?"]

pytestmark = [
  pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
  pytest.mark.usefixtures("tfjs_packages"),
]


def _example() -> Any:
  spec = importlib.util.spec_from_file_location("browser_export", REPOSITORY / "examples" / "browser" / "export.py")
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
  with sync_api.sync_playwright() as playwright:
    chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--enable-unsafe-swiftshader"])
    yield chromium
    chromium.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
  """A page whose errors fail the test."""
  page, errors = browser.new_page(viewport={"width": 1000, "height": 800}), []
  page.on("pageerror", lambda error: errors.append(str(error)))
  page.set_default_timeout(120_000)
  yield page
  page.close()
  assert not errors


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
  example = _example()
  folder = tmp_path_factory.mktemp("browser")
  exported = example.main(folder)
  assert exported.report.ok
  with example.server(folder) as server:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()


@pytest.mark.parametrize("backend", ["wasm", "webgl"])
def test_the_page_computes_jaxs_embeddings(page: Any, address: str, backend: str) -> None:
  expected = np.asarray(jax.jit(minilm.encode)(minilm.parameters(), *minilm_text.tokenize(SENTENCES)))
  page.goto(address)
  page.wait_for_function("document.getElementById('status').textContent.includes('sentences in')")
  script = "async ([sentences, backend]) => [tf.getBackend(), (await embed(sentences, backend)).map(e => Array.from(e))]"
  _, found = page.evaluate(script, [SENTENCES, backend])
  assert page.evaluate("tf.getBackend()") == backend
  np.testing.assert_allclose(np.array(found), expected, rtol=0, atol=1e-4)
  assert np.linalg.norm(expected[0] - expected[3]) > 0.1  # sentences are told apart


def test_the_page_shows_which_sentences_are_alike(page: Any, address: str) -> None:
  page.goto(address)
  page.wait_for_function("document.getElementById('status').textContent.includes('6 sentences in')")
  page.fill("#sentences", "\n".join(SENTENCES[:8]))
  page.click("#run")
  page.wait_for_function("document.getElementById('status').textContent.includes('8 sentences in')")
  cells = page.evaluate("[...document.querySelectorAll('td')].map(cell => +cell.textContent)")
  embeddings = np.asarray(minilm.encode(minilm.parameters(), *minilm_text.tokenize(SENTENCES[:8])))
  np.testing.assert_allclose(np.array(cells).reshape(8, 8), embeddings @ embeddings.T, atol=0.006)  # two digits are shown
  picture = REPOSITORY / "build" / "browser.png"
  picture.parent.mkdir(exist_ok=True)
  page.screenshot(path=str(picture), full_page=True)


@pytest.mark.parametrize("backend", ["wasm", "webgl", "cpu"])
def test_one_file_holds_the_model_and_runs_it(page: Any, tmp_path: Path, backend: str) -> None:
  weights = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)

  def fun(w: jax.Array, x: jax.Array, n: jax.Array) -> dict[str, jax.Array]:
    y = jax.lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c + n), x)
    return {"probabilities": jax.nn.softmax(y @ w), "<!--<script>": jnp.argmax(y @ w, -1)}

  tfjs.save(fun, weights, tmp_path / "model", inputs={"x": "f32[b,4]", "n": "i32[]"}, page=True, examples={"n": np.int32(2)})
  page.context.set_offline(True)
  page.goto((tmp_path / "model" / "page.html").as_uri())
  x = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
  page.fill("#input-x", json.dumps(x.tolist()))
  page.fill("#input-n", "2")
  page.select_option("#backend", backend)
  page.click("#run")
  page.wait_for_function("document.getElementById('status').textContent.includes(' ms on ')")
  page.context.set_offline(False)
  assert page.text_content("#status").endswith(backend)
  numbers = [line.split() for line in page.text_content("#outputs").splitlines()]
  shown = {lines[0]: np.array(numbers[i + 1], np.float32) for i, lines in enumerate(numbers[:-1]) if lines and "[" in lines[-1]}
  expected = fun(weights, x, np.int32(2))
  np.testing.assert_allclose(shown["probabilities"].reshape(2, 3), expected["probabilities"], atol=1e-5)
  np.testing.assert_array_equal(shown["<!--<script>"], expected["<!--<script>"])
