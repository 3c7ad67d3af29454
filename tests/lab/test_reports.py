"""What the reports say of measured numbers, and that each page has the numbers that are kept."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from jax2tf.tools import lab
from jax2tf.tools.lab import bounds, pages, reports
from jax2tf.tools.lab.pages import targets


@pytest.mark.parametrize("name", pages.NAMES)
def test_a_page_is_what_its_numbers_make(name: str) -> None:
  """`make reports` writes it anew."""
  assert reports.page(name).read_text(encoding="utf-8") == pages.text(name)


def test_each_sweep_takes_its_defaults() -> None:
  scripts = [
    path.stem
    for path in Path(lab.__path__[0]).glob("*.py")
    if "@click.command" in path.read_text(encoding="utf-8")
  ]
  assert len(scripts) > 5
  for name in scripts:
    main = importlib.import_module(f"{lab.__name__}.{name}").main
    assert main.make_context(name, []).params.keys() == {
      parameter.name for parameter in main.params
    }


def test_what_is_kept_of_random_requests_has_no_fault() -> None:
  for section in reports.read("server-fuzz").values():
    assert [*bounds.of_requests(section)] == []
    for interface in ("REST", "gRPC"):
      assert sum(numbers["requests"] for numbers in section[interface].values()) == 4000


def test_what_a_load_is_expected_to_show() -> None:
  """Replicas add up until all cores are busy, and memory and starts have bounds."""
  # 2 ms of CPU time for each request
  one = {"requests per second": 400.0} | dict.fromkeys(bounds.COSTS, 0.5)
  assert [bounds.predicted(one, count, cores=2) for count in (1, 2, 3)] == [400, 800, 1000]
  assert [len(bounds.late(starts)) for starts in ([29.9, 8.0], [31.0, 8.0])] == [0, 1]
  soak = {"minutes": 30, "all processes MB by thirds": [1000, 2000, 2099]}
  assert bounds.grown(soak) == []
  assert bounds.grown(soak | {"all processes MB by thirds": [1000, 2000, 2101]}) == [
    "all processes MB by thirds: [1000, 2000, 2101], a growth by more than 5%"
  ]


def test_every_measured_file_agrees_from_its_stated_release_on() -> None:
  for section in reports.read("targets-onnx").values():
    assert targets.too_low(section) == []
