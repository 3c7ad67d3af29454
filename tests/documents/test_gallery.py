"""The examples of docs/gallery on small settings, and their pages. tests/documents/test_browser.py
and test_generate.py run the other two."""

from __future__ import annotations

import concurrent.futures
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from jax2tf.converters.generation import conversations
from jax2tf.converters.generation.conversations import Turn
from jax2tf.examples.gallery import (
  diffusion_in_tfjs,
  gaussian_process,
  image_classifier,
  language_model,
  on_device_training,
  one_model_everywhere,
  physics_in_tf_data,
  policy_under_load,
  tf_data_service,
)

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = sorted(
  path for path in (REPOSITORY / "docs" / "gallery").glob("*.md") if path.stem != "index"
)


@pytest.fixture
def picture(tmp_path):
  """The option for the file, which must be there in the end."""
  yield f"--picture={tmp_path / 'picture.png'}"
  assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_physics_in_tf_data(picture):
  found, expected = physics_in_tf_data.main([picture, "--size=6", "--steps=40"])
  np.testing.assert_array_equal(found, expected)  # too short for chaos
  assert 0 < np.isnan(found).mean() < 1


def test_gaussian_process(picture):
  found, expected = gaussian_process.main([picture, "--observations=8", "--steps=10"])
  assert found[-1] < found[0] - 0.1
  np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_image_classifier(picture):
  accuracies = image_classifier.main([picture, "--steps=100", "--epochs=2", "--images=3"])
  assert accuracies["parameters from JAX"][-1] > accuracies["random parameters"][-1] + 0.2


def test_on_device_training(picture):
  on_device, in_jax, accuracies = on_device_training.main(
    [picture, "--steps=20", "--pretraining=20"]
  )
  np.testing.assert_allclose(on_device, in_jax, rtol=1e-5)
  assert len(accuracies) == 21


@pytest.mark.usefixtures("tfjs_packages")
def test_diffusion_in_tfjs(picture):
  drawn, expected = diffusion_in_tfjs.main([picture, "--width=16", "--steps=3", "--sampling=2"])
  np.testing.assert_allclose(drawn, expected, atol=1e-5)


@pytest.mark.latencies
@pytest.mark.usefixtures("tfjs_packages")
def test_one_model_everywhere(picture):
  found = one_model_everywhere.main([picture, "--width=16", "--layers=1"])
  assert len(found) == len(one_model_everywhere.TARGETS) + 1
  assert found["LiteRT, int8 weights"][0] < found["LiteRT"][0]  # megabytes


def test_tf_data_service(picture, without_jax, monkeypatch):
  monkeypatch.setattr(sys, "executable", without_jax)
  found, expected = tf_data_service.main([picture, "--sounds=64", "--seconds=0.1"])
  np.testing.assert_allclose(found, expected, atol=1e-2)


def test_policy_under_load(picture):
  found = policy_under_load.main([picture, "--updates=60", "--steps=20", "--clients", "1", "4"])
  assert {count: x.shape for count, x in found.items()} == {1: (1, 20, 2), 4: (4, 20, 2)}
  assert np.abs(found[4][..., 1]).max() < 30


@pytest.mark.usefixtures("browser")
def test_language_model(picture, monkeypatch):
  """In a thread of its own, because the example starts a Playwright of its own. Each file is
  compared in one conversation here; the engines are compared with JAX's text."""
  monkeypatch.setattr(conversations, "planned", lambda *_: [(Turn((3, 5, 7), new=4),)])
  small = ["--width=32", "--layers=1", "--steps=60", "--new=12"]
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    found = thread.submit(language_model.main, [picture, *small]).result()
  assert len(found) == 5
  assert {one.text for one in found.values()} == {found["JAX"].text}


def test_the_gallery_is_whole():
  assert len(PAGES) == 11
  index = (REPOSITORY / "docs" / "gallery" / "index.md").read_text(encoding="utf-8")
  assert all(f"({page.name})" in index and f"({page.stem}.png)" in index for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_its_example(page):
  """The command is of a file, the lines are the file's, and the picture is there."""
  text = page.read_text(encoding="utf-8")
  [example] = re.findall(r"The whole program: \[\w+\.py\]\(../../(examples/[\w/]+)\.py\)", text)
  assert f"python -m jax2tf.{example.replace('/', '.')}" in text
  files = re.findall(r"\(../../(examples/[\w/]+\.py)\)", text)
  source = {
    line.strip()
    for file in files
    for line in (REPOSITORY / file).read_text(encoding="utf-8").splitlines()
  }
  blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
  assert blocks
  assert [
    line for line in "".join(blocks).splitlines() if line.strip() not in source | {"", "..."}
  ] == []
  assert f"]({page.stem}.png)" in text
  assert page.with_suffix(".png").stat().st_size < 500_000
