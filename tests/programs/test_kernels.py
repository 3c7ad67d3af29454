"""Pallas kernels, converted as they are called on an accelerator."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

import jax2tf
from jax2tf import _jax_compat, jaxprs, program
from jax2tf.expansions import calls, grids, kernels
from jax2tf.lines import user_line
from tests.programs.kernels import (
  PARALLEL,
  PROGRAMS,
  dense_attention,
  flash_attention,
  half_in_place,
  layer_norm,
  like,
  matmul,
  normal,
  rms_norm,
  rows,
  running_sum,
  softmax,
  whole,
)
from tests.support.case import close, op_types, xla_ops

# Blocks are summed one after another, and a whole row at once: some roundings of values near 1.
RTOL = 4e-6


def in_graph(fun: Callable[..., Any]) -> Any:
  return tf.function(jax2tf.convert(fun), autograph=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
  """Those of JAX's interpreter; of a plain function where it has none."""
  program = PROGRAMS[name]
  function = in_graph(program.fun)
  operands = [tf.constant(x) for x in program.args]
  assert not xla_ops(function.get_concrete_function(*operands).graph)
  expected = program.expected()
  rtol = RTOL if jax.tree.leaves(expected)[0].dtype == np.float32 else None
  close(function(*operands), expected, rtol=rtol, of_the_largest=True)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_in_xla(name: str) -> None:
  program = PROGRAMS[name]
  function = tf.function(jax2tf.convert(program.fun), autograph=False, jit_compile=True)
  expected = program.expected()
  rtol = RTOL if jax.tree.leaves(expected)[0].dtype == np.float32 else None
  close(function(*map(tf.constant, program.args)), expected, rtol=rtol, of_the_largest=True)


def gradients(fun: Callable[..., Any], args: Any) -> Any:
  variables = [tf.Variable(x) for x in args]
  with tf.GradientTape() as tape:
    total = tf.reduce_sum(tf.sin(fun(*variables)))
  return tape.gradient(total, variables)


def test_the_backward_kernel_is_the_gradient() -> None:
  args = PROGRAMS["flash_attention"].args
  loss = lambda *args: jnp.sin(dense_attention(*args)).sum()  # noqa: E731
  expected = list(jax.jit(jax.grad(loss, (0, 1, 2)))(*args))
  # exp and log of the sums of exponentials
  close(gradients(in_graph(flash_attention), args), expected, rtol=2e-5, of_the_largest=True)


def scaled(factor: float) -> Callable[..., Any]:
  def kernel(x, o):
    o[...] = x[...] * factor

  return lambda x: pl.pallas_call(kernel, out_shape=like(x))(x)


@jax.custom_vjp
def wrong_derivative(x):
  return scaled(2)(x)


wrong_derivative.defvjp(lambda x: (scaled(2)(x), None), lambda _, g: (scaled(7)(g),))


def test_the_backward_kernel_stands_even_if_it_is_not_the_derivative() -> None:
  """Differentiation comes before kernels are replaced."""
  x = tf.Variable(normal(8, 128))
  with tf.GradientTape() as tape:
    y = in_graph(wrong_derivative)(x)
  close(y, 2 * x.numpy())
  close(tape.gradient(y, x), np.full(x.shape, 7, np.float32))


@pytest.mark.parametrize(
  ("fun", "spec", "args"),
  [
    (softmax, "b, _", [normal(5, 100)]),
    (lambda x: layer_norm(x, np.ones(128, np.float32), x[0] * 0), "b, _", [normal(37, 128)]),
    (lambda x: rms_norm(x, np.ones(128, np.float32)), "b, 24, _", [normal(3, 24, 128)]),
  ],
  ids=["rows", "edges", "vmap"],
)
def test_symbolic_sizes(fun: Callable[..., Any], spec: str, args: Any) -> None:
  """A bound that depends on an unknown size needs no loop where it counts blocks."""
  function = tf.function(jax2tf.convert(fun, polymorphic_shapes=[spec]), autograph=False)
  of_unknown = tf.TensorSpec([None, *args[0].shape[1:]])
  concrete = function.get_concrete_function(of_unknown)
  assert not {"While", "StatelessWhile"} & set(op_types(concrete.graph))
  expected = jax.jit(jax2tf.one_device(fun))(*args)
  close(concrete(*map(tf.constant, args)), expected, rtol=RTOL, of_the_largest=True)


def test_attention_of_a_symbolic_batch() -> None:
  batch = [normal(3, *x.shape) for x in PROGRAMS["flash_attention"].args]
  converted = jax2tf.convert(jax.vmap(flash_attention), polymorphic_shapes=["b, _, _, _"] * 3)
  function = tf.function(converted, autograph=False)
  specs = [tf.TensorSpec([None, *x.shape[1:]]) for x in batch]
  concrete = function.get_concrete_function(*specs)
  expected = jax.jit(jax.vmap(dense_attention))(*batch)
  close(concrete(*map(tf.constant, batch)), expected, rtol=RTOL, of_the_largest=True)


def test_bfloat16() -> None:
  args = [jnp.asarray(x, jnp.bfloat16) for x in PROGRAMS["flash_attention"].args]
  expected = jax.jit(dense_attention)(*args)
  # two roundings to 8 bits
  close(in_graph(flash_attention)(*map(np.asarray, args)), expected, rtol=2e-2, of_the_largest=True)


def test_kernels_in_loops_and_branches() -> None:
  def fun(x):
    y, _ = lax.scan(lambda x, _: (softmax(x), None), x, length=3)
    return lax.cond(x.sum() > 0, softmax, jnp.negative, y)

  x = normal(4, 100)
  close(in_graph(fun)(x), jax.jit(jax2tf.one_device(fun))(x), rtol=RTOL, of_the_largest=True)


def test_memory_that_nothing_has_written() -> None:
  """NaN, the least integer and False, as JAX's interpreter has it."""

  def kernel(x, total, zeroed, count, flag):
    total[...] = x[...].sum(0, keepdims=True) * 0  # of the room after the edge too
    zeroed[...] = jnp.where(jnp.isnan(x[...]), 0, x[...])

  def fun(x, interpret=False):
    shapes = [like(x, 2, 128), like(x), *(jax.ShapeDtypeStruct((2,), t) for t in (np.int32, bool))]
    out_specs = [rows(1, 128), rows(8, 128), whole(2), whole(2)]
    call = pl.pallas_call(
      kernel,
      grid=(2,),
      in_specs=[rows(8, 128)],
      out_specs=out_specs,
      out_shape=shapes,
      interpret=interpret,
    )
    return call(x)

  x = normal(12, 128)
  results = in_graph(fun)(x)
  close(results, fun(x, interpret=True))
  assert np.isnan(results[0].numpy()).all(axis=1).tolist() == [False, True]
  assert results[2].numpy().tolist() == [np.iinfo(np.int32).min] * 2


def _kernel(fun: Callable[..., Any], *args: Any) -> calls.Kernel:
  """The first kernel that a function calls."""
  eqns = jaxprs.walk(jax.make_jaxpr(fun)(*args))
  eqn = next(eqn for eqn in eqns if kernels.is_kernel(eqn))
  return calls.kernel_of(calls.parameters(eqn), [])


def _copy(index: Any, **options: Any) -> Callable[..., Any]:
  """Copies rows in a grid of 4 steps."""

  def kernel(x, o, *scratch):
    o[...] = x[...]

  def call(x):
    block = pl.BlockSpec((1, 8), index)
    return pl.pallas_call(
      kernel, grid=(4,), in_specs=[block], out_specs=block, out_shape=like(x), **options
    )(x)

  return call


def _shifted(x):
  """In place: each step reads the row that the step before wrote."""

  def kernel(x, o):
    o[...] = x[...] * 2

  return pl.pallas_call(
    kernel,
    grid=(4,),
    in_specs=[pl.BlockSpec((1, 8), lambda i: (i, 0))],
    out_specs=pl.BlockSpec((1, 8), lambda i: (i + 1, 0)),
    out_shape=like(x),
    input_output_aliases={0: 0},
  )(x)


def _prints(x):
  def kernel(x, o):
    pl.debug_print("step {}", pl.program_id(0))
    o[...] = x[...]

  return pl.pallas_call(
    kernel, grid=(4,), in_specs=[rows(2, 8)], out_specs=rows(2, 8), out_shape=like(x)
  )(x)


SCRATCH = {"scratch_shapes": [pltpu.VMEM((1, 8), jnp.float32)]}
ROWS = normal(8, 8)


@pytest.mark.parametrize(
  ("fun", "args", "lanes"),
  [
    (matmul, PROGRAMS["matmul"].args, [0, 1]),
    (flash_attention, PROGRAMS["flash_attention"].args, [0, 1]),
    (rms_norm, PROGRAMS["rms_norm"].args, [0, 1]),
    (PROGRAMS["edges"].fun, PROGRAMS["edges"].args, [0, 1]),
    (PROGRAMS["row_sums"].fun, PROGRAMS["row_sums"].args, [0]),
    (_copy(lambda i: (i, 0)), [ROWS], [0]),
    (_copy(lambda i: (i, 0), **SCRATCH), [ROWS], []),
    (_copy(lambda i: (i, 0), **SCRATCH, compiler_params=PARALLEL()), [ROWS], [0]),
    (jax.vmap(_copy(lambda i: (i, 0), **SCRATCH)), [normal(3, 8, 8)], [0]),
    (_copy(lambda i: (i // 2, 0)), [ROWS], []),
    (_copy(lambda i: (0, 0), compiler_params=PARALLEL()), [ROWS], []),
    (_copy(lambda i: (i, 0)), [normal(3, 8)], []),
    (_copy(lambda i: (i, 0), input_output_aliases={0: 0}), [ROWS], [0]),
    (_shifted, [ROWS], []),
    (half_in_place, PROGRAMS["half_in_place"].args, []),
    (_prints, [ROWS], []),
    (running_sum, PROGRAMS["running_sum"].args, []),
    (PROGRAMS["counter"].fun, PROGRAMS["counter"].args, []),
  ],
  ids=[
    "a declared matrix product",
    "a declared attention",
    "declared, and vmap",
    "no scratch",
    "a sum over the other dimension",
    "one block for each step",
    "scratch",
    "scratch, declared",
    "scratch, vmap",
    "two steps for a block",
    "one block for all steps",
    "more steps than blocks",
    "in place, the same blocks",
    "in place, other blocks",
    "every second block",
    "prints",
    "a carry",
    "a counter",
  ],
)
def test_which_steps_need_no_order(fun: Callable[..., Any], args: Any, lanes: list[int]) -> None:
  """Only those that are independent of each other; the last steps of a grid stay in a loop."""
  assert list(grids.lane_dimensions(_kernel(fun, *args))) == lanes


def test_a_step_sees_what_the_step_before_wrote_in_place() -> None:
  expected = ROWS.copy()
  for i in range(4):
    expected[i + 1] = expected[i] * 2
  close(in_graph(_shifted)(ROWS), expected)


def test_prints_of_a_kernel_in_order(capfd: pytest.CaptureFixture[str]) -> None:
  in_graph(_prints)(ROWS)
  assert re.findall(r"step (\d)", capfd.readouterr().out) == ["0", "1", "2", "3"]


def test_lines_and_scopes_are_those_of_the_kernel() -> None:
  traced = jax.jit(softmax).trace(normal(4, 100)).jaxpr
  prepared = program.prepare(traced, program.Subject("softmax"))
  lines = {user_line(eqn, "") for eqn in prepared.equations}
  file = re.escape(str(Path(PROGRAMS["softmax"].fun.__code__.co_filename)))
  assert all(re.match(rf"{file}:\d+", line) for line in lines), lines
  assert any("softmax.<locals>.kernel" in line for line in lines), lines
  scopes = {_jax_compat.named_scopes(eqn) for eqn in prepared.equations}
  assert scopes == {"kernel", "kernel/_where"}


def _remote_copy(x):
  def kernel(x, o, *semaphores):
    copy = pltpu.make_async_remote_copy(x, o, *semaphores, device_id=1)
    copy.start()

  in_hbm = pl.BlockSpec(memory_space=pl.ANY)
  return pl.pallas_call(
    kernel,
    in_specs=[in_hbm],
    out_specs=in_hbm,
    out_shape=like(x),
    scratch_shapes=[pltpu.SemaphoreType.DMA] * 2,
  )(x)


def _barrier(x):
  def kernel(x, o):
    pl.semaphore_signal(pltpu.get_barrier_semaphore(), 1, device_id=1)
    o[...] = x[...]

  return pl.pallas_call(kernel, out_shape=like(x))(x)


def _random_bits(x):
  def kernel(x, o):
    pltpu.prng_seed(3)
    o[...] = x[...]

  block = rows(4, 8)
  return pl.pallas_call(kernel, grid=(2,), in_specs=[block], out_specs=block, out_shape=like(x))(x)


def _mosaic_gpu(x):
  mosaic_gpu = pytest.importorskip("jax.experimental.pallas.mosaic_gpu")

  def kernel(x, o, barrier):
    mosaic_gpu.copy_gmem_to_smem(x, o, barrier)

  return pl.pallas_call(
    kernel,
    in_specs=[pl.BlockSpec(memory_space=mosaic_gpu.GMEM)],
    out_specs=pl.BlockSpec(memory_space=mosaic_gpu.SMEM),
    out_shape=like(x),
    scratch_shapes=[mosaic_gpu.Barrier()],
  )(x)


def _strided_swap(x):
  """JAX has no rule to discharge it."""

  def kernel(x, o):
    pltpu.store(o.at[pl.ds(0, 4, 2), :], x[0:4])

  return pl.pallas_call(kernel, out_shape=like(x))(x)


@pytest.mark.parametrize(
  ("fun", "reason", "advice"),
  [
    (_remote_copy, "'dma_start' at .*test_kernels.py.* reaches another device", "jax.lax"),
    (_barrier, "'get_barrier_semaphore' at .* reaches another device", "jax.lax"),
    (_random_bits, "'prng_seed' at .* draws from the generator of a TPU", "jax.random"),
    (_mosaic_gpu, "'copy_gmem_to_smem' at .* is an instruction of Mosaic GPU", "plain JAX path"),
    (_strided_swap, "JAX cannot express its kernel by arrays: NotImplementedError", "other terms"),
  ],
)
def test_what_is_refused(fun: Callable[..., Any], reason: str, advice: str) -> None:
  """With the line of the call, and the one in the kernel."""
  with pytest.raises(jax2tf.LoweringError, match=reason) as raised:
    jax2tf.convert(fun)(ROWS)
  [gap] = raised.value.gaps
  assert gap.primitive == "pallas_call"
  assert re.search(rf"test_kernels.py:\d+.*{fun.__name__}", gap.where)
  assert advice in gap.advice


def test_a_saved_model_needs_no_kernel(tmp_path: Path) -> None:
  """Nor JAX; its gradient is the backward kernel."""
  args = PROGRAMS["flash_attention"].args
  module = tf.Module()
  module.attention = tf.function(
    jax2tf.convert(flash_attention, gradient_orders=1),
    autograph=False,
    input_signature=[tf.TensorSpec(x.shape) for x in args],
  )
  tf.saved_model.save(module, str(tmp_path))
  loaded = tf.saved_model.load(str(tmp_path)).attention
  close(loaded(*args), dense_attention(*args), rtol=RTOL, of_the_largest=True)
  loss = lambda *args: jnp.sin(dense_attention(*args)).sum()  # noqa: E731
  expected = list(jax.grad(loss, (0, 1, 2))(*args))
  close(gradients(loaded, args), expected, rtol=2e-5, of_the_largest=True)


@pytest.mark.parametrize("target", ["onnx", "tflite"])
@pytest.mark.parametrize("name", ["layer_norm", "matmul"])
def test_exports(target: str, name: str, tmp_path: Path) -> None:
  """The exporter compares the file with the function, which JAX refuses to run on CPU."""
  converters = pytest.importorskip(f"jax2tf.converters.{target}")
  fun, args = PROGRAMS[name].fun, PROGRAMS[name].args
  inputs = {f"x{i}": f"f32{list(x.shape)}".replace(" ", "") for i, x in enumerate(args)}
  exported = converters.save(
    lambda _, *args: fun(*args), None, tmp_path / f"{name}.{target}", inputs=inputs
  )
  assert not any(row.problem for row in exported.report.rows if row.counts)


def test_one_device_runs_kernels_of_an_accelerator_in_jax() -> None:
  x = normal(4, 100)
  close(jax.jit(jax2tf.one_device(softmax))(x), softmax(x, interpret=True), rtol=RTOL)


def test_kernels_on_a_mesh() -> None:
  """Each device has some heads; gradients are those of the backward kernel."""
  mesh = AbstractMesh((2,), ("i",), axis_types=(AxisType.Auto,))
  heads = PartitionSpec("i")
  spread = jax.shard_map(
    flash_attention, mesh=mesh, in_specs=heads, out_specs=heads, check_vma=False
  )
  args = [np.concatenate([x, x + 1]) for x in PROGRAMS["flash_attention"].args]
  function = in_graph(spread)
  close(function(*args), dense_attention(*args), rtol=RTOL, of_the_largest=True)
  loss = lambda *args: jnp.sin(dense_attention(*args)).sum()  # noqa: E731
  expected = list(jax.jit(jax.grad(loss, (0, 1, 2)))(*args))
  close(gradients(function, args), expected, rtol=2e-5, of_the_largest=True)
