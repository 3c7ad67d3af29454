"""A model in a web page: `python -m jax2tf.examples.browser.export --serve`, and any TF.js model in
one file: `python -m jax2tf.examples.browser.page FOLDER`."""
