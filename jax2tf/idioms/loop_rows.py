"""Turns a loop that reads and writes rows of arrays at its counter into a scan over these rows, so that no array is carried or copied.

JAX's fori_loop with static bounds is a scan that carries its counter. Values that depend only on counters are computed here for all
steps, so the row of each step is known. Rows inside the array need no clamping. Consecutive rows are distinct, so each step reads the
value from before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core.primitives as P
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal, jaxpr_as_fun

from jax2tf import effects
from jax2tf.idioms._dataflow import Dataflow, Equations, is_array, new_var, reshape, same
from jax2tf.idioms._loops import Scan, call_of, taken_apart
from jax2tf.jaxprs import replaced, variables

# A number for each step, in the order of the xs.
Numbers = Any

_ARITHMETIC: dict[Any, Callable[..., Numbers]] = {
  **{P.add_p: np.add, P.sub_p: np.subtract, P.mul_p: np.multiply, P.neg_p: np.negative, P.max_p: np.maximum, P.min_p: np.minimum},
  **{P.eq_p: np.equal, P.ne_p: np.not_equal, P.lt_p: np.less, P.le_p: np.less_equal, P.gt_p: np.greater, P.ge_p: np.greater_equal},
  **{P.and_p: np.bitwise_and, P.or_p: np.bitwise_or, P.not_p: np.invert},
  P.select_n_p: lambda which, *cases: np.choose(which.astype(np.int64), cases),
  # Of one element each.
  **dict.fromkeys((P.convert_element_type_p, P.broadcast_in_dim_p, P.reshape_p, P.squeeze_p), lambda x: x),
}
# Combines the old row and the update; None takes the update.
_WRITES = {P.dynamic_update_slice_p: None, P.scatter_p: None, P.scatter_add_p: P.add_p, P.scatter_mul_p: P.mul_p}


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
    before, after = ([lax.slice_in_dim(array, *part, axis=self.axis)] * (part[0] < part[1]) for part in parts)
    return lax.concatenate([*before, rows, *after], self.axis) if before or after else rows

  def _turned(self, rows: jax.Array) -> jax.Array:
    return lax.rev(rows, (self.axis,)) if self.backwards else rows


def by_rows(flow: Dataflow, eqn: Any) -> Equations | None:
  """scan with a counter, and arrays read and written at it -> a scan over rows, and the arrays made of what it stacks."""
  if (scan := taken_apart(eqn)) is None:
    return None
  loop = _Loop(flow, scan)
  return call_of(eqn, loop.call) if loop.counters or loop.taken else None


class _Loop:
  """A scan, and its accesses by rows.

  Attributes:
    counters: {carried variable: its value after the loop}.
    taken: {(operand's variable in the body, its rows): variable of one row}.
    written: {carried variable: (its rows, the variable of the row that a step writes)}.
  """

  def __init__(self, flow: Dataflow, scan: Scan):
    body = scan.body
    self.scan = scan
    self.counters: dict[Any, Any] = {}
    self.taken: dict[tuple[Any, Rows], Any] = {}
    self.written: dict[Any, tuple[Rows, Any]] = {}
    self._uses = [(v, eqn) for eqn in body.eqns for v in variables(eqn.invars)]
    self._maker = {v: eqn for eqn in body.eqns for v in eqn.outvars}
    self._known = self._numbers(flow)
    consts = {v for v in body.invars[: scan.n_consts] if is_array(v)}
    carries = list(zip(body.invars[scan.n_consts : scan.n_outer], body.outvars, strict=False))
    consts |= {v for v, out in carries if v is out and is_array(v)}
    self._replaced = {id(eqn): self._row_read(eqn, *found) for eqn in body.eqns if (found := self._read(eqn)) and found[0] in consts}
    for v, out in carries:
      self._carried_by_rows(v, out)

  def _numbers(self, flow: Dataflow) -> dict[Any, Numbers]:
    """The scalar values that depend only on counters."""
    scan, known, steps = self.scan, dict[Any, Numbers](), np.arange(self.scan.length)
    operands, (consts, carries) = scan.eqn.invars, (scan.n_consts, scan.n_outer)
    turns = steps[::-1] if scan.eqn.params["reverse"] else steps
    invars: list[Any] = list(scan.body.invars)
    for v, operand, out in zip(invars[consts:carries], operands[consts:carries], scan.body.outvars, strict=False):
      if isinstance(operand, Literal) and _is_number(v) and (by := self._added(v, out)) is not None:
        first, step = (np.asarray(number).astype(np.int64) for number in (operand.val, by))
        known[v] = (first + step * turns).astype(v.aval.dtype)
        self.counters[v] = (first + step * scan.length).astype(v.aval.dtype)
    for v, operand in zip(invars[carries:], operands[carries:], strict=True):
      if _is_number(v) and not v.aval.shape and flow.maker(operand, P.iota_p) is not None:
        known[v] = steps.astype(v.aval.dtype)
    eqns: list[Any] = list(scan.body.eqns)
    for eqn in eqns:
      if eqn.primitive in _ARITHMETIC and _is_number(eqn.outvars[0]) and known.keys() >= {*variables(eqn.invars)}:
        numbers = [_constant(a, scan.length) if isinstance(a, Literal) else known[a] for a in eqn.invars]
        result: Any = eqn.outvars[0]
        known[result] = _ARITHMETIC[eqn.primitive](*numbers).astype(result.aval.dtype)
    return known

  def _added(self, v: Any, out: Any) -> Any:
    """The literal that a step adds to a carried variable; None if it does anything else."""
    eqn: Any = None if isinstance(out, Literal) else self._maker.get(out)
    adds = eqn is not None and eqn.primitive is P.add_p and eqn.invars[0] is v and isinstance(eqn.invars[1], Literal)
    return eqn.invars[1].val if adds else None

  def _rows(self, operand: Any, sizes: Sequence[Any], starts: Sequence[Any]) -> Rows | None:
    """The rows of these sizes at these starts, if the loop takes one after the other and all are inside."""
    shape = operand.aval.shape
    apart = [d for d, (size, n) in enumerate(zip(sizes, shape, strict=True)) if not same([size], [n])]
    if len(apart) != 1 or sizes[apart[0]] != 1 or starts[apart[0]] not in self._known or not isinstance(shape[apart[0]], int):
      return None
    numbers = self._known[starts[apart[0]]].astype(np.int64)
    step, first, last = numbers[1] - numbers[0], numbers.min(), numbers.max()
    if abs(step) != 1 or any(np.diff(numbers) != step) or first < 0 or last >= shape[apart[0]]:
      return None
    return Rows(apart[0], int(first), bool(step < 0))

  def _read(self, eqn: Any) -> tuple[Any, Rows] | None:
    """(operand, its rows) of an equation that reads one row."""
    operand = eqn.invars[0] if eqn.invars else None
    if eqn.primitive is P.dynamic_slice_p:
      rows = self._rows(operand, eqn.params["slice_sizes"], [_hashed(a) for a in eqn.invars[1:]])
    elif eqn.primitive is P.gather_p and eqn.params["mode"] != lax.GatherScatterMode.ONE_HOT:
      numbers = eqn.params["dimension_numbers"]
      rows = self._rows_of_vector(operand, eqn.params["slice_sizes"], eqn.invars[1], numbers.start_index_map, numbers.operand_batching_dims)
    else:
      return None
    return (operand, rows) if rows else None

  def _write(self, eqn: Any) -> tuple[Rows, Any] | None:
    """(the rows of the first operand, the update) of an equation that writes one row."""
    if eqn.primitive is P.dynamic_update_slice_p:
      operand, update, *starts = eqn.invars
      rows = self._rows(operand, update.aval.shape, [_hashed(a) for a in starts])
    elif eqn.primitive in _WRITES and (eqn.primitive is not P.scatter_p or eqn.params["update_jaxpr"] is None):
      (operand, vector, update), numbers = eqn.invars, eqn.params["dimension_numbers"]
      if tuple(numbers.update_window_dims) != tuple(range(len(update.aval.shape))):
        return None
      sizes = list(update.aval.shape)
      for d in sorted(numbers.inserted_window_dims):
        sizes.insert(d, 1)
      rows = self._rows_of_vector(operand, sizes, vector, numbers.scatter_dims_to_operand_dims, numbers.operand_batching_dims)
    else:
      return None
    return (rows, update) if rows else None

  def _rows_of_vector(self, operand: Any, sizes: Sequence[Any], vector: Any, dims: Sequence[int], batching: Sequence[int]) -> Rows | None:
    if len(dims) != 1 or batching or len(sizes) != len(operand.aval.shape) or vector.aval.shape != (1,):
      return None
    return self._rows(operand, sizes, [_hashed(vector) if d == dims[0] else None for d in range(len(sizes))])

  def _row_read(self, eqn: Any, operand: Any, rows: Rows) -> Equations:
    return [reshape(eqn, self._row(operand, rows), eqn.outvars[0])]

  def _row(self, operand: Any, rows: Rows) -> Any:
    """The variable of one of these rows."""
    shape = [n for d, n in enumerate(operand.aval.shape) if d != rows.axis]
    return self.taken.setdefault((operand, rows), new_var(operand, shape))

  def _carried_by_rows(self, v: Any, out: Any) -> None:
    """Notes the rows of a carried array that a step reads, if at all, and then writes."""
    writer = None if isinstance(out, Literal) else self._maker.get(out)
    users = [eqn for used, eqn in self._uses if used is v]
    results = variables(self.scan.body.outvars)
    if writer is None or not is_array(v) or v in results or results.count(out) > 1 or any(used is out for used, _ in self._uses):
      return
    found = self._write(writer) if writer.invars[0] is v else None
    reads = [eqn for eqn in users if eqn is not writer]
    if found is None or len(users) - len(reads) != 1 or any(self._read(eqn) != (v, found[0]) for eqn in reads):
      return
    (rows, update), combine = found, _WRITES[writer.primitive]
    row = new_var(v, [n for d, n in enumerate(v.aval.shape) if d != rows.axis])
    eqns = [reshape(writer, update, row)]
    if combine is not None:
      self.written[v] = rows, (result := new_var(row, row.aval.shape))
      eqns.append(writer.replace(primitive=combine, invars=[self._row(v, rows), row], outvars=[result], params={}))
    else:
      self.written[v] = rows, row
    self._replaced |= {id(writer): eqns} | {id(eqn): self._row_read(eqn, v, rows) for eqn in reads}

  def call(self, *operands: Any) -> Sequence[Any]:
    """The results of the scan."""
    scan, body = self.scan, self.scan.body
    given = dict(zip(body.invars, operands, strict=True))
    gone = {*self.counters, *self.written}
    carries = [(v, out) for v, out in zip(body.invars[scan.n_consts : scan.n_outer], body.outvars, strict=False) if v not in gone]
    stacked = [*body.outvars[scan.n_carry :], *(row for _, row in self.written.values())]
    outvars = [*(out for _, out in carries), *stacked]
    eqns = [e for eqn in body.eqns for e in self._replaced.get(id(eqn), [eqn]) if not self._is_counted(eqn)]
    needed = effects.needed(eqns, outvars)
    used = {*variables(outvars), *(v for eqn in needed for v in variables(eqn.invars))}
    made = {v for eqn in needed for v in eqn.outvars}
    xs = {row: rows.read(given[v], scan.length) for (v, rows), row in self.taken.items() if row in used}
    xs |= {v: _as_xs(numbers, v) for v, numbers in self._known.items() if v in used - made}
    xs |= {v: given[v] for v in body.invars[scan.n_outer :] if v in used and v not in xs}
    consts = [v for v in body.invars[: scan.n_consts] if v in used]
    lean = jaxpr_as_fun(replaced(body, eqns=list(needed), invars=[*consts, *(v for v, _ in carries), *xs], outvars=outvars))

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
      results = [*lean(*(given[v] for v in consts), *carry, *x)]
      return results[: len(carries)], results[len(carries) :]

    init: list[Any] = [given[v] for v, _ in carries]
    kept, ys = lax.scan(step, init, [*xs.values()], **scan.how)
    n_ys = len(body.outvars) - scan.n_carry
    after = self.counters | {v: x for (v, _), x in zip(carries, kept, strict=True)}
    after |= {v: rows.written(given[v], y) for (v, (rows, _)), y in zip(self.written.items(), ys[n_ys:], strict=True)}
    return [*(after[v] for v in body.invars[scan.n_consts : scan.n_outer]), *ys[:n_ys]]

  def _is_counted(self, eqn: Any) -> bool:
    """Whether the numbers that an equation makes come as xs; what follows from literals alone is left to TensorFlow."""
    return eqn.outvars[0] in self._known and bool(variables(eqn.invars))


def _as_xs(numbers: Numbers, v: Any) -> Any:
  """The numbers, computed where they grow evenly: a graph holds no long constants for them."""
  steps = np.diff(numbers.astype(np.int64))
  if v.aval.dtype.kind != "b" and all(steps == steps[0]):
    numbers = lax.iota(v.aval.dtype, len(numbers)) * steps[0].astype(v.aval.dtype) + numbers[0]
  return numbers.reshape(len(numbers), *v.aval.shape)


def _constant(literal: Any, count: int) -> Numbers:
  return np.full(count, literal.val, literal.aval.dtype)


def _is_number(v: Any) -> bool:
  return is_array(v) and v.aval.dtype.kind in "iub" and v.aval.shape in ((), (1,))


def _hashed(atom: Any) -> Any:
  return None if isinstance(atom, Literal) else atom


IDIOMS = {P.scan_p: by_rows}
