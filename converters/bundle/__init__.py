"""A SavedModel of jax2tf on disk: its files, versions, manifest and notation, and how files are
published. Importing a module of this package imports neither JAX nor TensorFlow."""
