"""Reads the imports of programs from ``imports.tsv``. There is a row for each name and calling convention.

A pair of name and calling convention means the same in all releases that have it, so one row serves them all.
Expressions of rows have functions for values of the VM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from jitree.base.records import NamedTuple

if TYPE_CHECKING:
    from jitree.regs.buffer import VmBuffer


def text(buffer: VmBuffer) -> str:
    """A string that a program passes: UTF-8 without terminator."""
    return str(buffer.view, "utf-8", "backslashreplace")


def unsigned64(value: int) -> int:
    return value & 0xFFFFFFFFFFFFFFFF


_NOTHING: Final = "-"

Parameter = tuple[str, str | None]
"""(name, reference type)"""


class ImportRow(NamedTuple):
    module: str
    name: str
    cconv: str
    first: str
    """The oldest family of imports that has it."""
    last: str
    """The youngest one; empty where the newest releases have it."""
    parameters: str
    """``buffer: hal.buffer, offset, fence: hal.fence?, [slot, target: hal.buffer?], …``: names in order,
    references with their type, ``?`` where null is allowed, a span in brackets."""
    function: str
    """``hal.fence.fail`` in this folder, also with its arguments in parentheses; ``.signal``, a method of the
    first argument; or an expression of the parameters, ``= buffer.byte_length``."""
    fast_path: str = ""
    """``fences.fence_join 1``: a function in ``hal/native`` and its constants; empty if there is none."""

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"

    def implementation(self) -> Callable[..., Any]:
        """What is called with the module's state and the arguments."""
        if self.function.startswith("= "):
            return _rearranged(self.parameters, self.function[2:])
        path, is_stated, arguments = self.function.partition("(")
        module, _, name = path.rpartition(".")
        if not module:
            return lambda state, first, *others: getattr(first, name)(*others)
        file = f"{__package__}.{module}"
        there = sys.modules.get(file)
        if there is None or getattr(there.__spec__, "_initializing", False):  # by another thread
            there = import_module(file)
        function: Callable[..., Any] = getattr(there, name)
        return _rearranged(self.parameters, f"call({arguments}", function) if is_stated else function


@cache
def _rearranged(
    parameters: str, expression: str, call: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    names = ["span" if isinstance(item, list) else item[0] for item in parse_parameters(parameters)]
    scope = {"call": call, "text": text, "unsigned64": unsigned64}
    source = f"lambda {', '.join(['state', *names])}: {expression}"
    function: Callable[..., Any] = eval(compile(source, "<row of imports.tsv>", "eval"), scope)
    return function


@cache
def parse_parameters(text: str) -> list[Parameter | list[Parameter]]:
    """The parameters of a row; a span is a list."""
    items: list[Parameter | list[Parameter]] = []
    span: list[Parameter] | None = None
    for piece in text.split(",") if text else ():
        piece = piece.strip()
        name, _, kind = piece.strip("[]").partition(":")
        if piece.startswith("["):
            span = []
            items.append(span)
        (items if span is None else span).append((name.strip(), kind.strip() or None))
        if piece.endswith("]"):
            span = None
    return items


def fields_of(line: str) -> list[str]:
    """The fields of a row; ``-`` stands for an empty one."""
    return ["" if field == _NOTHING else field for field in line.split("\t")]


@cache
def _lines() -> dict[str, dict[str, list[str]]]:
    """Reads the lines of ``imports.tsv`` by module and name, a name's newest first."""
    found: dict[str, dict[str, list[str]]] = {}
    with open(os.path.join(os.path.dirname(__file__), "imports.tsv"), encoding="utf-8") as file:
        lines = [line for line in file.read().split("\n") if line and line[0] != "#"]
    for line in reversed(lines):
        module, name, _ = line.split("\t", 2)
        found.setdefault(module, {}).setdefault(name, []).append(line)
    return found


@cache
def named(module: str, name: str) -> tuple[ImportRow, ...]:
    """The imports of a name, the newest first: a program needs few of all rows."""
    lines = _lines().get(module, {}).get(name, ())
    return tuple(map(ImportRow._make, map(fields_of, lines)))


@cache
def stated(module: str, name: str, cconv: str) -> ImportRow | None:
    """The import with that calling convention."""
    for line in _lines().get(module, {}).get(name, ()):
        if line.split("\t", 3)[2] == cconv:
            return ImportRow._make(fields_of(line))
    return None


@cache
def rows(module: str) -> tuple[ImportRow, ...]:
    """The imports from one host module, name by name."""
    return tuple(row for name in _lines().get(module, ()) for row in named(module, name))


def all_rows() -> tuple[ImportRow, ...]:
    return tuple(row for module in _lines() for row in rows(module))
