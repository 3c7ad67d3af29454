"""Compares a model with its JAX function: inputs, tolerances, reports."""
