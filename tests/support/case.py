"""One row, one behaviour: a `Case` is run in every way that a user may run it, and compared with
JAX.

A test file lists its rows and ends with `test_case = run(CASES)`:

    CASES = [Case("sin", jnp.sin, [HOSTILE_F32]), ...]
    test_case, saved = run(CASES)
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import jax2tf
from jax2tf.lowering._kernels import NO_KERNEL
from tests.support.derivatives import inexact, jax_pullback, random_like, restricted, tf_pullback
from tests.support.measure import op_types

# Relative tolerance by dtype: a few units in the last place, for XLA's and TensorFlow's math
# libraries round differently. Integers and bools are exact.
RTOL = {
  np.dtype(np.float64): 1e-13,
  np.dtype(np.float32): 2e-6,
  np.dtype(np.float16): 2e-3,
  np.dtype(ml_dtypes.bfloat16): 1.6e-2,
  np.dtype(np.complex64): 4e-6,
  np.dtype(np.complex128): 1e-13,
}

HOSTILE_F32 = np.array(
  [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    3.7,
    -3.7,
    1e-40,
    1e30,
    -1e30,
    np.inf,
    -np.inf,
    np.nan,
    np.finfo(np.float32).max,
    np.finfo(np.float32).tiny,
  ],
  np.float32,
)
HOSTILE_I32 = np.array([0, 1, -1, 2, -2, 7, -7, 31, 32, 33, 2**31 - 1, -(2**31)], np.int32)

# For sweeps: what TensorFlow has kernels for, and what it can hardly do more than hold.
DTYPES = [
  "bool",
  "int8",
  "int16",
  "int64",
  "uint8",
  "uint16",
  "uint32",
  "uint64",
  "bfloat16",
  "float16",
  "float64",
  "complex64",
  "complex128",
]
NARROW = ["int4", "uint4", "float8_e5m2", "float8_e4m3fn"]

WAYS = ("eager", "graph", "xla", "gradient", "polymorphic", "saved", "tf1")


@dataclass(frozen=True)
class Case:
  """One function on one input.

  Attributes:
    name: unique in its file.
    fun: the JAX function, of positional array arguments (pytrees welcome).
    args: NumPy arrays; they should hold hostile values where the primitive has any to fear.
    poly: `polymorphic_shapes` for one more run with unknown sizes, or None.
    grad: compare the VJP; None means whenever an argument is inexact, so a row of which no result
      is says False.
    rtol: replaces the dtype's tolerance; say why in a comment on the row.
    atol: absolute tolerance, relative to the largest finite magnitude of the reference array.
    x64: run under jax_enable_x64.
    xfail: {way: reason} for the ways that are known to fail; strict. The reason is also in
      docs/limitations.md.
    skip: {way: reason} for the ways that do not apply, for instance "xla" where TensorFlow's XLA
      has no kernel.
  """

  name: str
  fun: Callable[..., Any]
  args: Sequence[Any]
  poly: Any = None
  grad: bool | None = None
  rtol: float | None = None
  atol: float = 0.0
  x64: bool = False
  xfail: dict[str, str] = field(default_factory=dict)
  skip: dict[str, str] = field(default_factory=dict)

  @property
  def ways(self) -> list[str]:
    """The ways this row is run in."""
    ways = [w for w in WAYS if w not in self.skip]
    if self.poly is None:
      ways.remove("polymorphic")
    if self.grad is False or not (self.grad or inexact(jax.tree.leaves(self.args))):
      ways.remove("gradient")
    if zlib.crc32(self.name.encode()) % 12 and "tf1" in ways:
      ways.remove("tf1")  # rules run alike in both kinds of graph, but for what conftest.py refuses
    return ways


def close(
  actual: Any,
  expected: Any,
  case: Case | None = None,
  *,
  rtol: float | None = None,
  atol: float | None = None,
  of_the_largest: bool = False,
) -> None:
  """Same tree, dtypes, shapes; values equal within the tolerance, NaN and infinities in the same
  places.

  `of_the_largest` takes the relative tolerance of the array's largest value.
  """
  rtol = case.rtol if rtol is None and case else rtol
  atol = (case.atol if case else 0.0) if atol is None else atol
  jax.tree.map(
    functools.partial(_close, rtol=rtol, atol=atol, of_the_largest=of_the_largest),
    actual,
    jax.tree.map(as_numpy, expected),
  )


def _close(
  actual: Any, expected: np.ndarray, *, rtol: float | None, atol: float, of_the_largest: bool
) -> None:
  actual = as_numpy(actual)
  assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, JAX has {expected.dtype}"
  assert actual.shape == expected.shape, f"shape {actual.shape}, JAX has {expected.shape}"
  if not jnp.issubdtype(expected.dtype, np.inexact):
    np.testing.assert_array_equal(
      actual.astype(np.int64) if actual.dtype.kind == "V" else actual,
      expected.astype(np.int64) if expected.dtype.kind == "V" else expected,
    )
    return
  rtol = RTOL.get(expected.dtype, 0.0) if rtol is None else rtol
  atol = max(atol, rtol) if of_the_largest else atol
  dtype = expected.dtype
  wide = np.complex128 if expected.dtype.kind == "c" else np.float64
  actual, expected = actual.astype(wide), expected.astype(wide)
  # TensorFlow's CPU kernels run with subnormal numbers flushed to zero (docs/limitations.md); XLA's
  # keep them.
  subnormal = float(jnp.finfo(dtype).tiny)
  finite = np.abs(expected[np.isfinite(expected)])
  np.testing.assert_allclose(
    actual, expected, rtol=rtol, atol=max(atol * finite.max(initial=0.0), subnormal)
  )


def as_numpy(x: Any) -> np.ndarray:
  """A leaf as NumPy; typed keys as their physical data, float0 as bool."""
  if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    x = jax.random.key_data(x)
  # np.asarray of a scalar bf16 tensor fails in TF 2.21
  x = np.asarray(x.numpy() if isinstance(x, tf.Tensor) else x)
  return np.zeros(x.shape, np.bool_) if x.dtype == jax.dtypes.float0 else x


def _marks(case: Case, way: str) -> list[pytest.MarkDecorator]:
  return [pytest.mark.xfail(reason=case.xfail[way], strict=True)] if way in case.xfail else []


def run(cases: Sequence[Case]) -> tuple[Callable[..., None], Any]:
  """(test function over all rows and ways, fixture with the SavedModel of the rows that ask for
  it)."""
  names = [c.name for c in cases]
  assert len(set(names)) == len(names), (
    f"duplicate rows: {sorted({n for n in names if names.count(n) > 1})}"
  )
  params = [
    pytest.param(c, way, id=f"{c.name}-{way}", marks=_marks(c, way))
    for c in cases
    for way in c.ways
  ]

  @pytest.fixture(scope="module")
  def saved(request: Any, tmp_path_factory: Any) -> Any:
    here = [item for item in request.session.items if item.path == request.path]
    asked = {item.callspec.id for item in here if hasattr(item, "callspec")}
    in_file = [case for case in cases if f"{case.name}-saved" in asked]
    return _save(in_file, str(tmp_path_factory.mktemp("saved_model")))

  @pytest.mark.parametrize(("case", "way"), params)
  def test_case(case: Case, way: str, request: Any) -> None:
    with jax.enable_x64(case.x64):
      if way == "saved":
        check_saved(case, request.getfixturevalue("saved"))
      else:
        CHECKS[way](case)

  return test_case, saved


def check_eager(case: Case) -> None:
  """`convert(fun)(*args)`."""
  close(jax2tf.convert(case.fun)(*case.args), reference(case), case)


def check_graph(case: Case) -> None:
  """Inside a tf.function; and no Xla* op in its graph."""
  concrete = concrete_function(case)
  assert not xla_ops(concrete.graph)
  assert not unmerged(concrete.graph)
  close(_call(concrete, case), reference(case), case)


def check_xla(case: Case) -> None:
  """Inside a tf.function compiled by XLA."""
  function = tf.function(jax2tf.convert(case.fun), autograph=False, jit_compile=True)
  close(function(*tensors(case)), reference(case), case)


def check_gradient(case: Case) -> None:
  """GradientTape inside a tf.function against jax.vjp, with random cotangents; no Xla* op
  either."""
  leaves, outs = jax.tree.leaves(case.args), jax.tree.leaves(reference(case))
  wrt, results = inexact(leaves), inexact(outs)
  assert wrt and results, "nothing to differentiate: say grad=False"
  rng = np.random.default_rng(0)
  primals, seeds = [leaves[i] for i in wrt], [[random_like(rng, outs[i]) for i in results]]
  expected = jax.jit(
    functools.partial(jax_pullback, restricted(case.fun, case.args, wrt, results))
  )(seeds, *primals)
  pullback = functools.partial(
    tf_pullback, restricted(jax2tf.convert(case.fun), case.args, wrt, results)
  )
  function = tf.function(pullback, autograph=False)
  operands = jax.tree.map(tf.constant, seeds), *map(tf.constant, primals)
  assert not xla_ops(function.get_concrete_function(*operands).graph)
  # A cotangent is a sum, whose terms may cancel.
  close(function(*operands), list(expected), case, of_the_largest=True)


def check_polymorphic(case: Case) -> None:
  """Converted with symbolic dimensions, in a graph that does not know the sizes."""
  concrete = concrete_function(case, case.poly)
  close(_call(concrete, case), reference(case), case)


def check_saved(case: Case, saved: Any) -> None:
  """After tf.saved_model.save and load."""
  module, errors = saved
  if case.name in errors:
    raise errors[case.name]
  expected = reference(case)
  results = module.functions[case.name](*jax.tree.leaves(tensors(case)))
  close(jax.tree.unflatten(jax.tree.structure(expected), results), expected, case)


def check_tf1(case: Case) -> None:
  """In a graph of TensorFlow 1, run by a Session; with tf.gradients where the row has a gradient.

  A size is unknown where the row has a symbolic one, but no gradient: JAX may have none.
  """
  graph, rng = tf.Graph(), np.random.default_rng(0)
  leaves, outs = jax.tree.leaves(case.args), jax.tree.leaves(reference(case))
  wrt, results = (inexact(leaves), inexact(outs)) if "gradient" in case.ways else ([], [])
  seeds = [random_like(rng, outs[i]) for i in results]
  poly = None if results else case.poly
  with graph.as_default():
    converted = jax2tf.convert(case.fun, polymorphic_shapes=poly)
    of_args = jax.tree.leaves(specs(case, poly))
    xs = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in of_args]
    ys = converted(*jax.tree.unflatten(jax.tree.structure(case.args), xs))
    flat, tree = jax.tree.flatten(ys)
    gradients: list[Any] = []
    if results:
      seeded = list(map(tf.constant, seeds))
      gradients = tf.gradients([flat[i] for i in results], [xs[i] for i in wrt], seeded)
  fed = dict(zip(xs, map(np.asarray, leaves), strict=True))
  with tf.compat.v1.Session(graph=graph) as session:
    values, gradients = session.run((flat, gradients), fed)
  close(jax.tree.unflatten(tree, values), reference(case), case)
  if results:
    pull = functools.partial(jax_pullback, restricted(case.fun, case.args, wrt, results), [seeds])
    close(gradients, list(jax.jit(pull)(*[leaves[i] for i in wrt])), case, of_the_largest=True)


CHECKS = {
  "eager": check_eager,
  "graph": check_graph,
  "xla": check_xla,
  "gradient": check_gradient,
  "polymorphic": check_polymorphic,
  "tf1": check_tf1,
}


def _save(cases: Sequence[Case], path: str) -> tuple[Any, dict[str, Exception]]:
  """These rows as one SavedModel, loaded again; and what went wrong with which."""
  module, errors = tf.Module(), {}
  module.functions = {}
  for case in cases:
    with jax.enable_x64(case.x64):
      try:
        module.functions[case.name] = _flat_function(case)
      except Exception as error:  # this row fails, the others are still saved
        errors[case.name] = error
  tf.saved_model.save(module, path)
  return tf.saved_model.load(path), errors


def _flat_function(case: Case) -> Any:
  leaves, tree = jax.tree.flatten(case.args)
  converted = jax2tf.convert(case.fun, with_gradient=False)
  specs = [tf.TensorSpec(x.shape, x.dtype) for x in map(np.asarray, leaves)]

  @tf.function(autograph=False, input_signature=specs)
  def function(*xs: tf.Tensor) -> list[tf.Tensor]:
    with jax.enable_x64(case.x64):  # saving traces once more
      return jax.tree.leaves(converted(*jax.tree.unflatten(tree, xs)))

  function.get_concrete_function()
  return function


def reference(case: Case) -> Any:
  """JAX's own result."""
  return _reference(case.name, case.fun, case.x64)(*case.args)


@functools.lru_cache(maxsize=4)
def _reference(name: str, fun: Callable[..., Any], x64: bool) -> Callable[..., Any]:
  del name, x64
  return jax.jit(fun)


def tensors(case: Case) -> tuple[Any, ...]:
  """The arguments as tensors."""
  return jax.tree.map(tf.constant, tuple(case.args))


def concrete_function(case: Case, poly: Any = None) -> Any:
  """The graph of the converted function; with `poly`, every symbolic size unknown."""
  converted = jax2tf.convert(case.fun, polymorphic_shapes=poly)
  return tf.function(converted, autograph=False).get_concrete_function(*specs(case, poly))


def specs(case: Case, poly: Any = None) -> tuple[Any, ...]:
  """The specs of the arguments; with `poly`, every symbolic size unknown."""
  avals = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), jax.tree.map(np.asarray, tuple(case.args))
  )
  if poly is not None:
    avals = jax.export.symbolic_args_specs(avals, poly)

  def spec(aval: Any) -> tf.TensorSpec:
    return tf.TensorSpec([d if isinstance(d, int) else None for d in aval.shape], aval.dtype)

  return jax.tree.map(spec, avals)


def _call(concrete: Any, case: Case) -> Any:
  return concrete(*tensors(case))


def xla_ops(graph: Any) -> list[str]:
  """The Xla* op types among them, of which the graph lowering emits none."""
  return sorted({op for op in op_types(graph) if op.startswith("Xla")})


def unmerged(graph: tf.Graph) -> list[str]:
  """The ops that Grappler may merge into one without a kernel, in a graph and its functions.

  `jax2tf.lowering._kernels` says which these are.
  """
  inner = [function.graph for function in graph._functions.values() if function.graph is not None]
  names = [op.name for op in graph.get_operations() if _merges(op)]
  return names + [name for each in inner for name in unmerged(each)]


def _merges(op: tf.Operation) -> bool:
  if op.type not in ("ConjugateTranspose", "Neg", "Pack", "Pow", "Sub"):
    return False
  (*_, x), (y,) = op.inputs, op.outputs
  if op.type == "Pack":
    first, *rest = op.inputs
    return x.dtype in NO_KERNEL["Tile"] and bool(rest) and first.op.type != "EnsureShape"
  if op.type in ("ConjugateTranspose", "Pow"):  # neither of real numbers, nor of integers
    return y.dtype.is_integer or (op.type == "ConjugateTranspose" and not y.dtype.is_complex)
  if op.type == "Sub" and y.dtype in NO_KERNEL["Neg"] and op.inputs[0].op.type != "Const":
    return True
  if y.dtype not in NO_KERNEL["SquaredDifference"]:
    return False
  return not {use.type for use in y.consumers()} <= {"EnsureShape", "LeftShift", "RightShift"}


def executed_op_types(function: Any, *args: Any) -> list[str]:
  """The op types that run in a call of a tf.function, after TensorFlow's own optimisation."""
  function.get_concrete_function(*args)
  context.enable_graph_collection()
  try:
    function(*args)
    metadata = context.context().export_run_metadata()
  finally:
    context.disable_graph_collection()
  return [
    node.op for graphs in metadata.function_graphs for node in graphs.post_optimization_graph.node
  ]
