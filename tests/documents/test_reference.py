"""The generated pages of docs/reference are those of today's docstrings and `--help`."""

from __future__ import annotations

from pathlib import Path

import pytest

from jax2tf.tools.cli import main
from jax2tf.tools.site import reference

pytestmark = pytest.mark.one_python  # Click and Griffe read the same source on each


@pytest.mark.parametrize("page", reference.pages(), ids=lambda page: page.stem)
def test_a_page_is_current(page: Path) -> None:
  text = page.read_text(encoding="utf-8")
  assert reference.written(text) == text, "run `make reference`"


def test_the_flags_of_each_command_are_there() -> None:
  page = (reference.PAGES / "flags.md").read_text(encoding="utf-8")
  names = {
    f"jax2tf {name} {verb}".strip()
    for name, command in main.command.commands.items()
    for verb in getattr(command, "commands", [""])
  }
  assert {line[3:] for line in page.splitlines() if line.startswith("## ")} == names
