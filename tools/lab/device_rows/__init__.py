"""What runs on a GPU, by TensorFlow's registry of kernels: the rows of docs/reports/devices.md."""

SECTIONS = ("models", "functions", "primitives")
