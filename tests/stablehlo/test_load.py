"""Programs that JAX exports, read back: values, derivatives, vmap and symbolic sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jax2tf import stablehlo

_X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


def _mlp(x):
  hidden = jax.nn.gelu(x @ jnp.ones((3, 4)) / 3)
  return jax.nn.softmax(hidden @ jnp.ones((4, 2)))


def _rnn(x, reverse=False):
  def step(state, row):
    state = jnp.tanh(state + row)
    return state, state * 2

  return lax.scan(step, jnp.zeros(3), x, reverse=reverse)


def _reversed_rnn(x):
  return _rnn(x, reverse=True)


def _sorts(x):
  keys = jnp.round(x)
  return lax.sort((keys, x * 2), num_keys=2), jnp.sort(x + 1j * keys, axis=0), jnp.argsort(-x, 1)


def _extremes(x):
  return jnp.argmax(x, 1), jnp.argmin(x, 0), lax.top_k(x, 2), jnp.median(x)


def _indexing(x):
  rows = jnp.array([0, -1, 7])
  # A maximum of complex numbers is a scatter with a computation of its own.
  larger = (x + 1j).at[rows].max(1 - 2j)
  return x[rows], x.at[rows].add(1.0), x.at[:, 1].multiply(2.0), jnp.take(x, rows, axis=0), larger


def _windows(x):
  image = x[None, :, :, None]
  pooled = lax.reduce_window(image, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "SAME")
  return pooled, jnp.cumsum(x, 0), lax.cummax(x)


def _loops(x):
  def is_small(carried):
    return jnp.sum(carried) < 100.0

  doubled = lax.while_loop(is_small, lambda y: y * 2 + 1, jnp.abs(x))
  return doubled, lax.fori_loop(0, 5, lambda i, y: y + i, x)


def _branches(x):
  chosen = lax.switch(jnp.int32(jnp.sum(x) > 0), [jnp.sin, jnp.cos], x)
  return chosen, lax.cond(x[0, 0] > 0, jnp.exp, jnp.tanh, x)


def _draws(x):
  key = jax.random.key(3)
  return jax.random.normal(key, x.shape), jax.random.categorical(key, x)


def _small_types(x):
  return x.astype(jnp.bfloat16) * jnp.bfloat16(1.5), (x * 3).astype(jnp.int4), x > 0


_PROGRAMS = [
  _mlp,
  _rnn,
  _reversed_rnn,
  _sorts,
  _extremes,
  _indexing,
  _windows,
  _loops,
  _branches,
  _draws,
  _small_types,
]


def _same(left, right):
  leaves = ([np.asarray(leaf) for leaf in jax.tree.leaves(tree)] for tree in (left, right))
  for got, wanted in zip(*leaves, strict=True):
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    if jnp.issubdtype(wanted.dtype, jnp.inexact):
      wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
      np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), rtol=2e-6, atol=1e-6)
      if wanted.dtype.kind == "f":
        zero = (wanted == 0) & (got == 0)
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(wanted[zero]))
    else:
      np.testing.assert_array_equal(got, wanted)


def _exported(function, shape, **options):
  return export.export(jax.jit(function), **options)(jax.ShapeDtypeStruct(shape, jnp.float32))


@pytest.mark.parametrize("program", _PROGRAMS, ids=lambda program: program.__name__)
def test_values(program):
  function = stablehlo.load(_exported(program, (6, 3)).serialize())
  hostile = _X.copy()
  hostile[0], hostile[1, :2], hostile[2] = np.nan, (np.inf, -np.inf), -0.0
  for x in (_X, hostile) if program is not _small_types else (_X,):
    _same(function(x), jax.jit(program)(x))


@pytest.mark.parametrize("program", _PROGRAMS, ids=lambda program: program.__name__)
def test_symbolic_sizes(program):
  """They are kept: the function is exported again, and takes any size."""
  shape = export.symbolic_shape("b, 3", constraints=["b >= 2"])
  function = stablehlo.load(_exported(program, shape).serialize())
  again = _exported(function, export.symbolic_shape("b, 3", constraints=["b >= 2"]))
  assert "b" in str(again.in_avals[0].shape)
  _same(again.call(_X[:4]), jax.jit(program)(_X[:4]))


@pytest.mark.parametrize("program", [_mlp, _rnn, _reversed_rnn, _windows])
def test_derivatives(program):
  def total(function, x):
    return sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(function(x)))

  function = stablehlo.load(_exported(program, (6, 3)))
  _same(jax.grad(lambda x: total(function, x))(_X), jax.grad(lambda x: total(program, x))(_X))


def _gradient(x):
  return jax.grad(lambda x: _rnn(x)[1].sum() + _reversed_rnn(x)[0].sum())(x)


@pytest.mark.parametrize("program", [_rnn, _reversed_rnn, _gradient])
def test_rows(program):
  """A scan hands its rows to each step and stacks the results, also where sizes are symbolic."""
  function = stablehlo.load(_exported(program, export.symbolic_shape("t, 3")))
  _same(jax.jit(function)(_X), jax.jit(program)(_X))
  loaded, written = (str(jax.make_jaxpr(each)(_X)) for each in (function, program))
  assert loaded.count("scan[") == written.count("scan[")
  assert "dynamic_" not in loaded


def test_a_row_may_be_smaller_than_those_of_the_array():
  def program(x):
    def step(i, y):
      return lax.dynamic_update_slice(y, x[:1, :-1] * i, (i, 0))

    return lax.fori_loop(0, 6, step, jnp.ones((6, x.shape[1])))

  function = stablehlo.load(_exported(program, export.symbolic_shape("t, b")))
  _same(function(_X), program(_X))


@pytest.mark.parametrize("shape", ["100, 3", "b, 3"])
def test_hashes(shape):
  """Constants by which they shift stay constants."""

  def noise(x):
    return x + jax.random.normal(jax.random.key(7), x.shape)

  x = np.zeros((100, 3), np.float32)
  function = stablehlo.load(_exported(noise, export.symbolic_shape(shape)))
  _same(jax.jit(function)(x), jax.jit(noise)(x))
  jaxpr = str(jax.make_jaxpr(function)(x))
  assert "while[" not in jaxpr
  assert "scan[" not in jaxpr


def test_vmap():
  function = stablehlo.load(_exported(_sorts, (6, 3)))
  batch = np.stack([_X, -_X])
  _same(jax.vmap(function)(batch), jax.vmap(_sorts)(batch))


def test_own_derivative():
  """An artifact with its VJP has the derivative that the user wrote."""

  @jax.custom_vjp
  def clipped(x):
    return x * 2

  clipped.defvjp(lambda x: (clipped(x), x), lambda x, cotangent: (cotangent * 0 + 7 * x,))
  exported = _exported(clipped, (6, 3))
  with_rule = stablehlo.load(exported.serialize(vjp_order=1))
  without = stablehlo.load(exported.serialize())
  _same(jax.grad(lambda x: jnp.sum(with_rule(x)))(_X), 7 * _X)
  _same(jax.grad(lambda x: jnp.sum(without(x)))(_X), np.full_like(_X, 2))
  assert "custom_vjp" in without.notes[0]
  assert not any("custom_vjp" in note for note in with_rule.notes)


def test_shared_functions_stay_one():
  @jax.jit
  def layer(x):
    return jnp.tanh(x) * 2

  function = stablehlo.load(_exported(lambda x: layer(layer(layer(x))), (6, 3)))
  assert str(jax.make_jaxpr(function)(_X)).count("tanh") == 1


def test_sizes_that_do_not_fit():
  shape = export.symbolic_shape("2*b, 3")
  function = stablehlo.load(_exported(jnp.sin, shape))
  _same(function(_X), np.sin(_X))
  with pytest.raises(ValueError, match="Division had remainder"):
    function(_X[:5])
  with pytest.raises(
    ValueError, match=r"it is float32\[6,2\]; the function takes float32\[2\*b,3\]"
  ):
    function(_X[:, :2])


def test_convention():
  """Pytrees, names, keys, and arguments that nothing uses."""

  def program(params, key, unused):
    noise = jax.random.uniform(key, (3,))
    return {"y": params["w"] + noise, "key": jax.random.split(key)[0]}

  key = jax.random.key(1)
  exported = export.export(jax.jit(program))({"w": jnp.ones(3)}, key, 1.0)
  function = stablehlo.load(exported.serialize())
  got, wanted = (f({"w": jnp.ones(3)}, key, 1.0) for f in (function, program))
  _same(got["y"], wanted["y"])
  _same(jax.random.key_data(got["key"]), jax.random.key_data(wanted["key"]))
  assert function.argument_names[0] == "params['w']"
  with pytest.raises(TypeError, match="takes arguments of the structure"):
    function({"w": jnp.ones(3)}, key)
