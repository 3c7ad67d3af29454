"""Ports for the servers of tests that run at the same time."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.support import ports

ROOT = Path(__file__).resolve().parents[2]


def test_two_processes_get_different_ports() -> None:
  mine = ports.free_ports(3)
  code = "from tests.support import ports; print(*ports.free_ports(3))"
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
  )
  others = {*map(int, done.stdout.split())}
  assert len(others) == 3 and not others & {*mine}


def test_a_process_gets_no_port_twice() -> None:
  assert not {*ports.free_ports(3)} & {*ports.free_ports(3)}


def test_a_port_that_a_server_has_is_not_free() -> None:
  [port] = ports.free_ports(1)
  with socket.create_server(("127.0.0.1", port)):
    assert not ports._can_listen(port)
  assert ports._can_listen(port)
