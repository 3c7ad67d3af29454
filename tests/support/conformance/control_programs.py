"""Random programs with branches, loops, rematerialisation and custom rules: data that prints, and
how it runs.

Every value is a vector of the program's size and dtype, with entries of about -2 to 2, so that
neither it nor a derivative grows. A block is nodes; its last value is its result. A node names its
operands by their numbers: first the inputs, then the results of the nodes. The body of a node has
the values before the node, then its own parameters, then the results of its nodes. The body of a
custom rule, which closes over nothing, has its parameters and the results of its nodes.

    p = Program((Node("cond", (0,), ((Node("sin", (1,)),), (Node("cos", (0,)),))), Node("sin",
    (0,)))) check(p)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name

_POLICIES = {
  "nothing": None,
  "everything": jax.checkpoint_policies.everything_saveable,
  "dots": jax.checkpoint_policies.dots_saveable,
  "names": jax.checkpoint_policies.save_only_these_names("kept"),
}
_TABLE = np.cos(np.arange(8.0))
_LARGE = np.linspace(-1, 1, 40)  # too large to be repeated in each body


@dataclasses.dataclass(frozen=True)
class Node:
  """A function of `SIMPLE`, or of `NESTED` with bodies, of the values numbered `operands`."""

  kind: str
  operands: tuple[int, ...]
  bodies: tuple[tuple[Node, ...], ...] = ()
  param: Any = None

  def __call__(self, env: Sequence[Any]) -> Any:
    """The result, given the values before it."""
    operands = [env[i] for i in self.operands]
    if self.kind in SIMPLE:
      return SIMPLE[self.kind](*operands)
    outer = () if self.kind in CLOSED else env
    bodies = [lambda *own, block=block: run(block, [*outer, *own]) for block in self.bodies]
    if self.kind == "while":
      still = [lax.stop_gradient(x) for x in env]
      bodies = [lambda *own, block=block: run(block, [*still, *own]) for block in self.bodies]
    return NESTED[self.kind](self.param, bodies, *operands)


Block = tuple[Node, ...]


def run(block: Block, env: Sequence[Any]) -> Any:
  """The result of a block, given the values before it."""
  values = list(env)
  for node in block:
    values.append(node(values))
  return values[-1]


@dataclasses.dataclass(frozen=True)
class Program:
  """A function of `inputs` vectors, and how it is differentiated.

  Attributes:
    block: its nodes.
    inputs: the number of its arguments.
    size: of every vector.
    dtype: float32 or float64.
    way: one of `control_differential.WAYS`.
    symbolic: whether the size is a symbol to the converter.
  """

  block: Block
  inputs: int = 1
  size: int = 3
  dtype: str = "float32"
  way: str = "tape"
  symbolic: bool = False

  def arrays(self, dtype: str = "") -> list[np.ndarray]:
    """The arguments."""
    numbers = np.arange(self.inputs * self.size).reshape(self.inputs, self.size)
    return [*(1.5 * np.sin(1 + 1.7 * numbers)).astype(dtype or self.dtype)]

  def __call__(self, *arrays: Any) -> list[Any]:
    return [run(self.block, arrays)]

  def nodes(self) -> Iterator[Node]:
    """All nodes, those of bodies included."""
    waiting = list(self.block)
    while waiting:
      yield (node := waiting.pop())
      waiting += [inner for body in node.bodies for inner in body]


def _root(x: Any) -> Any:
  """y + sin(y) / 3 = x, by Newton's method."""

  def solve(f: Callable[..., Any], start: Any) -> Any:
    return lax.fori_loop(0, 6, lambda _, y: y - f(y) / (1 + jnp.cos(y) / 3), start)

  return lax.custom_root(
    lambda y: y + jnp.sin(y) / 3 - x, x, solve, lambda g, y: y / g(jnp.ones_like(y))
  )


def _solved(x: Any, y: Any) -> Any:
  """The solution z of (1 + tanh(x) / 4) z = y."""
  return lax.custom_linear_solve(
    lambda z: z + jnp.tanh(x) / 4 * z, y, lambda f, y: y / f(jnp.ones_like(y)), symmetric=True
  )


def _det(x: Any) -> Any:
  n = x.shape[0]
  return x * jnp.tanh(jnp.linalg.det(jnp.eye(n, dtype=x.dtype) + 0.3 * jnp.outer(x, jnp.cos(x))))


SIMPLE: dict[str, Callable[..., Any]] = {
  "sin": jnp.sin,
  "cos": jnp.cos,
  "tanh": jnp.tanh,
  "gauss": lambda x: jnp.exp(-x * x),
  "mul": lambda x, y: 0.5 * x * y,
  "add": lambda x, y: 0.5 * (x + y),
  "sub": lambda x, y: 0.5 * (x - y),
  "iota": lambda x: jnp.sin(jnp.arange(x.shape[0], dtype=x.dtype)),
  "table": lambda x: 0.5 * x + jnp.mean(jnp.sin(jnp.asarray(_TABLE, x.dtype))),
  "large": lambda x: 0.5 * x + jnp.mean(jnp.asarray(_LARGE, x.dtype) * x[0]),
  "matmul": lambda x, y: (jnp.outer(x, y) @ x) / (4 * x.shape[0]),
  "total": lambda x: 0.5 * x + 0.5 * jnp.sum(x) / x.shape[0],
  "flip": lambda x: x[::-1],
  "cumsum": lambda x: jnp.cumsum(x) / x.shape[0],
  "sort": jnp.sort,
  "where": lambda x, y: jnp.where(x > 0.1234, jnp.sin(x), y),
  "softmax": lambda x: jax.nn.softmax(x) * x,
  "relu": jax.nn.relu,
  "name": lambda x: checkpoint_name(jnp.sin(x), "kept"),
  "det": _det,
  "root": _root,
  "solve": _solved,
}
_TWO = ("mul", "add", "sub", "matmul", "where", "solve")
_OF_A_KNOWN_SIZE = ("det",)
_DEAR = ("det", "root", "sort", "solve")


def _positive(x: Any) -> Any:
  return x[0] > 0.1234


def _cond(_: Any, bodies: Sequence[Any], x: Any, *more: Any) -> Any:
  return lax.cond(_positive(x), *bodies, x, *more)


def _switch(_: Any, bodies: Sequence[Any], x: Any) -> Any:
  return lax.switch(jnp.floor(x[0] * 1.9 + 1.0123).astype(jnp.int32), bodies, x)


def _scan(param: Any, bodies: Sequence[Any], x: Any, y: Any) -> Any:
  """Over the rows of an array; or, of no length, over the entries of `y`, of which there may be a
  symbolic number."""
  length, is_reverse = param
  factors = np.linspace(1, 0.5, length or 1)
  rows = jnp.asarray(factors, y.dtype)[:, None] * y if length else y

  def step(carry: Any, row: Any) -> Any:
    new = 0.5 * carry + 0.5 * jnp.sin(bodies[0](carry, jnp.broadcast_to(row, carry.shape)))
    return new, new * row

  last, rows = lax.scan(step, x, rows, reverse=is_reverse)
  return 0.5 * last + 0.5 * rows.mean(0)


def _fori(length: int, bodies: Sequence[Any], x: Any) -> Any:
  return lax.fori_loop(0, length, lambda i, c: 0.5 * c + jnp.sin(bodies[0](c) + i) / 2, x)


def _while(most: int, bodies: Sequence[Any], x: Any) -> Any:
  """Of values without derivatives, which JAX does not take backwards through it."""
  test, body = bodies

  def goes_on(state: Any) -> Any:
    return (state[0] < most) & (test(state[1])[0] < 0.7312)

  return lax.while_loop(
    goes_on, lambda state: (state[0] + 1, jnp.sin(body(state[1]) + 1)), (0, lax.stop_gradient(x))
  )[1]


def _remat(policy: str, bodies: Sequence[Any], *operands: Any) -> Any:
  return jax.checkpoint(bodies[0], policy=_POLICIES[policy])(*operands)


def _jit(_: Any, bodies: Sequence[Any], *operands: Any) -> Any:
  return jax.jit(bodies[0])(*operands)


def _mapped(is_loop: bool, bodies: Sequence[Any], x: Any, y: Any) -> Any:
  rows = jnp.stack([x, 0.5 * y])
  return (lax.map if is_loop else lambda f, xs: jax.vmap(f)(xs))(bodies[0], rows).mean(0)


def _custom_jvp(_: Any, bodies: Sequence[Any], x: Any, y: Any) -> Any:
  value, factor = bodies
  f = jax.custom_jvp(value)
  f.defjvp(
    lambda primals, tangents: (f(*primals), factor(*primals) * tangents[0] + 0.5 * tangents[1])
  )
  return f(x, y)


def _custom_vjp(_: Any, bodies: Sequence[Any], x: Any, y: Any) -> Any:
  value, residual, backward = bodies
  f = jax.custom_vjp(value)
  f.defvjp(
    lambda x, y: (f(x, y), (x, residual(x, y))),
    lambda kept, ct: (backward(*kept) * ct, kept[1] * jnp.cos(ct)),
  )
  return f(x, y)


NESTED: dict[str, Callable[..., Any]] = {
  "cond": _cond,
  "switch": _switch,
  "scan": _scan,
  "fori": _fori,
  "while": _while,
  "remat": _remat,
  "jit": _jit,
  "map": _mapped,
  "custom_jvp": _custom_jvp,
  "custom_vjp": _custom_vjp,
}
CLOSED = ("custom_jvp", "custom_vjp")
_PLAIN = ("custom_jvp", "jit")
# The number of bodies, of operands, and of the parameters of each body.
_FORMS = {
  "cond": (2, 2, 2),
  "switch": (3, 1, 1),
  "scan": (1, 2, 2),
  "fori": (1, 1, 1),
  "while": (2, 1, 1),
  "remat": (1, 2, 2),
  "jit": (1, 1, 1),
  "map": (1, 2, 1),
  "custom_jvp": (2, 2, 2),
  "custom_vjp": (3, 2, 2),
}
_PARAMS: dict[str, Sequence[Any]] = {
  "scan": [(2, False), (2, True), (7, False), (11, True), (0, False)],
  "fori": [1, 2, 7],
  "while": [1, 3],
  "remat": list(_POLICIES),
  "map": [False, True],
}


class Generator:
  """Makes programs from a seed."""

  def __init__(self, seed: int):
    self._rng = np.random.default_rng(seed)
    self._history: list[Node] = []
    self._left = 0
    self._simple: list[str] = []
    self._weights = np.array([])

  def program(self) -> Program:
    """The next program, of some 10 nodes."""
    self._history, self._left = [], 10
    inputs = int(self._rng.integers(1, 3))
    symbolic = self._rng.random() < 0.15
    self._simple = [k for k in SIMPLE if not (symbolic and k in _OF_A_KNOWN_SIZE)]
    self._weights = np.array([0.2 if k in _DEAR else 1.0 for k in self._simple])
    # The residuals of a function without loops and branches are computed when a tape asks for them.
    # Its custom rules may have some nevertheless.
    is_plain = self._rng.random() < 0.5
    block = self._block(inputs, 0, _PLAIN if is_plain else tuple(NESTED))
    size = int(self._rng.choice([2, 3, 4]))
    dtype = str(self._rng.choice(["float32", "float64"], p=[0.6, 0.4]))
    program = Program(block, inputs, size, dtype, "tape", symbolic)
    backwards_only = any(node.kind == "custom_vjp" for node in program.nodes())
    ways = {
      "tape": 10,
      "second": 2,
      "around": 2,
      "jit_compile": 2,
      "eager": 1,
      "forward": 3,
      "hvp": 1,
    }
    if backwards_only:
      ways |= {"forward": 0, "hvp": 0}
    weights = np.array([*ways.values()]) / sum(ways.values())
    return dataclasses.replace(program, way=str(self._rng.choice([*ways], p=weights)))

  def _block(self, before: int, depth: int, kinds: Sequence[str]) -> Block:
    nodes: list[Node] = []
    for _ in range(int(self._rng.integers(2, 4) if depth == 0 else self._rng.integers(1, 4))):
      nodes.append(self._node(before + len(nodes), depth, kinds))
    if depth == 0:  # all that was computed matters
      for i in range(before, before + len(nodes) - 1):
        nodes.append(Node("add", (i, before + len(nodes) - 1)))
    return tuple(nodes)

  def _node(self, before: int, depth: int, kinds: Sequence[str]) -> Node:
    self._left -= 1
    if self._left > 0 and self._rng.random() < (0.6, 0.45, 0.15, 0.0)[depth]:
      return self._nested(before, depth, kinds)
    usable = [node for node in self._history if max(node.operands) < before][-4:]
    if usable and self._rng.random() < 0.6:  # the same once more, perhaps in another body
      return usable[self._rng.integers(len(usable))]
    kind = str(self._rng.choice(self._simple, p=self._weights / self._weights.sum()))
    node = Node(kind, self._operands(before, 2 if kind in _TWO else 1))
    self._history.append(node)
    return node

  def _nested(self, before: int, depth: int, kinds: Sequence[str]) -> Node:
    kind = str(self._rng.choice(kinds))
    n_bodies, n_operands, n_own = _FORMS[kind]
    params = _PARAMS.get(kind)
    param = params[self._rng.integers(len(params))] if params else None
    inside = n_own if kind in CLOSED else before + n_own
    rules = [kinds, *[tuple(NESTED)] * 2] if kind in CLOSED else [kinds] * n_bodies
    deeper = [depth + 1, *[max(1, depth)] * 2] if kind in CLOSED else [depth + 1] * n_bodies
    bodies = tuple(self._block(inside, deeper[i], rules[i]) for i in range(n_bodies))
    return Node(kind, self._operands(before, n_operands), bodies, param)

  def _operands(self, before: int, count: int) -> tuple[int, ...]:
    """The first and the newest values more often than others."""
    numbers = [0, before - 1, int(self._rng.integers(before))]
    return tuple(int(self._rng.choice(numbers)) for _ in range(count))


def smaller(program: Program) -> Iterator[Program]:
  """Programs with a part left out."""
  for block in _smaller(program.block):
    yield dataclasses.replace(program, block=block)
  if program.symbolic:
    yield dataclasses.replace(program, symbolic=False)


def _smaller(block: Block) -> Iterator[Block]:
  for k in range(1, len(block)):
    yield block[:k]
  for k, node in enumerate(block):
    plain = Node("tanh", node.operands[:1])
    if node != plain:
      yield (*block[:k], plain, *block[k + 1 :])
    for i, body in enumerate(node.bodies):
      for less in _smaller(body):
        bodies = (*node.bodies[:i], less, *node.bodies[i + 1 :])
        yield (*block[:k], dataclasses.replace(node, bodies=bodies), *block[k + 1 :])
