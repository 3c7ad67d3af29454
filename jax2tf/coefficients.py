"""Coefficients of approximations that rules and converters share."""

from __future__ import annotations

# Giles, "Approximating the erfinv function" (GPU Computing Gems, 2011), single precision, highest
# power first: polynomials in w - 2.5 for w < 5 and in sqrt(w) - 3 beyond, where w = -log(1 - x**2).
ERF_INV_CENTRE = (
  2.81022636e-08,
  3.43273939e-07,
  -3.5233877e-06,
  -4.39150654e-06,
  0.00021858087,
  -0.00125372503,
  -0.00417768164,
  0.246640727,
  1.50140941,
)
ERF_INV_TAIL = (
  -0.000200214257,
  0.000100950558,
  0.00134934322,
  -0.00367342844,
  0.00573950773,
  -0.0076224613,
  0.00943887047,
  1.00167406,
  2.83297682,
)
