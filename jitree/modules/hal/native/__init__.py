"""Find the machine code of imports of ``hal``, see the README."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from jitree.codegen import image
from jitree.modules.import_rows import ImportRow, rows

if TYPE_CHECKING:
    from collections.abc import Callable


_MODULES: Final = ("hal", "hal_inline", "hal_loader")


def fast_paths() -> tuple[ImportRow, ...]:
    """The imports that have one."""
    return tuple(row for module in _MODULES for row in rows(module) if row.fast_path)


def symbol_of(row: ImportRow) -> str:
    return f"{row.module}.{row.name}.{row.cconv}"


SWEEP: Final = "sweep"
FREE: Final = "free_entry"
TAKE_OVER: Final = "take_over"
HAND_OVER: Final = "hand_over"
NEW_LIST: Final = "new_list"
IS_DONE: Final = "is_done_in_a_moment"

RECIPE: Final = image.Recipe(
    "hal", "the fast paths of module hal", "jitree.modules.hal.native.texts:generate", 10.0
)


def address(row: ImportRow) -> Callable[[], int] | None:
    """Gives the address of an import's fast path, 0 while it is being built; None if it has none."""
    return partial(_address, symbol_of(row)) if row.fast_path else None


def _address(symbol: str) -> int:
    built = image.get(RECIPE)
    return 0 if built is None else built.addresses[symbol]
