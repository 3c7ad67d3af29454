"""docs/guide/fused.md says what is so: which layer of which library matches, what differs from JAX,
what Grappler fuses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jax2tf.idioms.fused import NAMES
from tests import fused_differences, fused_grappler, fused_layers
from tests.fused_layers import LAYERS, NOT_TAKEN, PRIMITIVES, primitives
from tests.fused_page import on_page
from tests.onednn import ENABLED, only_with_onednn

_CPU = Path("/proc/cpuinfo")
_AVX_512 = _CPU.exists() and "avx512" in _CPU.read_text(encoding="utf-8")
_AGAIN = "`python -m tests.fused_page` writes the tables of the page"


def _primitive(layer: str) -> str:
  name = layer.removesuffix(" in an MLP")
  return PRIMITIVES.get(name, name)


@pytest.mark.parametrize(
  ("layer", "library"),
  [
    (layer, library)
    for layer, cells in LAYERS.items()
    for library, cell in cells.items()
    if not isinstance(cell, str)
  ],
)
def test_a_layer_matches(layer: str, library: str) -> None:
  fun, args = LAYERS[layer][library]
  assert _primitive(layer) in primitives(fun, *args)


@pytest.mark.parametrize("what", NOT_TAKEN)
def test_a_layer_does_not_match(what: str) -> None:
  _, name, fun, args = NOT_TAKEN[what]
  assert PRIMITIVES.get(name, name) not in primitives(fun, *args)


@only_with_onednn
@pytest.mark.parametrize(
  "line", fused_grappler.LINES, ids=lambda line: line.form.replace(",", "").replace(" ", "_")
)
def test_grappler_fuses(line: fused_grappler.Line) -> None:
  assert fused_grappler.ran(line) == line.ops


def test_each_idiom_is_measured() -> None:
  assert {name.split()[0] for name in fused_differences.PLAIN} == NAMES


@pytest.mark.parametrize(
  "make",
  [fused_layers.taken, fused_layers.others, fused_grappler.table],
  ids=["layers", "not_taken", "grappler"],
)
def test_the_page_has_the_rows(make: Any) -> None:
  _compare(make())


@pytest.mark.skipif(
  not (_AVX_512 and ENABLED),
  reason="the page is measured with AVX-512: oneDNN has other kernels without",
)
def test_the_page_has_what_differs() -> None:
  _compare(fused_differences.table())


def _compare(table: Sequence[str]) -> None:
  assert on_page(table[0]) == table, _AGAIN
