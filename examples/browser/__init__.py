"""A model in a web page: `python -m jax2tf.examples.browser.export --serve`."""
