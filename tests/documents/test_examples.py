"""Each example says what it is for, and is run by a test; what the others share is right."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from jax2tf.examples import minilm_text

TESTS = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((TESTS.parent / "examples").rglob("[!_]*.py"))

# The tests that run an example as a program, from its command line to its last line.
RUN_BY = {
  name: f"test_{test}.py"
  for test, names in {
    "quickstart": ("quickstart",),
    "training": ("train_step",),
    "generate": ("generate",),
    "browser": ("sentence_search",),
    "tfjs_page": ("page",),
    "stories": (
      "fine_tune",
      "image_and_signal",
      "vocabulary",
      "moving_average",
      "jax_and_tensorflow",
    ),
    "gallery": (
      "physics_in_tf_data",
      "gaussian_process",
      "image_classifier",
      "on_device_training",
      "diffusion_in_tfjs",
      "one_model_everywhere",
      "tf_data_service",
      "policy_under_load",
      "language_model",
    ),
  }.items()
  for name in names
}


def test_each_example_is_run_by_a_test() -> None:
  """As a program, or by one: a program imports its parts, or names the scripts that it starts."""
  for name, test in RUN_BY.items():
    [file] = TESTS.rglob(test)
    starts = rf'"{name}\.py"|\b{name}\.(__file__|main\b|ask\b)'
    assert re.search(starts, file.read_text(encoding="utf-8")), f"{test} does not start {name}.py"
  texts, reached = {path.stem: path.read_text(encoding="utf-8") for path in EXAMPLES}, set(RUN_BY)
  for _ in texts:
    said = "\n".join(texts[name] for name in reached)
    reached |= {name for name in texts if re.search(_uses(name), said)}
  assert reached == texts.keys()


def _uses(name: str) -> str:
  """The regular expression of an import of an example, or of its file's name."""
  imported = rf"(?m)^\s*(from jax2tf\.examples[\w.]* )?import .*\b{name}\b"
  return rf'{imported}|^\s*from jax2tf\.examples[\w.]*\.{name} import|"{name}\.py"'


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_says_what_it_is_for(example: Path) -> None:
  docstring = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8")))
  assert docstring
  assert len(docstring.splitlines()[0]) > 20


def test_tokens_of_a_batch() -> None:
  ids, mask = minilm_text.tokenize(["Hello, world!", "Hi"])
  # [CLS] hello , world ! [SEP], as BERT's vocabulary numbers them.
  np.testing.assert_array_equal(ids, [[101, 7592, 1010, 2088, 999, 102], [101, 7632, 102, 0, 0, 0]])
  np.testing.assert_array_equal(mask, [[1] * 6, [1, 1, 1, 0, 0, 0]])
  assert ids.dtype == mask.dtype == np.int32


def test_tokens_are_cut_at_what_the_model_reads() -> None:
  ids, mask = minilm_text.tokenize(["word " * 1000])
  assert ids.shape == (1, 256)
  assert ids[0, -1] == 102
  assert mask.all()


def test_the_sentences_have_several_sizes() -> None:
  assert len(minilm_text.SENTENCES) == 12
  shapes = {minilm_text.tokenize(batch)[0].shape for batch in minilm_text.BATCHES.values()}
  assert len({b for b, _ in shapes}) >= 3
  assert len({s for _, s in shapes}) >= 3
