"""The LLVM IR of all fast paths. Only the builder and tests import this."""

from __future__ import annotations

from importlib import import_module

from jitree.codegen import functions
from jitree.codegen.functions import IntegerFunction, entry_text
from jitree.codegen.image.generated import Generated, one_unit
from jitree.modules.hal.native.image import FAST_PATHS, FREE, SWEEP

_PACKAGE = "jitree.modules.hal.native"


def generate() -> Generated:
    found: list[IntegerFunction] = [_find("entries", SWEEP), _find("entries", FREE)]
    entries: list[str] = []
    for path in FAST_PATHS:
        module, _, name = path.function.partition(".")
        function = _find(module, name)
        found.append(function)
        entries.append(entry_text(f'"{path.symbol}"', function, path.constants))
    symbols = [path.symbol for path in FAST_PATHS]
    return one_unit([*entries, *functions.texts(found)], [*symbols, SWEEP, FREE])


def _find(module: str, name: str) -> IntegerFunction:
    function: IntegerFunction = getattr(import_module(f"{_PACKAGE}.{module}"), name)
    return function
