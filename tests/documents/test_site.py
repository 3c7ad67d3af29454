"""The site of `make docs`, build/site, opened from the disk in headless Chromium without a
network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
PAGES = [
  "index.html",
  "guide/start.html",
  "guide/serving.html",
  "reference/command-line.html",
  "reference/api/jax2tf.html",
]

pytestmark = pytest.mark.skipif(
  not (SITE / "index.html").exists(), reason="there is no site: make docs"
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_pages_fit_into_the_window(browser: Any, scheme: str, width: int) -> None:
  page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
  page.context.set_offline(True)
  for name in PAGES:
    page.goto((SITE / name).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    lightness = page.evaluate(
      "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"
    )
    assert (lightness > 200) == (scheme == "light"), name
  page.close()


def test_search_finds_a_public_name(browser: Any) -> None:
  page = browser.new_page()
  page.context.set_offline(True)
  page.goto((SITE / "index.html").as_uri())
  page.click("input.md-search__input")
  page.keyboard.type("eval_polymorphic_shape")
  page.wait_for_selector(
    ".md-search-result__link[href$='#jax2tfeval_polymorphic_shape']", state="attached"
  )
  page.close()
