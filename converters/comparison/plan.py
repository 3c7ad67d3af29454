"""Plans the runs of a comparison: signatures, sizes of dimensions, and inputs."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, tree_util

from ..saved_model import kinds, manifest
from ..saved_model.arguments import Arguments
from ..saved_model.manifest import hash_of_arrays
from ..saved_model.notation import variables
from . import draws, levels
from .report import HOSTILE, SUBNORMAL

Given = Mapping[str, Any]  # {input: array, or callable(rng, shape, dtype) -> array}

_SIZES = (1, 3, 7, 32)  # one, primes, and a larger size
_WIDER = range(1, 65)  # used if constraints allow few of these
_LARGEST = 4_096  # the largest size taken from a constraint; the caller can ask for larger ones
_MOST_TRIED = 1_000


class Options(TypedDict, total=False):
  """The attributes of `Comparison` as arguments of a function."""

  sizes: Mapping[str, int | Sequence[int]] | None
  samples: int
  examples: Given | None
  rtol: float | None
  atol: float | None


@dataclass(frozen=True)
class Comparison:
  """How an exported file is compared with its function.

  Attributes:
    sizes: {dimension variable: size or sizes} at which to compare.
    samples: the number of random inputs of each kind and size.
    examples: {input: array, or callable(rng, shape, dtype)}, in place of random inputs.
    rtol, atol: |file - jax| <= atol + rtol * |jax|. By default, tolerances of the coarsest dtype
      that the computation uses.
  """

  sizes: Mapping[str, int | Sequence[int]] | None = None
  samples: int = 2
  examples: Given | None = None
  rtol: float | None = None
  atol: float | None = None

  def __post_init__(self) -> None:
    for name, of, value in (
      ("sizes", "dimension variable: size", self.sizes),
      ("examples", "input: array", self.examples),
    ):
      kinds.check_mapping(name, value, of)
    if not isinstance(self.samples, int | np.integer) or self.samples < 1:
      raise ValueError(f"samples = {self.samples!r}; at least one draw is needed")

  @classmethod
  def of(cls, options: Mapping[str, Any], exporter: Callable[..., Any]) -> Comparison:
    """From the options that an exporter passes on.

    Raises:
      TypeError: an option is unknown. The message lists those of the exporter.
      ValueError: an option has another kind.
    """
    if unknown := [name for name in options if name not in Options.__annotations__]:
      own = [
        p.name for p in inspect.signature(exporter).parameters.values() if p.kind is p.KEYWORD_ONLY
      ]
      known = ", ".join(sorted([*own, *Options.__annotations__]))
      where = f"{exporter.__module__.split('.')[-2]}.{exporter.__name__}"
      raise TypeError(f"{where} has no option {unknown[0]!r}; its options are: {known}")
    return cls(**options)

  def key(self) -> Any:
    """Equal for comparisons with equal runs of the reference. Arrays compare by value, callables by
    identity."""
    sizes = {name: tuple(np.atleast_1d(size).tolist()) for name, size in (self.sizes or {}).items()}
    examples = {
      name: given if callable(given) else _contents(draws.as_numpy(given))
      for name, given in (self.examples or {}).items()
    }
    return frozenset(sizes.items()), self.samples, frozenset(examples.items())


def _contents(array: np.ndarray) -> Any:
  return (
    array.dtype,
    array.shape,
    tuple(array.ravel()) if array.dtype == object else hash_of_arrays([array]),
  )


@dataclass(frozen=True)
class Subject:
  """A signature, its reference, and the names of the results.

  The reference of a stateful signature takes the stored state before the inputs, and returns it
  before the results. The state is a list of arrays, named by `paths`.
  """

  name: str
  record: manifest.SignatureRecord
  reference: Callable[..., Any]
  order: Sequence[str]
  paths: Sequence[str] = ()

  @property
  def only_jax(self) -> bool:
    return not (self.record.preprocessed or self.record.postprocessed)

  def series(self, count: int) -> list[tuple[bool, bool]]:
    """(timed, continues) for successive calls. One is timed; for a stateful signature the last,
    because timing repeats the call."""
    stateful = self.record.stateful
    return [(i == (count - 1) * stateful, stateful and i > 0) for i in range(count)]

  def named(self, result: Any, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """{output: array} of the results of the reference, the passed-through inputs, and the state
    after the call."""
    if self.record.stateful:
      stored, result = result
      state = {f"state/{path}": np.asarray(x) for path, x in zip(self.paths, stored, strict=True)}
    else:
      state = {}
    names = [name for name in self.record.outputs if name not in self.record.passed_through]
    leaves = tree_util.tree_leaves(result)
    if isinstance(result, Mapping) and set(result) == set(names):
      found = dict(result)
    elif len(leaves) == len(names):
      found = dict(zip(names, leaves, strict=True))
    else:
      raise ValueError(
        f"reference of {self.name!r} has {len(leaves)} results, and the signature {len(names)}: "
        f"{', '.join(names)}"
      )
    named = {name: draws.as_numpy(x) for name, x in found.items()} | {
      name: draws.as_numpy(inputs[name]) for name in self.record.passed_through
    }
    return named | state


@dataclass(frozen=True)
class Run:
  """One call of a signature. `timed`: measure its latency. `continues`: start from the state after
  the previous run."""

  subject: Subject
  sizes: Mapping[str, int]
  values: str
  inputs: Mapping[str, np.ndarray]
  timed: bool
  continues: bool = False


def plan(
  subjects: Sequence[Subject],
  constraints: Sequence[str],
  sizes: Mapping[str, Any],
  samples: int,
  inputs: Given,
  lead: Sequence[Any] = (),
) -> list[Run]:
  """All runs, with their inputs. `lead`: the arguments of the references before the inputs."""
  rng = np.random.default_rng(0)
  domains = {s.name: Domain(s.record, constraints) for s in subjects if not s.record.resets}
  known = sorted({name for domain in domains.values() for name in domain.variables})
  if unknown := [name for name in sizes if name not in known]:
    raise ValueError(
      f"sizes names {unknown[0]!r}, but the variables of the inputs are: "
      f"{', '.join(known) or 'none'}"
    )
  wanted = {name: np.atleast_1d(size).tolist() for name, size in sizes.items()}
  runs: list[Run] = []
  # so that a reset restores a state that other runs changed
  for subject in sorted(subjects, key=lambda subject: subject.record.resets):
    if subject.record.resets:
      runs.append(Run(subject, {}, "given", {}, timed=False, continues=True))
    elif subject.only_jax:
      runs += _drawn_runs(subject, domains[subject.name], wanted, samples, inputs, lead, rng)
    else:
      runs += _processed_runs(subject, domains[subject.name], wanted, samples, inputs, rng)
  return runs


def _processed_runs(
  subject: Subject,
  domain: Domain,
  wanted: Mapping[str, list[int]],
  samples: int,
  inputs: Given,
  rng: np.random.Generator,
) -> Iterator[Run]:
  """Runs of a signature with processors, at the sizes that the caller asks for, and one size of
  each other variable."""
  record = subject.record
  free = record.stateful or any(callable(inputs[name]) for name in record.inputs if name in inputs)
  for sizes in domain.few(wanted, inputs):
    shapes = domain.shapes(sizes)
    for timed, continues in subject.series(samples if free else 1):
      drawn = {
        name: draws.tensor(name, text, inputs.get(name), rng, shapes.get(name))
        for name, text in record.inputs.items()
      }
      named = {name: size for name, size in sizes.items() if name in domain.variables}
      yield Run(subject, named, "given", drawn, timed, continues)


def _drawn_runs(
  subject: Subject,
  domain: Domain,
  wanted: Mapping[str, list[int]],
  samples: int,
  inputs: Given,
  lead: Sequence[Any],
  rng: np.random.Generator,
) -> Iterator[Run]:
  drawn = [name for name in domain.avals if name not in inputs]
  dtypes = [np.dtype(domain.avals[name].dtype) for name in drawn]
  kinds = ["ordinary" if drawn else "given"]
  kinds += [HOSTILE] * any(dtype.kind != "b" for dtype in dtypes)
  kinds += [SUBNORMAL] * any(jnp.issubdtype(dtype, np.inexact) for dtype in dtypes)
  repeats = (
    samples if drawn or subject.record.stateful or any(map(callable, inputs.values())) else 1
  )
  full: set[str] | None = None
  for sizes in domain.assignments(wanted, inputs):
    full = _levels(subject, domain, sizes, lead) if full is None else full
    for kind, (sample, (timed, continues)) in itertools.product(
      kinds, enumerate(subject.series(repeats))
    ):
      arrays = {}
      for name, shape in domain.shapes(sizes).items():
        dtype = np.dtype(domain.avals[name].dtype)
        if name in inputs:
          arrays[name] = draws.checked(name, inputs[name], rng, shape, dtype)
        else:
          arrays[name] = draws.draw(rng, shape, dtype, kind, sample, name in full)
      passed = {
        name: draws.tensor(name, subject.record.inputs[name], inputs.get(name), rng)
        for name in subject.record.passed_through
      }
      yield Run(subject, sizes, kind, arrays | passed, timed and kind == kinds[0], continues)


def _levels(
  subject: Subject, domain: Domain, sizes: Mapping[str, int], lead: Sequence[Any]
) -> set[str]:
  """The 8-bit inputs that the reference computes with as floats, such as pixels."""
  if subject.record.stateful or not any(
    levels.is_8_bit(aval.dtype) for aval in domain.avals.values()
  ):
    return set()
  shapes = domain.shapes(sizes)
  specs = [jax.ShapeDtypeStruct(shapes[name], domain.avals[name].dtype) for name in subject.order]
  return {
    name
    for name, found in zip(subject.order, levels.of(subject.reference, lead, specs), strict=True)
    if found
  }


class Domain:
  """The inputs of a signature, and their valid sizes.

  Attributes:
    avals: {input: aval}, without passed-through inputs; strings of a `preprocess` count as bools,
      and its unknown sizes as 3.
    variables: the dimension variables of the inputs.
  """

  def __init__(self, record: manifest.SignatureRecord, constraints: Sequence[str]):
    self._texts = {
      name: record.declared.get(name, record.inputs[name]) for name in record.own_inputs
    }
    specs = (
      {name: draws.countable(text) for name, text in self._texts.items()}
      if record.preprocessed
      else self._texts
    )
    scope = export.SymbolicScope(constraints)
    self.avals = dict(zip(specs, Arguments.of(specs, {}, scope).avals, strict=True))
    shapes = [aval.shape for aval in self.avals.values()]
    dims = [str(d) for shape in shapes for d in shape]
    self.variables = variables(dims)
    self._constraints = constraints
    # Without variables that an equality defines: given b == 2*a + 1, JAX writes 2*a + 1 for b.
    named = variables([*dims, *constraints])
    self._all = variables(map(str, export.symbolic_shape(", ".join(named), scope=scope)))
    self._exported = _exported(self._all, shapes, scope) if self._all else None

  def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """{input: shape}. Raises ValueError for sizes that break a constraint."""
    if self._exported is None:
      return {name: aval.shape for name, aval in self.avals.items()}
    return dict(
      zip(self.avals, _shapes_at(self._exported, [sizes[name] for name in self._all]), strict=True)
    )

  def assignments(self, wanted: Mapping[str, Sequence[int]], inputs: Given) -> list[dict[str, int]]:
    """Combinations of sizes that use each wanted size, and several sizes of the other variables."""
    wanted = {
      name: sizes for name, sizes in self._fixed(wanted, inputs).items() if name in self._all
    }
    if not self._all:
      return [{}]
    if bad := [
      name
      for name, sizes in wanted.items()
      if not sizes or not all(isinstance(s, int) and s >= 1 for s in sizes)
    ]:
      raise ValueError(f"sizes[{bad[0]!r}] = {wanted[bad[0]]}; give one or more positive integers")
    pools = [
      list(wanted.get(name) or itertools.islice(self._feasible(name), len(_SIZES)))
      for name in self._all
    ]
    pairs = {(name, size) for name, pool in zip(self._all, pools, strict=True) for size in pool}
    chosen: list[dict[str, int]] = []
    seen: set[tuple[str, int]] = set()
    reason = ""
    for sizes in itertools.islice(self._candidates(pools, chosen), _MOST_TRIED):
      if seen >= pairs:
        break
      if set(sizes.items()) <= seen:
        continue
      try:
        self.shapes(sizes)
      except ValueError as error:
        reason = reason or str(error).split("  Using")[0].split("\n")[0]
        continue
      chosen.append(sizes)
      seen |= set(sizes.items())
    conditions = ", ".join(self._constraints)
    if lost := sorted({(name, size) for name, sizes in wanted.items() for size in sizes} - seen):
      name, size = lost[0]
      raise ValueError(
        f"sizes: {name} = {size} breaks the constraints {conditions}; choose another ({reason})"
      )
    if not chosen:
      why = f" ({reason})" if reason else ""
      raise ValueError(
        f"no sizes were found that meet {conditions}; give some: sizes={{{self._all[0]!r}: 5}}{why}"
      )
    return chosen

  def few(self, wanted: Mapping[str, Sequence[int]], inputs: Given) -> list[dict[str, int]]:
    """As `assignments`, but with one size of each variable that is not wanted: 3, if the
    constraints allow it."""
    fixed = {
      name: sizes for name, sizes in self._fixed(wanted, inputs).items() if name in self._all
    }
    try:
      return self.assignments({name: [draws.UNKNOWN] for name in self._all} | fixed, inputs)
    except ValueError:
      found = self.assignments(fixed, inputs)
      return found if fixed else found[:1]

  def _feasible(self, name: str) -> Iterator[int]:
    """Sizes that satisfy the constraints on this variable alone, the usual sizes first."""
    own = [text for text in self._constraints if variables([text]) == [name]]
    numbers = [
      int(n)
      for text in self._constraints
      if name in variables([text])
      for n in re.findall(r"\d+", text)
    ]
    wider = sorted(
      {*_WIDER, *(n + shift for n in numbers for shift in (0, 1) if 0 < n <= _LARGEST)}
    )
    exported = _exported([name], [], export.SymbolicScope(own))
    for size in dict.fromkeys([*_SIZES, *wider]):
      with contextlib.suppress(ValueError):
        _shapes_at(exported, [size])
        yield size

  def _candidates(
    self, pools: Sequence[Sequence[int]], chosen: Sequence[dict[str, int]]
  ) -> Iterator[dict[str, int]]:
    """First combinations of different sizes, then all combinations, and then less usual sizes while
    few are `chosen`."""
    if all(pools):
      for i in range(max(map(len, pools))):
        yield {
          name: pool[(i + j) % len(pool)]
          for j, (name, pool) in enumerate(zip(self._all, pools, strict=True))
        }
      for combination in itertools.product(*pools):
        yield dict(zip(self._all, combination, strict=True))
      wider = [
        pool if len(pool) < len(_SIZES) else [*self._feasible(name)]
        for name, pool in zip(self._all, pools, strict=True)
      ]
      rng = np.random.default_rng(0)
      while len(chosen) < len(_SIZES):
        yield {name: int(rng.choice(sizes)) for name, sizes in zip(self._all, wider, strict=True)}

  def _fixed(self, wanted: Mapping[str, Sequence[int]], inputs: Given) -> dict[str, Sequence[int]]:
    """The sizes that the caller requests, and those of the caller's arrays."""
    fixed = dict(wanted)
    for name, aval in self.avals.items():
      if name in inputs and not callable(inputs[name]):
        shape = np.shape(inputs[name])
        if len(shape) != len(aval.shape):
          raise ValueError(
            f"inputs[{name!r}] has the shape {shape}, and the signature takes {self._texts[name]}"
          )
        for dim, size in zip(map(str, aval.shape), shape, strict=True):
          if dim in self.variables and list(fixed.get(dim, [size])) != [size]:
            raise ValueError(
              f"inputs[{name!r}] has the shape {shape}, so {dim} = {size}, and not {fixed[dim]}; "
              "use the same size"
            )
          if dim in self.variables:
            fixed[dim] = [size]
    return fixed


def _exported(
  names: Sequence[str], shapes: Sequence[Any], scope: export.SymbolicScope
) -> export.Exported:
  """JAX's solver of dimensions, through its public API: an exported function checks the constraints
  when it is called."""
  probe = jax.ShapeDtypeStruct(export.symbolic_shape(", ".join(names), scope=scope), np.bool_)
  return export.export(jax.jit(lambda _: [jnp.zeros(shape, np.bool_) for shape in shapes]))(probe)


def _shapes_at(exported: export.Exported, sizes: Sequence[int]) -> list[tuple[int, ...]]:
  return [
    x.shape for x in jax.eval_shape(exported.call, jax.ShapeDtypeStruct(tuple(sizes), np.bool_))
  ]
