"""The `jax2tf` command, one module a verb.

Exit codes: 0 all is well; 1 the answer is no (a gap, a mismatch, a difference); 2 the command cannot be carried out as given.
A verb imports what it needs when it runs: `jax2tf --help` waits for neither TensorFlow nor JAX, and no verb needs the extras of another.
"""
