"""Write the LLVM IR of all imports. Only the builder and tests import this."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from jitree.codegen import functions
from jitree.codegen.functions import IntegerFunction
from jitree.codegen.image.generated import Generated, one_unit
from jitree.modules.hal.native import (
    FREE,
    HAND_OVER,
    IS_DONE,
    NEW_LIST,
    SWEEP,
    TAKE_OVER,
    fast_paths,
    symbol_of,
)
from jitree.modules.hal.native.registers import REFUSED
from jitree.regs.layout import STATE

_PACKAGE = "jitree.modules.hal.native"


def generate() -> Generated:
    found: list[IntegerFunction] = [_find("entries", SWEEP), _find("entries", FREE)]
    found += [_find("entries", NEW_LIST)]
    found += [_find("streams", TAKE_OVER), _find("streams", HAND_OVER), _find("fences", IS_DONE)]
    entries: list[str] = []
    symbols = []
    for row in fast_paths():
        path, *constants = row.fast_path.split()
        found.append(_find(*path.split(".")))
        symbols.append(symbol_of(row))
        entries.append(_entry(symbols[-1], found[-1], constants))
    return one_unit(
        [*entries, *functions.texts(found)],
        [*symbols, SWEEP, FREE, NEW_LIST, TAKE_OVER, HAND_OVER, IS_DONE],
    )


def _find(module: str, name: str) -> IntegerFunction:
    function: IntegerFunction = getattr(import_module(f"{_PACKAGE}.{module}"), name)
    return function


def _entry(symbol: str, function: IntegerFunction, constants: Sequence[str]) -> str:
    """A fast path as bytecode calls it, ``i32 (state, values, refs, words)``. It refuses everything until the
    table has a HandlePoolRecord record."""
    names = [f"i64 %a{number}" for number in range(4)]
    passed = ", ".join([*names, *(f"i64 {value}" for value in constants)])
    declared = ", ".join(["i64"] * (4 + len(constants)))
    return "\n".join([
        f"declare i64 @{function.__name__}({declared})",
        f"define i32 @\"{symbol}\"({', '.join(names)}) nounwind \"no-builtins\" {{",
        f"  %place = add i64 %a0, {STATE['handle_pool']}",
        "  %pointer = inttoptr i64 %place to ptr", "  %handle_pool = load i64, ptr %pointer",
        "  %missing = icmp eq i64 %handle_pool, 0", "  br i1 %missing, label %refused, label %ready",
        "ready:", f"  %result = call i64 @{function.__name__}({passed})",
        "  %status = trunc i64 %result to i32", "  ret i32 %status",
        "refused:", f"  ret i32 {REFUSED}", "}",
    ])  # fmt: skip
