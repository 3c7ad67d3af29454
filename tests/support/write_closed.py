"""Writes closed SavedModels, of XlaCallModule and Xla* ops, and what their functions compute:
python write_closed.py FOLDER graph|upstream|keras|native [MODEL ...]

`graph` and `upstream` are JAX's own jax2tf, without and with native serialization (`graph` needs
JAX 0.4.38 or older); `keras` is `model.export` of Keras 3 with the backend JAX; `native` is this
package with native serialization. Beside the first three it imports only JAX, NumPy and TensorFlow.
For each model FOLDER has the SavedModel `<way>-<JAX>-<model>` and an .npz of the same name: inputs
(`x`, or several names), and outputs `y0`, `y1` ... in the order of the names of the signature.
"""

import os
import sys
import warnings

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["KERAS_BACKEND"] = "jax"
warnings.simplefilter("ignore")
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from jax import lax  # noqa: E402

RNG = np.random.RandomState(0)
NHWC = ("NHWC", "HWIO", "NHWC")


def normal(*shape):
  return (0.3 * RNG.randn(*shape)).astype(np.float32)


def cnn(params, x):
  y = lax.conv_general_dilated(x, params["k"], (1, 1), "SAME", dimension_numbers=NHWC)
  window = (1, 2, 2, 1)
  y = lax.reduce_window(jax.nn.gelu(y), -jnp.inf, lax.max, window, window, "VALID")
  return jax.nn.softmax(y.reshape(y.shape[0], -1) @ params["w"])


@jax.custom_vjp
def clipped(x):
  return x * 2.0


clipped.defvjp(lambda x: (clipped(x), None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


def rnn(params, x):
  """A loop, a custom rule, a top_k and a sort."""

  def step(state, x):
    state = jnp.tanh(state @ params["w"] + x)
    return state, state.sum(1)

  last, sums = lax.scan(step, jnp.zeros((x.shape[0], 4)), jnp.swapaxes(x, 0, 1))
  return clipped(last), sums, lax.top_k(last, 2)[1], jnp.sort(last, 1)


def attention(params, x):
  """A block of a transformer, over sequences of any length."""
  q, k, v = jnp.split(x @ params["qkv"], 3, -1)
  logits = jnp.einsum("bqd,bkd->bqk", q, k) / np.float32(np.sqrt(8))
  mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
  y = x + jax.nn.softmax(jnp.where(mask, logits, -1e9)) @ v @ params["out"]
  mean, variance = y.mean(-1, keepdims=True), y.var(-1, keepdims=True)
  return (y - mean) * lax.rsqrt(variance + 1e-5) * params["scale"]


def mlp(params, x):
  for w, b in params["layers"]:
    x = jax.nn.gelu(x @ w + b)
  return x


def orders(params, x):
  """Ops of graph lowering: XlaSort, XlaGather, XlaVariadicReduceV2, XlaReduceWindow, XlaScatter."""
  return (
    jnp.sort(x, 1),
    jnp.argmax(x, 1),
    x[jnp.array([2, 0])],
    jnp.cumsum(x, 0),
    jnp.asarray(x).at[jnp.array([1, 1]), :2].add(params["w"]),
    jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
    lax.reduce_window(x, -jnp.inf, lax.max, (2, 3), (1, 2), "SAME"),
  )


def windows(params, x):
  """A grouped and dilated convolution, XlaPad, XlaDynamicSlice and XlaDynamicUpdateSlice."""
  y = lax.conv_general_dilated(
    x, params["k"], (2, 2), [(1, 0), (2, 1)], rhs_dilation=(2, 1), lhs_dilation=(1, 2),
    dimension_numbers=NHWC, feature_group_count=4,
  )  # fmt: skip
  start = jnp.int32(x[0, 0, 0, 0])
  y = lax.dynamic_update_slice(y, y[:, :1] * 3, (0, start, 0, 0))
  return lax.pad(y, np.float32(1.5), [(0, 0, 0), (1, -1, 2), (0, 3, 0), (0, 0, 0)])


def draws(params, x):
  key = jax.random.PRNGKey(0)
  bits = lax.rng_bit_generator(jnp.arange(4, dtype=jnp.uint32), (3,))[1]
  return x + params["w"] * jax.random.normal(key, x.shape), bits


# {model: (function, parameters, symbolic shape or None for the shape of the input, its shape)}
MODELS = {
  "cnn": (cnn, {"k": normal(3, 3, 3, 4), "w": normal(64, 10)}, "b, 8, 8, 3", (3, 8, 8, 3)),
  "rnn": (rnn, {"w": normal(4, 4)}, "b, 5, 4", (3, 5, 4)),
  "attention": (
    attention,
    {"qkv": normal(8, 24), "out": normal(8, 8), "scale": normal(8)},
    "b, t, 8",
    (2, 5, 8),
  ),
  "mlp": (mlp, {"layers": [(normal(4, 6), normal(6)), (normal(6, 3), normal(3))]}, "b, 4", (5, 4)),
  "orders": (orders, {"w": np.float32(2)}, None, (5, 4)),
  "windows": (windows, {"k": normal(3, 3, 1, 8)}, None, (2, 9, 9, 4)),
  "draws": (draws, {"w": np.float32(0.5)}, None, (5, 4)),
}
OF_WAY = {
  "graph": ("cnn", "rnn", "attention", "orders", "windows", "draws"),
  "upstream": ("cnn", "rnn", "attention", "mlp"),
  "native": ("cnn", "rnn", "attention", "draws"),
}


class Box(tf.Module):
  """A SavedModel with variables, an asset, and a table behind its own signature."""


def _saved(module, signatures, folder, name):
  options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
  tf.saved_model.save(module, f"{folder}/{name}", signatures=signatures, options=options)


def _flat(results):
  leaves = jax.tree_util.tree_leaves(results)
  return {f"y{i}": np.asarray(v) for i, v in enumerate(leaves)}


def save(convert, name, folder, model, **options):
  """Saves one model of `MODELS`."""
  function, params, symbolic, shape = MODELS[model]
  module = Box()
  module.params = tf.nest.map_structure(tf.Variable, params)
  sizes = None
  if symbolic:
    sizes = [None if part.strip().isalpha() else int(part) for part in symbolic.split(",")]
  converted = convert(function, polymorphic_shapes=[None, symbolic], **options)

  @tf.function(input_signature=[tf.TensorSpec(sizes or shape, tf.float32, "x")], autograph=False)
  def predict(x):
    return {f"y{i}": v for i, v in enumerate(tf.nest.flatten(converted(module.params, x)))}

  module.predict = predict
  _saved(module, {"serving_default": predict}, folder, name)
  x = normal(*shape) / 0.3
  np.savez(f"{folder}/{name}.npz", x=x, **_flat(function(params, x)))


def graph(folder, chosen):
  from jax.experimental import jax2tf  # noqa: PLC0415

  for model in chosen or OF_WAY["graph"]:
    name = f"graph-{jax.__version__}-{model}"
    options = {"native_serialization": False, "enable_xla": True, "with_gradient": model == "cnn"}
    save(jax2tf.convert, name, folder, model, **options)


def upstream(folder, chosen):
  from jax.experimental import jax2tf  # noqa: PLC0415

  for model in chosen or OF_WAY["upstream"]:
    save(jax2tf.convert, f"upstream-{jax.__version__}-{model}", folder, model)


def native(folder, chosen):
  import jax2tf  # noqa: PLC0415

  for model in chosen or (*OF_WAY["native"], "loop"):
    name = f"native-{jax.__version__}-{model}"
    if model == "loop":
      save_loop(jax2tf.convert, folder, name)
    else:
      save(jax2tf.convert, name, folder, model, native_serialization=True)


def save_loop(convert, folder, name):
  """Two signatures around modules: one in a tf.while_loop and a tf.cond, one that changes a
  variable; and an asset."""
  module = Box()
  module.w, module.calls = tf.Variable(normal(4, 4)), tf.Variable(0, dtype=tf.int64)
  vocabulary = os.path.join(folder, "words.txt")
  with open(vocabulary, "w") as file:
    file.write("one\ntwo\nthree\n")
  module.words = tf.saved_model.Asset(vocabulary)
  step = convert(lambda x, w: jnp.tanh(x @ w), polymorphic_shapes=["b, 4", None],
                 native_serialization=True)  # fmt: skip
  scaled = convert(lambda x: x * 2 + jnp.sin(x), polymorphic_shapes=["b, 4"],
                   native_serialization=True)  # fmt: skip
  spec = [tf.TensorSpec([None, 4], tf.float32, "x")]

  @tf.function(input_signature=spec, autograph=False)
  def looped(x):
    _, y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, step(y, module.w)), (0, x))
    return {"y0": tf.cond(tf.reduce_sum(x) > 0, lambda: scaled(y), lambda: y)}

  @tf.function(input_signature=spec, autograph=False)
  def counted(x):
    module.calls.assign_add(1)
    return {"calls": module.calls.read_value(), "y0": scaled(x)}

  module.looped, module.counted = looped, counted
  _saved(module, {"serving_default": looped, "counted": counted}, folder, name)
  os.unlink(vocabulary)
  x = normal(3, 4)
  y = x
  for _ in range(3):
    y = np.tanh(y @ module.w.numpy())
  np.savez(f"{folder}/{name}.npz", x=x, y0=y * 2 + np.sin(y) if x.sum() > 0 else y)


def keras(folder, chosen, **options):
  """With options of `jax2tf.convert`, which Keras else tells to serialize natively."""
  import keras  # noqa: PLC0415

  layers = keras.layers
  keras.utils.set_random_seed(0)
  image, ids = keras.Input((16, 16, 3), name="x"), keras.Input((12,), dtype="int32", name="x")
  series = keras.Input((6, 4), name="x")
  y = layers.Conv2D(8, 3, activation="relu")(image)
  y = layers.MaxPooling2D()(layers.BatchNormalization()(y))
  y = layers.Dropout(0.5)(layers.Flatten()(y))
  models = {"cnn": (keras.Model(image, layers.Dense(5, activation="softmax")(y)), image)}
  y = layers.Embedding(30, 16)(ids)
  y = layers.LayerNormalization()(y + layers.MultiHeadAttention(2, 8)(y, y))
  models["text"] = keras.Model(ids, layers.Dense(2)(layers.LSTM(8)(y))), ids
  y = layers.Bidirectional(layers.GRU(5, return_sequences=True))(series)
  models["rnn"] = keras.Model(series, layers.Dense(3)(layers.GlobalMaxPooling1D()(y))), series
  y = layers.GaussianNoise(0.5)(layers.Dense(3)(series), training=True)
  models["seeded"] = keras.Model(series, y), series
  for model in chosen or models:
    network, of = models[model]
    name = f"keras-{jax.__version__}-{model}"
    shape = (3, *of.shape[1:])
    x = RNG.randint(0, 30, shape).astype(np.int32) if model == "text" else normal(*shape)
    network.export(f"{folder}/{name}", verbose=False, jax2tf_kwargs=options)
    # a call changes the state of its seeds, which the SavedModel has from before
    np.savez(f"{folder}/{name}.npz", x=x, y0=np.asarray(network(x)))


if __name__ == "__main__":
  {"graph": graph, "upstream": upstream, "keras": keras, "native": native}[sys.argv[2]](
    sys.argv[1], sys.argv[3:]
  )
