"""Example programs, each for one question: `python -m jax2tf.examples.quickstart`."""
