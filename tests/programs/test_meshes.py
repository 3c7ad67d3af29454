"""Programs for eight devices, converted in a process with one, against JAX on eight."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax2tf
from jax2tf.converters import onnx, saved_model, tflite
from tests.programs.on_devices import CASES, LINE, PROGRAMS, UNEVEN, W, X, Y, floats_of, on_line

REPOSITORY = Path(__file__).resolve().parents[2]
AUTO = AxisType.Auto
ONE = AbstractMesh((1, 1), ("a", "b"), axis_types=(AUTO, AUTO))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
  """What JAX computes on eight devices."""
  path = tmp_path_factory.mktemp("reference") / "values.npz"
  command = [sys.executable, "-m", "tests.programs.reference", str(path)]
  subprocess.run(command, cwd=REPOSITORY, check=True)
  return np.load(path)  # type: ignore[no-any-return]


def assert_as_on_devices(
  reference: Mapping[str, Any], what: str, name: str, found: Any, tolerance: float
) -> None:
  for i, y in enumerate(tf.nest.flatten(found)):
    expected = reference[f"{what}/{name}/{i}"]
    assert np.asarray(y).dtype == expected.dtype
    largest = np.nanmax(np.abs(expected), initial=0) if tolerance else 0
    np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_eight_devices(
  reference: Mapping[str, Any], name: str
) -> None:
  case = CASES[name]
  with jax2tf.pretend_devices(8):  # for pmap
    fun = tf.function(jax2tf.convert(case.fun), autograph=False)
    arguments = jax.tree.map(tf.constant, case.arguments)
    floats = [arguments[i] for i in floats_of(case.arguments) if case.has_gradient]
    with tf.GradientTape() as tape:
      tape.watch(floats)
      values = fun(*arguments)
      floating = [y for y in tf.nest.flatten(values) if y.dtype.is_floating]
      loss = sum(tf.reduce_sum(tf.sin(y)) for y in floating)
  assert_as_on_devices(reference, "value", name, values, case.tolerance)
  if case.has_gradient:
    gradients = tape.gradient(loss, floats)
    assert_as_on_devices(reference, "gradient", name, gradients, 5e-6)  # two passes round


def test_a_program_is_saved_and_served_without_jax(
  reference: Mapping[str, Any], tmp_path: Path
) -> None:
  case = CASES["transformer block"]
  params, x = case.arguments
  saved_model.save(case.fun, params, tmp_path / "block", inputs={"x": "f32[2*b,16,64]"})
  program = (
    "import sys\nsys.modules['jax'] = sys.modules['jaxlib'] = None\n"
    "import numpy, tensorflow as tf\n"
    "f = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
    "x = numpy.load(sys.argv[2])\n"
    "[y] = f(tf.constant(x)).values()\n"
    "numpy.save(sys.argv[3], y)\n"
  )
  np.save(tmp_path / "x.npy", x)
  files = [tmp_path / "block" / "1", tmp_path / "x.npy", tmp_path / "y.npy"]
  subprocess.run([sys.executable, "-c", program, *map(str, files)], check=True)
  y = np.load(tmp_path / "y.npy")
  assert_as_on_devices(reference, "value", "transformer block", [y], case.tolerance)


def test_a_program_becomes_an_onnx_file(reference: Mapping[str, Any], tmp_path: Path) -> None:
  """`save` compares it with JAX, which has one device here too."""
  case = CASES["mixture of experts"]
  gate, experts, x = case.arguments

  def fun(params: Any, x: Any) -> Any:
    return case.fun(*params, x)

  path = tmp_path / "experts.onnx"
  onnx.save(fun, (gate, experts), path, inputs={"x": f"f32[{x.shape[0]},{x.shape[1]}]"})
  [y] = onnx.run(path, {"x": x}).values()
  assert_as_on_devices(reference, "value", "mixture of experts", [y], case.tolerance)


def test_a_program_becomes_a_litert_file(reference: Mapping[str, Any], tmp_path: Path) -> None:
  """Its products have six dimensions, of which LiteRT's have five at most."""
  case = CASES["transformer block"]
  params, x = case.arguments
  path = tmp_path / "block.tflite"
  tflite.save(case.fun, params, path, inputs={"x": "f32[4,16,64]"})
  [y] = tflite.run(path, {"x": x}).values()
  assert_as_on_devices(reference, "value", "transformer block", [y], 1e-5)  # its own exp and erf


@pytest.mark.parametrize("fun", [CASES["two products"].fun, CASES["ring attention"].fun])
def test_only_ordinary_ops_run(fun: Any) -> None:
  case = next(case for case in CASES.values() if case.fun is fun)
  graph = tf.function(jax2tf.convert(fun)).get_concrete_function(*case.arguments).graph
  types = {op.type for op in graph.get_operations()}
  assert not {name for name in types if name.startswith(("Xla", "Collective", "PyFunc"))}


def test_a_symbolic_size_is_a_multiple_of_the_devices_along_it() -> None:
  def fun(x: Any) -> Any:
    centred = lambda x: x - lax.pmean(x.mean(), "i")  # noqa: E731
    return jax.shard_map(centred, mesh=LINE, in_specs=P("i"), out_specs=P("i"))(x)

  converted = jax2tf.convert(fun, polymorphic_shapes="8*b, _")
  of_any = tf.function(converted, input_signature=[tf.TensorSpec([None, 3])])
  for rows in (8, 24):
    x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    np.testing.assert_allclose(of_any(x), x - x.mean(), atol=1e-5)
  with pytest.raises(ValueError, match="evenly divisible") as caught:
    jax2tf.convert(fun, polymorphic_shapes="b, _")(x)
  assert any('"8*b"' in note for note in caught.value.__notes__)


def test_a_mesh_of_one_device_takes_any_size_and_leaves_nothing() -> None:
  def body(x: Any) -> Any:
    both = lax.psum(x, ("a", "b")) + lax.all_gather(x, "a").sum(0)
    turned = lax.ppermute(x, "a", [(0, 0)]) + lax.ppermute(x, "a", [])
    moved = lax.all_to_all(x[None], "a", 0, 0)[0] + lax.psum_scatter(x, "b", tiled=True)
    return both + turned + moved + lax.axis_index("b")

  def fun(x: Any) -> Any:
    return jax.shard_map(body, mesh=ONE, in_specs=P("a"), out_specs=P("a"), check_vma=False)(x)

  converted = tf.function(
    jax2tf.convert(fun, polymorphic_shapes="b"), input_signature=[tf.TensorSpec([None])]
  )
  x = np.arange(3, dtype=np.float32)
  np.testing.assert_array_equal(converted(x), 5 * x)
  types = {op.type for op in converted.get_concrete_function().graph.get_operations()}
  assert not types & {"GatherV2", "Transpose", "Sum", "Slice", "Tile", "BroadcastTo"}


def test_a_replicated_value_stays_one() -> None:
  def fun(x: Any, w: Any) -> Any:
    def body(x: Any, w: Any) -> Any:
      return x @ jnp.linalg.inv(w), w + lax.psum(x.sum(), "i")

    specs = (P("i"), P())
    return jax.shard_map(body, mesh=LINE, in_specs=specs, out_specs=specs)(x, w)

  converted = tf.function(jax2tf.convert(fun, with_gradient=False))
  graph = converted.get_concrete_function(Y, W).graph
  shapes = [tuple(y.shape) for op in graph.get_operations() for y in op.outputs]
  assert (8, 32, 32) not in shapes


def test_what_a_device_prints_comes_once_and_in_the_order_of_devices(
  capfd: pytest.CaptureFixture[str],
) -> None:
  mesh = AbstractMesh((2, 2), ("a", "b"), axis_types=(AUTO, AUTO))

  def body(x: Any) -> Any:
    jax.debug.print("{} {}: {}", lax.axis_index("a"), lax.axis_index("b"), x[0, 0])
    return x

  specs = P("a", "b")
  fun = tf.function(jax2tf.convert(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=specs)))
  fun(np.arange(4.0, dtype=np.float32).reshape(2, 2))
  printed = capfd.readouterr().out.splitlines()
  assert printed == ["0 0: 0.0", "0 1: 1.0", "1 0: 2.0", "1 1: 3.0"]


def test_a_branch_prints_on_the_devices_that_take_it(capfd: pytest.CaptureFixture[str]) -> None:
  def body(x: Any) -> Any:
    def told(x: Any) -> Any:
      jax.debug.print("{}: {}", lax.axis_index("i"), x[0])
      return x * 2

    def step(x: Any, _: None) -> Any:
      return lax.cond(lax.axis_index("i") % 4 == 1, told, lambda x: x, x), None

    return lax.scan(step, x, None, length=2)[0]

  x = np.arange(8, dtype=np.float32)
  fun = tf.function(jax2tf.convert(on_line(body, in_specs=P("i"), out_specs=P("i"))))
  np.testing.assert_array_equal(fun(x), np.where(x % 4 == 1, 4 * x, x))
  assert capfd.readouterr().out.splitlines() == ["1: 1.0", "5: 5.0", "1: 2.0", "5: 10.0"]


def test_each_device_calls_back_with_its_block() -> None:
  seen = []

  def largest(x: Any) -> Any:
    seen.append(np.shape(x))
    return np.max(x, keepdims=True)

  def body(x: Any) -> Any:
    return jax.pure_callback(
      largest, jax.ShapeDtypeStruct((1,), x.dtype), x, vmap_method="expand_dims"
    )

  fun = jax.shard_map(body, mesh=LINE, in_specs=P("i"), out_specs=P("i"))
  x = np.arange(16, dtype=np.float32)
  np.testing.assert_array_equal(jax2tf.convert(fun)(x), x[1::2])
  assert seen == [(2,)] * 8


def test_lines_and_scopes_are_those_of_the_program() -> None:
  def body(x: Any) -> Any:
    with jax.named_scope("attention"):
      x = jnp.sin(x)
    return jax.ffi.ffi_call("kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

  def scoped(x: Any) -> Any:
    with jax.named_scope("attention"):
      return lax.psum(jnp.sin(x), "i")

  converted = tf.function(
    jax2tf.convert(jax.shard_map(scoped, mesh=LINE, in_specs=P("i"), out_specs=P()))
  )
  names = [op.name for op in converted.get_concrete_function(Y).graph.get_operations()]
  assert any("/attention/Sin" in name for name in names)
  refused = jax.shard_map(body, mesh=LINE, in_specs=P("i"), out_specs=P("i"))
  line = body.__code__.co_firstlineno + 3
  with pytest.raises(jax2tf.LoweringError, match=rf"'ffi_call' at .*test_meshes.py:{line}"):
    jax2tf.convert(refused)(Y)


def _told_and_summed(x: Any) -> Any:
  def told(x: Any) -> Any:
    jax.debug.print("{}", x)
    return lax.psum(x, "b")

  return lax.cond(x[0, 0, 0] > 0, told, lambda x: x, x)


REFUSED = {
  "a branch that prints and communicates": (
    _told_and_summed,
    "'psum.*' at .*test_meshes.py.*communicates in a branch or a loop that also prints",
  ),
  "groups of ragged_all_to_all": (
    lambda x: lax.ragged_all_to_all(
      *[x, x, *[jnp.zeros(2, jnp.int32)] * 4], axis_name="b", axis_index_groups=[[0, 1], [2, 3]]
    ),
    "ragged_all_to_all with axis_index_groups",
  ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_in_one_sentence(name: str) -> None:
  fun, words = REFUSED[name]
  mesh = AbstractMesh((2, 4), ("a", "b"), axis_types=(AUTO, AUTO))
  mapped = jax.shard_map(
    fun, mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b"), check_vma=False
  )
  with pytest.raises(jax2tf.LoweringError, match=words):
    jax2tf.convert(mapped)(X)


def test_groups_of_several_sizes() -> None:
  """JAX on CPU has none."""
  mesh = AbstractMesh((4,), ("b",), axis_types=(AUTO,))

  def fun(x: Any) -> Any:
    sums = lax.psum_p.bind(x, axes=("b",), axis_index_groups=UNEVEN)
    return sums, lax.pmax_p.bind(x, axes=("b",), axis_index_groups=UNEVEN)

  mapped = jax.shard_map(
    fun, mesh=mesh, in_specs=P("b"), out_specs=(P("b"), P("b")), check_vma=False
  )
  sums, largest = jax2tf.convert(mapped)(np.array([-1.0, -2, -3, -4], np.float32))
  np.testing.assert_array_equal(sums, [-7, -7, -3, -7])
  np.testing.assert_array_equal(largest, [-1, -1, -3, -1])


def test_rows_that_devices_send_to_each_other() -> None:
  """JAX on CPU has no ragged_all_to_all; these are the rows that its documentation moves."""
  mesh = AbstractMesh((2,), ("i",), axis_types=(AUTO,))

  def fun(x: Any, out: Any, *tables: Any) -> Any:
    return lax.ragged_all_to_all(x, out, *(t[0] for t in tables), axis_name="i")

  mapped = jax.shard_map(fun, mesh=mesh, in_specs=(P("i"),) * 6, out_specs=P("i"))
  x = np.array([1, 2, 2, 3, 4, 0], np.float32)
  tables = [[[0, 1], [0, 1]], [[1, 2], [1, 1]], [[0, 0], [1, 2]], [[1, 1], [2, 1]]]
  operands = [np.array(table, np.int32) for table in tables]
  found = jax2tf.convert(mapped)(x, np.zeros(8, np.float32), *operands)
  np.testing.assert_array_equal(found, [1, 3, 0, 0, 2, 2, 4, 0])


def test_what_one_device_sends_to_all() -> None:
  """JAX on CPU has no pbroadcast."""
  mesh = AbstractMesh((2, 4), ("a", "b"), axis_types=(AUTO, AUTO))
  blocks = P(("a", "b"))

  def of(axes: Any, source: int) -> Any:
    fun = lambda x: lax.pbroadcast(x, axes, source)  # noqa: E731
    mapped = jax.shard_map(fun, mesh=mesh, in_specs=blocks, out_specs=blocks, check_vma=False)
    return jax2tf.convert(mapped)(np.arange(8, dtype=np.float32))

  np.testing.assert_array_equal(of("b", 2), [2, 2, 2, 2, 6, 6, 6, 6])
  np.testing.assert_array_equal(of(("a", "b"), 5), [5] * 8)


def test_pretended_devices_are_there_for_all_that_traces() -> None:
  with jax2tf.pretend_devices(8):
    assert jax.device_count() == len(jax.local_devices()) == 8
    meshes = [
      jax.make_mesh((2, 4), ("a", "b"), axis_types=(AUTO, AUTO)),
      Mesh(mesh_utils.create_device_mesh((2, 4)), ("a", "b")),
      Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b")),
    ]
  assert jax.device_count() == 1
  for mesh in meshes:
    fun = jax.shard_map(
      lambda x: lax.psum(x, "b"), mesh=mesh, in_specs=P("a", "b"), out_specs=P("a")
    )
    expected = X.reshape(16, 4, 6, 8).sum(1)
    np.testing.assert_allclose(jax2tf.convert(fun)(X), expected, atol=1e-5)
  sharded = jax.jit(lambda x: x * 2, in_shardings=NamedSharding(meshes[0], P("a")))
  with pytest.warns(UserWarning, match="sharding annotations"):
    np.testing.assert_array_equal(jax2tf.convert(sharded)(X), X * 2)
  for n in (0, 1.5, True):
    with pytest.raises(ValueError, match=r"n = .*: give"), jax2tf.pretend_devices(n):  # type: ignore[arg-type]
      pass


@pytest.mark.parametrize(
  ("fun", "words"),
  [
    (lambda x: jax.make_mesh((8,), ("i",)), "pretend_devices"),
    (lambda x: jax.pmap(lambda x: x + 1)(x), "pretend_devices"),
    (
      lambda x: jax.shard_map(
        lambda x: x, mesh=jax.make_mesh((1,), ("i",)), in_specs=P("i"), out_specs=P("i")
      )(x),
      "Explicit axes",
    ),
  ],
  ids=["mesh", "pmap", "explicit"],
)
def test_what_fails_where_the_devices_are_not_says_what_to_do(fun: Any, words: str) -> None:
  with pytest.raises(ValueError) as caught:
    jax2tf.convert(fun)(np.ones(8, np.float32))
  assert any(words in note for note in caught.value.__notes__)


def test_a_program_runs_in_jax_on_one_device() -> None:
  with jax2tf.pretend_devices(8):
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AUTO,))
  sharding = NamedSharding(mesh, P("i"))

  @jax.jit
  def fun(x: Any, *, scale: Any) -> Any:
    x = jax.device_put(lax.with_sharding_constraint(x, sharding), sharding)
    mapped = jax.shard_map(lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    return {"y": mapped(x) * scale}

  found = jax.jit(jax2tf.one_device(fun))(jnp.arange(8.0), scale=jnp.float32(2))
  np.testing.assert_array_equal(found["y"], [56])


def test_explicit_axes_with_reshard() -> None:
  with jax2tf.pretend_devices(8):
    mesh = jax.make_mesh((2, 4), ("a", "b"))

  def fun(x: Any) -> Any:
    x = jax.sharding.reshard(x, NamedSharding(mesh, P("a", "b")))
    return jax.shard_map(
      lambda x: lax.psum(x, "b"), mesh=mesh, in_specs=P("a", "b"), out_specs=P("a")
    )(x)

  np.testing.assert_allclose(jax2tf.convert(fun)(X), X.reshape(16, 4, 6, 8).sum(1), atol=1e-5)


def test_meshes_is_validated_and_can_refuse() -> None:
  fun = CASES["two products"].fun
  with pytest.raises(ValueError, match="meshes = 'gpu'; give 'one_device' or 'error'"):
    jax2tf.convert(fun, meshes="gpu")
  with pytest.raises(jax2tf.LoweringError, match=r"meshes='one_device'.*lower natively"):
    jax2tf.convert(fun, meshes="error")(Y, W)


@pytest.mark.parametrize("name", ["two products", "checkpoint"])
def test_second_derivatives(name: str) -> None:
  case = CASES[name]
  fun = tf.function(jax2tf.convert(case.fun, gradient_orders=2))
  y, w = map(tf.constant, case.arguments)
  with tf.GradientTape() as outer:
    outer.watch(y)
    with tf.GradientTape() as inner:
      inner.watch(y)
      loss = tf.reduce_sum(fun(y, w) ** 2)
    gradient = inner.gradient(loss, y)
    norm = tf.reduce_sum(gradient**2)
  found = outer.gradient(norm, y)
  loss_of = lambda y: (case.fun(y, w.numpy()) ** 2).sum()  # noqa: E731
  by_jax = jax.jit(jax.grad(lambda y: (jax.grad(loss_of)(y) ** 2).sum()))
  converted = jax2tf.convert(by_jax)(y)  # differentiated by JAX, and then on one device
  np.testing.assert_allclose(found, converted, rtol=1e-4, atol=1e-4 * np.abs(converted).max())


def test_programs_compile_with_xla() -> None:
  for name in PROGRAMS:
    case = CASES[name]
    with jax2tf.pretend_devices(8):
      fun = jax2tf.convert(case.fun)
      plain = tf.nest.flatten(tf.function(fun)(*case.arguments))
      compiled = tf.nest.flatten(tf.function(fun, jit_compile=True)(*case.arguments))
    for a, b in zip(plain, compiled, strict=True):
      np.testing.assert_allclose(a, b, atol=3e-6 * np.abs(a).max())
