"""The site of `make docs`, build/site, opened from the disk in headless Chromium without a
network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
# Of each part of the site, and the widest tables and lines of code.
PAGES = [
  "index.html",
  "architecture.html",
  "guide/start.html",
  "guide/saved-models.html",
  "tasks/plain-converters.html",
  "deploy/node.html",
  "reference/command-line.html",
  "reference/api/jax2tf.html",
  "reference/api/saved_model.html",
  "reports/models.html",
  "reports/targets.html",
]
# What does not fit: the page, tables, and beside the sidebars the lines of code.
TOO_WIDE = """([selectors, window]) => {
  const shown = [...document.querySelectorAll(selectors)];
  const wide = shown.filter((e) => e.scrollWidth > e.clientWidth);
  const texts = wide.map((e) => e.textContent.trim().slice(0, 80));
  return document.documentElement.scrollWidth > window ? ["the page", ...texts] : texts;
}"""
TABLES, CODE = "article .md-typeset__scrollwrap", "article pre > code"
# The page that answers, for each word that people look for.
ANSWERS = {
  "android": "deploy/android.html",
  "delegate": "deploy/android.html",
  "loadGraphModel": "deploy/browser.html",
  "canary": "deploy/tf-serving.html",
  "Cannot solve for values of dimension variables": "guide/shape-constraints.html",
  "GPU": "guide/gpu.html",
  "checkpoint": "tasks/orbax-checkpoint.html",
  "S3": "deploy/cloud-storage.html",
}

pytestmark = pytest.mark.skipif(
  not (SITE / "index.html").exists(), reason="there is no site: make docs"
)


def _page(browser: Any, **options: Any) -> Any:
  page = browser.new_page(**options)
  page.context.set_offline(True)
  page.set_default_timeout(120_000)  # milliseconds; beside other tests a page takes longer
  return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_with_tables_and_code_fit_into_the_window(
  browser: Any, scheme: str, width: int
) -> None:
  page = _page(browser, viewport={"width": width, "height": 800}, color_scheme=scheme)
  selectors = TABLES if width < 1280 else f"{TABLES}, {CODE}"
  for name in PAGES if scheme == "light" else PAGES[:2]:  # whose colours are those of all
    page.goto((SITE / name).as_uri())
    assert page.evaluate(TOO_WIDE, [selectors, width]) == [], name
    lightness = page.evaluate(
      "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    )
    assert (lightness > 200) == (scheme == "light"), name
  page.close()


def test_search_finds_a_public_name_and_answers_first(browser: Any) -> None:
  page = _page(browser)
  page.goto((SITE / "index.html").as_uri())
  page.click("input.md-search__input")
  page.keyboard.type("eval_polymorphic_shape")
  page.wait_for_selector(
    ".md-search-result__link[href$='#jax2tfeval_polymorphic_shape']", state="attached"
  )
  for words, answer in ANSWERS.items():
    page.fill("input.md-search__input", words)
    page.keyboard.press("End")  # a key starts the search
    page.wait_for_selector(
      f".md-search-result__item:first-child a[href*='/{answer}']", state="attached"
    )
  page.close()
