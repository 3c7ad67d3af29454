"""`jax2tf serve`: a server with TF Serving's gRPC and REST interfaces. Nothing here imports JAX."""
