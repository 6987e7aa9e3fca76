"""The LLVM IR of all answers. Only the builder and tests import this."""

from __future__ import annotations

from importlib import import_module

from jitree.codegen import functions
from jitree.codegen.functions import IntegerFunction, entry_text
from jitree.codegen.image.generated import Generated, one_unit
from jitree.modules.hal.native.image import ANSWERS, FREE, SWEEP

_PACKAGE = "jitree.modules.hal.native"


def generate() -> Generated:
    found: list[IntegerFunction] = [_find("entries", SWEEP), _find("entries", FREE)]
    entries: list[str] = []
    for answer in ANSWERS:
        module, _, name = answer.function.partition(".")
        function = _find(module, name)
        found.append(function)
        entries.append(entry_text(f'"{answer.symbol}"', function, answer.constants))
    symbols = [answer.symbol for answer in ANSWERS]
    return one_unit([*entries, *functions.texts(found)], [*symbols, SWEEP, FREE])


def _find(module: str, name: str) -> IntegerFunction:
    function: IntegerFunction = getattr(import_module(f"{_PACKAGE}.{module}"), name)
    return function
