"""Commands for people who work on jax2tf."""
