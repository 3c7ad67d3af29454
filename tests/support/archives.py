"""Arrays that a test finds in a file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np


def npz(source: str | Path | bytes) -> dict[str, np.ndarray[Any, Any]]:
  """All arrays of an .npz file, which is closed: numpy leaves that to the garbage collector."""
  with np.load(io.BytesIO(source) if isinstance(source, bytes) else source) as archive:
    return dict(archive)
