"""The LLVM IR of all fast paths. Only the builder and tests import this."""

from __future__ import annotations

from importlib import import_module

from jitree.codegen import functions
from jitree.codegen.functions import IntegerFunction, entry_text
from jitree.codegen.image.generated import Generated, one_unit
from jitree.modules.hal.native.image import FREE, SWEEP, fast_paths, symbol_of

_PACKAGE = "jitree.modules.hal.native"


def generate() -> Generated:
    found: list[IntegerFunction] = [_find("entries", SWEEP), _find("entries", FREE)]
    entries: list[str] = []
    symbols = []
    for row in fast_paths():
        path, *constants = row.fast_path.split()
        found.append(_find(*path.split(".")))
        symbols.append(symbol_of(row))
        entries.append(entry_text(f'"{symbols[-1]}"', found[-1], tuple(map(int, constants))))
    return one_unit([*entries, *functions.texts(found)], [*symbols, SWEEP, FREE])


def _find(module: str, name: str) -> IntegerFunction:
    function: IntegerFunction = getattr(import_module(f"{_PACKAGE}.{module}"), name)
    return function
