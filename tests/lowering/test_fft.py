"""Fourier transforms of any rank, type and length."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.support.case import Case, run

RNG = np.random.default_rng(0)
REAL = RNG.standard_normal((2, 4, 5, 6)).astype(np.float32)
COMPLEX = (REAL + 1j * RNG.standard_normal(REAL.shape)).astype(np.complex64)
ONCE = {"eager": "as in a graph", "saved": "as in a graph"}
# An element of a transform may cancel to nearly nothing: errors are relative to the largest one.
NEAR = {"atol": 2e-6}

CASES = [
  *[
    Case(
      f"{kind} rank {rank}",
      lambda x, kind=kind, rank=rank: lax.fft(x, kind, x.shape[-rank:]),
      [COMPLEX],
      skip=ONCE,
      **NEAR,
    )
    for kind in ("fft", "ifft")
    for rank in (1, 2, 3)
  ],
  *[
    Case(
      f"rfft rank {rank}",
      lambda x, rank=rank: lax.fft(x, "rfft", x.shape[-rank:]),
      [REAL],
      skip=ONCE,
      **NEAR,
    )
    for rank in (1, 2, 3)
  ],
  # Without the symmetry of a real array's transform: the last axis goes last, as in NumPy.
  *[
    Case(
      f"irfft rank {rank} to {n}",
      lambda x, rank=rank, n=n: lax.fft(x, "irfft", (*x.shape[-rank:-1], n)),
      [COMPLEX[..., : n // 2 + 1]],
      skip=ONCE,
      **NEAR,
    )
    for rank in (1, 2, 3)
    for n in (8, 9)
  ],
  *[
    Case(
      f"lengths {n}",
      lambda x: (jnp.fft.fft(x), jnp.fft.rfft(x.real), jnp.fft.irfft(x)),
      [COMPLEX.reshape(-1)[:n]],
      skip=ONCE,
      **NEAR,
    )
    for n in (2, 7, 16, 101)
  ],
  Case(
    "length 1",
    lambda x: (jnp.fft.fft(x), jnp.fft.rfft(x.real), jnp.fft.irfft(x, 1)),
    [COMPLEX[0, 0, :, :1]],
  ),
  Case(
    "length 0",
    lambda x: (jnp.fft.irfft(x), lax.fft(x[:, :0], "ifft", (0,))),
    [COMPLEX[0, 0, :, :1]],
    grad=False,
  ),
  Case("five axes", jnp.fft.fftn, [COMPLEX[:, None]], **NEAR),
  Case(
    "c128",
    lambda x: (jnp.fft.fftn(x), jnp.fft.irfft2(x), jnp.fft.rfftn(x.real)),
    [COMPLEX.astype(np.complex128)],
    x64=True,
    atol=1e-14,
  ),
  Case("batch of any size", lambda x: jnp.fft.fft2(x), [COMPLEX[0]], poly="b, _, _", **NEAR),
  Case(
    "length of any size",
    lambda x: lax.fft(x, "rfft", x.shape[-2:]),
    [REAL[0]],
    poly="_, n, m",
    grad=False,
    **NEAR,
  ),
  Case("empty batch", lambda x: (jnp.fft.fft(x), jnp.fft.rfft(x.real)), [COMPLEX[:0]]),
  Case(
    "infinities",
    lambda x: jnp.isfinite(jnp.abs(jnp.fft.fft(x))),
    [np.array([[1, 2, 3], [1, np.inf, 2], [np.nan, 0, 0]], np.complex64)],
    grad=False,
  ),
]

test_case, saved = run(CASES)
