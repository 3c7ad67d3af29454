"""Programs to read and to run, one question each: `python -m jax2tf.examples.quickstart`."""
