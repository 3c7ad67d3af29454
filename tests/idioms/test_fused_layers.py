"""Which layer of which library matches a fused idiom, and what differs from JAX then."""

from __future__ import annotations

from pathlib import Path

import pytest

from jax2tf.idioms.fused import NAMES
from tests.idioms import fused_differences
from tests.idioms.fused_layers import LAYERS, NOT_TAKEN, PRIMITIVES, primitives
from tests.support.onednn import ENABLED

_CPU = Path("/proc/cpuinfo")
_AVX_512 = _CPU.exists() and "avx512" in _CPU.read_text(encoding="utf-8")


def _primitive(layer: str) -> str:
  name = layer.removesuffix(" in an MLP")
  return PRIMITIVES.get(name, name)


@pytest.mark.parametrize(
  ("layer", "library"), [(layer, library) for layer, cells in LAYERS.items() for library in cells]
)
def test_a_layer_matches(layer: str, library: str) -> None:
  fun, args = LAYERS[layer][library]
  assert _primitive(layer) in primitives(fun, *args)


@pytest.mark.parametrize("what", NOT_TAKEN)
def test_a_layer_does_not_match(what: str) -> None:
  name, fun, args = NOT_TAKEN[what]
  assert PRIMITIVES.get(name, name) not in primitives(fun, *args)


def test_the_guide_shows_what_was_measured() -> None:
  guide = Path(__file__).resolve().parents[2] / "docs" / "developers" / "fused-idioms.md"
  assert fused_differences.GOLDEN.read_text(encoding="utf-8") in guide.read_text(encoding="utf-8")


def test_each_idiom_is_measured() -> None:
  assert {name.split()[0] for name in fused_differences.PLAIN} == NAMES


@pytest.mark.skipif(
  not (_AVX_512 and ENABLED), reason="measured with AVX-512: oneDNN has other kernels without"
)
def test_what_differs_is_what_was_measured() -> None:
  """For each idiom and kind of input: equal, or what JAX has and what the graph has."""
  measured = fused_differences.GOLDEN.read_text(encoding="utf-8").splitlines()
  assert fused_differences.table() == measured, (
    "python -m tests.idioms.fused_differences writes it again"
  )
