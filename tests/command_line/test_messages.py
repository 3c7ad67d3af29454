"""Errors that name arguments: one message for Python and for the command line."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import jax2tf
from jax2tf.converters import saved_model, verify
from jax2tf.messages import (
  Argument,
  ArgumentError,
  ArgumentTypeError,
  Aside,
  Flags,
  Message,
  Text,
  joined,
  message_of,
)
from jax2tf.tools.cli import _flags, convert
from tests.command_line import command_line_errors as errors

FLAGS = {
  "library": "--library",
  "outputs": "--output",
  "overwrite": "--overwrite",
  "path": "DIR",
  "samples": "--samples",
  "signatures": "--signature",
  "sizes": "--size",
  "state": "--state",
  "with_gradient": "--with_gradient",
}


@pytest.mark.parametrize(
  ("error", "python", "command"),
  [
    (
      ArgumentError("samples", 0, advice="at least one draw is needed"),
      "samples = 0; at least one draw is needed",
      "--samples=0; at least one draw is needed",
    ),
    (
      ArgumentError(Argument("sizes", [0], key="b"), advice="give positive integers"),
      "sizes['b'] = [0]; give positive integers",
      "--size b=0; give positive integers",
    ),
    (
      ArgumentError(
        "sizes", problem="none fits", advice=Text("give ", Argument("sizes", {"b": 5}))
      ),
      "sizes: none fits; give sizes={'b': 5}",
      "--size: none fits; give --size b=5",
    ),
    (
      ArgumentError("outputs", ["y", "a b"], problem="2 names for 1 results"),
      "outputs = ['y', 'a b']: 2 names for 1 results",
      "--output y --output 'a b': 2 names for 1 results",
    ),
    (
      ArgumentError("path", "there", problem="it is a folder", advice="name a file"),
      "path = 'there': it is a folder; name a file",
      "DIR=there: it is a folder; name a file",
    ),
    (
      ArgumentError(
        "state",
        None,
        problem="signature 's' is stateful",
        advice=Text("pass it, or choose others with ", Argument("signatures")),
      ),
      "state = None: signature 's' is stateful; pass it, or choose others with signatures=",
      "no --state: signature 's' is stateful; pass it, or choose others with --signature",
    ),
    (
      ArgumentTypeError(
        Argument("library", "nnx", function="from_flax_nnx"),
        problem="it takes a flax.nnx.Module",
        advice=Text("use ", Argument("library", "linen", function="from_flax_linen")),
      ),
      "from_flax_nnx: it takes a flax.nnx.Module; use from_flax_linen",
      "--library=nnx: it takes a flax.nnx.Module; use --library=linen",
    ),
    (
      FileExistsError(
        Message(
          problem="x exists already",
          advice=Text("pass ", Argument("overwrite", True), ", or another path"),
        )
      ),
      "x exists already; pass overwrite=True, or another path",
      "x exists already; pass --overwrite, or another path",
    ),
    (
      UserWarning(
        Message(
          problem="it has no gradient",
          advice=Text("give ", Argument("with_gradient", False), " to save it"),
        )
      ),
      "it has no gradient; give with_gradient=False to save it",
      "it has no gradient; give no --with_gradient to save it",
    ),
  ],
  ids=lambda value: str(value) if isinstance(value, BaseException) else None,
)
def test_the_same_error_for_python_and_for_the_command(
  error: Exception, python: str, command: str
) -> None:
  assert str(error) == python
  message = message_of(error)
  assert isinstance(message, Message) and message.for_command(FLAGS) == command


@pytest.mark.parametrize(
  ("advice", "flags", "words"),
  [
    (
      Text("give ", Argument("raw_inputs")),
      {"inputs": "--input"},
      "--input x=string[b]: no strings; from Python, give raw_inputs=",
    ),
    (
      Text("give another dtype", Aside(", or ", Argument("raw_inputs"))),
      {"inputs": "--input"},
      "--input x=string[b]: no strings; give another dtype",
    ),
    (
      Text("give another dtype", Aside(", or ", Argument("raw_inputs"))),
      {"inputs": "--input", "raw_inputs": "--raw_input"},
      "--input x=string[b]: no strings; give another dtype, or --raw_input",
    ),
    ("give another dtype", {}, "inputs['x'] = 'string[b]': no strings; give another dtype"),
  ],
)
def test_an_argument_without_a_flag(advice: str, flags: Flags, words: str) -> None:
  error = ArgumentError(
    Argument("inputs", "string[b]", key="x"), problem="no strings", advice=advice
  )
  assert error.for_command(flags) == words


def test_fields() -> None:
  with pytest.raises(ValueError, match="samples = 0") as caught:
    verify.verify("nowhere", lambda x: x, samples=0)
  error = caught.value
  assert isinstance(error, jax2tf.ArgumentError)
  assert (error.argument, error.value) == ("samples", 0)
  assert (error.problem, error.advice) == ("", "at least one draw is needed")
  with pytest.raises(TypeError) as wrong:
    jax2tf.convert(3)  # type: ignore[arg-type]
  assert isinstance(wrong.value, jax2tf.ArgumentTypeError) and wrong.value.argument == "fun_jax"


@pytest.mark.parametrize("copied", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_copies_keep_the_fields(copied: Any) -> None:
  needed = joined(" and ", [Argument("inputs", key="x"), Argument("reference")])
  error = ArgumentError(
    Argument("sizes", [0], key="b"), problem="wrong", advice=Text("give ", *needed)
  )
  error.add_note("at line 3")
  again = copied(error)
  assert (type(again), str(again)) == (ArgumentError, str(error))
  assert (again.argument, again.value, again.__notes__) == ("sizes['b']", [0], ["at line 3"])
  assert again.for_command(FLAGS) == error.for_command(FLAGS)


def test_every_parameter_of_a_command_has_its_flag() -> None:
  with click.Context(convert.convert):
    flags = _flags.of_command()
  assert (flags["path"], flags["signatures"]) == ("--out", "--signature")
  assert (flags["polymorphic_constraints"], flags["function"]) == (
    "--constraint",
    "MODULE:FUNCTION",
  )


def test_the_reason_and_the_advice_are_json(tmp_path: Path) -> None:
  (tmp_path / "one.py").write_text("def predict(params, x):\n  return x\n")
  command = "jax2tf convert one:predict --input x=f32[b] --out new --idioms gelo --json"
  code, _ = errors.run(command, tmp_path, out=(out := io.StringIO()))
  found = json.loads(out.getvalue())
  assert (code, found["reason"]) == (2, "--idioms=gelo: there is no 'gelo'")
  assert found["advice"].startswith("choose 'exact', 'fused'")


def test_skipped_signatures_say_what_to_do_from_python(tmp_path: Path) -> None:
  model = saved_model.Model({})
  model.add(
    lambda _, x: x,
    inputs={"x": "f32[b]"},
    preprocess=dict,
    raw_inputs={"x": "f32[b]"},
    signatures="processed",
  )
  model.add(lambda _, x: x, inputs={"x": "f32[b]"}, signatures="plain")
  report = verify.verify(model.save(tmp_path / "model"), lambda _, x: x, params={}, samples=1)
  (why,) = report.skipped.values()
  assert isinstance(why, Message)
  assert why == (
    "it has a preprocess step, which is not JAX's; give your own inputs['x'] and "
    "reference['processed']"
  )
  assert why.for_command(FLAGS).endswith("; from Python, " + why.advice)


def test_messages_need_neither_jax_nor_tensorflow() -> None:
  code = (
    "import sys, jax2tf.messages\n"
    "assert not {'jax', 'tensorflow', 'numpy', 'click'} & {*sys.modules}"
  )
  subprocess.run([sys.executable, "-c", code], check=True)
