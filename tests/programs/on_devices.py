"""Functions for eight devices, as they are written for training. Their meshes are of devices where
there are eight, and abstract where there is one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.lax import parallel  # of these starts, `lax` has `psum_scatter_start` only
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jax2tf._jax_compat import PERMUTES_IN_ORDER_OF_MESH

DEVICES = 8
HAS_DEVICES = len(jax.devices()) == DEVICES


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...]) -> Any:
  auto = (AxisType.Auto,) * len(shape)
  if HAS_DEVICES:
    return Mesh(np.array(jax.devices()).reshape(shape), names, axis_types=auto)
  return AbstractMesh(shape, names, axis_types=auto)


GRID = mesh_of((2, 4), ("a", "b"))
LINE = mesh_of((8,), ("i",))
_RANDOM = np.random.default_rng(0)
RING = [(i, (i + 1) % 8) for i in range(8)]


def normal(*shape: int, scale: float = 1.0) -> Any:
  return (_RANDOM.normal(size=shape) * scale).astype(np.float32)


@dataclass(frozen=True)
class Case:
  """A function and its arguments.

  Attributes:
    has_gradient: whether its derivatives are compared too.
    tolerance: the largest difference, relative to the largest value; 0 for equal bits. Sums over
      devices are added in another order, and products of blocks are tiled in another way.
  """

  fun: Callable[..., Any]
  arguments: tuple[Any, ...]
  has_gradient: bool = False
  tolerance: float = 3e-6


X = normal(16, 24, 8)
AB, BA = ("a", "b"), ("b", "a")
BLOCKS = P("a", "b")
GROUPS = [[0, 3], [2, 1]]
UNEVEN = ((0, 3, 1), (2,))


def collective(
  fun: Callable[..., Any],
  ins: P = BLOCKS,
  outs: P = BLOCKS,
  check_vma: bool = True,
  tolerance: float = 0,
) -> Case:
  mapped = jax.shard_map(fun, mesh=GRID, in_specs=ins, out_specs=outs, check_vma=check_vma)
  return Case(mapped, (X,), tolerance=tolerance)


unchecked = functools.partial(collective, check_vma=False)
# XLA adds the values of eight devices one after another, here it adds them in pairs.
rounding = functools.partial(collective, tolerance=1e-6)

COLLECTIVES = {
  "psum": rounding(lambda x: lax.psum(x, "b"), outs=P("a")),
  "psum over two axes": rounding(lambda x: lax.psum(x, AB), outs=P()),
  "psum of int8, which wraps": collective(
    lambda x: lax.psum((x * 50).astype(jnp.int8), AB), outs=P()
  ),
  "psum of bool": collective(lambda x: lax.psum(x > 0, AB), outs=P()),
  # Each of eight additions rounds to 8 bits in XLA.
  "psum of bfloat16": collective(
    lambda x: lax.psum(x.astype(jnp.bfloat16), AB).astype(jnp.float32), outs=P(), tolerance=2e-2
  ),
  "psum of groups": unchecked(lambda x: lax.psum(x, "b", axis_index_groups=GROUPS)),
  "psum of a value of all devices": rounding(lambda x: lax.psum(x, AB) * 2, ins=P(), outs=P()),
  "the same, unchecked": rounding(
    lambda x: lax.psum(x, AB) * 2, ins=P(), outs=P(), check_vma=False
  ),
  "psum under vmap": rounding(
    lambda x: jax.vmap(lambda y: lax.psum(y, ("v", "b")), axis_name="v")(x),
    outs=P("a"),
    check_vma=False,
  ),
  "pmean": rounding(lambda x: lax.pmean(x, "a"), outs=P(None, "b")),
  "pmax of infinities": collective(
    lambda x: lax.pmax(jnp.where(x > 0, x, -jnp.inf), "b"), outs=P("a")
  ),
  "pmax of groups": unchecked(lambda x: lax.pmax(x, "b", axis_index_groups=GROUPS)),
  "pmin over two axes": collective(lambda x: lax.pmin(x, AB), outs=P()),
  "pmin of integers": collective(lambda x: lax.pmin((x * 9).astype(jnp.int16), AB), outs=P()),
  "pmax of bool": collective(lambda x: lax.pmax(x > 1, AB), outs=P()),
  "all_gather": collective(lambda x: lax.all_gather(x, "b"), outs=P(None, "a", "b")),
  "all_gather tiled": collective(lambda x: lax.all_gather(x, "b", axis=2, tiled=True)),
  "all_gather over ab": collective(lambda x: lax.all_gather(x, AB, axis=1)),
  "all_gather over ba, tiled": collective(lambda x: lax.all_gather(x, BA, axis=1, tiled=True)),
  "all_gather of groups": unchecked(
    lambda x: lax.all_gather(x, "b", axis_index_groups=GROUPS, tiled=True)
  ),
  "all_gather to a value of all": collective(
    lambda x: lax.all_gather(x, "b", axis=1, tiled=True, to="invarying"), outs=P("a")
  ),
  "all_gather reduced": collective(
    lambda x: lax.pcast(lax.all_gather(x, "b", axis=1, tiled=True, to="reduced"), "b", to="varying")
  ),
  "psum_scatter": rounding(
    lambda x: lax.psum_scatter(x, "b", scatter_dimension=2, tiled=True), outs=P("a", None, "b")
  ),
  "psum_scatter untiled": rounding(
    lambda x: lax.psum_scatter(x[:, :4], "b", scatter_dimension=1), outs=P(AB)
  ),
  "psum_scatter over ab": rounding(
    lambda x: lax.psum_scatter(x, AB, scatter_dimension=2, tiled=True), outs=P(None, None, AB)
  ),
  "psum_scatter over ba": rounding(
    lambda x: lax.psum_scatter(x, BA, scatter_dimension=2, tiled=True), outs=P(None, None, BA)
  ),
  "psum_scatter of integers": collective(
    lambda x: lax.psum_scatter((x * 9).astype(jnp.int32), "b", scatter_dimension=2, tiled=True),
    outs=P("a", None, "b"),
  ),
  "psum_scatter of groups": unchecked(
    lambda x: lax.psum_scatter(x, "b", scatter_dimension=2, tiled=True, axis_index_groups=GROUPS)
  ),
  "all_to_all": collective(lambda x: lax.all_to_all(x, "b", 0, 2, tiled=True)),
  "all_to_all untiled": collective(lambda x: lax.all_to_all(x[:4], "b", 0, 1)),
  "all_to_all over ab": collective(lambda x: lax.all_to_all(x, AB, 0, 2, tiled=True)),
  "all_to_all over ba": collective(lambda x: lax.all_to_all(x, BA, 0, 1, tiled=True)),
  "all_to_all of groups": unchecked(
    lambda x: lax.all_to_all(x, "b", 0, 2, tiled=True, axis_index_groups=GROUPS)
  ),
  "ppermute": collective(lambda x: lax.ppermute(x, "b", [(i, (i + 1) % 4) for i in range(4)])),
  "ppermute of some": collective(lambda x: lax.ppermute(x, "b", [(0, 1), (3, 0)])),
  "ppermute of none": collective(lambda x: lax.ppermute(x, "b", [])),
  "ppermute over ab": collective(
    lambda x: lax.ppermute(x, AB, [(i, (i + 3) % 8) for i in range(8)])
  ),
  "ppermute of some over ab": collective(lambda x: lax.ppermute(x, AB, [(0, 5), (6, 1)])),
  "pshuffle": collective(lambda x: lax.pshuffle(x, "b", [2, 0, 3, 1])),
  "pswapaxes": collective(lambda x: lax.pswapaxes(x[:4], "b", 0)),
  "axis_index": collective(lambda x: x + lax.axis_index(AB) + 10 * lax.axis_index("b")),
  "axis_size": collective(lambda x: x + lax.axis_size("a") * 10 + lax.axis_size(AB)),
  "specs ab": collective(lambda x: x + lax.axis_index(AB), ins=P(AB), outs=P(AB)),
  "specs ba": collective(lambda x: x + lax.axis_index(AB), ins=P(BA), outs=P(BA)),
  "specs ba to ab": collective(lambda x: x + lax.axis_index(AB), ins=P(BA), outs=P(None, AB)),
  "pcast": collective(lambda x: lax.pcast(x, "b", to="varying") + lax.axis_index("b"), ins=P("a")),
  "psum of a constant": collective(
    lambda x: lax.psum(jnp.ones(3), "b") + x[0, 0, 0] * 0, ins=P(), outs=P()
  ),
  "of the first device, where devices differ": unchecked(
    lambda x: x + lax.axis_index("b"), ins=P("a"), outs=P("a")
  ),
}

if PERMUTES_IN_ORDER_OF_MESH:
  COLLECTIVES["ppermute over ba"] = collective(lambda x: lax.ppermute(x, BA, [(0, 5), (6, 1)]))


def _waited(start: Callable[..., Any], *args: Any, **params: Any) -> Callable[..., Any]:
  return lambda x: start(x, *args, **params).done()


if hasattr(lax, "psum_scatter_start"):  # XLA of JAX 0.10 fails of some on CPUs
  COLLECTIVES |= {
    "psum_scatter_start": rounding(
      _waited(parallel.psum_scatter_start, "b", scatter_dimension=2, tiled=True),
      outs=P("a", None, "b"),
    ),
    "psum_start": rounding(_waited(parallel.psum_start, "b"), outs=P("a")),
    "all_gather_start": collective(_waited(parallel.all_gather_start, "b", axis=1, tiled=True)),
    "all_to_all_start": collective(_waited(parallel.all_to_all_start, "b", 0, 2, tiled=True)),
    "ppermute_start": collective(_waited(parallel.ppermute_start, "b", [(0, 1), (3, 0)])),
  }

STRUCTURES: dict[str, Case] = {}
Y, W = normal(16, 32), normal(32, 32, scale=1 / 6)


def structure(*arguments: Any, **settings: Any) -> Callable[[Callable[..., Any]], Any]:
  def add(fun: Callable[..., Any]) -> Callable[..., Any]:
    STRUCTURES[fun.__name__.replace("_", " ")] = Case(fun, arguments, **settings)
    return fun

  return add


on_grid = functools.partial(jax.shard_map, mesh=GRID)
on_line = functools.partial(jax.shard_map, mesh=LINE)


@structure(Y, W, has_gradient=True)
def two_products(y: Any, w: Any) -> Any:
  def f(y: Any, w: Any) -> Any:
    return lax.psum(jnp.tanh(y @ w) @ w.T, "b")

  return on_grid(f, in_specs=(P("a"), P(None, "b")), out_specs=P("a"))(y, w)


@structure(Y, W)
def gradient_inside(y: Any, w: Any) -> Any:
  def f(y: Any, w: Any) -> Any:
    return jax.grad(lambda w: jnp.sum(jnp.tanh(y @ w) ** 2))(w)

  return on_grid(f, in_specs=(P(AB), P()), out_specs=P())(y, w)


@structure(Y, W)
def second_derivative(y: Any, w: Any) -> Any:
  return jax.jvp(jax.grad(lambda w: two_products(y, w).sum()), (w,), (w,))[1]


@structure(Y, W, tolerance=1e-6)
def vmap_outside(y: Any, w: Any) -> Any:
  return jax.vmap(lambda y: two_products(y, w))(jnp.stack([y, y * 2, y - 1]))


@jax.custom_vjp
def _halved(y: Any) -> Any:
  return y


_halved.defvjp(lambda y: (y, None), lambda _, g: (lax.psum(g, "b") * 0.5,))


@structure(Y, W, has_gradient=True)
def own_rule_with_a_collective(y: Any, w: Any) -> Any:
  def f(y: Any, w: Any) -> Any:
    return lax.psum(jnp.sum(_halved(jnp.tanh(y)) @ w, keepdims=True), AB)

  specs = (P("a"), P(None, "b"))
  return on_grid(f, in_specs=specs, out_specs=P(), check_vma=False)(y, w)


@structure(Y, W, has_gradient=True)
def checkpoint(y: Any, w: Any) -> Any:
  def layer(y: Any, w: Any) -> Any:
    return jnp.tanh(lax.all_gather(y, "b", tiled=True, axis=1) @ w)

  def f(y: Any, w: Any) -> Any:
    return lax.psum(jax.checkpoint(layer)(y, w), "b")

  return on_grid(f, in_specs=(P("a", "b"), P()), out_specs=P("a"))(y, w)


@structure(Y, W)
def scan_with_ppermute(y: Any, w: Any) -> Any:
  def f(y: Any, w: Any) -> Any:
    def step(c: Any, _: None) -> Any:
      c = lax.ppermute(jnp.tanh(c @ w), "i", RING)
      return c, lax.pmax(c.sum(), "i")

    return lax.scan(step, y, None, length=5)

  return on_line(f, in_specs=(P("i"), P()), out_specs=(P("i"), P()))(y, w)


@structure(Y)
def while_with_one_condition(y: Any) -> Any:
  def f(y: Any) -> Any:
    def body(c: Any) -> Any:
      y = lax.ppermute(c[0] * 0.7, "i", RING)
      return y, lax.pmax(jnp.abs(y).max(), "i")

    return lax.while_loop(lambda c: c[1] > 0.1, body, (y, lax.pmax(jnp.abs(y).max(), "i")))

  return on_line(f, in_specs=P("i"), out_specs=(P("i"), P()))(y)


@structure(Y)
def while_with_a_condition_for_each(y: Any) -> Any:
  def f(y: Any) -> Any:
    return lax.while_loop(lambda y: jnp.abs(y).max() > 0.5, lambda y: y * 0.7, y)

  return on_line(f, in_specs=P("i"), out_specs=P("i"))(y)


@structure(np.abs(Y), has_gradient=True)
def branches(y: Any) -> Any:
  def f(y: Any) -> Any:
    index = lax.axis_index("i") % 3
    return lax.switch(index, [jnp.sin, jnp.sqrt, lambda y: y * 2], y)

  return on_line(f, in_specs=P("i"), out_specs=P("i"))(y)


@structure(Y)
def nested(y: Any) -> Any:
  def inner(y: Any) -> Any:
    indices = lax.axis_index("a") + lax.axis_index("b") * 10
    return lax.psum(y, "b") + indices, lax.psum(y.sum(), AB)

  def outer(y: Any) -> Any:
    specs = (P(None, "b"), P())
    mapped = jax.shard_map(
      inner, in_specs=P(None, "b"), out_specs=specs, axis_names={"b"}, check_vma=False
    )
    y, total = mapped(y)
    return lax.all_gather(y, "a", axis=0, tiled=True), total

  specs = (P(), P())
  return jax.jit(
    on_grid(outer, in_specs=P("a"), out_specs=specs, axis_names={"a"}, check_vma=False)
  )(y)


@structure(Y, W)
def one_axis_left_to_the_compiler(y: Any, w: Any) -> Any:
  def f(y: Any, w: Any) -> Any:
    return lax.psum(lax.with_sharding_constraint(jnp.tanh(y @ w), P(None, "b")), "a")

  return jax.jit(on_grid(f, in_specs=(P("a"), P()), out_specs=P(), axis_names={"a"}))(y, w)


@structure(Y)
def draws(y: Any) -> Any:
  def f(y: Any) -> Any:
    key = jax.random.fold_in(jax.random.key(3), lax.axis_index("i"))
    return y + jax.random.normal(key, y.shape), jax.random.permutation(key, y.shape[1])[None]

  return on_line(f, in_specs=P("i"), out_specs=P("i"))(y)


@structure(Y)
def draws_by_rbg(y: Any) -> Any:
  """Bits of this generator depend on how many are drawn at once."""

  def f(y: Any) -> Any:
    key = jax.random.fold_in(jax.random.key(3, impl="rbg"), lax.axis_index("i"))
    return y + jax.random.normal(key, y.shape)

  return on_line(f, in_specs=P("i"), out_specs=P("i"))(y)


@structure(jax.random.key_data(jax.random.split(jax.random.key(5), 8)))
def a_key_for_each(words: Any) -> Any:
  def f(keys: Any) -> Any:
    got = lax.ppermute(keys, "i", RING)
    return jax.random.uniform(got[0], (1, 4))

  return on_line(f, in_specs=P("i"), out_specs=P("i"))(jax.random.wrap_key_data(words))


@structure(Y.reshape(8, 2, 32), W)
def pmapped(y: Any, w: Any) -> Any:
  def f(y: Any, w: Any) -> Any:
    return lax.pmean(jnp.tanh(y @ w), "i")

  return jax.pmap(f, axis_name="i", in_axes=(0, None))(y, w)


@structure(Y.reshape(8, 2, 32))
def pmapped_with_a_static_argument(y: Any) -> Any:
  def f(n: int, y: Any) -> Any:
    return y * n + lax.axis_index("i")

  return jax.pmap(f, axis_name="i", static_broadcasted_argnums=0, out_axes=1)(3, y)


@structure(Y)
def sorts_convolutions_and_scatters(y: Any) -> Any:
  def f(y: Any) -> Any:
    conv = lax.conv_general_dilated(y[None], y[None, :, :3], (1,), "SAME")[0]
    zeroed = y.at[:, jnp.argmax(y, 1)].set(0.0)
    return jnp.sort(y, axis=1), lax.top_k(y, 3)[1], jnp.cumsum(y, 1), conv, zeroed

  return on_line(f, in_specs=P("i"), out_specs=P("i"))(y)


@structure(Y)
def own_partitioning(y: Any) -> Any:
  from jax.experimental.custom_partitioning import custom_partitioning  # noqa: PLC0415

  f: Any = custom_partitioning(lambda y: jnp.tanh(y) * 2)
  f.def_partition(
    infer_sharding_from_operands=lambda mesh, arguments, result: arguments[0].sharding,
    partition=lambda mesh, arguments, result: (
      mesh,
      lambda y: jnp.tanh(y) * 2,
      arguments[0].sharding,
      (arguments[0].sharding,),
    ),
    sharding_rule="i j -> i j",
  )
  return jax.jit(f)(y)


@structure(Y)
def a_user_rule_for_vmap_is_not_for_devices(y: Any) -> Any:
  @jax.custom_batching.custom_vmap
  def f(y: Any) -> Any:
    return y * 2

  @f.def_vmap
  def _(size: int, is_batched: Any, y: Any) -> Any:
    return y * 3, True

  return on_line(f, in_specs=P("i"), out_specs=P("i"))(y)


@structure(Y)
def closed_over(y: Any) -> Any:
  table = jnp.arange(32.0)
  return on_line(lambda y: y + table, in_specs=P("i"), out_specs=P("i"))(y)


@structure(Y)
def no_operands(y: Any) -> Any:
  made = on_line(lambda: lax.axis_index("i")[None] * 2, in_specs=(), out_specs=P("i"))()
  return y.sum() * 0 + made


@structure(np.zeros((16, 0), np.float32))
def empty_blocks(y: Any) -> Any:
  return on_line(lambda y: (lax.psum(y, "i"), y), in_specs=P("i"), out_specs=(P(), P("i")))(y)


PROGRAMS: dict[str, Case] = {}


def program(*arguments: Any) -> Callable[[Callable[..., Any]], Any]:
  def add(fun: Callable[..., Any]) -> Callable[..., Any]:
    PROGRAMS[fun.__name__.replace("_", " ")] = Case(fun, arguments, has_gradient=True)
    return fun

  return add


WIDTH, HEADS = 64, 8


def _normed(x: Any) -> Any:
  mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
  return (x - mean) * lax.rsqrt(variance + 1e-5)


BLOCK = {
  "qkv": normal(3, WIDTH, WIDTH, scale=0.1),
  "out": normal(WIDTH, WIDTH, scale=0.1),
  "up": normal(WIDTH, 4 * WIDTH, scale=0.1),
  "down": normal(4 * WIDTH, WIDTH, scale=0.1),
}


@program(BLOCK, normal(4, 16, WIDTH))
def transformer_block(params: Any, x: Any) -> Any:
  """Heads and hidden units over "b", the batch over "a"."""

  def block(p: Any, x: Any) -> Any:
    batch, length, _ = x.shape
    heads = (batch, length, -1, WIDTH // HEADS)
    q, k, v = ((_normed(x) @ w).reshape(heads) for w in p["qkv"])
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(WIDTH // HEADS)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    mixed = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
    x = x + lax.psum(mixed.reshape(batch, length, -1) @ p["out"], "b")
    return x + lax.psum(jax.nn.gelu(_normed(x) @ p["up"]) @ p["down"], "b")

  specs = {"qkv": P(None, None, "b"), "out": P("b"), "up": P(None, "b"), "down": P("b")}
  return on_grid(block, in_specs=(specs, P("a")), out_specs=P("a"))(params, x)


@program(normal(8, 32, 32, scale=0.3), normal(16, 4, 32))
def pipeline(weights: Any, microbatches: Any) -> Any:
  """A layer on each device, which hands each microbatch on by ppermute."""

  def stages(w: Any, xs: Any) -> Any:
    device, count = lax.axis_index("i"), xs.shape[0]
    is_first, is_last = device == 0, device == DEVICES - 1

    def step(carry: Any, time: Any) -> Any:
      x, outs = carry
      x = jnp.where(is_first, xs[jnp.minimum(time, count - 1)], x)
      y = jnp.tanh(x @ w[0])
      done = time - (DEVICES - 1)
      written = outs.at[jnp.maximum(done, 0)].set(y)
      outs = jnp.where(is_last & (done >= 0), written, outs)
      return (lax.ppermute(y, "i", RING[:-1]), outs), None

    start = jax.tree.map(lambda x: lax.pcast(jnp.zeros_like(x), "i", to="varying"), (xs[0], xs))
    (_, outs), _ = lax.scan(step, start, jnp.arange(count + DEVICES - 1))
    return lax.psum(jnp.where(is_last, outs, 0), "i")

  return on_line(stages, in_specs=(P("i"), P()), out_specs=P())(weights, microbatches)


@program(normal(32, 8), normal(8, 32, 32, scale=0.3), normal(64, 32))
def mixture_of_experts(gate: Any, experts: Any, x: Any) -> Any:
  """An expert on each device, which gets at most four tokens of each other by all_to_all."""
  capacity = 4

  def layer(gate: Any, expert: Any, x: Any) -> Any:
    probabilities = jax.nn.softmax(x @ gate)
    chosen = jax.nn.one_hot(jnp.argmax(probabilities, -1), DEVICES)
    position = jnp.cumsum(chosen, 0) * chosen - chosen
    kept = chosen * (position < capacity)
    slots = jax.nn.one_hot(position.sum(-1).astype(int), capacity)
    dispatch = kept[:, :, None] * slots[:, None]
    sent = jnp.einsum("tec,td->ecd", dispatch, x)
    got = lax.all_to_all(sent, "i", 0, 0, tiled=True).reshape(-1, x.shape[-1])
    answers = jax.nn.relu(got @ expert[0]).reshape(DEVICES, capacity, -1)
    back = lax.all_to_all(answers, "i", 0, 0, tiled=True)
    return jnp.einsum("tec,ecd->td", dispatch * probabilities[:, :, None], back)

  specs = (P(), P("i"), P("i"))
  return on_line(layer, in_specs=specs, out_specs=P("i"))(gate, experts, x)


LABELS = _RANDOM.integers(0, 4, (8, 4)).astype(np.int32)
LINEAR = {"w": normal(16, 4, scale=0.3), "b": np.zeros(4, np.float32)}


@program(LINEAR, normal(8, 4, 16), LABELS)
def pmapped_training_step(params: Any, x: Any, labels: Any) -> Any:
  def loss(p: Any, x: Any, y: Any) -> Any:
    scores = jax.nn.log_softmax(x @ p["w"] + p["b"])
    return -jnp.mean(scores[jnp.arange(x.shape[0]), y])

  @functools.partial(jax.pmap, axis_name="i", in_axes=(None, 0, 0), out_axes=None)
  def step(p: Any, x: Any, y: Any) -> Any:
    value, gradients = lax.pmean(jax.value_and_grad(loss)(p, x, y), "i")
    return jax.tree.map(lambda p, g: p - 0.1 * g, p, gradients), value

  return step(params, x, labels)


@program(normal(2, 64, 4, 16), normal(2, 64, 4, 16), normal(2, 64, 4, 16))
def ring_attention(q: Any, k: Any, v: Any) -> Any:
  """The sequence over the devices; keys and values go round, with a running softmax."""

  def ring(q: Any, k: Any, v: Any) -> Any:
    device, length = lax.axis_index("i"), q.shape[1]

    def step(carry: Any, turn: Any) -> Any:
      o, top, total, k, v = carry
      owner = (device - turn) % DEVICES
      scores = jnp.einsum("bthd,bshd->bhts", q, k) / 4
      rows = device * length + jnp.arange(length)[:, None]
      columns = owner * length + jnp.arange(length)
      scores = jnp.where(rows >= columns, scores, -1e30)
      new_top = jnp.maximum(top, scores.max(-1))
      p = jnp.exp(scores - new_top[..., None])
      scale = jnp.exp(top - new_top)
      total = total * scale + p.sum(-1)
      o = o * scale[..., None] + jnp.einsum("bhts,bshd->bhtd", p, v)
      k, v = lax.ppermute((k, v), "i", RING)
      return (o, new_top, total, k, v), None

    batch, _, heads, size = q.shape
    rows = (batch, heads, length)
    start = jnp.zeros((*rows, size)), jnp.full(rows, -1e30), jnp.zeros(rows)
    start = jax.tree.map(lambda x: lax.pcast(x, "i", to="varying"), start)
    (o, _, total, _, _), _ = lax.scan(step, (*start, k, v), jnp.arange(DEVICES))
    return jnp.einsum("bhtd->bthd", o / total[..., None])

  return on_line(ring, in_specs=P(None, "i"), out_specs=P(None, "i"))(q, k, v)


@program({"w1": normal(32, 64, scale=0.2), "w2": normal(64, 32, scale=0.2)}, normal(16, 32))
def sharded_training_step(params: Any, x: Any) -> Any:
  """Weights are gathered, and their gradients scattered."""

  def step(p: Any, x: Any) -> Any:
    full = jax.tree.map(lambda w: lax.all_gather(w, "i", tiled=True), p)

    def loss(p: Any) -> Any:
      return jnp.mean((jnp.tanh(x @ p["w1"]) @ p["w2"] - x) ** 2)

    value, gradients = jax.value_and_grad(loss)(full)

    def updated(w: Any, g: Any) -> Any:
      return w - 0.5 * lax.psum_scatter(g, "i", scatter_dimension=0, tiled=True) / DEVICES

    return jax.tree.map(updated, p, gradients), lax.pmean(value, "i")

  specs = (P("i"), P("i"))
  return on_line(step, in_specs=specs, out_specs=(P("i"), P()), check_vma=False)(params, x)


CASES = {**COLLECTIVES, **STRUCTURES, **PROGRAMS}


def floats_of(arguments: Any) -> list[int]:
  """The arguments that all have floats."""

  def is_float(x: Any) -> bool:
    return bool(np.issubdtype(x.dtype, np.floating))

  return [i for i, x in enumerate(arguments) if all(map(is_float, jax.tree.leaves(x)))]


def loss_of(fun: Callable[..., Any]) -> Callable[..., Any]:
  return lambda *arguments: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(fun(*arguments)))
