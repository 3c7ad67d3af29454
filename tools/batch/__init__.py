"""`jax2tf batch`: runs files of rows through a SavedModel, in processes that may be killed at any
time. Nothing here imports JAX."""

# TensorFlow reads them when it starts. With two inter-op threads a worker with one intra-op thread
# used 1.09 cores (TF 2.21).
THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
