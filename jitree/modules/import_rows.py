"""Imports of programs as ``imports.tsv`` states them: a row for each name and calling convention.

A pair of name and calling convention means the same in all releases that have it, so one row serves them all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import Any, Final

from jitree.base.records import NamedTuple

_NOTHING: Final = "-"


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
    """``hal.fence.join`` in this folder, or ``.signal``, a method of the first argument."""
    fast_path: str = ""
    """``fences.fence_join 1``: a function in ``hal/native`` and its constants; empty if there is none."""

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"

    def implementation(self) -> Callable[..., Any]:
        """What is called with the module's state and the arguments."""
        module, _, name = self.function.rpartition(".")
        if module:
            function: Callable[..., Any] = getattr(import_module(f"{__package__}.{module}"), name)
            return function
        return lambda state, first, *others: getattr(first, name)(*others)


def read_table(file: str) -> Iterator[list[str]]:
    """The fields of a file beside this one, line by line; ``-`` stands for an empty one."""
    with open(os.path.join(os.path.dirname(__file__), file), encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("#"):
                yield ["" if field == _NOTHING else field for field in line.rstrip("\n").split("\t")]


@cache
def all_rows() -> tuple[ImportRow, ...]:
    return tuple(ImportRow(*fields) for fields in read_table("imports.tsv"))


@cache
def rows(module: str) -> tuple[ImportRow, ...]:
    """The imports from one host module, the newest of a name before the older ones."""
    return tuple(row for row in reversed(all_rows()) if row.module == module)
