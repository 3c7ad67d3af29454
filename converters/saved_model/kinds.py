"""Arguments of the wrong kind: a string for a list of names, which Python would take letter by
letter, or a list for a mapping."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from jax2tf.messages import Argument, ArgumentError, Text


def check_mapping(name: str, value: Any, form: str) -> None:
  """Raises ValueError unless `value` is a mapping or None. `form` is the form of one item, such as
  "input: array"."""
  if value is not None and not isinstance(value, Mapping):
    raise ArgumentError(name, value, advice=f"give a mapping {{{form}}}")


def check_names(name: str, value: Any) -> None:
  """Raises ValueError unless `value` is an iterable of strings, a mapping of them, or None."""
  if isinstance(value, str):
    raise ArgumentError(
      name,
      value,
      problem="a string would be taken letter by letter",
      advice=Text("give a list: ", Argument(name, [value])),
    )
  if value is not None and (
    not isinstance(value, Iterable) or not all(isinstance(one, str) for one in value)
  ):
    raise ArgumentError(name, value, advice="give a list of strings")


def check_known(
  name: str, values: Sequence[str], known: Collection[str], lacks: str = "the model has no"
) -> None:
  """Raises ValueError for a value that is not known. `lacks`: the error before that value."""
  if unknown := [value for value in values if value not in known]:
    raise ArgumentError(
      name,
      list(values),
      problem=f"{lacks} {unknown[0]!r}",
      advice=f"choose from {', '.join(known)}",
    )


def check_added(inputs: Any, outputs: Any, **mappings: Any) -> None:
  """Checks the arguments of `Model.add` that are mappings or lists of names.

  Raises:
    ValueError: an argument is of another kind.
  """
  if inputs is None:
    raise ArgumentError("inputs", None, advice="give a mapping {input: spec}")
  check_mapping("inputs", inputs, "input: spec")
  check_names("outputs", outputs)
  for name, value in mappings.items():
    check_mapping(name, value, "name: value")


def signature_names(signatures: str | Iterable[str]) -> list[str]:
  """The names of a signature, of which there may be several."""
  if isinstance(signatures, str):
    names = [signatures]
  else:
    check_names("signatures", signatures)
    names = list(signatures)
  if not names or not all(names):
    raise ArgumentError("signatures", signatures, problem="a signature needs a name")
  return names
