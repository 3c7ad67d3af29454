"""Where the equations of a jaxpr run: `jax.device_put`, `jax.default_device`, `compute_on`, and
sharding annotations.

As in JAX outside of jit, computation follows data: an equation runs where its operands were put,
and its results stay there until they are put elsewhere. TensorFlow places all other values, as XLA
does in JAX
(https://docs.jax.dev/en/latest/faq.html#controlling-data-and-computation-placement-on-devices).
"""
