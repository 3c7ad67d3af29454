"""What `readiness` finds, for Python and as text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

NO_KERNEL = "no kernel"
HARMLESS = "on the host"
BOUNCE = "bounce"
SYNC = "predicate"
INT32 = "int32"
RETURN = "return"
UPLOAD = "upload"
RESULT = "result"
SEVEREST_FIRST = (NO_KERNEL, BOUNCE, SYNC, INT32, RETURN, UPLOAD, RESULT, HARMLESS)
# What makes a function slow on the device; the others are for information.
_COSTLY = (NO_KERNEL, BOUNCE)


@dataclass(frozen=True)
class Finding:
  """One kind of op in one place that does not stay on the device.

  Attributes:
    kind: "no kernel": the op runs on the host, and tensors are copied for it. "bounce": a tensor is
      copied to the host in the middle of the computation. "predicate": the host waits for a tensor
      that decides which ops run next. "int32": a copy for arithmetic of int32, which TensorFlow
      computes in host memory. "return": back to the device, after a bounce. "upload": a value of
      the host, such as a loop counter, goes to the device. "result": it ends on the host. "on the
      host": no kernel, but its operands and results are in host memory anyway.
    op: the type of the TensorFlow op.
    dtypes: the dtypes of the operands and results that the finding is about.
    operand: the name of the operand that is copied; empty for a missing kernel.
    loops: the number of loops around the op.
    name: the name of the op in its graph.
    primitive: the primitive that the op implements; empty if the graph does not say.
    where: the user's line; empty if the graph does not say.
    advice: what to do.
    count: the number of such ops.
  """

  kind: str
  op: str
  dtypes: str
  operand: str
  loops: int
  name: str
  primitive: str
  where: str
  advice: str
  count: int = 1


@dataclass(frozen=True)
class Readiness:
  """Which ops of a graph stay on a device, and which do not.

  Attributes:
    device: gpu or tpu.
    registry: the device type in TensorFlow's registry of kernels.
    ops: the number of ops that run, with calls inlined and without constants.
    findings: the findings, inside loops first, then by kind.
  """

  device: str
  registry: str
  ops: int
  findings: tuple[Finding, ...]

  def of(self, kind: str) -> tuple[Finding, ...]:
    """The findings of a kind.

    Args:
      kind: as `Finding.kind`.

    Returns:
      the findings of this kind, in their order.
    """
    return tuple(finding for finding in self.findings if finding.kind == kind)

  def count(self, kind: str) -> int:
    """The number of ops or copies in the findings of a kind.

    Args:
      kind: as `Finding.kind`.

    Returns:
      the sum of the counts of these findings.
    """
    return sum(finding.count for finding in self.of(kind))

  @property
  def missing(self) -> int:
    """The number of ops that run on the host because they have no kernel on the device."""
    return self.count(NO_KERNEL)

  @property
  def bounces(self) -> int:
    """The number of tensors that are copied to the host in the middle of the computation."""
    return self.count(BOUNCE)

  @property
  def is_ready(self) -> bool:
    """Whether no op lacks a kernel, and no tensor is copied in the middle."""
    return not any(self.count(kind) for kind in _COSTLY)


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
  """The findings, equal ones as one, those inside loops first."""
  counts: dict[Finding, int] = {}
  for finding in findings:
    key = dataclasses.replace(finding, count=1, name=_without_number(finding.name))
    counts[key] = counts.get(key, 0) + finding.count
  once = [dataclasses.replace(finding, count=count) for finding, count in counts.items()]
  return tuple(sorted(once, key=_rank))


def _rank(finding: Finding) -> tuple[bool, int, int, str, str]:
  severity = SEVEREST_FIRST.index(finding.kind)
  return finding.kind not in _COSTLY, -finding.loops, severity, finding.where, finding.name


def _without_number(name: str) -> str:
  """The name of an op without the number that makes it unique."""
  head, _, number = name.rpartition("_")
  return head if number.isdigit() else name
