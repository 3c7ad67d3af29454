"""What the reports say of measured numbers, and that each page has the numbers that are kept."""

from __future__ import annotations

import importlib
from pathlib import Path

from jax2tf.tools import lab
from jax2tf.tools.lab import onnx_report, reports, server_fuzz, serving_report


def test_each_sweep_takes_its_defaults() -> None:
  scripts = [
    path.stem
    for path in Path(lab.__path__[0]).glob("*.py")
    if "@click.command" in path.read_text(encoding="utf-8")
  ]
  assert len(scripts) > 10
  for name in scripts:
    main = importlib.import_module(f"{lab.__name__}.{name}").main
    assert main.make_context(name, []).params.keys() == {
      parameter.name for parameter in main.params
    }


def test_the_page_of_the_random_requests_has_its_numbers() -> None:
  page = server_fuzz.markdown(reports.read("server-fuzz"))
  assert reports.page("server-fuzz").read_text(encoding="utf-8") == page
  for section in reports.read("server-fuzz").values():
    assert [*server_fuzz.faults(section)] == []
    for interface in ("REST", "gRPC"):
      assert sum(numbers["requests"] for numbers in section[interface].values()) == 4000


def test_what_a_load_is_expected_to_show() -> None:
  """Replicas add up until all cores are busy, and memory and starts have bounds."""
  # 2 ms of CPU time for each request
  one = {"requests per second": 400.0} | dict.fromkeys(serving_report.COSTS, 0.5)
  assert [serving_report.predicted(one, count, cores=2) for count in (1, 2, 3)] == [400, 800, 1000]
  assert [len(serving_report.late(starts)) for starts in ([29.9, 8.0], [31.0, 8.0])] == [0, 1]
  soak = {"minutes": 30, "all processes MB by thirds": [1000, 2000, 2099]}
  assert serving_report.grown(soak) == []
  assert serving_report.grown(soak | {"all processes MB by thirds": [1000, 2000, 2101]}) == [
    "all processes MB by thirds: [1000, 2000, 2101], a growth by more than 5%"
  ]


def test_the_page_of_the_load_has_its_numbers() -> None:
  page = serving_report.markdown(
    *map(reports.read, (serving_report.LOAD, serving_report.SOAK, serving_report.DRILLS))
  )
  assert reports.page("serving").read_text(encoding="utf-8") == page


def test_every_measured_file_agrees_from_its_stated_release_on() -> None:
  for section in reports.read("onnx-runtimes").values():
    assert onnx_report.too_low(section) == []
