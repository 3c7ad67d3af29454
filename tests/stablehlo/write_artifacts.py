"""Writes files of `jax.export` with the JAX at hand, and what that JAX computes:
python write_artifacts.py FOLDER [CASE ...]

It imports only JAX and NumPy, because it runs in environments of JAX 0.4.26 and newer, without this
package. The file FOLDER/jax-<version>.tar.xz has, of each case, `<case>.bin` (the artifact),
`<case>.npz` (arguments, results and, where the artifact has derivatives, the gradient) and
`manifest.json`: the versions, the shapes of the arguments, and which cases this JAX refuses.
"""

import functools
import io
import json
import platform
import sys
import tarfile
import warnings

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax import lax

try:
  from jax import export
except ImportError:  # JAX 0.4.29 and older
  from jax.experimental import export

try:
  enable_x64 = jax.enable_x64
except AttributeError:
  from jax.experimental import enable_x64

RNG = np.random.RandomState(0)


def normal(*shape):
  return RNG.randn(*shape).astype(np.float32)


def mlp(x, w):
  return jax.nn.softmax(jax.nn.gelu(x @ w) @ w.T)


def convnet(x, w):
  y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
  window = (1, 2, 2, 1)
  pooled = lax.reduce_window(jax.nn.relu(y), -jnp.inf, lax.max, window, window, "VALID")
  return jnp.mean(pooled, (1, 2))


def rnn(x, w):
  def step(state, x):
    state = jnp.tanh(state @ w + x)
    return state, state.sum(1)

  return lax.scan(step, jnp.zeros((x.shape[1], w.shape[0])), x)


def sampling(x):
  key = jax.random.PRNGKey(3)
  return (
    jax.random.normal(key, x.shape) + x,
    jax.random.categorical(key, x),
    jax.random.permutation(key, 8),
  )


def orders(x):
  return (
    jnp.sort(x, -1),
    jnp.argsort(x, -1),
    jnp.argmax(x, -1),
    lax.top_k(x, 2),
    jnp.cumsum(x, 1),
    jax.scipy.special.erf(x),
    jnp.median(x),
  )


def matrices(a):
  s = a @ a.T + 5 * jnp.eye(4)
  return (
    jnp.linalg.cholesky(s),
    jnp.linalg.solve(s, a),
    jnp.abs(jnp.linalg.qr(a)[1]),
    jnp.linalg.svd(a, compute_uv=False),
    jnp.linalg.eigvalsh(s),
    jnp.linalg.det(s),
  )


def indexing(x, i):
  return (
    x[i],
    x.at[i].add(1.0),
    x.at[i, 0].set(2.0),
    jnp.take_along_axis(x[i], i[:, None] % 3, 1),
    jnp.fft.fft(x).real,
  )


@jax.custom_vjp
def clipped(x):
  return 2 * x


clipped.defvjp(lambda x: (clipped(x), None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


def custom_rule(x, w):
  return clipped(jnp.tanh(x @ w))


def trees(params, x, *, scale):
  hidden = jnp.tanh(x @ params["layers"][0]["w"] + params["layers"][0]["b"])
  return {"logits": hidden @ params["head"], "parts": (hidden, [scale * x, None])}


def typed_key(key, x):
  first, second = jax.random.split(key)
  return x + jax.random.normal(first, x.shape), jax.random.key_data(second)


def dtypes(x, n):
  """Constants and values of the dtypes that a reader of MLIR attributes meets seldom."""
  bits = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0x80000000], np.uint32)
  return (
    x.astype(jnp.bfloat16) * jnp.array([0.1, -jnp.inf, 3e38, -0.0], jnp.bfloat16),
    x.astype(jnp.float16) + jnp.array([1e-7, 65504, -2, 0], jnp.float16),
    x + jnp.array([1 + 2j, -0.5j, 3, -0.0], jnp.complex64),
    n + jnp.array([1, -128, 127, 3], jnp.int8),
    jnp.array([2**32 - 1, 0, 7, 1], jnp.uint32) * n.astype(jnp.uint32),
    jnp.array([True, False, True, True]) & (x > 0),
    bits.view(np.float32) * x,
    jnp.zeros((0, 4), jnp.float32) + x,
    jnp.array([0.5, 448, -2, 1], jnp.float8_e4m3fn).astype(jnp.float32) * x,
  )


def four_bits(n):
  return n.astype(jnp.int4) + jnp.array([1, -8, 7, 3], jnp.int4)


def loops(x, n):
  halved = lax.while_loop(lambda s: s.sum() > 1, lambda s: s / 2, jnp.abs(x))
  counted = lax.fori_loop(0, 3, lambda i, s: s * 1.1 + i, x)
  branch = lax.switch(n, [jnp.sin, jnp.cos, lambda x: x * 2], x)
  return halved, counted, branch, lax.cond(n > 0, lambda: x + 1, lambda: x - 1)


@jax.jit
def block(x, w):
  return x + jnp.tanh(x @ w)


def shared(x, w):
  """Calls of one function, which the module has once."""
  return block(block(block(x, w), w), w.T)


def wide(x, n):
  return jnp.sin(x) * 1e300, n // 3 + 2**40, jnp.linalg.norm(x), jnp.cumsum(n)


def mixed_sizes(x, y):
  return (
    jnp.concatenate([x, y], 0),
    jnp.repeat(x, 2, 1),
    jnp.pad(y, [(1, 2), (0, 0)]),
    jnp.arange(x.shape[0]) * y.shape[0],
    x.reshape(-1),
  )


def _cases():
  """{case: (function, symbolic shapes or None for static ones, arguments, keyword arguments,
  order of derivatives)}."""
  four = normal(4)
  return {
    "mlp": (mlp, ["b, 4", "4, 5"], [normal(6, 4), normal(4, 5)], {}, 0),
    "convnet": (
      convnet, ["2*b, 8, 8, 3", "3, 3, 3, 4"], [normal(4, 8, 8, 3), normal(3, 3, 3, 4)], {}, 0,
    ),
    "rnn": (rnn, ["5, b, 4", "4, 4"], [normal(5, 3, 4), normal(4, 4)], {}, 1),
    "sampling": (sampling, ["b, 4"], [normal(3, 4)], {}, 0),
    "orders": (orders, ["b, 6"], [normal(3, 6)], {}, 0),
    "matrices": (matrices, None, [normal(4, 4)], {}, 0),
    "indexing": (indexing, ["7, 3", "b"], [normal(7, 3), np.array([1, 6, 2, 1], np.int32)], {}, 0),
    "custom_rule": (custom_rule, ["b, 4", "4, 3"], [normal(2, 4), normal(4, 3)], {}, 1),
    "trees": (
      trees,
      None,
      [
        {"layers": [{"w": normal(3, 4), "b": normal(4)}], "head": normal(4, 2)},
        normal(2, 3),
      ],
      {"scale": np.float32(1.5)},
      0,
    ),
    "typed_key": (typed_key, None, ["key", normal(2, 3)], {}, 0),
    "dtypes": (dtypes, None, [four, np.array([5, -3, 2, 100], np.int8)], {}, 0),
    "four_bits": (four_bits, None, [np.array([5, -3, 2, 7], np.int8)], {}, 0),
    "loops": (loops, ["b", ""], [normal(5), np.int32(1)], {}, 0),
    "shared": (shared, ["b, 4", "4, 4"], [normal(3, 4), normal(4, 4)], {}, 1),
    "wide": (wide, None, [normal(4).astype(np.float64), np.array([10, 2**41, -7])], {}, 0),
    "mixed_sizes": (mixed_sizes, ["b, 4", "c, 4"], [normal(2, 4), normal(3, 4)], {}, 0),
  }  # fmt: skip


def _specs(shapes, args, kwargs):
  """The arguments as jax.ShapeDtypeStructs, with symbolic sizes."""
  struct = lambda x: jax.ShapeDtypeStruct(np.shape(x), x.dtype)  # noqa: E731
  if shapes is None:
    return jax.tree_util.tree_map(struct, (args, kwargs))
  scope = export.SymbolicScope()
  sizes = [export.symbolic_shape(text, scope=scope) for text in shapes]
  return [jax.ShapeDtypeStruct(s, x.dtype) for s, x in zip(sizes, args, strict=True)], kwargs


def _export(function, shapes, args, kwargs, order):
  specs, named = _specs(shapes, args, kwargs)
  exported = export.export(jax.jit(function))(*specs, **named)
  if hasattr(exported, "serialize"):
    return exported, bytes(exported.serialize(vjp_order=order))
  return exported, bytes(export.serialize(exported, vjp_order=order))


def _total(function, kwargs, *args):
  leaves = jax.tree_util.tree_leaves(function(*args, **kwargs))
  return sum(jnp.sum(jnp.sin(x)) for x in leaves if jnp.issubdtype(x.dtype, jnp.floating))


def _stored(prefix, values):
  """{"in0.float32": array}: arrays that NumPy alone can read, with the dtypes that they stand for.
  Values of narrow floats are stored as float32 and those of four bits as int8, without loss."""
  arrays = {}
  for i, value in enumerate(values):
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
      arrays[f"{prefix}{i}.key<fry>"] = np.asarray(jax.random.key_data(value))
      continue
    array = np.asarray(value)
    plain = array.dtype.kind in "biufc"
    narrow = np.int8 if "int" in array.dtype.name else np.float32
    arrays[f"{prefix}{i}.{array.dtype.name}"] = array if plain else array.astype(narrow)
  return arrays


def _add(archive, name, data):
  member = tarfile.TarInfo(name)
  member.size = len(data)
  archive.addfile(member, io.BytesIO(data))


def _written(archive, name, case):
  """What the manifest says of a case, whose files it adds to the archive."""
  function, shapes, args, kwargs, order = case
  args = [jax.random.key(7) if isinstance(x, str) else x for x in args]
  exported, blob = _export(function, shapes, args, kwargs, order)
  leaves = jax.tree_util.tree_leaves
  arrays = _stored("in", leaves((args, kwargs)))
  arrays.update(_stored("out", leaves(jax.jit(function)(*args, **kwargs))))
  if order:
    total = functools.partial(_total, function, kwargs)
    arrays.update(_stored("grad", jax.grad(total, tuple(range(len(args))))(*args)))
  values = io.BytesIO()
  np.savez(values, **arrays)
  _add(archive, f"{name}.bin", blob)
  _add(archive, f"{name}.npz", values.getvalue())
  version = getattr(exported, "calling_convention_version", None)
  if version is None:
    version = exported.mlir_module_serialization_version
  return {
    "bytes": len(blob),
    "calling_convention_version": version,
    "in_avals": [str(a) for a in exported.in_avals],
    "vjp_order": order,
  }


def main(folder, chosen):
  """Writes the archive; says on stdout which cases this JAX does not export."""
  warnings.simplefilter("ignore")
  manifest = {
    "versions": {
      "jax": jax.__version__,
      "jaxlib": jaxlib.version.__version__,
      "numpy": np.__version__,
      "python": platform.python_version(),
    },
    "cases": {},
    "refused": {},
  }
  path = f"{folder}/jax-{jax.__version__}.tar.xz"
  with tarfile.open(path, "w:xz") as archive:
    for name, case in _cases().items():
      if chosen and name not in chosen:
        continue
      try:
        with enable_x64(name == "wide"):
          manifest["cases"][name] = _written(archive, name, case)
      except Exception as problem:
        words = " ".join(str(problem).split())
        manifest["refused"][name] = f"{type(problem).__name__}: {words[:160]}"
        print(jax.__version__, name, manifest["refused"][name])
    _add(archive, "manifest.json", json.dumps(manifest, indent=1).encode())


if __name__ == "__main__":
  main(sys.argv[1], sys.argv[2:])
