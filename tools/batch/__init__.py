"""Files of rows through a SavedModel, in processes that a kill costs nothing: `jax2tf batch`. Nothing here imports JAX."""
