"""The first converted function of a process, made while TensorFlow differentiates."""

import subprocess
import sys
from pathlib import Path

from tests.conversion import first_calls


def test_the_first_call_may_be_anywhere():
  """TensorFlow raised an error, and the process died soon after."""
  root = Path(__file__).resolve().parents[2]
  command = [sys.executable, "-m", "tests.conversion.first_calls"]
  done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300, cwd=root)
  expected = [f"{program.__name__} 0" for program in first_calls.PROGRAMS]
  assert done.stdout.splitlines() == expected, done.stderr[-2000:]
