"""Converted functions inside tf.data: in parallel, on ragged rows, kept in files, resumed, and on
workers that have no JAX."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import jax2tf
from tests.support.case import close

RNG = np.random.default_rng(0)
X = RNG.standard_normal((24, 4)).astype(np.float32)
PARAMS = {"w": RNG.standard_normal((4, 3)).astype(np.float32)}
ROWS = tf.data.Dataset.from_tensor_slices(X)
service = tf.data.experimental.service


def predict(params, x):
  return jax.lax.fori_loop(0, 2, lambda _, y: jnp.sin(y), x @ params["w"])


def noisy(i, x):
  """f32[n] -> f32[n]; the number of a row makes its random numbers, wherever and in whatever order
  they are drawn."""
  return x + jax.random.normal(jax.random.fold_in(jax.random.key(0), i), x.shape)


CONVERTED = jax2tf.convert(predict, polymorphic_shapes=[None, "b, _"], with_gradient=False)
NOISY = jax2tf.convert(noisy, with_gradient=False)
EXPECTED = jax.jit(predict)(PARAMS, X)


def mapped(params: Any = PARAMS, size: int = 7) -> Any:
  return ROWS.batch(size).map(lambda x: CONVERTED(params, x), num_parallel_calls=tf.data.AUTOTUNE)


def joined(dataset: Any) -> np.ndarray:
  return np.concatenate(list(dataset.as_numpy_iterator()))


def close_to_jax(found: Any, expected: Any = EXPECTED) -> None:
  """Within the tolerance of the largest value: the products sum in another order than XLA's, and
  the small results cancel."""
  close(found, expected, of_the_largest=True)


def test_map_in_parallel_with_a_last_batch_of_another_size():
  close_to_jax(joined(mapped().prefetch(tf.data.AUTOTUNE)))


def test_ragged_rows_with_a_mask():
  rows = tf.RaggedTensor.from_row_lengths(X.reshape(-1), [3, 1, 32, 0, 60])

  def of_lengths(x, lengths):
    return jnp.where(jnp.arange(x.shape[1]) < lengths[:, None], jnp.exp(x), 0).sum(1)

  converted = jax2tf.convert(of_lengths, polymorphic_shapes=["b, t", "b"], with_gradient=False)
  dataset = (
    tf.data.Dataset.from_tensor_slices(rows)
    .ragged_batch(2)
    .map(lambda r: converted(r.to_tensor(), r.row_lengths()))
  )
  close(
    joined(dataset), np.array([np.exp(row).sum() for row in rows.to_list()], np.float32), rtol=1e-5
  )


def test_a_snapshot_is_read_without_the_function(tmp_path):
  variables = {"w": tf.Variable(PARAMS["w"])}
  dataset = mapped(variables).snapshot(str(tmp_path))
  close_to_jax(joined(dataset))
  variables["w"].assign(0 * variables["w"])
  close_to_jax(joined(dataset))
  assert not joined(mapped(variables)).any()  # without a snapshot, what the variables hold now


def test_an_iterator_goes_on_where_its_checkpoint_was(tmp_path):
  first, second = iter(mapped()), iter(mapped())
  next(first)
  path = tf.train.Checkpoint(iterator=first).save(str(tmp_path / "it"))
  tf.train.Checkpoint(iterator=second).restore(path).assert_consumed()
  assert [y.shape[0] for y in first] == [7, 7, 3]
  close_to_jax(np.concatenate([y.numpy() for y in second]), EXPECTED[7:])


SERVER = """
import sys, tensorflow as tf
service = tf.data.experimental.service
if len(sys.argv) == 1:
  server = service.DispatchServer()
  print(server.target.partition("://")[2], flush=True)
else:
  server = service.WorkerServer(service.WorkerConfig(sys.argv[1]))
  print("ready", flush=True)
assert sys.modules["jax"] is None
sys.stdin.read()
"""


@contextlib.contextmanager
def served(python: str, *arguments: str) -> Iterator[str]:
  """A server in a process without JAX, which ends with its input, and its first line."""
  with subprocess.Popen(
    [python, "-c", SERVER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
  ) as process:
    assert process.stdout
    yield process.stdout.readline().strip()
    process.communicate(timeout=30)


def within(seconds: float, compute: Any) -> Any:
  """What `compute()` gives: a dataset of a service without workers waits for some without end."""
  found: list[Any] = []
  thread = threading.Thread(target=lambda: found.append(compute()), daemon=True)
  thread.start()
  thread.join(seconds)
  assert found, f"nothing within {seconds} s"
  return found[0]


@pytest.fixture(scope="module")
def workers(without_jax: str) -> Iterator[str]:
  """The address of a dispatcher with two workers."""
  with (
    served(without_jax) as address,
    served(without_jax, address) as one,
    served(without_jax, address) as two,
  ):
    assert (one, two) == ("ready", "ready")
    yield f"grpc://{address}"


def distributed(dataset: Any, workers: str) -> Any:
  return dataset.apply(service.distribute(service.ShardingPolicy.DYNAMIC, workers))


def test_workers_without_jax_share_the_rows(workers):
  # The numbers are in the source: those of `enumerate` belong to other rows here, for each worker
  # counts for itself (TF 2.21).
  numbered = tf.data.Dataset.from_tensor_slices((np.arange(24, dtype=np.uint32), X))
  rows = distributed(
    numbered.map(lambda i, x: (i, CONVERTED(PARAMS, x[None])[0], NOISY(i, x))), workers
  )
  found = sorted(within(60, lambda: list(rows.as_numpy_iterator())), key=lambda row: row[0])
  assert [i for i, *_ in found] == [*range(24)]
  close_to_jax(np.stack([y for _, y, _ in found]))
  close(np.stack([z for *_, z in found]), jax.vmap(noisy)(np.arange(24, dtype=np.uint32), X))


def test_workers_have_the_variables_of_when_the_dataset_was_made(workers):
  variables = {"w": tf.Variable(PARAMS["w"])}
  before = distributed(mapped(variables, 24), workers)
  variables["w"].assign(2 * variables["w"])
  found = within(60, lambda: joined(before))
  # the workers take turns as they like
  close_to_jax(found[np.argsort(found[:, 0])], EXPECTED[np.argsort(EXPECTED[:, 0])])
