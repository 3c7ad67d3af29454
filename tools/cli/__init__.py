"""The `jax2tf` command, one module for each verb.

Exit codes: 0 success; 1 a negative answer (a gap, a mismatch, a difference); 2 an invalid command.
A verb imports its packages when it runs: `jax2tf --help` loads neither TensorFlow nor JAX, and no
verb needs the extras of another.
"""
