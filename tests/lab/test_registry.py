"""Programs as files of converters, side by side; here the other converter is one of ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jax2tf.tools.lab import reports
from jax2tf.tools.lab.pages import targets
from jax2tf.tools.lab.target_rows import registry, registry_rows

ROW = "lax.cos(x)"


def ours(row: str, file: Path) -> float:
  seconds, compared = registry.written(row, file)
  compared()
  return seconds


def of_another_row(row: str, file: Path) -> float:
  return ours("lax.sin(x)", file)


def refusing(row: str, file: Path) -> float:
  raise NotImplementedError(row)


def test_files_that_are_right_have_times() -> None:
  exports = {"ours": ours, "other": ours}
  numbers = registry.side_by_side(ROW, exports)
  assert numbers["ours"] == numbers["other"] == ["right", ""]
  assert numbers["library"] == "lax" and numbers["nodes"] == [1, 1]
  assert numbers["bytes"][0] == numbers["bytes"][1] > 0
  assert min(*numbers["seconds"], *numbers["ms"]) > 0


def test_our_time_is_that_of_another_process(tmp_path: Path) -> None:
  seconds = registry.our_export(ROW, tmp_path / "m.onnx")
  registry._ours().close()
  assert seconds > 0 and (tmp_path / "m.onnx").exists()


def test_a_wrong_and_a_refused_file() -> None:
  exports = {"ours": of_another_row, "other": refusing}
  numbers = registry.side_by_side(ROW, exports)
  assert numbers["ours"] == ["wrong", "output 0 has other values with b = 3"]
  assert numbers["other"] == ["refused", f"NotImplementedError: {ROW}"]
  assert numbers["nodes"] == [1, None] and numbers["ms"] == [None, None]
  assert registry.faults({ROW: numbers}) == [f"{ROW}: our file is wrong"]


def test_a_module_is_a_function_of_its_inputs() -> None:
  program = registry_rows.program("nnx.LayerNorm(16, rngs=RNGS) | c")
  (y,) = program.fun(*program.arrays(3))
  assert program.inputs == ("c",) and y.shape == (3, 32, 16)
  np.testing.assert_allclose(y.mean(-1), 0, atol=1e-6)  # sums of 16 numbers of about 1


def test_complex_results_are_two_reals() -> None:
  program = registry_rows.program("lax.complex(x, y)")
  arrays = program.arrays(3)
  np.testing.assert_array_equal(program.fun(*arrays), arrays)


def kept(ours: str, theirs: str, ms: float) -> dict[str, object]:
  figures = {"seconds": [0.2, 0.1], "nodes": [1, 1], "bytes": [9, 9], "ms": [ms, 1.0]}
  return {"library": "lax", "ours": [ours, f"why {ours}"], "jax2onnx": [theirs, ""], **figures}


def test_the_page_lists_what_only_the_other_has_right_and_the_largest_ratios(
  monkeypatch: pytest.MonkeyPatch,
) -> None:
  both = {f"both {i}": kept("right", "right", i) for i in range(1, 14)}
  one = {"a": kept("right", "wrong", 99), "b": kept("refused", "right", 99)}
  read = reports.read
  numbers = {"targets-registry": {"JAX": both | one}}
  monkeypatch.setattr(reports, "read", lambda name: numbers.get(name) or read(name))
  page = targets.text()
  assert "| **all** | 15 | 14 | 1 | 0 | 14 | 0 | 1 | 7.00 | 1.00 | 1.00 | 2.00 |" in page
  only = "Right only as a file of ours: 1.\nRight only as a file of jax2onnx: 1.\n\n"
  assert f"{only}- `b`, ours: refused. `why refused`\n\nRatio of ms" in page
  listed = [f"- `both {i}`: {i}.0, {i} to 1\n" for i in range(13, 3, -1)]
  assert f"Ratio of ms above 1.3: 12 of 13. The largest:\n\n{''.join(listed)}\nRatio" in page
  assert page.endswith("Ratio of nodes above 1.3: 0 of 13.\n")
