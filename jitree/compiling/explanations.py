"""Why the importer or the compiler refuses a program, in one line: the operator, its place in the model, the
reason, and what to change. What is known of their messages is in ``explanations.tsv``, one row each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from jitree.base.records import NamedTuple
from jitree.compiling.onnx_files import NodePlace

_ERROR: Final = re.compile(r"^(?P<place>[^\n]*?)\b(?:error|LLVM ERROR): (?P<text>[^\n]+)", re.MULTILINE)
_OF_FLAGS: Final = re.compile(r"^iree-compile: (?P<place>)(?P<text>[^\n]+)", re.MULTILINE)
"""What it says of its command line, before it begins."""
_LOCATION: Final = re.compile(r'loc\([a-z(\[]*"((?:[^"\\]|\\.)*)".*?\)(?=: |$)')
"""Of one node, or of the first of several."""
_ESCAPED: Final = re.compile(rb"\\([0-9A-F]{2}|\\)")
"""A byte of a name that MLIR does not print as it is."""
_OPERATOR: Final = re.compile(r'"onnx\.(\w+)"')
_OPERATION: Final = re.compile(r"'([a-z_]+\.[\w.]+)'")
_LAST_WORDS: Final = 300
"""Characters of a message that no row knows: what follows is the operation with all its types."""


class _Row(NamedTuple):
    pattern: re.Pattern[str]
    reason: str
    remedy: str


class RefusedModel(NamedTuple):
    operator: str
    """Of ONNX, or an operation of MLIR; empty where the message tells of none."""
    place: str
    """Where it is in the model; empty where the message does not tell."""
    reason: str
    remedy: str
    """What to change; empty where nothing is known."""

    def __str__(self) -> str:
        head = " ".join(part for part in (self.operator, self.place) if part)
        text = f"{head}: {self.reason}" if head else self.reason
        return f"{text}; {self.remedy}" if self.remedy else text


def explain(log: str, nodes: Mapping[str, NodePlace]) -> RefusedModel | None:
    """The first error of a log; None where there is none. ``nodes``: what is known of a location's name."""
    found = _ERROR.search(log) or _OF_FLAGS.search(log)
    if found is None:
        return None
    text, named = found["text"], ""
    place = found["place"].strip().removesuffix(":")
    place = f"at {place}" if place not in ("", "<unknown>:0") else ""
    location = _LOCATION.match(text)
    if location is not None:
        name = _unescaped(location[1])
        text = text[location.end() :].lstrip(": ")
        place = f"'{name}'"
        if name in nodes:
            place, named = f"{place} ({nodes[name].text})", nodes[name].operator
    if not named:
        operator = _OPERATOR.search(text) or _OPERATION.search(text)
        named = operator[1] if operator else ""
    for row in _rows():
        known = row.pattern.search(text)
        if known is not None:
            values = {"operator": named, **known.groupdict()}
            return RefusedModel(named, place, row.reason.format(**values), row.remedy.format(**values))
    return RefusedModel(named, place, _cut(text), "")


def _unescaped(name: str) -> str:
    """As the file has it."""
    data = _ESCAPED.sub(lambda found: _byte(found[1]), name.encode("utf-8", "surrogatepass"))
    return data.decode("utf-8", "backslashreplace")


def _byte(escaped: bytes) -> bytes:
    return escaped if escaped == b"\\" else bytes.fromhex(escaped.decode())


def _cut(text: str) -> str:
    return text if len(text) <= _LAST_WORDS else text[:_LAST_WORDS] + " …"


@cache
def _rows() -> tuple[_Row, ...]:
    lines = Path(__file__).with_name("explanations.tsv").read_text(encoding="utf-8").splitlines()
    fields = (line.split("\t") for line in lines if not line.startswith("#"))
    return tuple(_Row(re.compile(pattern), reason, remedy) for pattern, reason, remedy in fields)
