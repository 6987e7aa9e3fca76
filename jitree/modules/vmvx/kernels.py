"""Lists the functions of ``vmvx``, and the image of their machine code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from types import FunctionType
from typing import Any, Final

from jitree.base.cancel_scopes import require_going_on
from jitree.codegen import image
from jitree.codegen.primitives import Words
from jitree.modules.vmvx import elementwise, tiled
from jitree.modules.vmvx.elementwise import Element, Kernel

_STEP: Final = 1024
"""Numbers that Python computes between two looks, some milliseconds at most."""
Instructions = Callable[[str], Element]
"""Gives what an instruction is written as: a function, or what stands for its machine code."""

BINARY_CCONV: Final = "0rIIIrIIIrIIIII_v"
UNARY_CCONV: Final = "0rIIIrIIIII_v"
ELEMENTWISE: Final = (
    *((name, BINARY_CCONV) for name in elementwise.BINARY),
    *((name, UNARY_CCONV) for name in (*elementwise.UNARY, *elementwise.COPIES)),
    ("fill.2d.x32", "0irIIII_v"),
)
TILED: Final = (
    ("pack", "0rIIIrIIIIIIIIIIi_v"),
    ("pack", "0rIIrIIIIIIIIIi_v"),
    ("unpack", "0rIIIrIIIIIIIIIi_v"),
    ("unpack", "0rIIrIIIIIIIIi_v"),
    ("mmt4d", "0rIIrIIrIIIIIiiii_v"),
)
"""Two forms of pack: since compilers of June 2024, and before."""
COMPILED: Final = (*ELEMENTWISE, *TILED)
DIVISIONS: Final = (("divs.2d.i32", BINARY_CCONV), ("divu.2d.i32", BINARY_CCONV))
"""These can fail midway, so there is no machine code of them."""
NAMES: Final = (*COMPILED, *DIVISIONS)
_SHARED: Final[tuple[Kernel, ...]] = (
    elementwise.fill, tiled.pack, tiled.pack_dense, tiled.unpack, tiled.unpack_dense,
)  # fmt: skip


@cache
def in_python() -> dict[tuple[str, str], Kernel]:
    """All of :data:`NAMES`."""
    from jitree.dispatch.semantics import SEMANTICS  # programs that do not call these start without it

    def function(mnemonic: str) -> Element:
        return SEMANTICS[mnemonic].function

    divisions = elementwise.divide_signed, function("div.i32.u")
    made = (
        *compiled(function, tiled.MOST_IN_PYTHON),
        *(elementwise.binary(divide, Words) for divide in divisions),
    )
    return dict(zip(NAMES, map(_looking, made), strict=True))


def _looking(kernel: Any) -> Kernel:
    """The same, whose loops look whether what the thread does is to end."""
    code, names = kernel.__code__, {**kernel.__globals__, "range": _looking_range}
    return FunctionType(code, names, kernel.__name__, kernel.__defaults__, kernel.__closure__)


def _looking_range(*bounds: int) -> Iterator[int]:
    numbers = range(*bounds)
    for first in range(0, len(numbers), _STEP):
        require_going_on()
        yield from numbers[first : first + _STEP]


def compiled(instruction: Instructions, most: int) -> list[Kernel]:
    """The kernels of :data:`COMPILED`, each with a name that no other function has.

    ``most``: products of numbers that are not too many for one call.
    """
    made = [elementwise.binary(instruction(name), kind) for name, kind in elementwise.BINARY.values()]
    made += [elementwise.unary(instruction(name), kind) for name, kind in elementwise.UNARY.values()]
    made += [elementwise.unary(elementwise.same, kind) for kind in elementwise.COPIES.values()]
    for (name, _), kernel in zip(COMPILED, made, strict=False):
        kernel.__name__ = name
    return [*made, *_SHARED, tiled.mmt4d(instruction("fma.f32"), instruction("fma.i32"), most)]


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
