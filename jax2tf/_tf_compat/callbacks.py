"""Python callbacks in graphs, and the ops that replace them in saved files."""

from __future__ import annotations

import collections
import functools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from jax2tf import _tf_compat, errors

_PYTHON = "jax2tf "
_ADVICE = (
  "remove these lines before conversion; Equinox' error_if makes no callbacks with "
  "EQX_ON_ERROR=nan in the environment"
)
# an attribute of the PrintV2 and Assert ops that take the place of callbacks in a file
_LINE = "_jax2tf_line"


@dataclass(frozen=True)
class Text:
  """The text that TensorFlow prints in a saved file.

  Attributes:
    template: with `PLACEHOLDER` for each operand.
    operands: positions of these among the operands of the callback.
    summarize: as of tf.strings.format: how many elements at both ends of each dimension, -1 for
      all.
    stream: as of tf.print; or `ASSERTION`, for the words of an assertion that fails.
  """

  template: str
  operands: tuple[int, ...]
  summarize: int
  stream: str

  PLACEHOLDER = "\x00"  # a character that printed text does not contain
  ASSERTION = "assertion"


@dataclass(frozen=True, order=True)
class Callback:
  """A call of a Python function.

  Attributes:
    what: "pure_callback (sin)", or "debug_print".
    where: the user's line.
    text: the text that replaces it in a file; None if nothing can replace it.
  """

  what: str
  where: str
  text: Text | None = field(default=None, compare=False)

  def __str__(self) -> str:
    return f"{self.what} at {self.where}"


# {token: (function, description)}; kept until the process ends, as for tf.numpy_function.
_known: dict[str, tuple[Callable[..., Any], Callback]] = {}
_raised: collections.deque[Exception] = collections.deque(maxlen=8)


def call_python(
  function: Callable[..., Any],
  operands: Sequence[tf.Tensor],
  dtypes: Sequence[tf.DType],
  of: Callback,
) -> Sequence[tf.Tensor]:
  """The results of `function` for `operands` as NumPy arrays, when the graph runs.

  The op is stateful, because TF 2.21 would constant-fold a callback on constants. tf.numpy_function
  numbers its functions, so a graph in another process would call an unrelated function of the same
  number. This op uses a unique name: "jax2tf pure_callback (sin) at model.py:41:9 (encode) #...".
  """

  @functools.wraps(function)
  def call(*arrays: Any) -> Any:
    try:
      return function(*arrays)
    except Exception as error:
      # it may be raised again
      if (note := f"called back by {of}") not in getattr(error, "__notes__", ()):
        error.add_note(note)
      _raised.appendleft(error)
      raise

  token = f"{_PYTHON}{of} #{uuid.uuid4().hex}"
  _known[token] = call, of
  _tf_compat.python_functions[token] = call
  results = tf.raw_ops.PyFunc(input=operands, token=token, Tout=dtypes)
  return results if dtypes else []  # for the op itself


def as_raised(error: tf.errors.OpError) -> Exception:
  """The original exception of a callback behind a TensorFlow error; the error itself if there is
  none."""
  original = next((e for e in list(_raised) if f"{type(e).__name__}: {e}" in error.message), None)
  if original is None:
    return error
  _raised.remove(original)  # its frames hold arrays
  return original


def callbacks_in(definition: Any) -> list[Callback]:
  """The callbacks of ours in a GraphDef, and the ops that replaced some when it was saved: each
  once."""
  return sorted(
    {
      callback
      for nodes, _ in _bodies(definition)
      for node in nodes
      if (callback := _callback(node))
    }
  )


def refuse(callbacks: Iterable[Callback]) -> None:
  """Raises CallbackError, with the source lines, for callbacks that no file can hold."""
  if unsavable := [callback for callback in callbacks if callback.text is None]:
    lines = "".join(f"  {callback}\n" for callback in unsavable)
    message = (
      "cannot save a function that calls back into Python, which no file can "
      f"hold:\n{lines}  {_ADVICE}"
    )
    raise errors.CallbackError(message, map(gap, unsavable))


def gap(callback: Callback) -> errors.UnsupportedEquation:
  """The gap of a callback for a target. A target may omit a callback that only prints or checks."""
  if callback.text is not None:
    return errors.UnsupportedEquation(
      callback.what,
      "only TensorFlow prints",
      "nothing to do: the results are the same",
      callback.where,
      "PrintV2",
    )
  return errors.UnsupportedEquation(
    callback.what, "no file can hold a Python function", _ADVICE, callback.where, "PyFunc"
  )


def replace_prints(definition: Any) -> None:
  """Replaces our callbacks by TensorFlow ops, in a GraphDef that is saved.

  Raises:
    ValueError: a callback that has no text, with its line.
  """
  refuse(callbacks_in(definition))
  for nodes, first_result in _bodies(definition):
    for node in [*nodes]:
      if node.op == "PyFunc" and (callback := _callback(node)) and callback.text:
        _say(callback, callback.text, node, nodes, first_result)


def _bodies(definition: Any) -> Iterator[tuple[Any, str]]:
  """(nodes, how an input names the first result of another node) of the graph, and of each
  function."""
  yield definition.node, ""
  yield from ((function.node_def, ":output:0") for function in definition.library.function)


def _callback(node: Any) -> Callback | None:
  """The callback of a node, or the text that replaces it."""
  if node.op in ("PrintV2", "Assert") and _LINE in node.attr:
    what, _, where = node.attr[_LINE].s.decode().partition(" at ")
    return Callback(what, where, Text("", (), 0, ""))
  token = node.attr["token"].s.decode() if node.op == "PyFunc" else ""
  if token in _known:
    return _known[token][1]
  return (
    Callback(token.removeprefix(_PYTHON), "a line of another process")
    if token.startswith(_PYTHON)
    else None
  )


def _say(callback: Callback, text: Text, node: Any, nodes: Any, first_result: str) -> None:
  """Replaces a PyFunc without results by a StringFormat and a PrintV2 or Assert of the same
  name."""
  data = [x for x in node.input if not x.startswith("^")]
  form = nodes.add(name=f"{node.name}/text", op="StringFormat")
  form.attr["T"].list.SetInParent()  # also of no operands
  for i in text.operands:
    name, dtype = data[i], tf.as_dtype(node.attr["Tin"].list.type[i])
    if dtype.is_complex:  # TF 2.21: StringFormat has a question mark for each
      written = nodes.add(name=f"{form.name}_{len(form.input)}", op="AsString", input=[name])
      written.attr["T"].type, written.attr["shortest"].b = dtype.as_datatype_enum, True
      name, dtype = f"{written.name}{first_result}", tf.string
    form.input.append(name)
    form.attr["T"].list.type.append(dtype.as_datatype_enum)
  form.input.extend(node.input[len(data) :])
  form.attr["template"].s, form.attr["placeholder"].s = (
    text.template.encode(),
    Text.PLACEHOLDER.encode(),
  )
  form.attr["summarize"].i = text.summarize
  name, printed = form.name.removesuffix("/text"), form.name + first_result
  node.Clear()
  if text.stream == Text.ASSERTION:
    false = nodes.add(name=f"{name}/false", op="Const")
    false.attr["dtype"].type = tf.bool.as_datatype_enum
    false.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(False))
    node.MergeFrom(type(node)(name=name, op="Assert", input=[false.name + first_result, printed]))
    node.attr["T"].list.type.append(tf.string.as_datatype_enum)
  else:
    node.MergeFrom(type(node)(name=name, op="PrintV2", input=[printed]))
    node.attr["output_stream"].s = text.stream.encode()
  node.attr[_LINE].s = str(callback).encode()
