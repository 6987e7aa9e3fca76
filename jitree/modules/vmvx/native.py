"""The image of ``vmvx`` as machine code, which bytecode calls without Python."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from jitree.codegen import image
from jitree.modules.vmvx.kernels import COMPILED

if TYPE_CHECKING:
    from collections.abc import Callable

RECIPE: Final = image.Recipe(
    "vmvx", "the microkernels of module vmvx", "jitree.modules.vmvx.texts:generate", 1.0
)


def symbol_of(name: str, cconv: str) -> str:
    return f"vmvx.{name}.{cconv}"


def address(name: str, cconv: str) -> Callable[[], int] | None:
    """Gives the address of a function's machine code, 0 while it is being built; None if it has none."""
    return partial(_address, symbol_of(name, cconv)) if (name, cconv) in COMPILED else None


def _address(symbol: str) -> int:
    built = image.get(RECIPE)
    return 0 if built is None else built.addresses[symbol]
