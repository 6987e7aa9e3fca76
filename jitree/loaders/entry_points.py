"""Functions of an executable as the local drivers call them: ENTRY_POINT records with names."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, chain, count, repeat
from typing import TYPE_CHECKING, Any, Final

from jitree.base.records import NamedTuple
from jitree.errors import NotFoundError, OutOfRangeError, UnavailableError
from jitree.hal.command_layout import ENTRY_POINT
from jitree.hal.executable import LocalExecutable

if TYPE_CHECKING:
    from jitree.regs.handles import HandleTable

_ENTRY: Final = struct.Struct("<3q6i")
assert _ENTRY.size == ENTRY_POINT.size
_UNKNOWN: Final = -1
_NONE: Final[tuple[tuple[Any, ...], ...]] = ((),) * 7


class EntryPoint(NamedTuple):
    """A function. Counts are None when the executable does not state them."""

    name: str | None
    code: int
    """Address."""
    environment: int
    """Address that every call gets."""
    local_memory: int
    """Bytes that each workgroup in flight needs for itself."""
    constant_count: int | None
    binding_count: int | None
    flags: int
    """ENTRY_*"""


class TabledExecutable(LocalExecutable):
    """An executable whose functions are known when it is loaded.

    Code that keeps the address of an entry point, an environment or a function keeps the executable.
    """

    def __init__(self, name: str, entries: Sequence[EntryPoint]) -> None:
        self._name = name
        self._entry_points = tuple(entries)
        names, codes, environments, memory, *counts, flags = zip(*entries, strict=True) if entries else _NONE
        constants, bindings = ([_UNKNOWN if number is None else number for number in row] for row in counts)
        self._ordinals = {name: ordinal for ordinal, name in enumerate(names) if name is not None}
        zeros = repeat(0)
        self._entries = array("q", b"".join(map(
            _ENTRY.pack, codes, environments, zeros, memory, flags, constants, bindings, count(), zeros
        )))  # fmt: skip
        self._first_entry: int = self._entries.buffer_info()[0]

    def fill_entry(self, table: HandleTable, address: int) -> None:
        """Its functions; in the extension the address of their names."""
        table.set_extent(address, self._first_entry, self.function_count)
        table.i64[(address + table.extension - table.base) >> 3] = self._names[0].buffer_info()[0]

    @cached_property
    def _names(self) -> tuple[array[int], array[int]]:
        """(address, length) of each function's name, length -1 where a look-up would not find it; and the
        bytes."""
        parts = [(entry[0] or "").encode() for entry in self._entry_points]
        text = array("B", b"".join(parts))
        places = accumulate(map(len, parts), initial=text.buffer_info()[0])
        known = frozenset(self._ordinals.values())
        lengths = [len(part) if ordinal in known else -1 for ordinal, part in enumerate(parts)]
        return array("q", chain.from_iterable(zip(places, lengths, strict=False))), text

    @property
    def name(self) -> str:
        return self._name

    @property
    def function_count(self) -> int:
        return len(self._entry_points)

    def function_name(self, ordinal: int) -> str:
        """The symbol name, ``""`` when the executable has no names."""
        return self._entry_points[ordinal].name or ""

    def function_label(self, ordinal: int) -> str:
        """A name for messages: the function's, or ``executable[ordinal]``."""
        return self._entry_points[ordinal].name or f"{self._name}[{ordinal}]"

    def lookup(self, name: str) -> int:
        """The ordinal of a function. NOT_FOUND when there is none, UNAVAILABLE when there are no names."""
        ordinal = self._ordinals.get(name)
        if ordinal is not None:
            return ordinal
        if self._entry_points and not self._ordinals:
            raise UnavailableError(
                f"executable '{self.name}' was compiled without function names, so '{name}' cannot be looked "
                "up; compile with --iree-llvmcpu-debug-symbols=true"
            )
        raise NotFoundError(
            f"executable '{self.name}' has no function '{name}'; it has {', '.join(self._ordinals) or 'none'}"
        )

    def constant_count(self, ordinal: int) -> int | None:
        """32-bit words that the function takes; None when the executable does not say."""
        return self._entry_points[ordinal].constant_count

    def binding_count(self, ordinal: int) -> int | None:
        """Bindings that the function takes; None when the executable does not say."""
        return self._entry_points[ordinal].binding_count

    def function_address(self, ordinal: int) -> int:
        return self._entry_points[ordinal].code

    def local_memory(self, ordinal: int) -> int:
        """Bytes of memory that each workgroup in flight needs for itself."""
        return self._entry_points[ordinal].local_memory

    def entry_point(self, ordinal: int) -> int:
        """Address of the function's ENTRY_POINT record. OUT_OF_RANGE for a function that does not exist."""
        if not 0 <= ordinal < len(self._entry_points):
            raise OutOfRangeError(
                f"executable '{self.name}' has {self.function_count} functions, but number {ordinal} was used"
            )
        return self._first_entry + ordinal * ENTRY_POINT.size
