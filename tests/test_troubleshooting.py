"""docs/reference/troubleshooting.md lists the messages of the source: none is missing, none is stale."""

from __future__ import annotations

from tests import messages

MESSAGES, LISTED = messages.in_source(), messages.in_page()


def test_each_message_of_the_source_is_listed() -> None:
  missing = {text: place for text, place in MESSAGES.items() if not text.startswith(tuple(LISTED))}
  assert not missing, f"add a row to {messages.PAGE.name}, or the beginning to a row of the same cause and cure"


def test_each_listed_message_is_in_the_source() -> None:
  assert len(MESSAGES) > 300
  stale = [beginning for beginning in LISTED if not any(text.startswith(beginning) for text in MESSAGES)]
  assert not stale, "no message begins so any more"
  assert not [beginning for beginning in LISTED if sum(c.isalpha() for c in beginning) < 4], "too short to be found"


def test_a_row_has_a_cause_and_a_cure() -> None:
  rows = [row for row in messages.PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
  assert all(len(row.split(" | ")) == 3 and all(cell.strip(" |") for cell in row.split(" | ")) for row in rows)
