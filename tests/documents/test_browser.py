"""examples/browser and the page of a TF.js model, in headless Chromium."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf.converters import tfjs
from jax2tf.converters.verify.report import Latency, Report, Row
from jax2tf.examples import minilm, minilm_text
from jax2tf.examples.browser import page as model_page
from jax2tf.examples.gallery import sentence_search

REPOSITORY = Path(__file__).resolve().parents[2]
SENTENCES = [*minilm_text.SENTENCES[:8], "Naïve café: 東京, 12.5% — ok?"]

pytestmark = pytest.mark.usefixtures("tfjs_packages")


def _example() -> Any:
  spec = importlib.util.spec_from_file_location(
    "browser_export", REPOSITORY / "examples" / "browser" / "export.py"
  )
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
  """A page whose errors fail the test."""
  page, errors = browser.new_page(viewport={"width": 1000, "height": 800}), []
  page.on("pageerror", lambda error: errors.append(str(error)))
  page.set_default_timeout(120_000)  # milliseconds; beside other tests a page takes longer
  yield page
  page.close()
  assert not errors


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
  folder = tmp_path_factory.mktemp("browser")
  assert _example().main(folder).report.ok
  return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
  with _example().server(site) as server:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()


@pytest.mark.parametrize("backend", ["wasm", "webgl"])
def test_the_page_computes_jaxs_embeddings(page: Any, address: str, backend: str) -> None:
  expected = np.asarray(
    jax.jit(minilm.encode)(minilm.parameters(), *minilm_text.tokenize(SENTENCES))
  )
  page.goto(address)
  page.wait_for_function("document.getElementById('status').textContent.includes('sentences in')")
  script = (
    "async ([sentences, backend]) => [tf.getBackend(), (await embed(sentences, "
    "backend)).map(e => Array.from(e))]"
  )
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
  # two digits are shown
  np.testing.assert_allclose(np.array(cells).reshape(8, 8), embeddings @ embeddings.T, atol=0.006)
  picture = REPOSITORY / "build" / "browser.png"
  picture.parent.mkdir(exist_ok=True)
  page.screenshot(path=str(picture), full_page=True)


@pytest.mark.usefixtures("browser")
def test_search_finds_modules_by_what_they_do(site: Path, tmp_path: Path) -> None:
  """In a thread of its own, because the example starts a Playwright of its own."""
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    found = thread.submit(
      sentence_search.main, [f"--site={site}", f"--picture={tmp_path / 'picture.png'}"]
    ).result()
  assert {query: titles[0] for query, titles in found.items() if "mailbox" not in query} == {
    "measure how long my code takes": "timeit",
    "read a compressed archive": "tarfile",
  }
  assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


HOSTILE = "<!--<script>"


@pytest.mark.parametrize("backend", ["wasm", "webgl", "cpu"])
def test_one_file_holds_the_model_and_runs_it(page: Any, tmp_path: Path, backend: str) -> None:
  weights = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)

  def fun(w: jax.Array, x: jax.Array, n: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = jax.lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c + n), x)
    return jax.nn.softmax(y @ w), jnp.argmax(y @ w, -1)

  labels = ["cat", "dog", "owl"]
  specs, names = {"x": "f32[b,4]", "n": "i32[]"}, ["probabilities", HOSTILE]
  n = np.int32(2)
  folder = tmp_path / "three birds"
  tfjs.save(fun, weights, folder, inputs=specs, outputs=names, examples={"n": n})
  model_page.write(folder, labels=labels, examples={"n": n})
  page.context.set_offline(True)
  page.goto((tmp_path / "three birds" / "page.html").as_uri())
  assert page.title() == page.text_content("h1") == "three birds"
  assert page.input_value("#backend") == "wasm"  # the first of those that were compared
  assert page.text_content("#backend option[value=webgl]") == "webgl, not compared"
  assert page.input_value("#input-n") == "2"
  assert len(json.loads(page.input_value("#input-x"))[0]) == 4
  x = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
  page.select_option("#backend", backend)
  for text, words in (
    ("[[1, 2", "Input x: this is not JSON"),
    ("[[1, 2, 3]]", "Input x takes f32[b,4]; given are the sizes [1,3]"),
    ('[[1, 2, 3, "4"]]', 'Input x: "4" is no float32'),
  ):
    page.fill("#input-x", text)
    page.click("#run")
    page.wait_for_function(
      "words => document.getElementById('status').textContent.includes(words)", arg=words
    )
  page.fill("#input-x", json.dumps(x.tolist()))
  page.click("#run")
  page.wait_for_function("document.getElementById('status').textContent.includes(' ms on ')")
  page.context.set_offline(False)
  assert page.text_content("#status").endswith(backend)
  found = page.evaluate(
    "[...document.querySelectorAll('section')].map(e => [e.dataset.name, "
    "e.querySelector('pre').textContent])"
  )
  expected = dict(zip(names, fun(weights, x, np.int32(2)), strict=True))
  assert {name for name, _ in found} == {*names}
  for name, numbers in found:
    np.testing.assert_allclose(
      np.array(numbers.split(), np.float32).reshape(expected[name].shape), expected[name], atol=1e-5
    )
  best = page.evaluate("document.querySelector('.bars').innerText.split('\\n').filter(Boolean)")
  assert best[0] == labels[int(expected[HOSTILE][0])]
  assert best[1] == f"{100 * float(expected['probabilities'][0].max()):.1f} %"


def test_the_page_takes_images_and_text(page: Any, tmp_path: Path) -> None:
  def fun(w: jax.Array, image: jax.Array, ids: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
    return {"mean": image.mean((1, 2)) * w, "tokens": jnp.where(mask == 1, ids, -1)}

  specs = {"image": "f32[1,8,8,3]", "ids": "i32[b,s]", "mask": "i32[b,s]"}
  tfjs.save(
    fun,
    np.ones(3, np.float32),
    tmp_path / "m",
    inputs=specs,
    polymorphic_constraints=["s <= 8"],
    backends=["wasm"],
    samples=1,
  )
  tokenizer = minilm_text.directory() / "tokenizer.json"
  model_page.write(tmp_path / "m", title="Pictures and words", tokenizer=tokenizer)
  page.set_viewport_size({"width": 360, "height": 700})  # a phone
  page.goto((tmp_path / "m" / "page.html").as_uri())
  assert page.text_content("h1") == "Pictures and words"
  assert page.evaluate("document.documentElement.scrollWidth") == 360
  picture = np.zeros((16, 16, 3), np.uint8) + np.array([255, 51, 0], np.uint8)
  tf.io.write_file(str(tmp_path / "red.png"), tf.io.encode_png(picture))
  page.set_input_files("#input-image", str(tmp_path / "red.png"))
  page.wait_for_function("document.getElementById('status').textContent.includes('red.png')")
  page.fill("#input-text", "\n".join(SENTENCES[:2] + SENTENCES[-1:]))
  page.click("#run")
  page.wait_for_function("document.getElementById('status').textContent.match(/ ms on |Input/)")
  answers = page.evaluate(
    "Object.fromEntries([...document.querySelectorAll('section')].map(e => [e.dataset.name, "
    "e.querySelector('pre').textContent]))"
  )
  np.testing.assert_allclose(np.array(answers["mean"].split(), np.float32), [1, 0.2, 0], atol=1e-6)
  ids, mask = minilm_text.tokenize([*SENTENCES[:2], *SENTENCES[-1:]])
  # 102: [SEP], which ends them all
  cut = np.concatenate([ids[:, :7], np.where(mask[:, 7:8] == 1, 102, 0)], axis=1)
  expected = np.where(mask[:, :8] == 1, cut, -1)
  np.testing.assert_array_equal(
    np.array(answers["tokens"].split(), np.int32).reshape(3, 8), expected
  )


def test_images_may_be_typed_as_numbers_and_every_row_is_shown(page: Any, tmp_path: Path) -> None:
  def fun(_: Any, image: jax.Array) -> jax.Array:
    return jnp.concatenate([image.reshape(image.shape[0], 64)] * 4, axis=1)

  images = np.arange(128, dtype=np.float32).reshape(2, 8, 8, 1)
  images[0, 0, 0, :] = np.nan
  images[1, 7, 7, :] = -np.inf
  options = {
    "inputs": {"image": "f32[b,8,8,1]"},
    "examples": {"image": images},
    "backends": ["wasm"],
  }
  tfjs.save(fun, {}, tmp_path / "m", **options)
  model_page.write(tmp_path / "m", examples={"image": images})
  page.goto((tmp_path / "m" / "page.html").as_uri())
  page.check("#typed-image")
  assert page.is_hidden(".drop") and '[[["NaN"],[1]' in page.input_value("#numbers-image")
  page.click("#run")
  page.wait_for_function("document.getElementById('status').textContent.match(/ ms on |Input/)")
  rows = page.text_content("pre").removesuffix(" …").split("\n")
  expected = np.asarray(fun({}, images))[:, :200]  # numbers in a row of the page
  np.testing.assert_array_equal([np.array(row.split(), np.float32) for row in rows], expected)
  page.uncheck("#typed-image")
  assert page.is_visible(".drop") and page.is_hidden("#numbers-image")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_of_a_verification_shows_what_differs_first_and_cuts_nothing_off(
  browser: Any, tmp_path: Path, scheme: str
) -> None:
  long, sizes = (
    "a_signature_of_which_the_name_is_rather_long_" * 2,
    {"batch": 32, "sequence_length": 224},
  )
  agrees = [
    Row(long, f"output_{i}", sizes, "ordinary", "float32", 3, 1e-6, 1e-6, 3.0, 0.5)
    for i in range(9)
  ]
  differs = Row(
    long,
    "state/encoder/layers/3/attention/query_projection",
    sizes,
    "ordinary",
    "float32",
    3,
    1.0,
    1.0,
    1e9,
    2e5,
    "wrong " * 60,
  )
  report = Report(
    "model",
    (*agrees, differs),
    (Latency(long, sizes, 2e-3, 1e-3),),
    {},
    {"jax": "1"},
    machine="Measured on a busy machine.",
  )
  page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme=scheme)
  page.goto((report.write(tmp_path) / "verification.html").as_uri())
  assert page.evaluate(
    "[...document.querySelectorAll('details')].map(e => [e.innerText.split('\\n')[0], e.open])"
  ) == [["Differ: 1", True], ["Agree: 9", False]]
  assert page.evaluate(
    "[document.documentElement, ...document.querySelectorAll('.scroll, img')].every(e => "
    "e.scrollWidth <= e.clientWidth)"
  )
  assert page.evaluate(
    "getComputedStyle(document.querySelector('tr.wrong td')).backgroundColor !== "
    "getComputedStyle(document.body).backgroundColor"
  )
  lightness = page.evaluate(
    "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
  )
  assert (lightness > 200) == (scheme == "light")
  assert page.inner_text("h2:has-text('Latency') + p") == "Measured on a busy machine."
  page.close()
