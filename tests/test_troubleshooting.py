"""docs/reference/troubleshooting.md lists the messages of the source: none is missing, none is
stale."""

from __future__ import annotations

import pytest

from tests import messages

MESSAGES, LISTED = messages.in_source(), messages.in_page()

# One message of each kind that the collection has to see, and the messages in it.
PLANTED = {
  'raise ValueError(f"x is {x}; give one")': ["x is ...; give one"],
  'raise grpc.RefusedError(code, "send it again later")': ["send it again later"],
  'raise zlib.error("it ends too early")': ["it ends too early"],
  'raise ValueError("one of two" if one else f"the other of {two}")': [
    "one of two",
    "the other of ...",
  ],
  'raise ValueError("\\n".join(["the first line", *lines]))': ["the first line"],
  'problem = "made before it"\nraise ValueError(problem)': ["made before it"],
  'def said():\n  return "made by a function"\nraise ValueError(said())': ["made by a function"],
  'warnings.warn(f"this is {slow} here")': ["this is ... here"],
  'sys.exit(f"usage: one {file}")': ["usage: one ..."],
  'error.add_note("below the error")': ["below the error"],
  'print("a line on stderr", file=sys.stderr)': ["a line on stderr"],
  '_say(f"waiting for port {port}")': ["waiting for port ..."],
  'await context.abort(code, "no such service")': ["no such service"],
  'code, reason = 500, "the server failed"\ncontext.abort(code, reason)': ["the server failed"],
  'ctx.refuse("why it is refused", "what to do")': ["why it is refused", "what to do"],
  'gap = Gap(name, "why it is refused", "what to do", where)': ["why it is refused", "what to do"],
  'UNSUPPORTED["pin"] = ("why it is refused", "what to do")': ["why it is refused", "what to do"],
  'UNSUPPORTED.update({"pin": ("why it is refused", "what to do")})': [
    "why it is refused",
    "what to do",
  ],
  '_KERNEL = ("why it is refused", "what to do")': ["why it is refused", "what to do"],
  'if lacking := {op: f"no kernel of {op}"}:\n  raise signature.refuse("onnx", RUNTIME, lacking)': [
    "no kernel of ..."
  ],
  'return refused(op, "a kind of op")': ["a kind of op"],
  'skipped[name] = "it has no function"': ["it has no function"],
  'faults.setdefault(i, f"row {i} is bad")': ["row ... is bad"],
  'yield {}, "is no JSON object", place': ["is no JSON object"],
  'def fault():\n  """Why rows depend."""\n  return "one needs the other"': ["one needs the other"],
  'tf.debugging.Assert(ok, [f"{x} is no size"])': ["... is no size"],
  'words = ["the sizes of ", size, " differ"]\nconstraints.add_constraint(equal, words)': [
    "the sizes of "
  ],
  'intro = "Input shapes differ"\nraise ValueError(f"{intro} here, {x}")': [
    "Input shapes differ here, ..."
  ],
}


def test_each_message_of_the_source_is_listed() -> None:
  missing = {text: place for text, place in MESSAGES.items() if not text.startswith(tuple(LISTED))}
  assert not missing, (
    f"add a row to {messages.PAGE.name}, or the beginning to a row of the same cause and cure"
  )


def test_each_listed_message_is_in_the_source() -> None:
  assert len(MESSAGES) > 500
  stale = [
    beginning for beginning in LISTED if not any(text.startswith(beginning) for text in MESSAGES)
  ]
  assert not stale, "no message begins so any more"
  assert not [
    beginning
    for beginning in LISTED
    if sum(c.isalpha() for c in beginning) < 4 and beginning != "... of ..."
  ], "too short"


def test_the_report_of_targets_has_the_reasons_of_replacements() -> None:
  reasons, report = messages.reasons(), messages.TARGETS.read_text(encoding="utf-8")
  assert len(reasons) > 50
  assert not {
    reason: place for reason, place in reasons.items() if f"| {reason} |" not in report
  }, "run `make targets`"


@pytest.mark.parametrize("source", PLANTED)
def test_a_message_of_each_kind_is_seen(source: str) -> None:
  assert list(dict.fromkeys(text.rstrip() for _, text in messages.of_python(source))) == [
    text.rstrip() for text in PLANTED[source]
  ]


def test_those_of_javascript_and_of_replacements_are_seen() -> None:
  thrown = (
    "if (bad) throw new Error(`Input ${name} is bad.`);\nthrow new Error('There is no text.');"
  )
  assert [text for _, text in messages.of_javascript(thrown)] == [
    "Input ... is bad.",
    "There is no text.",
  ]
  registered = (
    '@replaces("Erf", on="onnx", because="no handler")\ndef erf(x): '
    '...\n_replaces_each({}, because="no kernel")'
  )
  assert [text for _, text in messages.of_replacements(registered)] == ["no handler", "no kernel"]


def test_names_and_other_strings_are_no_messages() -> None:
  source = (
    'x = "some words in a variable"\ndef f():\n  """Some words of a docstring."""\n  '
    'return option("--x", help="some words of help")'
  )
  assert list(messages.of_python(source)) == []


def test_a_row_has_a_cause_and_a_cure() -> None:
  rows = [
    row for row in messages.PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("| `")
  ]
  assert all(cell.strip(" |") for row in rows for cell in row.split(" | "))
  assert {len(row.split(" | ")) for row in rows} == {2, 3}  # a reason has its advice
