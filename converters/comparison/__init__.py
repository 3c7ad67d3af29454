"""What a model answers against what its JAX function answers: inputs, tolerances, reports."""
