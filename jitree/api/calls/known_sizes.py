"""How much memory calls of a function were found to need in between, by their shapes and numbers.

Machine code reads it (:mod:`jitree.api.calls.native.workspaces`), so that only the first call of a kind is
measured.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from jitree.api.calls.native.layout import MAXIMUM_RANK, SIZES
from jitree.base.endings import guard
from jitree.hal.buffer import BufferView

if TYPE_CHECKING:
    from jitree.api.calls.declaration import Parameter, Signature
    from jitree.vmfb.cconv import Item

_MOST: Final = 256
"""Kinds of calls whose sizes are remembered."""
_FLOATS: Final = {"f": ("<f", "<i"), "F": ("<d", "<q")}
"""By register type: the formats of :mod:`struct` for a float, and for an integer of its bits."""


class KnownSizes:
    """Bytes by what they depend on. A key has a word for each dimension and each number."""

    __slots__ = ("_items", "_lock", "_rows", "_sizes", "_width", "_words")

    def __init__(self, signature: Signature, items: Sequence[Item]) -> None:
        self._items = tuple(map(str, items))
        self._sizes: dict[tuple[object, ...], int] = {}
        self._width = _width(signature.arguments)
        self._lock = guard()
        self._rows = array("q")
        self._words = array("q", bytes(SIZES.size))
        self._words[SIZES.word("width")] = self._width or 0

    @property
    def address(self) -> int:
        """Of the SIZES record; 0 where it also depends on what is neither a tensor nor a number."""
        return 0 if self._width is None else self._words.buffer_info()[0]

    def key(self, values: Sequence[object]) -> tuple[object, ...]:
        """What the size of a call depends on, of packed values; None stands for the memory itself."""
        return tuple(
            word for value, item in zip(values, self._items, strict=False) for word in _key_words(value, item)
        )

    def get(self, key: tuple[object, ...]) -> int | None:
        return self._sizes.get(key)

    def remember(self, key: tuple[object, ...], size: int) -> None:
        with self._lock:
            if len(self._sizes) == _MOST:
                self._sizes.clear()
                self._words[SIZES.word("count")] = 0
            if key not in self._sizes:
                self._sizes[key] = size
                if self._width is not None:
                    self._show([*key, size])  # type: ignore[list-item]

    def _show(self, row: list[int]) -> None:
        """Shows a key and its size to machine code, which may look whenever Python runs: so the count comes
        last."""
        words, length = self._words, len(row)
        if not self._rows:
            self._rows = array("q", bytes(8 * _MOST * length))
            words[SIZES.word("rows")] = self._rows.buffer_info()[0]
        count = words[SIZES.word("count")]
        self._rows[count * length : (count + 1) * length] = array("q", row)
        words[SIZES.word("count")] = count + 1


def _width(parameters: Sequence[Parameter]) -> int | None:
    """The words of a key; None if it depends on more than dimensions and numbers."""
    width = 0
    for parameter in parameters:
        if parameter.workspace is not None:
            continue
        rank = 1
        if parameter.tensor is not None:
            rank = len(parameter.tensor.shape)
        elif parameter.type.startswith("!"):
            return None
        if rank > MAXIMUM_RANK:
            return None
        width += rank
    return width


def _key_words(value: object, item: str) -> Iterator[object]:
    """The dimensions of a view; a number as the bits of its register."""
    if isinstance(value, BufferView):
        yield from value.shape
    elif isinstance(value, float):
        packed, bits = _FLOATS[item]
        yield from struct.unpack(bits, struct.pack(packed, value))
    elif isinstance(value, int):
        half = 1 << 63 if item == "I" else 1 << 31
        yield (value + half) % (2 * half) - half
    elif value is not None:
        yield value
