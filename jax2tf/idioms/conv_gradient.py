"""Replaces a convolution with a reversed kernel by a convolution gradient, which does not need to
reverse the kernel."""

from __future__ import annotations

import jax.extend.core.primitives as P

from jax2tf.idioms._dataflow import Dataflow, Equations
from jax2tf.idioms._variants import variant
from jax2tf.jaxprs import Eqn

conv_of_reversed_p = variant(P.conv_general_dilated_p, reversed_kernel=True)


def reversed_kernel(flow: Dataflow, eqn: Eqn) -> Equations | None:
  """conv(image, rev(kernel)) -> conv_of_reversed(image, kernel)."""
  if (rev := flow.single_use(eqn.invars[1], P.rev_p)) is None:
    return None
  if sorted(rev.params["dimensions"]) != sorted(eqn.params["dimension_numbers"].rhs_spec[2:]):
    return None
  return [eqn.replace(primitive=conv_of_reversed_p, invars=[eqn.invars[0], rev.invars[0]])]


IDIOMS = {P.conv_general_dilated_p: reversed_kernel}
