"""The examples of `call_tf`, each from its first line to its last."""

from __future__ import annotations

import numpy as np

from jax2tf.examples import (
  fine_tune,
  image_and_signal,
  jax_and_tensorflow,
  moving_average,
  vocabulary,
)


def test_fine_tune(tmp_path, capsys):
  losses = fine_tune.main(tmp_path)
  assert losses[-1] < 0.5 * losses[0]
  assert "right after loading" in capsys.readouterr().out


def test_image_and_signal():
  losses = image_and_signal.main()
  assert losses[-1] < 0.5 * losses[0]


def test_vocabulary():
  np.testing.assert_array_equal(vocabulary.main(), [True, True, True, False])


def test_moving_average():
  last, averages = moving_average.main()
  expected = np.zeros(11)
  for i in range(10):
    expected[i + 1] = 0.9 * expected[i] + 0.1 * (i + 1)
  np.testing.assert_allclose(averages, expected[1:], rtol=1e-5)
  np.testing.assert_allclose(last, expected[-1], rtol=1e-5)


def test_jax_and_tensorflow(tmp_path, without_jax):
  assert jax_and_tensorflow.main(tmp_path, without_jax) < 1e-6
