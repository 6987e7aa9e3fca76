"""Find the machine code of imports of ``hal``, see the README."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from jitree.codegen import image
from jitree.modules.import_rows import ImportRow, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jitree.codegen.functions import IntegerFunction
    from jitree.codegen.image.generated import Generated

_MODULES: Final = ("hal", "hal_inline", "hal_loader")


def fast_paths() -> tuple[ImportRow, ...]:
    """The imports that have one."""
    return tuple(row for module in _MODULES for row in rows(module) if row.fast_path)


def symbol_of(row: ImportRow) -> str:
    return f"{row.module}.{row.name}.{row.cconv}"


SWEEP: Final = "sweep"
FREE: Final = "free_entry"
NEW_LIST: Final = "new_list"

RECIPE: Final = image.Recipe(
    "hal", "the fast paths of module hal", "jitree.modules.hal.native:generate", 10.0
)


def address(row: ImportRow) -> int:
    """The address of an import's fast path, 0 while it is being built."""
    built = image.get(RECIPE)
    return 0 if built is None else built.addresses[symbol_of(row)]


# -- in the builder process ------------------------------------------------------------------------------


def generate() -> Generated:
    """The LLVM IR of all imports, in the builder process."""
    from jitree.codegen import functions
    from jitree.codegen.image.generated import one_unit

    found: list[IntegerFunction] = [_find("entries", SWEEP), _find("entries", FREE)]
    found += [_find("entries", NEW_LIST)]
    entries: list[str] = []
    symbols = []
    for row in fast_paths():
        path, *constants = row.fast_path.split()
        found.append(_find(*path.split(".")))
        symbols.append(symbol_of(row))
        entries.append(_entry(symbols[-1], found[-1], constants))
    return one_unit([*entries, *functions.texts(found)], [*symbols, SWEEP, FREE, NEW_LIST])


def _find(module: str, name: str) -> IntegerFunction:
    function: IntegerFunction = getattr(import_module(f"{__name__}.{module}"), name)
    return function


def _entry(symbol: str, function: IntegerFunction, constants: Sequence[str]) -> str:
    """A fast path as bytecode calls it, ``i32 (state, values, refs, words)``. It refuses everything until the
    table has a HandlePoolRecord record."""
    from jitree.modules.hal.native.registers import REFUSED
    from jitree.regs.layout import STATE

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
