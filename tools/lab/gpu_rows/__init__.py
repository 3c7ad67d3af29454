"""Programs on a GPU: their values, times and copies to the host, in TensorFlow and in JAX."""
