"""Reads what the names of dispatches say of their tensors: ``main_dispatch_46_matmul_4x71x64_f32``.

The compiler names a dispatch after its root operation: its loops, outermost first, and the element types of
operands, then of results; one type if all are the same. Tensors of operations that were fused to the root are
not in the name, so all of this is only believed where lengths in memory agree.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.types import BY_NAME, ElementType, element_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jitree.hal.stepwise import Extent

_TYPE: Final = r"(?:complex_f\d+_|f\d+E\d+M\d+[A-Z]*|[fiu]\d+|si\d+|bf16)"
_DISPATCH: Final = re.compile(r"_(?:dispatch|encoding)_\d+_(.*)", re.DOTALL)
_SHAPED: Final = re.compile(
    rf"(?:^|_)(?P<dims>(?:[\dD]+x)*[\dD]+)(?:_|x)(?P<types>{_TYPE}(?:x{_TYPE})*)(?:_|$)"
)
_SCALAR: Final = re.compile(rf"_(?P<types>{_TYPE}(?:x{_TYPE})*)(?:_|$)")
_NAMES_KEPT: Final = 1024
_MOST_DIMENSIONS: Final = 32
_MOST_DIGITS: Final = 18
_MOST_ELEMENTS: Final = 1 << 56
"""What arrays of numpy have."""
PADDING: Final = 64
"""Tensors in shared memory begin at multiples of it."""


class TensorKind(NamedTuple):
    element: ElementType
    shape: tuple[int, ...]

    @property
    def byte_length(self) -> int:
        return self.element.byte_length(self.shape)

    @property
    def size(self) -> int:
        """How many elements."""
        return prod(self.shape)

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.element.name])


@lru_cache(_NAMES_KEPT)
def kind_of(element: int, shape: tuple[int, ...]) -> TensorKind:
    """The type of a tensor whose elements have the type of that number."""
    return TensorKind(element_type(element), shape)


@lru_cache(_NAMES_KEPT)
def kind_and_length(element: int, shape: tuple[int, ...]) -> tuple[TensorKind, int]:
    """As :func:`kind_of`, with the bytes of such a tensor."""
    kind = kind_of(element, shape)
    return kind, kind.byte_length


class ExportName(NamedTuple):
    """The parts of a name."""

    operation: str
    loops: tuple[int, ...]
    """Empty where the name has none, or not all are numbers."""
    types: tuple[ElementType, ...]
    is_packed: bool = False
    """The result is put into tiles, whose sizes the name does not say."""

    @property
    @lru_cache(_NAMES_KEPT)  # noqa: B019
    def outputs(self) -> list[TensorKind]:
        """What a result may be, likeliest first: the loops, without those at the end that are summed over."""
        if self.is_packed:
            return []
        tiles = self._tiles
        if tiles is not None:
            return [TensorKind(element, tiles[2]) for element in dict.fromkeys(self.types[::-1])]
        ends = range(len(self.loops), 0, -1)
        if "reduction" in self.operation or "generic" in self.operation:
            ends = range(len(self.loops) - 1, -1, -1)
        elif "matmul" in self.operation or "conv" in self.operation:
            ends = range(len(self.loops) - 1, 0, -1)
        found = [
            TensorKind(element, self.loops[:end])
            for end in ends
            for element in dict.fromkeys(self.types[::-1])
        ]
        if self.loops and len(self.loops) not in ends:
            found += [TensorKind(element, self.loops) for element in dict.fromkeys(self.types[::-1])]
        return found

    @property
    def _tiles(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
        """Shapes of a product of matrices in tiles, ``mmt4d``: of both operands and of the result. Its loops
        are tiles of rows, columns and depth, then those in a tile."""
        if "mmt4d" not in self.operation or len(self.loops) < 6:
            return None
        batch, (m, n, k, rows, columns, depth) = self.loops[:-6], self.loops[-6:]
        return (*batch, m, k, rows, depth), (*batch, n, k, columns, depth), (*batch, m, n, rows, columns)

    @property
    def factors(self) -> list[TensorKind]:
        """The two operands of a product of matrices; none of other operations."""
        tiles, loops = self._tiles, self.loops
        if not self.types or "like" in self.operation or "quantized" in self.operation:
            return []
        elements = self.types[:2] if len(self.types) > 2 else (self.types[0], self.types[0])
        if tiles is not None:
            shapes: tuple[tuple[int, ...], ...] = tiles[:2]
        elif "matmul" in self.operation and len(loops) >= 3:
            *batch, rows, columns, depth = loops
            shapes = (*batch, rows, depth), (*batch, depth, columns)
        elif "matvec" in self.operation and len(loops) == 2:
            shapes = loops, loops[1:]
        elif "vecmat" in self.operation and len(loops) == 2:
            shapes = loops[1:], loops[::-1]
        else:
            return []
        return [TensorKind(element, shape) for element, shape in zip(elements, shapes, strict=True)]

    def flat_output(self, extent: Extent, limit: int) -> TensorKind | None:
        """Finds a flat result of a range, with elements of the last type. It may have a few bytes
        more (up to ``limit``)."""
        if not self.types:
            return None
        size = max(1, self.types[-1].bits // 8)
        length = -(-extent[1] // size) * size
        return flat(self.types[-1], length) if extent[0] + length <= limit else None

    def flat_input(self, length: int, count: int) -> TensorKind | None:
        """An operand without a shape: of the one type that operands have, or of the one that makes ``count``
        elements, as many as a result has."""
        elements = dict.fromkeys(self.types if len(self.types) == 1 else self.types[:-1])
        if len(elements) > 1:
            elements = {
                element: None for element in elements if count and element.byte_length((count,)) == length
            }
        return flat(next(iter(elements)), length) if len(elements) == 1 else None

    @property
    def inputs(self) -> list[TensorKind]:
        """What an operand may be."""
        loops, shapes = self.loops, list[tuple[int, ...]]()
        tiles = self._tiles
        if tiles is not None:
            shapes += tiles[:2]
        elif "matmul" in self.operation and "like" not in self.operation and len(loops) >= 3:
            *batch, rows, columns, depth = loops
            shapes += [(*batch, rows, depth), (*batch, depth, columns), (columns,)]
        elif "vecmat" in self.operation and len(loops) == 2:
            shapes += [(loops[1],), (loops[1], loops[0])]
        elif "matvec" in self.operation and len(loops) == 2:
            shapes += [(loops[0], loops[1]), (loops[1],)]
        elif "transpose" not in self.operation and "conv" not in self.operation:
            shapes += [loops, *(loops[first:] for first in range(1, len(loops)))] if loops else []
        return [TensorKind(element, shape) for shape in shapes for element in dict.fromkeys(self.types)]


@lru_cache(_NAMES_KEPT)
def parse(name: str) -> ExportName:
    """The parts of a name; empty for those that have none."""
    found = _DISPATCH.search(name)
    text = found[1].removesuffix("_dispatch_tensor_store") if found else ""
    shaped = _SHAPED.search(text)
    match = shaped or _SCALAR.search("_" + text)
    if match is None:
        return ExportName(text, (), ())
    types = tuple(_element(part) for part in re.findall(_TYPE, match["types"]))
    known = tuple(element for element in types if element is not None)
    loops = match["dims"].split("x") if shaped else []
    numbers = sizes_of(loops) or ()
    is_packed = shaped is not None and "pack" in text[shaped.end() :].split("_")
    return ExportName(text[: match.start()], numbers, known if len(known) == len(types) else (), is_packed)


def sizes_of(texts: Sequence[str]) -> tuple[int, ...] | None:
    """Reads the sizes of a tensor. None where one is no number, and for those that no array has: programs
    and callers may write anything."""
    if len(texts) > _MOST_DIMENSIONS or not all(text.isdecimal() for text in texts):
        return None
    if any(len(text) > _MOST_DIGITS for text in texts):
        return None
    sizes = tuple(map(int, texts))
    return sizes if prod(size or 1 for size in sizes) <= _MOST_ELEMENTS else None


def _element(name: str) -> ElementType | None:
    if name.startswith("complex"):
        return BY_NAME.get({"complex_f32_": "cf64", "complex_f64_": "cf128"}.get(name, ""))
    return BY_NAME.get(name)


def fits(kind: TensorKind, length: int) -> bool:
    """Tells whether a binding of ``length`` bytes may be this tensor, perhaps with padding."""
    size = kind.byte_length
    return size == length or (size > 0 and padded(size) == length)


def padded(length: int) -> int:
    """So many bytes with what may lie after them."""
    return -(-length // PADDING) * PADDING


def flat(element: ElementType, length: int) -> TensorKind | None:
    """All of ``length`` bytes in one dimension."""
    count = length * 8 // element.bits
    kind = TensorKind(element, (count,))
    return kind if count and kind.byte_length == length else None
