"""Complex numbers as pairs of real ones, for targets that have no complex dtype. Each module
registers rules for ops; see `jax2tf.converters.export.pair`."""

from . import arithmetic, moves, products, transforms  # noqa: F401  (which register the rules)
