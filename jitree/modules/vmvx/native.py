"""The image of ``vmvx`` as machine code, which bytecode calls without Python."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from jitree.codegen import image
from jitree.modules.vmvx import native_code, native_loops, native_matmul, packing
from jitree.modules.vmvx.native_code import Thunk

if TYPE_CHECKING:
    from collections.abc import Callable

PACK: Final = "0rIIIrIIIIIIIIIIi_v"
PACK_DENSE: Final = "0rIIrIIIIIIIIIi_v"
UNPACK: Final = "0rIIIrIIIIIIIIIi_v"
UNPACK_DENSE: Final = "0rIIrIIIIIIIIi_v"
MMT4D: Final = "0rIIrIIrIIIIIiiii_v"
FILL: Final = "0irIIII_v"
_DENSE: Final = (PACK_DENSE, UNPACK_DENSE)
_PACKED_TYPES: Final = (("i32", (1, 3)), ("i8", (2,)))
"""Element types as bits, and their numbers in the flags."""
_TYPE_MASK: Final = 0xFF
_KNOWN_FLAGS: Final = _TYPE_MASK | packing.TRANSPOSE_INNER | packing.TRANSPOSE_OUTER

_PACKING: Final = (("pack", PACK), ("pack", PACK_DENSE), ("unpack", UNPACK), ("unpack", UNPACK_DENSE))
SYMBOLS: Final = {
    **{(name, native_loops.BINARY_CCONV): f"vmvx_{name}" for name in native_loops.BINARY},
    **{(name, native_loops.UNARY_CCONV): f"vmvx_{name}" for name in native_loops.UNARY},
    ("fill.2d.x32", FILL): "vmvx_fill",
    ("mmt4d", MMT4D): "vmvx_mmt4d",
    **{(name, cconv): f"vmvx_{name}{'_dense' * (cconv in _DENSE)}" for name, cconv in _PACKING},
}
"""The functions that there is machine code for."""

RECIPE: Final = image.Recipe(
    "vmvx", "the microkernels of module vmvx", "jitree.modules.vmvx.native:generate", 1.0
)


def address(name: str, cconv: str) -> Callable[[], int] | None:
    """Gives the address of a function's machine code, 0 while it is being built; None if it has none."""
    symbol = SYMBOLS.get((name, cconv))
    return None if symbol is None else partial(_address, symbol)


def _address(symbol: str) -> int:
    built = image.get(RECIPE)
    return 0 if built is None else built.addresses[symbol]


def generate() -> image.Generated:
    """LLVM IR of all functions."""
    from jitree.codegen.vector_math.ir import function_texts  # only the builder needs it

    functions = [
        text
        for name in native_loops.FUNCTIONS
        for text in function_texts(f"{name}.f32", f'@"math.{name}.f32"', 1, "internal")
    ]
    parts = [native_code.HEADER, *dict.fromkeys(functions)]
    for (name, cconv), symbol in SYMBOLS.items():
        if name == "mmt4d":
            parts += _either(
                symbol,
                {
                    f"{symbol}_{variant.name}": native_matmul.mmt4d(
                        f"{symbol}_{variant.name}", cconv, variant
                    )
                    for variant in native_matmul.VARIANTS
                },
            )
        elif name in ("pack", "unpack"):
            kinds = {
                f"{symbol}_{kind}": _packing(f"{symbol}_{kind}", cconv, kind, numbers)
                for kind, numbers in _PACKED_TYPES
                if name == "pack" or kind != "i8"
            }
            parts += _either(symbol, kinds)
        elif name == "fill.2d.x32":
            parts.append(native_loops.fill(symbol, cconv))
        else:
            parts.append(native_loops.elementwise(name, symbol))
    return image.one_unit(["\n".join(parts)], SYMBOLS.values())


def _either(symbol: str, functions: dict[str, str]) -> list[str]:
    """The first one that does it."""
    arguments = "ptr %state, ptr %values, ptr %refs, ptr %words"
    lines = [f"define i32 @{symbol}({arguments}) #0 {{"]
    for index, function in enumerate(functions):
        lines += [
            f"  %status{index} = call i32 @{function}({arguments})",
            f"  %done{index} = icmp eq i32 %status{index}, 0",
            f"  br i1 %done{index}, label %done, label %next{index}",
            f"next{index}:",
        ]
    return [*functions.values(), "\n".join([*lines, "  ret i32 1", "done:", "  ret i32 0", "}", ""])]


def _packing(symbol: str, cconv: str, kind: str, numbers: tuple[int, ...]) -> str:
    thunk = Thunk(symbol, cconv)
    sides, rest = _sides(thunk, cconv)
    into_storage = cconv in (PACK, PACK_DENSE)
    flags = rest[-1]
    thunk.require(thunk.compare("ule", flags, _KNOWN_FLAGS))
    number = thunk.arithmetic("and", flags, _TYPE_MASK)
    known = [thunk.compare("eq", number, value) for value in numbers]
    thunk.require(known[0] if len(known) == 1 else thunk.let(f"or i1 {known[0]}, {known[1]}"))
    thunk.writable(sides[1][0])
    if into_storage:
        size0, size1, outer0, outer1, tile0, tile1, value, _ = rest
        padding = thunk.let(f"trunc i64 {value} to {kind}")
        matrix, storage = sides
    else:
        outer0, outer1, tile0, tile1, size0, size1, _ = rest
        padding = ""
        storage, matrix = sides
    extents = [outer0, outer1, tile0, tile1, size0, size1, flags]
    tiles = native_loops.Tiles(thunk, kind, matrix, storage, extents)
    tiles.copy(into_storage=into_storage, padding=padding)
    return thunk.text()


def _sides(thunk: Thunk, cconv: str) -> tuple[list[list[str]], list[str]]:
    """Buffer, offset and two strides of both sides, and the other arguments."""
    arguments = thunk.arguments
    if cconv not in _DENSE:
        return [arguments[:4], arguments[4:8]], arguments[8:]
    first, second, rest = arguments[:3], arguments[3:6], arguments[6:]
    # Tiles next to each other, columns next to each other.
    tile0, tile1 = rest[4:6] if cconv == PACK_DENSE else rest[2:4]
    thunk.small(tile0, tile1)
    tile = thunk.multiply(tile0, tile1)
    if cconv == PACK_DENSE:
        return [[*first, "1"], [*second, tile]], rest
    return [[*first, tile], [*second, "1"]], rest
