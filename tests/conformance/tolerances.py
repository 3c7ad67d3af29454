"""How close is close, per primitive; what is known not to work; and what is compared instead of raw values.

Tolerances are in units of the dtype's machine epsilon, relative to the value. The default is a few units;
each exception says why. Integers and bools are always exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_DEFAULT = 8.0

# group -> (units, why)
TOLERANCES: dict[str, tuple[float, str]] = {
  "conv_general_dilated": (256.0, "sums of products in another order"),
  "dot_general": (256.0, "sums of products in another order"),
  "cumsum": (64.0, "sums in another order"),
  "cumprod": (64.0, "products in another order"),
  "cumlogsumexp": (64.0, "sums in another order"),
  "reduce_sum": (64.0, "sums in another order"),
  "fft": (256.0, "another FFT algorithm (ducc against Eigen)"),
}

# (does it concern this harness in this way?, reason); each has a line in docs/limitations.md.
LIMITATIONS: list[tuple[Callable[[Any, str], bool], str]] = []

# group -> (harness, args, actual, expected) -> what to compare of them: results that mathematics leaves open.
CUSTOM_CHECKS: dict[str, Callable[[Any, Any, Any, Any], tuple[Any, Any, Any]]] = {}


def tolerance(harness: Any, dtype: Any, way: str) -> float:
  """The allowed error of a result of this dtype, in units of its epsilon."""
  units = TOLERANCES.get(harness.group_name, (_DEFAULT, ""))[0]
  return 0.0 if np.dtype(dtype).kind in "biu" else units * (4.0 if way == "gradient" else 1.0)
