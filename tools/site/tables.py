"""A hook of MkDocs: tables fit into the page. Long names in them may be broken behind punctuation.
Tables that are too wide for a phone are marked, and site.css shows their rows there as lists of
"header: value"."""

from __future__ import annotations

import html
import itertools
import re
from typing import Any

# Letters beside each other on a phone of 390 px, in the size of a table; and for the padding of a
# column.
PHONE, PADDING = 46, 3
# Letters of a name that may be broken.
LONG = 20

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
_CELL = re.compile(r"<(?P<kind>t[hd])(?P<attributes>[^>]*)>(?P<content>.*?)</(?P=kind)>", re.DOTALL)
_NAME = re.compile(rf"(?<=[>\s])[^<>\s]{{{LONG},}}(?=[<\s])")
_JOINT = re.compile(r"(?<=[\w)\]:][/_.:,=])(?=[\w\"'{[(])(?!py\b)")
_TAG = re.compile(r"<[^>]+>")


def on_page_content(page_html: str, **_: Any) -> str:
  return _TABLE.sub(lambda table: _marked(_broken(table[0])), page_html)


def _broken(table: str) -> str:
  """A table with places for line breaks in long names."""
  return _NAME.sub(lambda name: _JOINT.sub("<wbr>", name[0]), table)


def _marked(table: str) -> str:
  """A table with its headers in each cell, if its longest words do not fit beside each other."""
  rows = [[_text(cell["content"]) for cell in _CELL.finditer(row)] for row in _ROW.findall(table)]
  columns = itertools.zip_longest(*rows, fillvalue="")
  words = [max(map(len, " ".join(column).split()), default=0) for column in columns]
  if sum(words) + PADDING * len(words) <= PHONE:
    return table
  headers = rows[0]

  def row(found: re.Match[str]) -> str:
    cells = iter(headers)
    return _CELL.sub(lambda cell: _labelled(cell, next(cells, "")), found[0])

  return _ROW.sub(row, table).replace("<table>", "<table data-wide>", 1)


def _labelled(cell: re.Match[str], header: str) -> str:
  if cell["kind"] == "th":
    return cell[0]
  label = f' data-label="{html.escape(header)}"' if header else ""
  return f"<td{cell['attributes']}{label}>{cell['content']}</td>"


def _text(content: str) -> str:
  return html.unescape(_TAG.sub("", content)).strip()
