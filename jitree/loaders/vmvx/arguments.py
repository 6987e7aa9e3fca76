"""Wraps memory that the command executor names in objects for the VM's kernels.

A dispatch comes with other memory than the one before it, and making objects and handles takes 0.2 ms of
Python, for which threads wait: so they are made once, and show other memory each time.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from jitree.codegen.record import layout_of
from jitree.dispatch.grid_call import Cell
from jitree.hal.command_layout import KernelDispatch, Workgroup
from jitree.regs.buffer import VmBuffer
from jitree.regs.handles import HandleTable
from jitree.regs.layout import ACCESS_PRIVATE, ACCESS_READ, ACCESS_WRITE, KIND_BUFFER
from jitree.regs.list import VmList

if TYPE_CHECKING:
    import numpy.typing as npt

_DISPATCH: Final = layout_of(KernelDispatch).packer()
_WORKGROUP: Final = layout_of(Workgroup).packer()
_MAY_STORE: Final = ACCESS_WRITE | ACCESS_PRIVATE
_NO_MEMORY: Final = (ctypes.c_uint8 * 1)()
"""Memory for nothing, not empty: numpy takes ten times as long to tell the address of an empty array."""
_NO_BYTES: Final = np.empty(0, np.uint8)

Bytes: TypeAlias = "npt.NDArray[np.uint8]"
GridState = tuple[bytes, bytes, bytes, bytes, int, int]
"""Addresses and sizes from which a grid is made: the dispatch state, the addresses and lengths of the
bindings and what they allow, address and size of local memory."""


def private_bindings(dispatch: int) -> list[tuple[int, int, int]]:
    """Lists a dispatch's bindings to constants that kernels may store to.

    Rows are (number, address, length).
    """
    *_, binding_count, _, addresses, lengths, _, _, accesses = _DISPATCH.unpack(
        ctypes.string_at(dispatch, _DISPATCH.size)
    )
    tables = (_quadwords(table, binding_count) for table in (addresses, lengths, accesses))
    rows = enumerate(zip(*tables, strict=True))
    return [(number, at, length) for number, (at, length, access) in rows if access & ACCESS_PRIVATE]


def make_writable(dispatch: int, number: int) -> None:
    """Has a binding of a dispatch state be no constant."""
    accesses = ctypes.c_int64.from_address(dispatch + layout_of(KernelDispatch)["accesses"]).value
    access = ctypes.c_int64.from_address(accesses + 8 * number)
    access.value = access.value & ~ACCESS_PRIVATE | ACCESS_WRITE


def _quadwords(address: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}q", ctypes.string_at(address, 8 * count))


class Grid:
    """Describes what the workgroups of a dispatch all get."""

    __slots__ = ("accesses", "bindings", "constants", "count", "has_private", "local_memory", "size")

    def __init__(
        self,
        size: Cell,
        count: Cell,
        constants: Bytes,
        bindings: tuple[Bytes, ...],
        accesses: tuple[int, ...],
        local: Bytes,
    ) -> None:
        """``accesses``: ACCESS_* of each binding."""
        self.size, self.count = size, count
        self.constants, self.bindings = constants, bindings
        self.has_private = any(access & ACCESS_PRIVATE for access in accesses)
        """Whether constants are among the bindings to which kernels may store."""
        self.accesses = [ACCESS_READ | (ACCESS_WRITE if access & _MAY_STORE else 0) for access in accesses]
        """Of each binding, as the VM's stores heed them."""
        self.local_memory = local

    def cell(self, number: int) -> Cell:
        """x, y and z of a workgroup; numbers go through the grid, x fastest."""
        line, x = divmod(number, self.count[0])
        z, y = divmod(line, self.count[1])
        return x, y, z

    def number(self, cell: Cell) -> int:
        """The number of a workgroup."""
        x, y, z = cell
        return x + self.count[0] * (y + self.count[1] * z)


def read_span(dispatch: int, workgroup: int) -> tuple[GridState, int, int]:
    """Reads a span: its grid, first workgroup and the one after the last.

    The addresses are those of a dispatch state and a workgroup state (``ENTRY_SPAN``).
    """
    state = ctypes.string_at(dispatch, _DISPATCH.size)
    *_, binding_count, _, addresses, lengths, _, _, accesses = _DISPATCH.unpack(state)
    *_, local_memory, local_size, _, first, last = _WORKGROUP.unpack(
        ctypes.string_at(workgroup, _WORKGROUP.size)
    )
    size = 8 * binding_count
    starts, sizes, allowed = (ctypes.string_at(table, size) for table in (addresses, lengths, accesses))
    return (state, starts, sizes, allowed, local_memory, local_size), first, last


def read_grid(state: GridState) -> Grid:
    """What is at the addresses."""
    dispatch, addresses, lengths, accesses, local_memory, local_size = state
    (size_x, size_y, size_z, constant_count, count_x, count_y, count_z, _, binding_count,
     constants, *_) = _DISPATCH.unpack(dispatch)  # fmt: skip
    table = struct.Struct(f"<{binding_count}Q")
    return Grid(
        (size_x, size_y, size_z),
        (count_x, count_y, count_z),
        _memory(constants, 4 * constant_count),
        tuple([_memory(*at) for at in zip(table.unpack(addresses), table.unpack(lengths), strict=True)]),
        table.unpack(accesses),
        _memory(local_memory, local_size),
    )


def _memory(address: int, length: int) -> Bytes:
    memory: Any = (ctypes.c_uint8 * length).from_address(address)
    return np.frombuffer(memory, np.uint8)


class KernelArguments:
    """Holds the references that kernels get, and their handles in a table.

    They are local memory, constants, the list of bindings, and its elements.
    """

    def __init__(self, table: HandleTable, binding_count: int) -> None:
        self._table = table
        self.local_memory, self.constants = VmBuffer.alias(_NO_MEMORY), VmBuffer.alias(_NO_MEMORY)
        self.constants.access = ACCESS_READ
        self._bound = [VmBuffer.alias(_NO_MEMORY) for _ in range(binding_count)]
        self.bindings = VmList.of_references(KIND_BUFFER, self._bound)
        self.own = [table.wrap(item) for item in (self.local_memory, self.constants, self.bindings)]
        """Handles that nothing else refers to."""
        self.elements = [table.wrap(element) for element in self._bound]
        """Handles that the list refers to, too."""
        self._list_words = self.bindings.words.tobytes()

    def show(self, grid: Grid) -> None:
        """Lets Python's objects show the memory of a grid with no more bindings.

        A program may have kept the others, whose memory was another grid's.
        """
        self.local_memory.show(grid.local_memory)
        self.constants.show(grid.constants)
        for buffer, memory, access in zip(self._bound, grid.bindings, grid.accesses, strict=False):
            buffer.access = access
            buffer.show(memory)
        for buffer in self._bound[len(grid.bindings) :]:
            if buffer.length:
                buffer.show(_NO_BYTES)

    def publish(self) -> None:
        """Aims the handles at what the objects show."""
        handles = (*self.own[:2], *self.elements)
        for handle, buffer in zip(handles, (self.local_memory, self.constants, *self._bound), strict=True):
            buffer.fill_entry(self._table, handle)

    @property
    def untouched(self) -> bool:
        """Whether programs have left the list as it was, and keep none of this."""
        return (
            all(self._table.count(handle) == 1 for handle in self.own)
            and all(self._table.count(handle) == 2 for handle in self.elements)
            and self.bindings.words.tobytes() == self._list_words
        )

    def expire(self) -> None:
        """Empties what a program has kept, and gives its handles up.

        The memory is that of the grid, which is over.
        """
        for buffer in (self.local_memory, self.constants, *self._bound):
            buffer.show(_NO_BYTES)
        self.publish()
        self.drop()

    def drop(self) -> None:
        """Gives the handles up; once more, those that are left where an interrupt came."""
        for handles in (self.own, self.elements):
            while handles:
                self._table.release(handles.pop())
