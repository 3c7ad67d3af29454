"""The zoo: one module for each model, named after it, with its `ENTRY`.

`zoo.py` has more and smaller models, for what is compared on every change: gradients and golden op
counts.
"""

from __future__ import annotations

import importlib

from tests.support.models.entry import Entry

NAMES = (
  # images
  "mlp",
  "cnn",
  "resnet",
  "mobilenet",
  "convnext",
  "vit",
  "mlp_mixer",
  "unet",
  "autoencoder",
  "siamese",
  "gan_generator",
  "diffusion_step",
  "vae",
  # sequences
  "transformer_encoder",
  "minilm",
  "rotary_decoder",
  "sampling_decoder",
  "mixture_of_experts",
  "lstm_language_model",
  "seq2seq_lstm",
  "bidirectional_gru",
  "state_space",
  "wavenet",
  "keyword_spotting",
  # and beyond
  "graph_network",
  "pointnet",
  "recommender",
  "actor_critic",
  "mixture_density",
  "normalizing_flow",
  "neural_ode",
  "gaussian_process",
  "train_step",
)


def load(name: str) -> Entry:
  """The entry of that name; imports only its module."""
  entry = importlib.import_module(f"{__name__}.{name}").ENTRY
  assert entry.name == name, f"tests/support/models/{name}.py holds {entry.name!r}"
  return entry
