"""Writes pages that need no network. Tables, text and drawings are one HTML file, or a part of a notebook.

What a page shows is a list of pieces, which the parts make that know it. ``graph.js`` and ``page.js`` draw on
canvases, ``page.css`` is the style. Names of programs may be any text: it is escaped in HTML, the script gets
it as JSON and never as markup, and no other script runs (a policy in the page has the digest of this one).
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from math import isfinite
from typing import Any, Final

from jitree.base.records import NamedTuple
from jitree.base.tables import cell, html_table, html_text
from jitree.errors import printable

_DIGITS: Final = 6
"""Of numbers that are drawn."""
_LONGEST: Final = 4000
"""Characters of a text that is drawn, and of a notice."""
_GRAPH_HEIGHT: Final = 900
_TIMELINE_HEIGHT: Final = 150
_TRACK_HEIGHT: Final = 38
"""Pixels in a notebook."""


MOST_ROWS: Final = 2000
"""Of a table of a page; the list of dispatches has any number."""
MISSING, WRONG, SAID = "missing", "wrong", "said"
"""Kinds of notices: something could not be shown; a number is wrong; anything else."""


class PageTable(NamedTuple):
    """Rows of cells under a header."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""


class Text(NamedTuple):
    """Lines whose columns stay in line."""

    title: str
    text: str
    is_open: bool = True


class Notice(NamedTuple):
    """One sentence that is read first."""

    text: str
    kind: str = MISSING
    node: int | None = None
    """The node of the graph that it speaks of."""


class Drawing(NamedTuple):
    """A graph or timeline; ``page.js`` says what the data is."""

    kind: str
    data: Mapping[str, Any]


Piece = PageTable | Text | Notice | Drawing


def document(title: str, pieces: Iterable[Piece]) -> str:
    """Writes a page."""
    pieces = [*pieces]
    script, style = _script(), _resource("page.css")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    data = {piece.kind: piece.data for piece in pieces if isinstance(piece, Drawing)}
    body = "\n".join(_shown(piece) for piece in _in_order(pieces))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{cell(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{cell(title)}</h1></header>\n<main>\n{body}\n</main>\n"
        f'<script type="application/json" id="data">{as_json(data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def notebook(title: str, pieces: Iterable[Piece]) -> str:
    """Writes what ``_repr_html_`` gives: tables and text as notebooks style them, drawings in a frame."""
    pieces = [*pieces]
    drawings = [piece for piece in pieces if isinstance(piece, Drawing)]
    shown = [_plain(piece) for piece in pieces if not isinstance(piece, Drawing)]
    if drawings:
        inside = escape(document(title, drawings))
        height = sum(map(_height, drawings))
        frame = f'sandbox="allow-scripts" style="width:100%;height:{height}px;border:0"'
        shown.append(f'<iframe title="{cell(title)}" {frame} srcdoc="{inside}"></iframe>')
    return "".join(shown)


def _height(drawing: Drawing) -> int:
    tracks = drawing.data.get("tracks")
    return _GRAPH_HEIGHT if tracks is None else _TIMELINE_HEIGHT + _TRACK_HEIGHT * len(tracks)


def as_json(data: object) -> str:
    """Writes data that stands in a page: nothing in it ends the element or begins another one."""
    text = json.dumps(_plain_data(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plain_data(data: Any) -> Any:
    """With short numbers, and text for those that JSON has not."""
    if isinstance(data, Mapping):
        return {str(key): _plain_data(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain_data(value) for value in data]
    if isinstance(data, float):
        return float(f"{data:.{_DIGITS}g}") if isfinite(data) else str(data)
    if data is None or isinstance(data, (bool, int)):
        return data
    return printable(str(data))[:_LONGEST]


def _script() -> str:
    return _resource("graph.js") + _resource("page.js")


def _resource(name: str) -> str:
    return files("jitree.base").joinpath(name).read_text(encoding="utf-8")


def _in_order(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Notices come first."""
    yield from (piece for piece in pieces if isinstance(piece, Notice))
    yield from (piece for piece in pieces if not isinstance(piece, Notice))


def _shown(piece: Piece) -> str:
    match piece:
        case Notice():
            place = "" if piece.node is None else f' data-node="{piece.node}"'
            lines = " lines" if "\n" in piece.text else ""
            text = escape(printable(piece.text[:_LONGEST]))
            return f'<p class="notice {piece.kind}{lines}" role="status"{place}>{text}</p>'
        case Drawing():
            return f'<section class="drawing" data-kind="{cell(piece.kind)}"></section>'
        case Text():
            is_open = " open" if piece.is_open else ""
            text = escape(printable(piece.text))
            return f"<details{is_open}><summary>{cell(piece.title)}</summary><pre>{text}</pre></details>"
    table = html_table("", piece.header, piece.rows, MOST_ROWS)
    note = f'<p class="note">{cell(piece.note)}</p>' if piece.note else ""
    return f'<section><h2>{cell(piece.title)}</h2><div class="wide">{table}</div>{note}</section>'


def _plain(piece: PageTable | Text | Notice) -> str:
    match piece:
        case Notice():
            return f'<pre style="white-space:pre-wrap">{escape(printable(piece.text[:_LONGEST]))}</pre>'
        case Text():
            return html_text(piece.title, piece.text)
    return html_table(piece.title, piece.header, piece.rows) + escape(printable(piece.note))
