"""Plans the runs of a comparison: signatures, sizes of dimensions, and inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from jax2tf.errors import warn_user
from jax2tf.messages import Argument, ArgumentError

from ..bundle import manifest
from ..bundle.manifest import hash_of_arrays
from ..saved_model import draws, kinds
from ..saved_model.domain import Domain
from ..saved_model.draws import HOSTILE, SUBNORMAL, Examples
from . import levels, loops

_MOST_FLAGS = 4  # of whose values every combination is compared


def check_draws(sizes: Any, samples: Any) -> None:
  """Raises ValueError unless `sizes` is a mapping or None and `samples` a positive integer."""
  kinds.check_mapping("sizes", sizes, "dimension variable: size")
  if not isinstance(samples, int | np.integer) or samples < 1:
    raise ArgumentError("samples", samples, advice="at least one draw is needed")


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
  examples: Examples | None = None
  rtol: float | None = None
  atol: float | None = None

  def __post_init__(self) -> None:
    kinds.check_mapping("examples", self.examples, "input: array")
    check_draws(self.sizes, self.samples)

  def key(self) -> Any:
    """Equal for comparisons with equal runs of the reference. Arrays compare by value, callables by
    identity."""
    sizes = {name: tuple(np.atleast_1d(size).tolist()) for name, size in (self.sizes or {}).items()}
    examples = {
      name: example if callable(example) else _contents(draws.as_numpy(example))
      for name, example in (self.examples or {}).items()
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
      by_name = dict(result)
    elif len(leaves) == len(names):
      by_name = dict(zip(names, leaves, strict=True))
    else:
      raise ValueError(
        f"reference of {self.name!r} has {len(leaves)} results, and the signature {len(names)}: "
        f"{', '.join(names)}"
      )
    named = {name: draws.as_numpy(x) for name, x in by_name.items()} | {
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
  inputs: Examples,
  lead: Sequence[Any] = (),
) -> list[Run]:
  """All runs, with their inputs. `lead`: the arguments of the references before the inputs."""
  rng = np.random.default_rng(0)
  domains = {s.name: Domain(s.record, constraints) for s in subjects if not s.record.resets}
  known = sorted({name for domain in domains.values() for name in domain.variables})
  if unknown := [name for name in sizes if name not in known]:
    raise ArgumentError(
      Argument("sizes", sizes[unknown[0]], key=unknown[0]),
      problem=f"the inputs have no such variable, only {', '.join(known) or 'fixed sizes'}",
    )
  sizes_of = {name: np.atleast_1d(size).tolist() for name, size in sizes.items()}
  runs: list[Run] = []
  # so that a reset restores a state that other runs changed
  for subject in sorted(subjects, key=lambda subject: subject.record.resets):
    if subject.record.resets:
      runs.append(Run(subject, {}, "given", {}, timed=False, continues=True))
    elif subject.only_jax:
      runs += _drawn_runs(subject, domains[subject.name], sizes_of, samples, inputs, lead, rng)
    else:
      runs += _processed_runs(subject, domains[subject.name], sizes_of, samples, inputs, rng)
  return runs


def _processed_runs(
  subject: Subject,
  domain: Domain,
  sizes_of: Mapping[str, list[int]],
  samples: int,
  inputs: Examples,
  rng: np.random.Generator,
) -> Iterator[Run]:
  """Runs of a signature with processors, at the sizes that the caller asks for, and one size of
  each other variable."""
  record = subject.record
  free = record.stateful or any(callable(inputs[name]) for name in record.inputs if name in inputs)
  for sizes in domain.few(sizes_of, inputs):
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
  sizes_of: Mapping[str, list[int]],
  samples: int,
  inputs: Examples,
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
  flags = [name for name in drawn if _is_flag(domain.avals[name])]
  chosen = itertools.cycle(itertools.product((False, True), repeat=len(flags)))
  if flags and not subject.record.stateful:
    repeats = max(repeats, 2 ** min(len(flags), _MOST_FLAGS))
  full: set[str] | None = None
  ends = loops.Ends(subject.reference)
  left_out = 0
  for sizes in domain.assignments(sizes_of, inputs):
    full = _levels(subject, domain, sizes, lead) if full is None else full
    for kind, (sample, (timed, continues)) in itertools.product(
      kinds, enumerate(subject.series(repeats))
    ):
      arrays = dict(zip(flags, map(np.asarray, next(chosen)), strict=True))
      for name, shape in domain.shapes(sizes).items():
        if name in flags:
          continue
        dtype = np.dtype(domain.avals[name].dtype)
        if name in inputs:
          arrays[name] = draws.checked(name, inputs[name], rng, shape, dtype)
        else:
          arrays[name] = draws.draw(rng, shape, dtype, kind, sample, name in full)
      passed = {
        name: draws.tensor(name, subject.record.inputs[name], inputs.get(name), rng)
        for name in subject.record.passed_through
      }
      is_chosen = kind == kinds[0] or subject.record.stateful
      if not is_chosen and not ends(*lead, *(jnp.asarray(arrays[name]) for name in subject.order)):
        left_out += 1
        continue
      yield Run(subject, sizes, kind, arrays | passed, timed and kind == kinds[0], continues)
  if left_out:
    warn_user(
      f"signature {subject.name!r} is not compared for {left_out} inputs with NaN, infinities or "
      f"extreme numbers: a loop of the JAX function takes more than {loops.MOST_STEPS} steps there"
    )


def _is_flag(aval: Any) -> bool:
  """Whether an input chooses what the function does, so that both values are to be compared."""
  return aval.shape == () and aval.dtype == bool


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
    for name, levels_of_input in zip(
      subject.order, levels.of(subject.reference, lead, specs), strict=True
    )
    if levels_of_input
  }
