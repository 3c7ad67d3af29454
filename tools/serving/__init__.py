"""TF Serving's gRPC and REST interfaces without TF Serving: `jax2tf serve`. Nothing here imports JAX."""
