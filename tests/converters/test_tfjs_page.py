"""The web page of `tfjs.save`, as text; tests/documents/test_browser.py runs it."""

from __future__ import annotations

import html.parser
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax2tf.converters import tfjs
from jax2tf.converters.tfjs import page

HOSTILE = "<!--<script>"  # HTML reads on to a second </script> after it, and the page is gone


class Scripts(html.parser.HTMLParser):
  """{id: text} of the elements that hold data."""

  def __init__(self) -> None:
    super().__init__()
    self.texts: dict[str, str] = {}
    self._id: str | None = None

  def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    self._id = dict(attrs).get("id") if tag == "script" else None

  def handle_endtag(self, tag: str) -> None:
    self._id = None

  def handle_data(self, data: str) -> None:
    if self._id:
      self.texts[self._id] = data


def test_names_of_the_user_stay_inside_of_their_element(tmp_path: Path) -> None:
  scope = tmp_path / "node_modules" / "@tensorflow"
  for file in (
    "tfjs/dist/tf.min.js",
    "tfjs-backend-wasm/dist/tf-backend-wasm.min.js",
    "tfjs-backend-wasm/dist/tfjs-backend-wasm-simd.wasm",
  ):
    (scope / file).parent.mkdir(parents=True, exist_ok=True)
    (scope / file).write_text("")
  spec = {"dtype": "DT_FLOAT", "tensorShape": {}}
  names = {"inputs": {"x": spec}, "outputs": {HOSTILE: spec, "</script>": spec}}
  model = {
    "signature": names,
    "userDefinedMetadata": {"inputs": {HOSTILE: "f32[]"}, "backends": ["cpu"]},
  }
  (tmp_path / "model.json").write_text(json.dumps(model | {"weightsManifest": []}))
  html = page.write(
    tmp_path, tmp_path, page.Page(HOSTILE, labels=["</script>"]), verified=["cpu"]
  ).read_text()
  scripts = Scripts()
  scripts.feed(html)
  assert "<" not in scripts.texts["model"] + scripts.texts["page"]
  assert json.loads(scripts.texts["model"]) == model | {"weightSpecs": []}
  assert html.count("<!--") == 0 and html.count("<script") == html.count("</script>") == 7


def spec(dtype: str, *sizes: int) -> dict[str, Any]:
  return {"dtype": f"DT_{dtype}", "tensorShape": {"dim": [{"size": str(size)} for size in sizes]}}


@pytest.mark.parametrize(
  ("given", "words"),
  [
    (
      page.Page(labels=["a", "b"]),
      r"labels: there are 2 names of classes, and of the outputs 'scores' has 3, 'rows' has a "
      r"varying number",
    ),
    (
      page.Page(tokenizer="tokenizer.json"),
      "tokenizer: none of the inputs image, n is int32 of rank 1 or 2, for tokens",
    ),
  ],
  ids=["labels", "tokenizer"],
)
def test_what_the_page_could_not_show_is_an_error(given: page.Page, words: str) -> None:
  inputs = {"image": spec("FLOAT", 1, 8, 8, 3), "n": spec("INT32")}
  outputs = {"scores": spec("FLOAT", -1, 3), "best": spec("INT32", 2), "rows": spec("FLOAT", -1)}
  with pytest.raises(ValueError, match=words):
    given.check({"inputs": inputs, "outputs": outputs})
  page.Page(labels=["a", "b", "c"]).check({"inputs": inputs, "outputs": outputs})
  page.Page(tokenizer="tokenizer.json").check(
    {"inputs": {"ids": spec("INT32", -1, 8)}, "outputs": outputs}
  )


def test_an_example_has_names_for_the_numbers_that_json_lacks() -> None:
  assert page._listed(np.float32([[np.nan, 1 / 3], [-np.inf, np.inf]])) == [
    ["NaN", 0.3333],
    ["-Infinity", "Infinity"],
  ]


def test_a_missing_package_is_that_of_the_tfjs_extra(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setitem(sys.modules, "jinja2", None)
  with pytest.raises(
    ImportError, match=r"a page for TF.js needs jinja2: pip install 'jax2tf\[tfjs\]'"
  ):
    tfjs.save(lambda _, x: x, {}, tmp_path / "m", inputs={"x": "f32[2]"}, page=True)
  assert not [*tmp_path.iterdir()]


def test_a_file_that_is_no_tokenizer_is_said_before_the_work(tmp_path: Path) -> None:
  (tmp_path / "tokenizer.json").write_text("[]")
  with pytest.raises(ValueError, match=r"tokenizer.json' is not a tokenizer.json; save it by"):
    tfjs.save(
      lambda _, x: x,
      {},
      tmp_path / "m",
      inputs={"x": "f32[2]"},
      page=tfjs.Page(tokenizer=tmp_path / "tokenizer.json"),
    )
