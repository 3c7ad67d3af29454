"""What becomes of a changed artifact: it is refused, or computes what jaxlib computes from it.

`run` does in one process what `load(untrusted=True)` does in two, so that thousands take minutes.
The process may therefore end while MLIR parses, which the child of `load` turns into a refusal. It
prints its phases, so that whoever lost it knows in which it ended.
"""

from __future__ import annotations

import dataclasses
import io
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any
from unittest import mock

import jax
import numpy as np
from jax import export
from jax.export import is_symbolic_dim
from jax.extend.mlir.dialects import stablehlo as mlir_stablehlo

from jax2tf import stablehlo
from jax2tf.errors import ArtifactError, LoweringError
from jax2tf.stablehlo import children, export_files, graph, limits, parsing
from tests.support.conformance import mutants

SECONDS = 10  # of the processor, for reading and for a call, beyond which it hangs
PARSER, READING, JAXLIB, CALL = "the parser", "reading", "jaxlib", "the call"  # the phases
_LONGEST = 60  # seconds of the processor, for what jaxlib itself computes
_MOST_ELEMENTS = 2_000_000  # of all values of a module; one with more is read and not run
_REFUSALS = (ArtifactError, LoweringError)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What became of a mutant.

  Attributes:
    status: "refused", "equal"; "jaxlib refuses" for a function that jaxlib does not compute;
      "large" and "other arguments" for one that did not run; "open order" for other values than
      jaxlib's, of a sort whose comparator is changed: StableHLO leaves them open if it is no order;
      otherwise a fault.
    detail: the message of a refusal, or what is wrong.
  """

  seed: int
  way: str
  base: str
  status: str
  detail: str = ""


# The statuses that are no faults; "parser ends" is a refusal of `load`, whose child ends, or takes
# too long; "jaxlib ends" may be a loop without end.
FINE = (
  "refused",
  "parser ends",
  "equal",
  "jaxlib refuses",
  "jaxlib ends",
  "large",
  "other arguments",
  "open order",
)


def run(seed: int) -> Outcome:
  """What becomes of the mutant of a seed; the process may end."""
  mutant = mutants.mutant(seed)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    status, detail = _outcome(mutant)
  return Outcome(seed, mutant.way, mutant.base, status, " ".join(detail.split())[:400])


def lost(said: str, reason: str, seed: int) -> Outcome:
  """The outcome of a mutant that ended its process, which had said something, or took too long."""
  mutant, phases = mutants.mutant(seed), [line for line in said.splitlines() if line in _PHASES]
  phase = phases[-1] if phases else ""
  status = {PARSER: "parser ends", JAXLIB: "jaxlib ends"}.get(phase, f"{phase or 'start'} ends")
  return Outcome(seed, mutant.way, mutant.base, status, reason)


_PHASES = (PARSER, READING, JAXLIB, CALL)


def _outcome(mutant: mutants.Mutant) -> tuple[str, str]:
  parsed: list[bytes] = []
  began = time.process_time()
  try:
    with mock.patch.object(children, "_parse_in_child", _parsing_here(parsed)):
      function = stablehlo.load(mutant.contents, untrusted=True)
  except _REFUSALS as error:
    return "refused", str(error)
  except Exception as error:
    return "raises", f"{type(error).__name__}: {error}"
  if time.process_time() - began > SECONDS:
    return "slow", f"reading took {time.process_time() - began:.0f} s"
  if _elements(parsed[-1]) > _MOST_ELEMENTS:
    return "large", ""
  leaves = _fitting(function, mutant.arguments)
  if leaves is None:
    return "other arguments", ""
  return _compared(function, mutant, leaves)


def _compared(
  function: stablehlo.Function, mutant: mutants.Mutant, leaves: Sequence[Any]
) -> tuple[str, str]:
  print(CALL, flush=True)
  began = time.process_time()
  with function.precision():
    error, lowered = _error_or_result(jax.jit(function.flat).lower, *leaves)
  seconds = time.process_time() - began
  print(JAXLIB, flush=True)
  out_avals = function.out_avals if error or _is_known(function) else lowered.out_info
  with limits.processor(_LONGEST):
    refusal, expected = _error_or_result(_by_jaxlib, function, out_avals, mutant.contents, leaves)
  print(CALL, flush=True)
  began = time.process_time()
  with function.precision():
    if not error:
      error, results = _error_or_result(lambda: lowered.compile()(*leaves))
  seconds += time.process_time() - began
  if seconds > SECONDS and not refusal:
    return "slow", f"the call took {seconds:.0f} s"
  if error:
    is_clear = refusal or isinstance(error, _REFUSALS)
    return "refused" if is_clear else "raises", f"{type(error).__name__}: {error}"
  if refusal:
    return "jaxlib refuses", f"{type(refusal).__name__}: {refusal}"
  wrong = next(_differences([_plain(leaf) for leaf in results], expected), "")
  if wrong and mutants.changes_a_sort(mutant):
    return "open order", wrong
  return ("wrong", wrong) if wrong else ("equal", "")


def _is_known(function: stablehlo.Function) -> bool:
  """Whether the sizes of the results are those of arguments, which a module alone does not say."""
  known, needed = (
    {str(size) for aval in avals for size in aval.shape if is_symbolic_dim(size)}
    for avals in (function.in_avals, function.out_avals)
  )
  return needed <= known


def _error_or_result(
  function: Callable[..., Any], *args: Any
) -> tuple[Exception, None] | tuple[None, Any]:
  try:
    return None, jax.block_until_ready(function(*args))
  except Exception as error:
    return error, None


def _parsing_here(parsed: list[bytes]) -> Any:
  """Does the work of the child; keeps the bytecode."""

  def parse(given: IO[bytes], written: IO[bytes], limit: int) -> int:
    print(PARSER, flush=True)
    canonical = io.BytesIO()
    try:
      with limits.processor(limit):
        parsing.canonical(given.read(), canonical)
    except parsing.UnreadableError as error:
      written.write(str(error).encode())
      return 1
    finally:
      print(READING, flush=True)
    parsed.append(canonical.getvalue())
    written.write(parsed[-1])
    return 0

  return parse


def _elements(module: bytes) -> int:
  functions = graph.reachable(parsing.parse(module))
  return sum(_of_block(function.block) for function in functions)


def _of_block(block: graph.Block) -> int:
  values = [*block.arguments, *(value for op in graph.walk(block) for value in op.results)]
  shapes = [value.shape for value in values if value.type is not None]
  return sum(math.prod(size or 1 for size in shape) for shape in shapes)


def _fitting(function: stablehlo.Function, arguments: Sequence[Any]) -> list[Any] | None:
  """Arguments of the function: the stored ones where they fit; None if sizes are symbolic and the
  stored ones do not fit."""
  avals, rng = function.in_avals, np.random.default_rng(0)
  leaves = list(arguments[: len(avals)])
  for i, aval in enumerate(avals):
    if i < len(leaves) and _fits(leaves[i], aval):
      continue
    if any(map(is_symbolic_dim, aval.shape)) or jax.dtypes.issubdtype(
      aval.dtype, jax.dtypes.extended
    ):
      return None
    leaves[i:] = [(3 * rng.standard_normal(aval.shape)).astype(aval.dtype), *leaves[i + 1 :]]
  return leaves


def _fits(leaf: Any, aval: Any) -> bool:
  return (
    leaf.dtype == aval.dtype
    and len(leaf.shape) == len(aval.shape)
    and all(
      is_symbolic_dim(wanted) or wanted == got
      for wanted, got in zip(aval.shape, leaf.shape, strict=True)
    )
  )


def _by_jaxlib(
  function: stablehlo.Function, outputs: Any, contents: bytes | str, leaves: Sequence[Any]
) -> list[np.ndarray[Any, Any]]:
  """The results of the module itself, which JAX hands to XLA as it is."""
  in_avals, out_avals = (
    tuple(jax.core.ShapedArray(aval.shape, aval.dtype) for aval in avals)
    for avals in (function.in_avals, outputs)
  )
  module, kept = _portable(contents, len(in_avals))
  sizes = [size for aval in (*function.in_avals, *function.out_avals) for size in aval.shape]
  exported = dataclasses.replace(
    export.export(jax.jit(lambda: 0.0))(),
    in_tree=jax.tree.structure((tuple(leaves), {})),
    in_avals=in_avals,
    out_tree=jax.tree.structure(tuple(range(len(out_avals)))),
    out_avals=out_avals,
    _in_named_shardings=(None,) * len(in_avals),
    _out_named_shardings=(None,) * len(out_avals),
    in_shardings_hlo=(None,) * len(in_avals),
    out_shardings_hlo=(None,) * len(out_avals),
    platforms=function.platforms or ("cpu",),
    mlir_module_serialized=module,
    module_kept_var_idx=kept,
    uses_global_constants=any(map(is_symbolic_dim, sizes)) or len(function.platforms) > 1,
  )
  with function.precision():
    return [_plain(leaf) for leaf in jax.jit(exported.call)(*leaves)]


def _portable(contents: bytes | str, count: int) -> tuple[bytes, tuple[int, ...]]:
  """The module as JAX reads it, and which of its arguments it takes."""
  if isinstance(contents, str):
    version = mlir_stablehlo.get_current_version()
    module = mlir_stablehlo.serialize_portable_artifact_str(contents, version)
    return module, tuple(range(count))
  if contents.startswith(parsing.BYTECODE):
    return contents, tuple(range(count))
  artifact = export_files.read(contents)
  assert artifact.convention is not None  # that of a file of jax.export
  source = artifact.module
  assert not isinstance(source, graph.Module)
  return bytes(source.take()), artifact.convention.kept  # type: ignore[arg-type]


def _plain(leaf: Any) -> np.ndarray[Any, Any]:
  is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
  return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _differences(
  results: Sequence[np.ndarray[Any, Any]], expected: Sequence[np.ndarray[Any, Any]]
) -> Iterator[str]:
  for index, (result, wanted) in enumerate(zip(results, expected, strict=True)):
    if result.dtype != wanted.dtype or result.shape != wanted.shape:
      yield f"[{index}] is {result.dtype}{result.shape}, not {wanted.dtype}{wanted.shape}"
    elif wanted.dtype.kind in "fcV" and not wanted.dtype.names:
      wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
      tolerance = 2e-5 if wanted.dtype.itemsize > 2 else 2**-6
      with np.errstate(all="ignore"):
        same = np.isclose(
          result.astype(wide), wanted.astype(wide), tolerance, tolerance, equal_nan=True
        )
      if not same.all():
        values = f"{result[~same][0]}, not {wanted[~same][0]}"
        yield f"[{index}] differs at {np.argwhere(~same)[0]}: {values}"
    elif not np.array_equal(result, wanted):
      yield f"[{index}] differs in integers"
