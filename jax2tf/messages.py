"""Errors and texts that name arguments of the Python API. Each words itself for Python, and for a
command, whose flags stand for the arguments."""

from __future__ import annotations

import copyreg
import enum
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

_LONGEST = 160  # characters of a value


class _Absent(enum.Enum):
  """Stands for a value that a message does not show."""

  VALUE = 0


Flags: TypeAlias = Mapping[str, str]  # {argument of the Python API: flag of the command}


@dataclass(frozen=True)
class Argument:
  """An argument in a message.

  Attributes:
    name: its name in Python.
    value: what was passed, or what to pass. By default none is shown.
    key: the key of a mapping whose value this is, such as the "b" of `sizes["b"]`.
    function: the function that stands for this argument in Python, if it is a choice of one.
  """

  name: str
  value: Any = _Absent.VALUE
  key: str | None = None
  function: str = ""

  @property
  def path(self) -> str:
    """`sizes`, or `sizes['b']`."""
    return self.name if self.key is None else f"{self.name}[{self.key!r}]"

  def as_given(self) -> str:
    """The beginning of a message of Python: `samples = 0`."""
    if self.function or self.value is _Absent.VALUE:
      return self.function or self.path
    return f"{self.path} = {shown(self.value)}"

  def __str__(self) -> str:
    """As Python's users write it: `samples=0`, or `samples=` without a value."""
    if self.function:
      return self.function
    if self.value is not _Absent.VALUE:
      return f"{self.path}={self.value!r}"
    return f"{self.path}=" if self.key is None else self.path

  def for_command(self, flags: Flags) -> str | None:
    """As a command's users write it: `--samples=0`. None if the command has no such flag."""
    flag, value = flags.get(self.name), self.value
    if flag is None:
      return None
    if self.key is not None:
      value = {self.key: value}
    if value is _Absent.VALUE or value is True:
      return flag
    if value is None or value is False:
      return f"no {flag}"
    if isinstance(value, Mapping):
      return " ".join(f"{flag} {key}{_of_key(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
      return " ".join(f"{flag} {shlex.quote(str(each))}" for each in value)
    return f"{flag}={shlex.quote(value) if isinstance(value, str) else shown(value)}"


def _of_key(value: Any) -> str:
  if value is _Absent.VALUE:
    return ""
  values = value if isinstance(value, list | tuple) else [value]
  return "=" + ",".join(map(str, values))


def shown(value: Any) -> str:
  """The value in a message: its repr, or the beginning of it."""
  text = " ".join(repr(value).split())
  return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class Text(str):
  """A text in the words of Python that keeps its parts: strings, arguments and other texts.

  Formatting and joining make a plain str of it; `Text(...)` makes a longer one.
  """

  parts: tuple[str | Argument, ...]

  def __new__(cls, *parts: str | Argument) -> Text:
    text = super().__new__(cls, "".join(map(str, parts)))
    text.parts = parts
    return text

  def __reduce__(self) -> tuple[Any, ...]:
    return type(self), self.parts

  def for_command(self, flags: Flags) -> str:
    """The text with flags in place of the arguments that the command has."""
    return "".join(_for_command(part, flags) for part in self.parts)

  def arguments(self) -> Iterator[Argument]:
    """Those that the text names."""
    for part in self.parts:
      if isinstance(part, Argument):
        yield part
      elif isinstance(part, Text):
        yield from part.arguments()


def joined(separator: str, arguments: Iterable[Argument]) -> list[str | Argument]:
  """The parts of a text: the arguments with the separator between them."""
  parts = [part for argument in arguments for part in (separator, argument)]
  return parts[1:]


class Aside(Text):
  """A part of a text that a command leaves out if it lacks a flag for an argument there."""

  def for_command(self, flags: Flags) -> str:
    return super().for_command(flags) if _has_all(super().arguments(), flags) else ""

  def arguments(self) -> Iterator[Argument]:
    """None, for the text around it does not depend on them."""
    return iter(())


def _has_all(arguments: Iterable[Argument], flags: Flags) -> bool:
  return all(argument.name in flags for argument in arguments)


def _for_command(part: str | Argument, flags: Flags) -> str:
  if isinstance(part, Argument):
    return part.for_command(flags) or str(part)
  return part.for_command(flags) if isinstance(part, Text) else part


class Message(Text):
  """`argument = value: problem; advice`, of which each may be missing. For errors of Python's own
  classes, and for warnings."""

  argument: Argument | None
  problem: str
  advice: str

  def __new__(
    cls, argument: Argument | None = None, *, problem: str = "", advice: str = ""
  ) -> Message:
    head = "" if argument is None else argument.as_given()
    message = str.__new__(cls, _sentence(head, problem, advice))
    parts = (argument, problem, advice)
    message.parts = tuple(part for part in parts if part)
    message.argument, message.problem, message.advice = parts
    return message

  def __reduce__(self) -> tuple[Any, ...]:
    return _message, (self.argument, self.problem, self.advice)

  def reason_for_command(self, flags: Flags) -> str:
    """What failed, without the advice."""
    head = ""
    if self.argument is not None:
      head = self.argument.for_command(flags) or self.argument.as_given()
    return _sentence(head, _for_command(self.problem, flags), "")

  def advice_for_command(self, flags: Flags) -> str:
    """What to do. Advice that needs an argument for which there is no flag is for Python."""
    advice = _for_command(self.advice, flags)
    is_for_python = isinstance(self.advice, Text) and not _has_all(self.advice.arguments(), flags)
    return f"from Python, {advice}" if is_for_python else advice

  def for_command(self, flags: Flags) -> str:
    return _sentence(self.reason_for_command(flags), "", self.advice_for_command(flags))


def _message(argument: Argument | None, problem: str, advice: str) -> Message:
  return Message(argument, problem=problem, advice=advice)


def _sentence(head: str, problem: str, advice: str) -> str:
  return "; ".join(filter(None, (": ".join(filter(None, (head, problem))), advice)))


def message_of(error: BaseException) -> str:
  """The message of an error or a warning: a `Text` if it was made with one."""
  return error.args[0] if error.args and isinstance(error.args[0], Text) else str(error)


class _WithFieldsError(Exception):
  """An error whose only Python argument is a `Message`."""

  def __init__(
    self,
    argument: str | Argument,
    value: Any = _Absent.VALUE,
    *,
    problem: str = "",
    advice: str = "",
  ):
    given = argument if isinstance(argument, Argument) else Argument(argument, value)
    super().__init__(Message(given, problem=problem, advice=advice))

  # Python's own calls __init__ with `args`.
  def __reduce__(self) -> tuple[Any, ...]:
    return copyreg.__newobj__, (type(self), *self.args), vars(self) or None  # type: ignore[attr-defined]

  @property
  def _given(self) -> Argument:
    given: Argument = self.args[0].argument
    return given

  @property
  def argument(self) -> str:
    return self._given.path

  @property
  def value(self) -> Any:
    return None if self._given.value is _Absent.VALUE else self._given.value

  @property
  def problem(self) -> str:
    return str(self.args[0].problem)

  @property
  def advice(self) -> str:
    return str(self.args[0].advice)

  def for_command(self, flags: Flags) -> str:
    """The message with the flags of a command in place of arguments.

    Args:
      flags: {argument: flag}. An argument without a flag keeps its name in Python.
    """
    message: Message = self.args[0]
    return message.for_command(flags)


class ArgumentError(_WithFieldsError, ValueError):
  """An argument has a value that the function does not take.

  Attributes:
    argument: the name of the argument, perhaps with a key: "sizes['b']".
    value: what was passed; None if the message does not show it.
    problem: what is wrong; empty if the advice says so.
    advice: what to do; empty if the problem says so.

  Examples:
    >>> import jax2tf
    >>> try:
    ...   jax2tf.convert(lambda x: x, idioms="gelo")
    ... except jax2tf.ArgumentError as error:
    ...   print(error.argument, error.value, error.problem, sep="; ")
    ...   print(error.for_command({"idioms": "--idioms"}).partition(";")[0])
    idioms; gelo; there is no 'gelo'
    --idioms=gelo: there is no 'gelo'
  """


class ArgumentTypeError(_WithFieldsError, TypeError):
  """An argument has a type that the function does not take. It has the attributes of
  `ArgumentError`.

  Examples:
    >>> import jax2tf
    >>> try:
    ...   jax2tf.convert("no function")
    ... except jax2tf.ArgumentTypeError as error:
    ...   print(error.argument)
    fun_jax
  """
