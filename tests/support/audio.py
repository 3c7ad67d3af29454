"""Audio frontends, as speech and music models have them: functions f32[b,n] -> f32[b,...] whose
transforms are of complex numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

RATE = 16000


def frames(x: jax.Array, size: int, hop: int) -> jax.Array:
  """x f32[b,n] -> f32[b,t,size]."""
  count = (x.shape[-1] - size) // hop + 1
  return x[:, np.arange(count)[:, None] * hop + np.arange(size)]


def window(size: int) -> np.ndarray:
  """Hann's, periodic."""
  return np.sin(np.pi * np.arange(size, dtype=np.float32) / size) ** 2


def mel_bands(size: int, bands: int) -> np.ndarray:
  """f32[size//2+1,bands], triangles that are as wide on the mel scale."""

  def mel(f: Any) -> Any:
    return 2595 * np.log10(1 + np.asarray(f) / 700)

  edges = np.linspace(mel(20), mel(RATE / 2), bands + 2)
  at = mel(np.arange(size // 2 + 1) * RATE / size)[:, None]
  rising = (at - edges[:-2]) / (edges[1:-1] - edges[:-2])
  falling = (edges[2:] - at) / (edges[2:] - edges[1:-1])
  return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


def power(x: jax.Array, size: int = 400, hop: int = 160) -> jax.Array:
  """x f32[b,n] -> f32[b,t,size//2+1], the power spectrogram."""
  return jnp.abs(jnp.fft.rfft(frames(x, size, hop) * window(size))) ** 2


def log_mel(x: jax.Array) -> jax.Array:
  """x f32[b,n] -> f32[b,t,40], within 80 dB of the loudest band."""
  level = jnp.log10(jnp.maximum(power(x) @ mel_bands(400, 40), 1e-10))
  return jnp.maximum(level, level.max((1, 2), keepdims=True) - 8) / 4 + 1


def cepstrum(x: jax.Array) -> jax.Array:
  """x f32[b,n] -> f32[b,t,13], the coefficients of the cosine transform of log mel levels."""
  level = jnp.log(power(x, 512, 256) @ mel_bands(512, 26) + 1e-6)
  k, n = np.arange(13), np.arange(26)
  return level @ np.cos(np.pi / 26 * np.outer(n + 0.5, k)).astype(np.float32)


def normalised_energy(x: jax.Array) -> jax.Array:
  """x f32[b,n] -> f32[b,t,40], energies divided by a running mean (PCEN)."""
  energy = power(x) @ mel_bands(400, 40)

  def smoothed(mean: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
    mean = 0.96 * mean + 0.04 * row
    return mean, mean

  _, means = lax.scan(smoothed, energy[:, 0], energy.swapaxes(0, 1))
  return jnp.sqrt(energy / (1e-6 + means.swapaxes(0, 1)) ** 0.98 + 2) - np.sqrt(2, dtype=np.float32)


def stretched(x: jax.Array) -> jax.Array:
  """x f32[b,n] -> f32[b,t,512], frames of the sound 1.5 times as fast, by a phase vocoder."""
  spectrum = jnp.fft.rfft(frames(x, 512, 128) * window(512))
  at = np.arange(0, spectrum.shape[1] - 1, 1.5)
  left, share = at.astype(int), (at % 1).astype(np.float32)[:, None]
  size = (1 - share) * jnp.abs(spectrum[:, left]) + share * jnp.abs(spectrum[:, left + 1])
  turn = jnp.angle(spectrum[:, left + 1] * jnp.conj(spectrum[:, left]))
  return jnp.fft.irfft(size * jnp.exp(1j * jnp.cumsum(turn, 1)))


def phases_from_sizes(x: jax.Array) -> jax.Array:
  """x f32[b,n] -> f32[b,m], the sound of its spectrogram without phases (Griffin and Lim)."""
  size, hop = 256, 64
  sizes = jnp.abs(jnp.fft.rfft(frames(x, size, hop) * window(size)))
  length = (sizes.shape[1] - 1) * hop + size
  place = np.arange(sizes.shape[1])[:, None] * hop + np.arange(size)
  squares = np.broadcast_to(window(size) ** 2, place.shape)
  weight = np.bincount(place.ravel(), squares.ravel(), length).astype(np.float32)

  def sound(spectrum: jax.Array) -> jax.Array:
    parts = jnp.fft.irfft(spectrum) * window(size)
    return jnp.zeros((x.shape[0], length)).at[:, place].add(parts) / np.maximum(weight, 1e-3)

  def improved(_: Any, spectrum: jax.Array) -> jax.Array:
    again = jnp.fft.rfft(frames(sound(spectrum), size, hop) * window(size))
    return sizes * again / jnp.maximum(jnp.abs(again), 1e-3)

  return sound(lax.fori_loop(0, 3, improved, sizes.astype(jnp.complex64)))


FRONTENDS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
  "log mel": log_mel,
  "cepstrum": cepstrum,
  "normalised energy": normalised_energy,
  "stretched": stretched,
  "phases from sizes": phases_from_sizes,
}
