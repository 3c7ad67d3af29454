"""`jax2tf batch`: runs files of rows through a SavedModel, in processes that may be killed at any time. Nothing here imports JAX."""
