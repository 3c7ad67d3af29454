"""Which primitives of the installed JAX have a lowering rule.

Usage: python -m jax2tf.tools.coverage
"""

from __future__ import annotations

import jax
from jax.extend.core import Primitive, primitives

import jax2tf  # noqa: F401  (registers the rules)
from jax2tf.registry import UNSUPPORTED, rule_for


def main() -> None:
  """Prints the primitives without a rule, each with the reason where there is one, and a count."""
  known = {p.name: p for p in vars(primitives).values() if isinstance(p, Primitive)}
  missing = {name: UNSUPPORTED.get(name, ("no rule", ""))[0] for name, p in sorted(known.items()) if rule_for(p) is None}
  print(*(f"{name:32} {reason}" for name, reason in missing.items()), sep="\n")
  print(f"JAX {jax.__version__}: {len(known) - len(missing)} of {len(known)} public primitives have a lowering rule")


if __name__ == "__main__":
  main()
