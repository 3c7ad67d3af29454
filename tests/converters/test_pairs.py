"""Complex numbers as pairs of real ones in the exporters' replay: each op, loops and branches,
hostile operands, and transforms of every length. The reference is jax.jit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import lax

import jax2tf
from jax2tf.converters import saved_model
from jax2tf.converters.export import freezing
from jax2tf.converters.export.ends import UnpairedOpsError, in_parts, of_parts
from jax2tf.converters.export.pair import of_pairs
from jax2tf.converters.verify import answers

RNG = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
  parts = RNG.standard_normal((2, *shape))
  return (parts[0] + 1j * parts[1]).astype(np.complex64)


def frozen(function: Any, *specs: tf.TensorSpec) -> Any:
  """The graph without complex numbers, of a function of tensors."""
  named = {f"x{i}": spec for i, spec in enumerate(specs)}
  concrete = tf.function(
    lambda **tensors: {"y": function(*tensors.values())}, autograph=False
  ).get_concrete_function(**named)
  return freezing.frozen(concrete, {})


def answered(function: Any, *arrays: np.ndarray, specs: Any = None) -> np.ndarray:
  """The result of the graph without complex numbers."""
  graph = frozen(function, *(specs or [tf.TensorSpec(x.shape, x.dtype) for x in arrays]))
  tensors = [x for op in graph.graph.get_operations() for x in (*op.inputs, *op.outputs)]
  assert not any(x.dtype.is_complex for x in tensors)
  named = {f"x{i}": tf.constant(in_parts(x)) for i, x in enumerate(arrays)}
  return graph(**named)["y"].numpy()


def check(fun: Callable[..., Any], *arrays: np.ndarray) -> None:
  expected = np.asarray(jax.jit(fun)(*arrays))
  result = answered(jax2tf.convert(fun), *arrays)
  result = of_parts(result) if np.iscomplexobj(expected) else result
  assert result.dtype == expected.dtype and result.shape == expected.shape
  size = np.max(np.abs(expected)) if expected.dtype.kind in "fc" else 1
  # sums and products are regrouped, so parts that cancel differ by roundings of their terms
  np.testing.assert_allclose(result, expected, rtol=0, atol=2e-6 * float(size) if size else 0)


def eigen(x: jax.Array) -> jax.Array:
  """The values of x and of a matrix of equal ones, and vectors of x, whose first elements are made
  positive: they are real in LAPACK."""
  reflection = jnp.eye(x.shape[0]) - 2 * jnp.outer(x[0], x[0].conj()) / jnp.vdot(x[0], x[0])
  values, vectors = jnp.linalg.eigh(jnp.stack([x, reflection]))
  return jnp.concatenate([values, vectors[0] * jnp.sign(vectors[0, :1].real)])


def singular(x: jax.Array) -> jax.Array:
  """The values, in units of the largest one, and what the vectors make of them."""
  u, values, v = jnp.linalg.svd(x, full_matrices=False)
  values = values / values[:, :1]
  return jnp.concatenate([(u * values[:, None]) @ v, values[:, :, None]], 2)


Z, W = numbers(5, 8), numbers(5, 8)
_ELEMENTWISE = (
  "abs angle exp log sqrt sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arccosh arctanh "
  "conj square sign expm1 log1p reciprocal isfinite isnan real imag"
)
_OPS: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
  **{name: (getattr(jnp, name), (Z,)) for name in _ELEMENTWISE.split()},
  "rsqrt": (lax.rsqrt, (Z,)),
  "logistic": (jax.nn.sigmoid, (Z,)),
  "multiply": (lambda x, y: x * y, (Z, W)),
  "divide": (lambda x, y: x / y, (Z, W)),
  "power": (lambda x, y: x**y, (Z, W)),
  "integer-power": (lambda x: x**-3, (Z,)),
  "equal": (lambda x, y: (x == y) | (x != x[::-1]), (Z, W)),
  "maximum": (jnp.maximum, (Z, W)),
  "of-real": (lambda x: lax.complex(x, -x) * 1j, (Z.real,)),
  "matmul": (lambda x, y: x @ y.T, (Z, W)),
  "einsum": (lambda x, y: jnp.einsum("bij,bkj->bik", x, jnp.conj(y)), (Z[None], W[None])),
  "vdot": (jnp.vdot, (Z[0], W[0])),
  "convolve": (jnp.convolve, (Z[0], W[0])),
  "product": (lambda x: jnp.prod(x, 0), (Z,)),
  "mean-variance": (lambda x: x.mean(1) + jnp.var(x, 1), (Z,)),
  "cumsum": (lambda x: lax.cumsum(x, 1, reverse=True), (Z,)),
  "cumprod": (lambda x: lax.cumprod(x, 1, reverse=True), (Z,)),
  "cumlogsumexp": (lambda x: lax.cumlogsumexp(x, 1), (Z,)),
  "sort": (lambda x: jnp.sort(jnp.round(x), 1), (Z,)),
  "where": (lambda x, y: jnp.where(x.real > 0, x, y), (Z, W)),
  "gather": (lambda x: x[jnp.array([0, 4, -1])], (Z,)),
  "scatter-add": (lambda x: x.at[jnp.array([0, 0, 2])].add(1 + 2j), (Z,)),
  "scatter-set": (lambda x: x.at[jnp.array([0, 3])].set(2j), (Z,)),
  "dynamic-slice": (lambda x: lax.dynamic_update_slice(x, x[:2, :2] * 2, (1, 1)), (Z,)),
  "pad": (lambda x: lax.pad(x, jnp.complex64(2j), ((1, -1, 1), (0, 2, 0))), (Z,)),
  "moves": (lambda x: jnp.tile(jnp.roll(x.T, 3, 1)[::-1, ::2], (2, 1)), (Z,)),
  "diagonal": (lambda x: jnp.diag(x[0]) + jnp.triu(x[:, :1] * x[0]).sum(), (Z,)),
  "reduce-window": (lambda x: lax.reduce_window(x, 0j, lax.add, (2, 2), (1, 1), "VALID"), (Z,)),
  "to-bool": (lambda x: (x * (x.real > 0)).astype(bool), (Z,)),
  "solve": (lambda x: jnp.linalg.solve(x[:5, :5], x), (Z,)),
  "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.conj().T + 4 * jnp.eye(5)), (Z,)),
  "determinant": (lambda x: jnp.linalg.det(x[:5, :5]), (Z,)),
  "qr": (lambda x: jnp.concatenate(jnp.linalg.qr(jnp.stack([x.T, 0 * x.T])), 1), (Z,)),
  "complete-qr": (lambda x: jnp.concatenate(jnp.linalg.qr(x[:4, :3], "complete"), 1), (Z,)),
  "eigh": (lambda x: eigen(x @ x.conj().T), (Z,)),
  "eigh-of-one-number": (lambda x: eigen(x[:1, :1]), (Z,)),
  "svd": (lambda x: singular(jnp.stack([x, jnp.outer(x[:, 0], x[0]), 1e-30 * x])), (Z,)),
}


@pytest.mark.parametrize("name", list(_OPS))
def test_ops(name: str) -> None:
  fun, arrays = _OPS[name]
  check(fun, *arrays)


def recurrence(x: jax.Array, y: jax.Array) -> jax.Array:
  def combine(a: Any, b: Any) -> Any:
    return a[0] * b[0], b[0] * a[1] + b[1]

  return lax.associative_scan(combine, (x, y))[1]


_FLOW: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
  "associative-scan": (recurrence, (Z, W)),
  "scan": (lambda x: lax.scan(lambda c, v: (c * 0.5 + v, c), jnp.zeros_like(x[0]), x)[1], (Z,)),
  "scan-of-real": (lambda x: lax.scan(lambda c, v: (c + v.real.sum(), v * c), 0.0, x)[1], (Z,)),
  "while": (lambda x: lax.while_loop(lambda c: abs(c).max() < 9, lambda c: c * 1.5j, x), (Z,)),
  "fori": (lambda x: lax.fori_loop(0, 5, lambda i, c: c * x[i], x[0]), (Z,)),
  "cond": (lambda x: lax.cond(x[0, 0].real > 0, lambda v: v * 1j, lambda v: v + 1, x), (Z,)),
  "switch": (
    lambda x: lax.switch(x.real.sum().astype(int), [lambda v: v * 1j, jnp.conj, jnp.sin], x),
    (Z,),
  ),
  "gradient": (lambda x: jax.grad(lambda v: (abs(jnp.fft.fft(v)) ** 2).sum())(x), (Z,)),
  "gradient-at-0": (lambda x: jax.grad(lambda v: abs(v).sum())(x * 0), (Z,)),
  "gradient-of-quotient": (lambda x: jax.grad(lambda v: (1 / v).real.sum())(x), (Z,)),
  "gradient-of-scan": (
    lambda x: jax.grad(
      lambda v: abs(lax.scan(lambda c, u: (jnp.tanh(c + u), None), v[0], v)[0]).sum()
    )(x),
    (Z,),
  ),
  "nested": (lambda x: jax.vmap(lambda v: jnp.outer(v, v.conj()))(x), (Z,)),
}


@pytest.mark.parametrize("name", list(_FLOW))
def test_loops_branches_and_derivatives(name: str) -> None:
  fun, arrays = _FLOW[name]
  check(fun, *arrays)


def lattice(values: list[float]) -> np.ndarray:
  """All numbers with these parts; a product with 1j would lose signs of zero."""
  re, im = np.meshgrid(np.float32(values), np.float32(values), indexing="ij")
  z = np.empty(re.size, np.complex64)
  z.real, z.imag = re.ravel(), im.ravel()
  return z


# without subnormal numbers, which XLA and TensorFlow flush to 0
_FINITE = [0.0, -0.0, 1.0, -2.5, 3e38, 1e-30, 1e20, 80.0]
_HOSTILE = [*_FINITE, np.inf, -np.inf, np.nan]
# JAX 0.12: |inf + nan i| is inf, and NaN before; sinh, cosh of 1e-30 are flushed to 0 in part.
_FINITE_ONLY = ("abs", "sin", "cos", "tan", "tanh", "arccos")


@pytest.mark.parametrize("name", ["angle", "exp", "log", "sqrt", "reciprocal", *_FINITE_ONLY])
def test_hostile_operands(name: str) -> None:
  fun = getattr(jnp, name)
  z = lattice(_FINITE if name in _FINITE_ONLY else _HOSTILE)
  if name == "arccos":  # which overflows for both parts beyond 1e38
    z = z[(np.abs(z.real) < 1e38) | (np.abs(z.imag) < 1e38)]
  expected = np.asarray(jax.jit(fun)(z))
  result = answered(jax2tf.convert(fun), z)
  result = of_parts(result) if np.iscomplexobj(expected) else result
  assert not answers.problem(result, expected)


@pytest.mark.parametrize("name", ["divide", "power"])
def test_hostile_pairs_of_operands(name: str) -> None:
  fun = _OPS[name][0]
  # of others powers have an error of |y log x| roundings
  values = _HOSTILE if name == "divide" else [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan]
  x, y = (z.ravel() for z in np.meshgrid(lattice(values), lattice(values)))
  assert not answers.problem(
    of_parts(answered(jax2tf.convert(fun), x, y)), np.asarray(jax.jit(fun)(x, y))
  )


def test_large_hyperbolic_functions_do_not_overflow_early() -> None:
  z = np.complex64([89.2 + 1e-3j, -89.2 + 1.5707j, 89.2 + 3j])
  for fun in (jnp.exp, jnp.sinh, jnp.cosh):
    exact = getattr(np, fun.__name__)(z.astype(np.complex128))
    with np.errstate(over="ignore"):
      expected = exact.astype(np.complex64)
    result = of_parts(answered(jax2tf.convert(fun), z))
    np.testing.assert_allclose(in_parts(result), in_parts(expected), rtol=1e-5, atol=1e-37)


# matrices, factors, primes up to 128 and above, halves, powers of two, long matrices
_LENGTHS = (1, 2, 3, 7, 16, 64, 100, 127, 131, 254, 400, 1009, 1024, 16384)


@pytest.mark.parametrize("size", _LENGTHS)
def test_transforms_of_every_length(size: int) -> None:
  z = numbers(2, size)
  for fun, wide in (
    (jnp.fft.fft, np.fft.fft),
    (jnp.fft.ifft, np.fft.ifft),
    (lambda x: jnp.fft.rfft(x.real), lambda x: np.fft.rfft(x.real)),
    (lambda x: jnp.fft.irfft(x, size), lambda x: np.fft.irfft(x, size)),
  ):
    exact = wide(z.astype(np.complex128))
    result = answered(jax2tf.convert(fun), z)
    result = of_parts(result) if np.iscomplexobj(exact) else result
    # relative to the largest element, as terms cancel; JAX's own error is up to 3e-7
    assert np.max(np.abs(result - exact)) <= 2e-6 * np.max(np.abs(exact))


@pytest.mark.parametrize(
  "fun",
  [
    jnp.fft.fft2,
    lambda x: jnp.fft.ifftn(x, axes=(-3, -2, -1)),
    lambda x: jnp.fft.rfftn(x.real, axes=(-3, -2, -1)),
    lambda x: jnp.fft.irfftn(x, axes=(-3, -2, -1)),
    lambda x: jnp.fft.irfft2(x, (6, 9)),
    lambda x: jnp.fft.fft(x, 12, axis=1),
  ],
  ids=["fft2", "ifftn", "rfftn", "irfftn", "irfft2-cut", "fft-padded"],
)
def test_transforms_of_several_axes(fun: Any) -> None:
  check(fun, numbers(2, 3, 4, 6, 10))


def test_double_precision() -> None:
  z = (RNG.standard_normal((3, 200)) + 1j * RNG.standard_normal((3, 200))).astype(np.complex128)
  result = answered(lambda x: tf.signal.fft(tf.exp(x)), z)
  assert result.dtype == np.float64
  exact = np.fft.fft(np.exp(z))
  assert np.max(np.abs(of_parts(result) - exact)) <= 1e-14 * np.max(np.abs(exact))


def test_elementwise_ops_in_double_precision() -> None:
  """Their limits and constants depend on the dtype."""
  functions = [getattr(jnp, name) for name in _ELEMENTWISE.split() if not name.startswith("is")]
  parts = RNG.standard_normal((2, 40))
  large = [709.9 + 1.5j, -709.9 + 1j]  # near the largest exponential

  def fun(x: jax.Array, y: jax.Array) -> jax.Array:
    rows = [function(x) for function in functions]
    rows += [function(y) for function in (jnp.exp, jnp.sinh, jnp.cosh, jnp.tanh, jnp.arctanh)]
    return jnp.concatenate([row.astype(jnp.complex128) for row in rows])

  with jax.enable_x64(True):
    operands = parts[0] + 1j * parts[1], np.array(large)
    result = of_parts(answered(jax2tf.convert(fun), *operands))
    expected = np.asarray(jax.jit(fun)(*operands))
  assert result.dtype == np.complex128
  # exp multiplies the rounding of 709.9 by this number
  np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_a_batch_of_unknown_size() -> None:
  def fun(x: jax.Array) -> jax.Array:
    spectrum = jnp.fft.rfft(x, 24)
    return jnp.fft.irfft(spectrum * jnp.exp(1j * jnp.angle(spectrum)), 24).cumsum(1)

  converted = jax2tf.convert(fun, polymorphic_shapes=["a, b, _"])
  x = RNG.standard_normal((2, 3, 20)).astype(np.float32)
  result = answered(converted, x, specs=[tf.TensorSpec([None, None, 20], tf.float32)])
  np.testing.assert_allclose(result, jax.jit(fun)(x), atol=1e-5)


def test_parts_of_unknown_sizes_are_broadcast() -> None:
  """As tf.complex does: signs of zero stay."""
  re, im = np.float32([[-0.0, 1.0]]), np.float32([[2.0], [-0.0]])
  specs = [tf.TensorSpec([None, None], tf.float32)] * 2
  result = answered(lambda a, b: tf.math.conj(tf.complex(a, b)), re, im, specs=specs)
  expected = in_parts(tf.math.conj(tf.complex(*np.broadcast_arrays(re, im))).numpy())
  np.testing.assert_array_equal(result, expected)
  np.testing.assert_array_equal(np.signbit(result), np.signbit(expected))


def test_tensorflows_own_transforms() -> None:
  """call_tf of tf.signal.stft, and its inverse."""

  def frames(x: tf.Tensor) -> tf.Tensor:
    return tf.signal.stft(x, 100, 40, 128, pad_end=True)

  x = RNG.standard_normal((2, 500)).astype(np.float32)
  np.testing.assert_allclose(of_parts(answered(frames, x)), frames(x).numpy(), atol=2e-5)

  def there_and_back(x: tf.Tensor) -> tf.Tensor:
    return tf.signal.inverse_stft(frames(x), 100, 40, 128)

  np.testing.assert_allclose(answered(there_and_back, x), there_and_back(x).numpy(), atol=2e-5)


def test_complex_parameters_become_pairs(tmp_path: Path) -> None:
  params = {"w": numbers(8, 3)}
  model = saved_model.Model(params).add(
    lambda p, x: jnp.abs(lax.scan(lambda c, v: (c + v @ p["w"], None), 0j * p["w"][0], x)[0]),
    inputs={"x": "f32[4,8]"},
    outputs=["y"],
  )
  directory = model.save(tmp_path)
  loaded = tf.saved_model.load(directory)
  graph = freezing.frozen(loaded.signatures["serving_default"], {})
  x = RNG.standard_normal((4, 8)).astype(np.float32)
  np.testing.assert_allclose(graph(x=x)["y"], np.abs(x.sum(0) @ params["w"]), rtol=1e-5)


def test_ops_without_a_form_are_listed() -> None:
  def fun(x: jax.Array) -> Any:
    return jnp.linalg.eigvals(x), jnp.fft.fft(x, axis=0)

  converted = jax2tf.convert(fun, polymorphic_shapes=["b, b"])
  with pytest.raises(UnpairedOpsError) as error:
    frozen(lambda x: converted(x)[0] + converted(x)[1][0], tf.TensorSpec([None, None], "complex64"))
  assert set(error.value.ops) == {"Eig", "FFT"}
  assert "unknown length" in error.value.ops["FFT"]


def test_each_op_has_one_rule() -> None:
  with pytest.raises(ValueError, match=r"Mul of pairs already has a rule, _elementwise"):
    of_pairs("Mul")(lambda op, x, y: [x])
