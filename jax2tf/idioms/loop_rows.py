"""Turns a loop that reads and writes rows of arrays at its counter into a scan over these rows, so
that no array is carried or copied.

Values that depend only on counters are computed here for all steps, so the row of each step is
known. Rows inside the array need no clamping. Consecutive rows are distinct, so each step reads the
value from before the loop.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, Literal, jaxpr_as_fun

from jax2tf.idioms._counters import arithmetic_progression, numbers_of
from jax2tf.idioms._dataflow import Dataflow, Equations, is_array, new_var, provably_equal, reshape
from jax2tf.idioms._loops import Scan, call_in_place_of, parse_scan
from jax2tf.idioms.loop_counters import counter_p
from jax2tf.jaxprs import (
  Eqn,
  contains,
  live,
  map_inner,
  replaced,
  transformation,
  variables,
  with_equations,
)
from jax2tf.traits import BODIES, SUMS

# Combines the old row and the update; None takes the update.
_WRITES = {
  P.dynamic_update_slice_p: None,
  P.scatter_p: None,
  P.scatter_add_p: P.add_p,
  P.scatter_mul_p: P.mul_p,
}


@dataclass(frozen=True)
class Rows:
  """One row of an array for each step of the loop: from `start` on along `axis`, or backwards."""

  axis: int
  start: int
  backwards: bool

  def read(self, array: jax.Array, count: int) -> jax.Array:
    """The rows as xs."""
    rows = lax.slice_in_dim(array, self.start, self.start + count, axis=self.axis)
    return jnp.moveaxis(self._turned(rows), self.axis, 0)

  def written(self, array: jax.Array, ys: jax.Array) -> jax.Array:
    """The array with stacked ys as its rows."""
    rows, size = self._turned(jnp.moveaxis(ys, 0, self.axis)), array.shape[self.axis]
    parts = ((0, self.start), (self.start + len(ys), size))
    before, after = (
      [lax.slice_in_dim(array, *part, axis=self.axis)] * (part[0] < part[1]) for part in parts
    )
    return lax.concatenate([*before, rows, *after], self.axis) if before or after else rows

  def variable(self, array: Any) -> Any:
    """A new variable for one of these rows."""
    return new_var(array, [n for d, n in enumerate(array.aval.shape) if d != self.axis])

  def _turned(self, rows: jax.Array) -> jax.Array:
    return lax.rev(rows, (self.axis,)) if self.backwards else rows


@dataclass(frozen=True)
class Access:
  """A read or a write of one row of an array.

  Attributes:
    array: the variable of the array.
    rows: the rows of all steps.
    eqns: the equations that do it; the last one gives the result.
    update: what is written; None for a read.
    combine: the primitive that combines the old row and the update; None takes the update.
  """

  array: Any
  rows: Rows
  eqns: Equations
  update: Any = None
  combine: Any = None


def by_rows(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """scan with a counter, and arrays read and written at it -> a scan over rows, and the arrays made
  of what it stacks."""
  if (scan := parse_scan(eqn)) is None or not isinstance(scan.length, int):
    return None
  loop = _Loop(flow, scan)
  flow.numbers |= {
    y: loop.known[v]
    for v, y in zip(scan.ys, eqn.outvars[scan.n_carry :], strict=True)
    if _hashed(v) in loop.known
  }
  return (
    call_in_place_of(flow, eqn, loop.call)
    if loop.counters or loop.taken or loop.written or loop.counted_xs
    else None
  )


@transformation
def everywhere(jaxpr: Jaxpr) -> Jaxpr:
  """The same function with `by_rows` applied to all its loops, also in calls, loops and
  branches."""
  if not contains(jaxpr, (P.scan_p,)):
    return jaxpr
  eqns = [map_inner(eqn, everywhere) if eqn.primitive in BODIES else eqn for eqn in jaxpr.eqns]
  flow = Dataflow(eqns, jaxpr.outvars)
  for position, eqn in enumerate(eqns):
    if eqn.primitive is P.scan_p and (replacement := by_rows(flow, eqn)) is not None:
      flow.replace(position, replacement)
  return with_equations(jaxpr, flow.equations())


class _Loop:
  """A scan, and its accesses by rows.

  Attributes:
    known: {variable of the body: its values}, if they depend only on counters.
    counters: {carried variable: its value after the loop}.
    counted_xs: the xs that are counters, but not yet of `counter_p`.
    taken: {(operand's variable in the body, its rows): variable of one row}.
    written: {carried variable: (its rows, the variable of the row that a step writes)}.
  """

  def __init__(self, flow: Dataflow, scan: Scan):
    body = scan.body
    self.scan = scan
    self.known, self.counters = numbers_of(flow, scan)
    self.taken: dict[tuple[Any, Rows], Any] = {}
    self.written: dict[Any, tuple[Rows, Any]] = {}
    self._progressions = {
      v: progression
      for v, numbers in self.known.items()
      if (progression := arithmetic_progression(v, numbers))
    }
    xs = zip(scan.xs, scan.eqn.invars[scan.n_outer :], strict=True)
    self.counted_xs = [
      v
      for v, operand in xs
      if v in self._progressions and not v.aval.shape and flow.producer(operand, counter_p) is None
    ]
    self._results = variables(body.outvars)
    self._producers = {v: eqn for eqn in body.eqns for v in eqn.outvars}
    self._users = collections.defaultdict[Any, list[Any]](list)
    for eqn in body.eqns:
      for v in variables(eqn.invars):
        self._users[v].append(eqn)
    carries = list(zip(scan.carry, scan.carried, strict=True))
    consts = {v for v in (*scan.consts, *(v for v, out in carries if v is out)) if is_array(v)}
    self._replaced: dict[int, Equations] = {}
    for eqn in body.eqns:
      if (read := self._read(eqn)) is not None and read.array in consts:
        self._replaced[id(eqn)] = [reshape(eqn, self._row(read.array, read.rows), eqn.outvars[0])]
    for v, out in carries:
      self._carried_by_rows(v, out)

  def _rows(self, operand: Any, sizes: Sequence[Any], starts: Sequence[Any]) -> Rows | None:
    """The rows of these sizes at these starts, if the loop takes one after the other and all are
    inside."""
    shape = operand.aval.shape
    apart = [
      d
      for d, (size, n) in enumerate(zip(sizes, shape, strict=True))
      if not provably_equal([size], [n])
    ]
    if (
      len(apart) != 1
      or sizes[apart[0]] != 1
      or starts[apart[0]] not in self.known
      or not isinstance(shape[apart[0]], int)
    ):
      return None
    numbers = self.known[starts[apart[0]]].astype(np.int64)
    step, first, last = numbers[1] - numbers[0], numbers.min(), numbers.max()
    if abs(step) != 1 or any(np.diff(numbers) != step) or first < 0 or last >= shape[apart[0]]:
      return None
    return Rows(apart[0], int(first), bool(step < 0))

  def _read(self, eqn: Eqn) -> Access | None:
    """What an equation reads, if that is one row of an array."""
    operand = eqn.invars[0] if eqn.invars else None
    if eqn.primitive is P.dynamic_slice_p:
      rows = self._rows(operand, eqn.params["slice_sizes"], [_hashed(a) for a in eqn.invars[1:]])
    elif eqn.primitive is P.gather_p and eqn.params["mode"] != lax.GatherScatterMode.ONE_HOT:
      numbers = eqn.params["dimension_numbers"]
      rows = self._rows_of_vector(
        operand,
        eqn.params["slice_sizes"],
        eqn.invars[1],
        numbers.start_index_map,
        numbers.operand_batching_dims,
      )
    else:
      return None
    return Access(operand, rows, [eqn]) if rows else None

  def _write(self, eqn: Eqn) -> Access | None:
    """What an equation writes, if that is one row of an array."""
    if eqn.primitive in SUMS:
      return self._added_row(eqn, *eqn.invars) or self._added_row(eqn, *eqn.invars[::-1])
    if eqn.primitive not in _WRITES or (
      eqn.primitive is P.scatter_p and eqn.params["update_jaxpr"] is not None
    ):
      return None
    if eqn.primitive is P.dynamic_update_slice_p:
      operand, update, *starts = eqn.invars
      rows = self._rows(operand, update.aval.shape, [_hashed(a) for a in starts])
    else:
      (operand, vector, update), numbers = eqn.invars, eqn.params["dimension_numbers"]
      if tuple(numbers.update_window_dims) != tuple(range(len(update.aval.shape))):
        return None
      sizes = list(update.aval.shape)
      for d in sorted(numbers.inserted_window_dims):
        sizes.insert(d, 1)
      rows = self._rows_of_vector(
        operand, sizes, vector, numbers.scatter_dims_to_operand_dims, numbers.operand_batching_dims
      )
    return Access(operand, rows, [eqn], update, _WRITES[eqn.primitive]) if rows else None

  def _added_row(self, eqn: Eqn, operand: Any, other: Any) -> Access | None:
    """operand + zeros with one row, as in JAX's derivative of a row that is read. 0.0 is not added
    elsewhere, so -0.0 may remain."""
    producer = self._producers.get(_hashed(other))
    if (
      producer is None
      or producer.primitive in SUMS
      or self._users[other] != [eqn]
      or other in self._results
    ):
      return None
    write = self._write(producer)
    if write is None or write.combine is P.mul_p or not self._is_zero(write.array):
      return None
    return Access(operand, write.rows, [producer, eqn], write.update, P.add_p)

  def _is_zero(self, atom: Any) -> bool:
    eqn = self._producers.get(_hashed(atom))
    return (
      eqn is not None
      and eqn.primitive is P.broadcast_in_dim_p
      and isinstance(eqn.invars[0], Literal)
      and eqn.invars[0].val == 0
    )

  def _rows_of_vector(
    self,
    operand: Any,
    sizes: Sequence[Any],
    vector: Any,
    dims: Sequence[int],
    batching: Sequence[int],
  ) -> Rows | None:
    if (
      len(dims) != 1
      or batching
      or len(sizes) != len(operand.aval.shape)
      or vector.aval.shape != (1,)
    ):
      return None
    return self._rows(
      operand, sizes, [_hashed(vector) if d == dims[0] else None for d in range(len(sizes))]
    )

  def _row(self, operand: Any, rows: Rows) -> Any:
    """The variable of one of these rows."""
    return self.taken.setdefault((operand, rows), rows.variable(operand))

  def _carried_by_rows(self, v: Any, out: Any) -> None:
    """Replaces the accesses to a carried array, if a step only reads and writes one row of it."""
    if isinstance(out, Literal) or v is out or not is_array(v):
      return
    accesses, array = list[Access](), v
    while True:  # the array before the step, then after each write
      users = self._users[array]
      of_users = [self._read(eqn) or self._write(eqn) for eqn in users]
      known = [access for access in of_users if access is not None and access.array is array]
      writes = [access for access in known if access.update is not None]
      if (
        len(known) < len(users)
        or len(writes) != (array is not out)
        or self._results.count(array) != (array is out)
      ):
        return
      accesses += [*(access for access in known if access.update is None), *writes]
      if not writes:
        break
      array = writes[0].eqns[-1].outvars[0]
    if len({access.rows for access in accesses}) == 1:
      self._replace(v, accesses)

  def _replace(self, v: Any, accesses: Sequence[Access]) -> None:
    """Replaces reads and writes of one row of a carried array, in this order."""
    rows, row = accesses[0].rows, None
    for access in accesses:
      *others, last = access.eqns
      before = (
        self._row(v, rows) if row is None and (access.update is None or access.combine) else row
      )
      if access.update is None:
        self._replaced[id(last)] = [reshape(last, before, last.outvars[0])]
        continue
      row = rows.variable(v)
      eqns = [reshape(last, access.update, row)]
      if access.combine:
        params = {"out_dtype": None} if access.combine is P.mul_p else {}
        eqns.append(
          last.replace(
            primitive=access.combine,
            invars=[before, row],
            outvars=[row := rows.variable(v)],
            params=params,
          )
        )
      self._replaced |= {id(eqn): [] for eqn in others} | {id(last): eqns}
    self.written[v] = rows, row

  def call(self, *operands: Any) -> Sequence[Any]:
    """The results of the scan."""
    scan, body = self.scan, self.scan.body
    values = dict(zip(body.invars, operands, strict=True))
    gone = {*self.counters, *self.written}
    carries = [(v, out) for v, out in zip(scan.carry, scan.carried, strict=True) if v not in gone]
    stacked = [
      *(v for v in scan.ys if _hashed(v) not in self._progressions),
      *(row for _, row in self.written.values()),
    ]
    outvars = [*(out for _, out in carries), *stacked]
    eqns = [
      e
      for eqn in body.eqns
      for e in self._replaced.get(id(eqn), [eqn])
      if not self._is_counted(eqn)
    ]
    needed = live(eqns, outvars)
    used = {*variables(outvars), *(v for eqn in needed for v in variables(eqn.invars))}
    computed = {v for eqn in needed for v in eqn.outvars}
    xs = {
      row: rows.read(values[v], scan.length) for (v, rows), row in self.taken.items() if row in used
    }
    xs |= {
      v: self._counter(v) for v in self._progressions if v in used - computed and not v.aval.shape
    }
    xs |= {v: values[v] for v in scan.xs if v in used and v not in xs}
    consts = [v for v in scan.consts if v in used]
    lean = jaxpr_as_fun(
      replaced(
        body, eqns=list(needed), invars=[*consts, *(v for v, _ in carries), *xs], outvars=outvars
      )
    )

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
      results = [*lean(*(values[v] for v in consts), *carry, *x)]
      return results[: len(carries)], results[len(carries) :]

    init: list[Any] = [values[v] for v, _ in carries]
    carried, ys = scan.rebuilt(step, init, [*xs.values()], operands)
    after = self.counters | {v: x for (v, _), x in zip(carries, carried, strict=True)}
    rows_of = zip(self.written.items(), ys[len(ys) - len(self.written) :], strict=True)
    after |= {v: rows.written(values[v], y) for (v, (rows, _)), y in rows_of}
    left = iter(ys)
    return [
      *(after[v] for v in scan.carry),
      *(self._counter(v) if _hashed(v) in self._progressions else next(left) for v in scan.ys),
    ]

  def _counter(self, v: Any) -> Any:
    """The values of an evenly growing number in all steps."""
    first, step = self._progressions[v]
    numbers = counter_p.bind(first=first, step=step, length=self.scan.length, dtype=v.aval.dtype)
    return numbers.reshape(-1, *v.aval.shape) if v.aval.shape else numbers

  def _is_counted(self, eqn: Eqn) -> bool:
    """Whether a counter replaces an equation; TensorFlow folds what depends on literals alone."""
    return any(v in self._progressions and not v.aval.shape for v in eqn.outvars) and bool(
      variables(eqn.invars)
    )


def _hashed(atom: Any) -> Any:
  return None if isinstance(atom, Literal) else atom
