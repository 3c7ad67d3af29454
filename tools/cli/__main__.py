"""`python -m jax2tf.tools.cli` runs the `jax2tf` command."""

from jax2tf.tools.cli.main import main

main()
