"""Methods and partials of functions that `jax.jit` wraps with `self`, or another bound argument,
static."""

import functools
import importlib

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from jax2tf._jax_compat import jit_info
from jax2tf.converters import saved_model
from tests.support.case import close

X = np.arange(3, dtype=np.float32)


class Net:
  """JAX's FAQ, "How to use jit with methods": `self` is static, by its number or its name."""

  def __init__(self, k):
    self.k = k

  @functools.partial(jax.jit, static_argnums=0)
  def by_number(self, x):
    return x * self.k

  @functools.partial(jax.jit, static_argnames="self")
  def by_name(self, x):
    return x * self.k

  @functools.partial(jax.jit, static_argnums=(0, 2))
  def power(self, x, n):
    return x * self.k**n if isinstance(n, int) else None

  @functools.partial(jax.jit, static_argnums=(-1, 0))
  def from_the_end(self, x, n):
    return x * self.k**n if isinstance(n, int) else None

  @functools.partial(jax.jit, static_argnames=("self", "n"))
  def keyword_only(self, x, *, n):
    return x * self.k**n if isinstance(n, int) else None

  @classmethod
  @functools.partial(jax.jit, static_argnums=(0, 2))
  def of_class(cls, x, n):
    return x * 2**n if isinstance(n, int) else None

  @functools.partial(jax.jit, static_argnums=(0, 2))
  def __call__(self, x, n):
    return x * self.k**n if isinstance(n, int) else None

  cubed = functools.partialmethod(power, n=3)


class Weights:
  """A pytree node with a method that `jax.jit` traces for its leaves."""

  def __init__(self, w):
    self.w = w

  @jax.jit
  def __matmul__(self, x):
    return self.w @ x

  @functools.partial(jax.jit, static_argnums=2)
  def scaled(self, x, n):
    return self.w @ x * n if isinstance(n, int) else None


jax.tree_util.register_pytree_node(
  Weights, lambda node: ((node.w,), None), lambda _, leaves: Weights(*leaves)
)

NET = Net(3.0)
WEIGHTS = Weights(np.ones((2, 3), np.float32))
add = jnp.frompyfunc(lambda a, b: a + b, 2, 1, identity=0)

ROWS = {
  "static number": (NET.by_number, (X,), {}),
  "static name": (NET.by_name, (X,), {}),
  "two static numbers": (NET.power, (X, 2), {}),
  "a number by name": (NET.power, (X,), {"n": 2}),
  "numbers from the end": (NET.from_the_end, (X, 2), {}),
  "keyword only": (NET.keyword_only, (X,), {"n": 2}),
  "classmethod": (Net.of_class, (X, 2), {}),
  "object": (NET, (X, 2), {}),
  "partialmethod": (NET.cubed, (X,), {}),
  "partial": (functools.partial(Net.power, NET), (X, 2), {}),
  "partial with a keyword": (functools.partial(Net.power, NET, n=2), (X,), {}),
  "partial with another keyword": (functools.partial(Net.power, NET, n=2), (X,), {"n": 3}),
  "partial of a method": (functools.partial(NET.power, X, 2), (), {}),
  "a node as self": (WEIGHTS.__matmul__, (X,), {}),
  "a node as self and a static number": (WEIGHTS.scaled, (X, 2), {}),
  "jnp.add.outer": (jnp.add.outer, (X, X), {}),
  "ufunc.reduce": (add.reduce, (X,), {}),
  "ufunc.reduce with a static axis": (add.reduce, (np.ones((2, 3), np.float32),), {"axis": 1}),
}


@pytest.mark.parametrize("name", ROWS)
def test_bound_arguments_are_not_counted(name):
  fun, args, kwargs = ROWS[name]
  expected = fun(*args, **kwargs)
  converted = jax2tf.convert(fun)
  close(converted(*args, **kwargs), expected)
  arrays = [a for a in args if isinstance(a, np.ndarray)]
  rest = args[len(arrays) :]
  in_graph = tf.function(lambda *arrays: converted(*arrays, *rest, **kwargs), autograph=False)
  close(in_graph(*arrays), expected)


def test_a_method_of_any_batch_has_gradients_and_is_pickled():
  converted = jax2tf.convert(NET.by_number, polymorphic_shapes="b")
  in_graph = tf.function(converted, input_signature=[tf.TensorSpec([None])], autograph=False)
  close(in_graph(X), NET.by_number(X))
  x = tf.Variable(X)
  with tf.GradientTape() as tape:
    y = converted(x)
  close(tape.gradient(y, x), np.full(3, 3, np.float32))
  copied = cloudpickle.loads(cloudpickle.dumps(jax2tf.convert(NET.power)))
  close(copied(X, 2), NET.power(X, 2))


def test_a_method_is_saved(tmp_path):
  class Model:
    @functools.partial(jax.jit, static_argnums=0)
    def apply(self, params, x):
      return x @ params

  params = np.arange(6, dtype=np.float32).reshape(3, 2)
  folder = saved_model.save(Model().apply, params, tmp_path, inputs={"x": "f32[b,3]"})
  (result,) = tf.saved_model.load(str(folder)).signatures["serving_default"](x=X[None]).values()
  close(result, X[None] @ params)


def test_a_method_with_a_ref():
  class Counter:
    @functools.partial(jax.jit, static_argnums=(0, 2))
    def add(self, ref, n):
      assert isinstance(n, int)
      ref[...] += n

  variable = tf.Variable(1.0)
  jax2tf.convert(Counter().add)(jax2tf.Ref(variable), 3)
  assert variable.numpy() == 4.0


def test_a_static_self_that_changes_is_traced_again_as_by_jax():
  class Hashed(Net):
    def __hash__(self):
      return hash(self.k)

    def __eq__(self, other):
      return self.k == other.k

  net = Hashed(2.0)
  converted = jax2tf.convert(net.by_number)
  close(converted(X), X * 2)
  net.k = 5.0
  close(converted(X), net.by_number(X))


def test_a_static_self_that_is_not_hashable():
  class Unhashable(Net):
    __hash__ = None

  with pytest.raises(
    ValueError, match="Non-hashable static arguments are used in 'by_number': argument 0"
  ):
    jax2tf.convert(Unhashable(2.0).by_number)(X)


def test_another_librarys_jit_is_called():
  nnx = pytest.importorskip("flax.nnx")
  model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
  fun = nnx.jit(lambda x: model(x))
  close(jax2tf.convert(fun)(X), fun(X))


def test_jitted_functions_are_known_where_a_program_replaces_jax_jit(monkeypatch):
  """JAX's tests do, and so do profilers: what is imported after that sees another `jax.jit`."""
  monkeypatch.setattr(jax, "jit", lambda fun, **options: functools.partial(fun))
  reloaded = importlib.reload(jit_info)
  assert reloaded.is_jitted(add_jitted)


@jax.jit
def add_jitted(x):
  return x + 1
