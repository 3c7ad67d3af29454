"""What kind of primitive something is.

Passes, idioms and rules ask here, so a new primitive is described once;
tests/conversion/test_traits.py finds one that is missing. What only one of them wants to know
stands in its own file.
"""

from __future__ import annotations

import jax.extend.core.primitives as P
from jax import lax
from jax.extend.core import Primitive

from jax2tf import _jax_compat
from jax2tf._jax_compat import batching, optional_primitive


def _present(*primitives: Primitive | None) -> frozenset[Primitive]:
  """Those that this JAX has."""
  return frozenset(primitive for primitive in primitives if primitive is not None)


# Elementwise: an element of the result depends on the elements of the operands in its place alone.
SUMS = _present(P.add_p, P.add_jaxvals_p)  # the second is that of cotangents
ARITHMETIC = _present(P.add_p, P.sub_p, P.mul_p, P.div_p)
COMPARISONS = _present(P.eq_p, P.ge_p, P.gt_p, P.le_p, P.lt_p, P.ne_p)
LOGIC = _present(P.and_p, P.or_p, P.xor_p)
SHIFTS = _present(P.shift_left_p, P.shift_right_arithmetic_p, P.shift_right_logical_p)
# Of two operands or more.
OF_SEVERAL = (
  SUMS
  | ARITHMETIC
  | COMPARISONS
  | LOGIC
  | SHIFTS
  | _present(
    P.atan2_p,
    P.clamp_p,
    P.complex_p,
    P.eq_to_p,
    P.igamma_grad_a_p,
    P.igamma_p,
    P.igammac_p,
    P.le_to_p,
    P.lt_to_p,
    P.max_p,
    P.min_p,
    lax.mulhi_p,
    P.nextafter_p,
    P.polygamma_p,
    optional_primitive("polynomial_p"),  # JAX 0.12
    P.pow_p,
    P.regularized_incomplete_beta_p,
    P.rem_p,
    P.select_n_p,
    P.zeta_p,
  )
)
ELEMENTWISE = OF_SEVERAL | _present(
  P.abs_p,
  P.acos_p,
  P.acosh_p,
  P.asin_p,
  P.asinh_p,
  P.atan_p,
  P.atanh_p,
  P.bessel_i0e_p,
  P.bessel_i1e_p,
  P.cbrt_p,
  P.ceil_p,
  P.clz_p,
  P.conj_p,
  P.convert_element_type_p,
  P.cos_p,
  P.cosh_p,
  P.digamma_p,
  P.erf_inv_p,
  P.erf_p,
  P.erfc_p,
  P.exp2_p,
  P.exp_p,
  P.expm1_p,
  P.floor_p,
  P.imag_p,
  P.integer_pow_p,
  P.is_finite_p,
  P.lgamma_p,
  P.log1p_p,
  optional_primitive("log2_p"),  # JAX 0.12
  P.log_p,
  P.logistic_p,
  P.neg_p,
  P.not_p,
  optional_primitive("one_minus_square_p"),  # JAX 0.12
  P.population_count_p,
  P.real_p,
  P.reduce_precision_p,
  P.round_p,
  P.rsqrt_p,
  P.sign_p,
  P.sin_p,
  P.sinh_p,
  P.sqrt_p,
  P.square_p,
  P.tan_p,
  P.tanh_p,
)
# Their two operands may be swapped.
COMMUTATIVE = (
  SUMS | LOGIC | _present(P.eq_p, P.eq_to_p, P.max_p, P.min_p, P.mul_p, lax.mulhi_p, P.ne_p)
)


def is_elementwise(primitive: Primitive) -> bool:
  """Whether a primitive, also one of a library, is elementwise."""
  return primitive in ELEMENTWISE or batching.is_elementwise(primitive)


# They compute nothing. The first ones give a shape to elements that stay in their order.
RESHAPES = _present(P.broadcast_in_dim_p, P.reshape_p, P.squeeze_p)
MOVES = RESHAPES | _present(P.transpose_p)

# They join the elements along axes to one.
REDUCTIONS = _present(P.reduce_max_p, P.reduce_min_p, P.reduce_prod_p, P.reduce_sum_p)

# They run the jaxprs among their params, and JAX differentiates them as they are.
LOOPS = _present(P.scan_p, P.while_p)
BODIES = LOOPS | _present(P.cond_p, P.jit_p, P.remat_p)

# Bits from keys, many operations each.
HASHES = _present(
  P.random_bits_p,
  P.random_fold_in_p,
  P.random_split_p,
  P.threefry2x32_p,
  _jax_compat.philox2x32_p,
  _jax_compat.philox4x32_p,
  _jax_compat.threefry4x32_p,
)
# Equal equations may differ: random numbers without a key, and what may hold them.
UNDETERMINED = _present(P.rng_uniform_p, _jax_compat.call_hi_primitive_p)

# Their derivatives take values that the primitives themselves do not return, or are those of a more
# expensive equation.
OWN_RESIDUALS = BODIES - {P.jit_p} | _present(
  P.cumlogsumexp_p, P.custom_vjp_call_p, P.sort_p, P.svd_p
)

# Calls of Python: for text, for other effects, for values.
PRINTS = _present(_jax_compat.debug_print_p, _jax_compat.debug_callback_p)
EFFECTFUL = PRINTS | _present(_jax_compat.io_callback_p)
CALLBACKS = EFFECTFUL | _present(_jax_compat.pure_callback_p)

# JAX lowers them to LAPACK on CPU; tests/conversion/test_native.py checks that the list is
# complete.
LAPACK = _present(
  P.cholesky_p,
  P.eig_p,
  P.eigh_p,
  _jax_compat.geqp3_p,
  _jax_compat.geqrf_p,
  P.hessenberg_p,
  P.householder_product_p,
  P.lu_p,
  lax.linalg.ormqr_p,
  P.qr_p,
  P.schur_p,
  P.svd_p,
  P.triangular_solve_p,
  P.tridiagonal_p,
  P.tridiagonal_solve_p,
)
