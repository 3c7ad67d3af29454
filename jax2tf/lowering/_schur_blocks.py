"""Blocks of size 2 on the diagonal of a Schur form, all at once: eigenvalues, standard forms."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Arrays = tuple[jax.Array, ...]


def block_facts(main: jax.Array, left: jax.Array, above: jax.Array) -> jax.Array:
  """The blocks [[a, b], [c, d]] that end at each row -> f32[b,k,m], what their form depends on.

  Of a complex block half the difference of its eigenvalues; of a real one the first of
  `_discriminant`, and what `_equal_diagonal` makes of b and c.
  """
  a, b, c, d = jnp.roll(main, 1, -1), above, left, main
  if jnp.iscomplexobj(main):
    size = or_one(jnp.maximum(jnp.abs(a - d), jnp.maximum(jnp.abs(b), jnp.abs(c))))
    half = (a - d) / 2 / size
    return (size * jnp.sqrt(half * half + (b / size) * (c / size)))[:, None]
  return jnp.stack([_discriminant(a, b, c, d)[0], *_equal_diagonal(a, b, c, d)[2:]], 1)


def eigenvectors(facts: jax.Array, a: jax.Array, c: jax.Array, d: jax.Array) -> Arrays:
  """Blocks [[a, b], [c, d]] -> an eigenvector of each, of length 1."""
  half, root = (a - d) / 2, facts[:, 0]
  first = jnp.where(jnp.abs(half - root) > jnp.abs(half + root), half - root, half + root)
  scale = or_one(jnp.maximum(jnp.abs(first), jnp.abs(c)))
  first, c = first / scale, c / scale
  length = or_one(jnp.sqrt(jnp.abs(first) ** 2 + jnp.abs(c) ** 2))
  return first / length, c / length


def rotations(
  facts: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array
) -> tuple[list[jax.Array], list[jax.Array]]:
  """Blocks [[a, b], [c, d]] -> cosines and sines of rotations, and the elements after them.

  A rotation is [[cos, -sin], [sin, cos]].
  """
  zero, one, half, mean = jnp.zeros_like(a), jnp.ones_like(a), (a - d) / 2, (a + d) / 2
  square, over, under = facts[:, 0], facts[:, 1], facts[:, 2]
  # The diagonal can be made equal: then the eigenvalues are complex.
  cos, sin, _, _ = _equal_diagonal(a, b, c, d)
  results: list[jax.Array] = [cos, sin, mean, over, under, mean]

  def unless(condition: jax.Array, *values: jax.Array) -> None:
    results[:] = [jnp.where(condition, new, old) for new, old in zip(values, results, strict=True)]

  # Or they turn out real: equal, or close to each other.
  unless((over == 0) & (under != 0), -sin, cos, mean, -under, zero, mean)
  root_over, root_under = jnp.sqrt(jnp.abs(over)), jnp.sqrt(jnp.abs(under))
  offset, length = root_over * root_under * sign(under), or_one(_hypot(root_over, root_under))
  x, y = root_over / length, root_under / length
  is_real = (over != 0) & (under != 0) & (sign(over) == sign(under))
  rotated = cos * x - sin * y, cos * y + sin * x
  unless(is_real, *rotated, mean + offset, over - under, zero, mean - offset)
  # They are real and well apart: (z, c) is the eigenvector of d + z.
  _, scale, larger, smaller = _discriminant(a, b, c, d)
  z = half + sign(half) * jnp.sqrt(scale) * jnp.sqrt(jnp.maximum(square, 0))
  length = or_one(_hypot(c, z))
  is_apart = square >= 4 * jnp.finfo(a.dtype).eps
  other = d - (larger / or_one(z)) * smaller
  unless(is_apart, z / length, c / length, d + z, b - c, zero, other)
  # Nothing to compute.
  unless((a == d) & (sign(b) != sign(c)), one, zero, a, b, c, d)
  unless(b == 0, zero, one, d, -c, zero, a)
  return results[:2], results[2:]


def _discriminant(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> Arrays:
  """Of [[a, b], [c, d]]: ((a - d) / 2)^2 + b c over a scale, the scale, and |b| and |c| by size.

  The smaller one has the sign of b c.
  """
  half = (a - d) / 2
  larger = jnp.maximum(jnp.abs(b), jnp.abs(c))
  smaller = jnp.minimum(jnp.abs(b), jnp.abs(c)) * sign(b) * sign(c)
  scale = or_one(jnp.maximum(jnp.abs(half), larger))
  return (half / scale) * half + (larger / scale) * smaller, scale, larger, smaller


def _equal_diagonal(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> Arrays:
  """The cosine and the sine of the rotation that makes a and d equal; what becomes of b and c."""
  total, half = b + c, (a - d) / 2
  length = or_one(_hypot(total, a - d))
  cos = jnp.sqrt((1 + jnp.abs(total) / length) / 2)
  sin = -(half / (length * cos)) * sign(total)
  over = (b * cos - a * sin) * cos + (d * cos - c * sin) * sin
  under = (c * cos + d * sin) * cos - (a * cos + b * sin) * sin
  return cos, sin, over, under


def _hypot(x: jax.Array, y: jax.Array) -> jax.Array:
  scale = or_one(jnp.maximum(jnp.abs(x), jnp.abs(y)))
  return scale * jnp.sqrt((x / scale) ** 2 + (y / scale) ** 2)


def sign(x: jax.Array) -> jax.Array:
  return jnp.where(x < 0, -1, 1).astype(x.dtype)


def or_one(x: jax.Array) -> jax.Array:
  """To divide by: 1 in the place of 0."""
  return jnp.where(x == 0, 1, x)
