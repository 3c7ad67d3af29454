"""Whether the ops of a graph stay on a GPU or a TPU: read from TensorFlow's registry of kernels,
without the device."""

from jax2tf.devices.reading import readiness
from jax2tf.devices.report import Finding, Readiness

__all__ = ["Finding", "Readiness", "readiness"]
