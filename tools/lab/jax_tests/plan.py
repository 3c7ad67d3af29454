"""What one process runs, as a file."""

from __future__ import annotations

import dataclasses
import json
import pathlib

# Exit codes that say that there are tests left.
LARGE, LATE = 77, 78


@dataclasses.dataclass(frozen=True)
class Plan:
  """What one process runs.

  Attributes:
    rows: the file of the rows.
    done: the tests that are not run again.
    per_test: the number of parametrizations of each test method, 0 for all.
    calls: the largest number of calls that are compared in one test.
    seed: chooses parametrizations and ways.
    end: the process ends after this time of time.time().
    gigabytes: the process ends when it has this size.
  """

  rows: str
  done: list[str]
  per_test: int
  calls: int
  seed: int
  end: float
  gigabytes: float

  @classmethod
  def read(cls, path: pathlib.Path) -> Plan:
    """Of the file that `write` wrote."""
    return cls(**json.loads(path.read_text(encoding="utf-8")))

  def write(self, path: pathlib.Path) -> None:
    """For another process."""
    path.write_text(json.dumps(dataclasses.asdict(self)), encoding="utf-8")
