"""The web page of a TF.js model, as text; tests/documents/test_browser.py runs it."""

from __future__ import annotations

import html.parser
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jax2tf.converters import tfjs
from jax2tf.examples.browser import page

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


def test_names_of_the_user_stay_inside_of_their_element(
  tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  scope = tmp_path / "node_modules" / "@tensorflow"
  for file in (
    "tfjs/dist/tf.min.js",
    "tfjs-backend-wasm/dist/tf-backend-wasm.min.js",
    "tfjs-backend-wasm/dist/tfjs-backend-wasm-simd.wasm",
  ):
    (scope / file).parent.mkdir(parents=True, exist_ok=True)
    (scope / file).write_text("")
  monkeypatch.setattr(tfjs, "packages", lambda: tmp_path)
  spec = {"dtype": "DT_FLOAT", "tensorShape": {"dim": [{"size": "1"}]}}
  names = {"inputs": {"x": spec}, "outputs": {HOSTILE: spec, "</script>": spec}}
  metadata = {"inputs": {HOSTILE: "f32[1]"}, "backends": ["cpu"], "compared": ["cpu"]}
  model = {"signature": names, "userDefinedMetadata": metadata | {"constraints": ["b <= 8"]}}
  (tmp_path / "model.json").write_text(json.dumps(model | {"weightsManifest": []}))
  html = page.write(tmp_path, title=HOSTILE, labels=["</script>"]).read_text()
  scripts = Scripts()
  scripts.feed(html)
  assert "<" not in scripts.texts["model"] + scripts.texts["page"]
  assert json.loads(scripts.texts["model"]) == model | {"weightSpecs": []}
  assert json.loads(scripts.texts["page"])["limits"] == {"b": 8}
  assert html.count("<!--") == 0 and html.count("<script") == html.count("</script>") == 7


def spec(dtype: str, *sizes: int) -> dict[str, Any]:
  return {"dtype": f"DT_{dtype}", "tensorShape": {"dim": [{"size": str(size)} for size in sizes]}}


@pytest.mark.parametrize(
  ("labels", "with_tokenizer", "words"),
  [
    (
      ["a", "b"],
      False,
      r"labels: there are 2 names of classes, and of the outputs 'scores' has 3, 'rows' has a "
      r"varying number",
    ),
    ([], True, "tokenizer: none of the inputs image, n is int32 of rank 1 or 2, for tokens"),
  ],
  ids=["labels", "tokenizer"],
)
def test_what_the_page_could_not_show_is_an_error(
  labels: list[str], with_tokenizer: bool, words: str
) -> None:
  inputs = {"image": spec("FLOAT", 1, 8, 8, 3), "n": spec("INT32")}
  outputs = {"scores": spec("FLOAT", -1, 3), "best": spec("INT32", 2), "rows": spec("FLOAT", -1)}
  with pytest.raises(ValueError, match=words):
    page.check({"inputs": inputs, "outputs": outputs}, labels, with_tokenizer)
  tokens = {"ids": spec("INT32", -1, 8)}
  page.check({"inputs": tokens, "outputs": outputs}, ["a", "b", "c"], with_tokenizer=True)


def test_an_example_has_names_for_the_numbers_that_json_lacks() -> None:
  assert page.nested(np.float32([[np.nan, 1 / 3], [-np.inf, np.inf]])) == [
    ["NaN", 0.3333],
    ["-Infinity", "Infinity"],
  ]


@pytest.mark.parametrize(
  ("text", "words"), [("[]", "is not a tokenizer.json; save it by"), ("{", "is not JSON")]
)
def test_a_file_that_is_no_tokenizer_is_an_error(text: str, words: str, tmp_path: Path) -> None:
  (tmp_path / "tokenizer.json").write_text(text)
  with pytest.raises(ValueError, match=rf"tokenizer.json' {words}"):
    page.read_tokenizer(tmp_path / "tokenizer.json")


def test_a_folder_without_a_model_is_one_line(
  tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
  with pytest.raises(SystemExit, match=r"No such file or directory: .*model\.json"):
    page.main([str(tmp_path)])
  assert not capsys.readouterr().out


@pytest.mark.usefixtures("tfjs_packages")
def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
  (tmp_path / "two.txt").write_text("a first class\na second class\n")
  folder = tmp_path / "m"
  options = {"inputs": {"x": "f32[b,2]"}, "backends": ["wasm"], "samples": 1}
  tfjs.save(lambda _, x: x, {}, folder, **options)
  page.main([str(folder), "--title", "Two", "--labels", str(tmp_path / "two.txt")])
  text = (folder / "page.html").read_text()
  assert "<title>Two" in text and '["a first class", "a second class"]' in text
  assert capsys.readouterr().out == f"{folder / 'page.html'}\n"
