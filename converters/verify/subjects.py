"""Chooses the signatures that `verify` compares, each with its reference."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from jax2tf.messages import Argument, ArgumentError, Aside, Message, Text, joined

from ..bundle import manifest
from ..saved_model import draws, kinds
from ..saved_model.state import Layout
from . import plan, references


def chosen(
  records: Mapping[str, manifest.SignatureRecord],
  signatures: Sequence[str] | None,
  inputs: draws.Examples,
) -> dict[str, manifest.SignatureRecord]:
  """The signatures to compare, of those of a model.

  Raises:
    ValueError: a signature or an input has no such name.
  """
  kinds.check_names("signatures", signatures)
  kinds.check_mapping("inputs", inputs, "input: array")
  names = list(records) if signatures is None else list(signatures)
  kinds.check_known("signatures", names, records)
  if not names:
    raise ArgumentError(
      "signatures",
      signatures,
      problem="it selects no signature",
      advice=f"choose from {', '.join(records)}",
    )
  chosen = {name: records[name] for name in names}
  known = {name: None for signature in chosen.values() for name in signature.inputs}
  if strange := [name for name in inputs if name not in known]:
    raise ArgumentError(
      Argument("inputs", key=strange[0]),
      problem=f"the signatures take no such input, only {', '.join(known)}",
    )
  return chosen


def subjects(
  chosen: Mapping[str, manifest.SignatureRecord],
  reference: Any,
  has_params: bool,
  inputs: draws.Examples,
  state: tuple[Layout, Any] | None = None,
) -> tuple[list[plan.Subject], dict[str, str]]:
  """(signatures to compare, {signature: why it is skipped}). `state` is the layout of the state and
  its stored initial values."""
  subjects: list[plan.Subject] = []
  skipped: dict[str, str] = {}
  if not callable(reference) and not isinstance(reference, Mapping):
    raise ArgumentError(
      "reference",
      reference,
      problem="it is neither a function nor {signature: function}",
      advice="pass the function that was saved",
    )
  if isinstance(reference, Mapping) and (
    unknown := [name for name in reference if name not in chosen]
  ):
    raise ArgumentError(
      Argument("reference", key=unknown[0]),
      problem=f"the signatures to compare are: {', '.join(chosen)}",
    )
  resets = [name for name, record in chosen.items() if record.resets]
  plain = [
    name
    for name, record in chosen.items()
    if not (record.preprocessed or record.postprocessed or record.resets)
  ]
  sole = plain if len(chosen) - len(resets) > 1 else list(chosen)
  if callable(reference) and len(plain) > 1:
    raise ArgumentError(
      "reference",
      problem=f"it is one function for the signatures {', '.join(plain)}",
      advice=Text(
        Aside("give ", Argument("reference"), " as {name: function}, or "),
        "choose one with ",
        Argument("signatures"),
      ),
    )
  functions = dict(reference) if isinstance(reference, Mapping) else dict.fromkeys(sole, reference)
  layout, initial = state or (None, [])
  for name, record in chosen.items():
    own = record.own_inputs
    if record.resets and layout:
      subjects.append(
        plan.Subject(
          name, record, lambda *_: (initial, {"reset": jnp.int32(len(initial))}), [], layout.paths
        )
      )
      continue
    missing = [x for x in own if x not in inputs] if name not in plain else []
    if name in plain and name not in functions:
      raise ArgumentError(
        "reference",
        problem=f"it has no function for signature {name!r}",
        advice=Text("add one, or choose others with ", Argument("signatures")),
      )
    if name not in functions or missing:
      what = " and ".join(
        step for step in ("preprocess", "postprocess") if getattr(record, f"{step}ed")
      )
      needed = [Argument("inputs", key=each) for each in missing]
      needed += [Argument("reference", key=name)] * (name not in functions)
      skipped[name] = Message(
        problem=f"it has a {what} step, which is not JAX's",
        advice=Text("give your own ", *joined(" and ", needed)),
      )
      continue
    fun = functions[name]
    order = _order(name, record, fun, own, ["params"] * has_params + ["state"] * record.stateful)
    remembered = layout if record.stateful else None
    fun = remembered.of_stored(fun, lead=int(has_params)) if remembered else fun
    paths = remembered.paths if remembered else ()
    subjects.append(
      plan.Subject(name, record, references.jitted(fun) if name in plain else fun, order, paths)
    )
  return subjects, skipped


def _order(
  name: str,
  record: manifest.SignatureRecord,
  fun: Callable[..., Any],
  own: Sequence[str],
  lead: list[str],
) -> Sequence[str]:
  """The order in which the reference takes the inputs."""
  try:
    signature = inspect.signature(fun)
  except ValueError:  # a callable implemented in C
    return own
  try:
    bound = signature.bind(*[None] * (len(lead) + len(own)))
  except TypeError as error:
    takes = ", ".join([*lead, *own])
    raise ValueError(
      f"reference of {name!r} cannot be called with ({takes}): {error}; wrap it: lambda {takes}: "
      "..."
    ) from None
  if not record.defaults or len(own) == 1:
    return own
  # The manifest lists optional inputs last, wherever the saved function takes them.
  names = list(bound.arguments)[len(lead) :]
  if set(names) != set(own):
    raise ValueError(
      f"reference of {name!r} takes {', '.join(names)}; with optional inputs, name them as the "
      f"signature: {', '.join(own)}"
    )
  return names
