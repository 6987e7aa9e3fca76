"""Keeps copies of a program's constants for compiled kernels, and gives them up.

A worker context keeps the copies that its kernels read, as long as it may. Those of an executable are given
up where memory is short: kernels find none from then on, and the contexts let go of them one by one, each at
a moment when no thread has it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from jitree.base import spare_memory
from jitree.base.finalizers import SharedWeakSet
from jitree.base.memory import COPIED, PrivateFile
from jitree.base.platform import READ, WRITE, MappedPages, Mapping, pages_of
from jitree.base.platform.threads import order_stores
from jitree.codegen.record import size_of, words_of
from jitree.errors import ResourceExhaustedError
from jitree.hal.local.executor import native_executor
from jitree.loaders.vmvx.kernels import Contexts
from jitree.regs.layout import PACKED_LINE, Packed

if TYPE_CHECKING:
    from jitree.regs.memory import Lender

MOST_COPIED: Final = 32 << 20
"""Bytes. What is more does not stay in a cache from one call to the next, and waits for memory either way."""
_FIRST_LOOK: Final = 250_000_000
"""Ticks, a tenth of a second on usual processors: a first call does not wait for it."""
_HASTE: Final = 2_500_000
"""Ticks between looks while copies that are given up are still read."""
_LOOKS: Final = 2_000_000
"""Microseconds between other looks."""
_INTERVAL: Final = words_of(Contexts).interval
_DUE: Final = words_of(Contexts).due
_PACKED: Final = words_of(Packed)
_told: Final = SharedWeakSet["Told"]()
_NOTHING: Final = memoryview(b"")
"""Constants of a file that may change: none."""


class PackedConstants:
    """Holds copies of the constants of one file.

    Pages that are never written take no memory.
    """

    def __init__(self, constants: memoryview, most: int = MOST_COPIED) -> None:
        """``most``: bytes that may have copies. RESOURCE_EXHAUSTED if the address space has no room."""
        self._constants = constants  # keeps the file open
        self.following: PackedConstants | None = None
        """Other constants of the same program."""
        elements = np.frombuffer(constants, np.uint8)
        begin: int = elements.__array_interface__["data"][0]
        start = -(-begin // PACKED_LINE) * PACKED_LINE
        lines = max(begin + len(elements) - start, 0) // PACKED_LINE
        size = lines * PACKED_LINE
        self._copies = Mapping(size + 8 * lines)
        self._copies.protect(0, self._copies.size, READ | WRITE)
        copies = self._copies.address
        marks = copies + size
        self.most_copied = min(size, most)
        """Bytes of constants that may come to have copies."""
        self._record = array("q", (start, size, copies - start, marks, self.most_copied, 0))
        self._whole = (begin, len(elements))
        COPIED.add(self)
        if stable_memory(constants) is None:  # something has begun to store to them meanwhile
            self.retire()
        for kernel in _told:  # of memory that was here before
            kernel.forget(*self._whole)

    @property
    def address(self) -> int:
        """Of the PACKED record."""
        return self._record.buffer_info()[0]

    @property
    def copied(self) -> int:
        """Bytes of constants that have copies."""
        return self.most_copied - self._record[_PACKED.room]

    @property
    def reserved(self) -> int:
        """Bytes of addresses."""
        return self._copies.size

    def has(self, constants: memoryview) -> bool:
        """Whether it is of these."""
        return constants.obj is self._constants.obj

    def follow(self, other: PackedConstants) -> None:
        """Has kernels find the others, too, which it keeps from now on."""
        self.following = other
        # order of packed: a thread that sees the address sees the record
        order_stores()
        self._record[_PACKED.next] = other.address

    def holds(self, address: int) -> bool:
        """Whether the constants are there."""
        begin, size = self._whole
        return 0 <= address - begin < size

    @property
    def is_retired(self) -> bool:
        return self._record[_PACKED.size] == 0

    def retire(self) -> None:
        """No kernel finds a copy from now on.

        Those that have found some may still read them.
        """
        self._record[_PACKED.size] = 0


class Told(Protocol):
    """Remembers where a kernel may store to constants without a word."""

    def forget(self, address: int, size: int) -> None:
        """It may not there any more: constants have copies, or will have."""


def will_be_told(kernel: Told) -> None:
    """A kernel remembers a place from now on."""
    _told.add(kernel)


class Reader(Protocol):
    """Stands for a worker context."""

    def let_go(self) -> bool:
        """Whether it keeps no copies any more: not while a thread has it."""


class Copies:
    """Keeps the copies of constants that one executable's kernels read.

    It has bytes of a limit on memory, where there is one, until others need them.
    """

    def __init__(self, constants: PackedConstants, lender: Lender | None) -> None:
        """RESOURCE_EXHAUSTED if the limit has no room for them."""
        self.constants: PackedConstants | None = constants
        """The copies that new readers get; None when they are given up."""
        self._kept: PackedConstants | None = constants
        self._extends = lender is None
        self._readers: dict[Reader, None] = {}
        self._contexts = array("q", bytes(size_of(Contexts)))
        self.held = 0
        """See :class:`~jitree.regs.memory.Lessee`."""
        if lender is not None:
            lender.extend(self, constants.most_copied)
        spare_memory.add(self)

    def watch(self, contexts: array[int], look: int) -> None:
        """``contexts`` is the record of the readers; ``look`` is the address of a C function that
        calls :meth:`look`."""
        self._contexts = contexts
        contexts[words_of(Contexts).look] = look
        contexts[_INTERVAL] = _FIRST_LOOK if self.most_kept else 0

    def add(self, reader: Reader) -> None:
        """Something reads them, and lets go of them some day; soon if they are given up already."""
        self._readers[reader] = None
        if self.constants is None:
            self._look_soon()

    def extend(self, data: memoryview) -> None:
        """Kernels may copy these constants, too: parameters.

        Not where a limit counts memory, nor where their bytes may change, or there is no room.
        """
        constants = stable_memory(data) if self._extends else None
        regions = tuple(chain(self.constants))
        room = MOST_COPIED - sum(region.most_copied for region in regions)
        if constants is None or not regions or room <= 0 or any(r.has(constants) for r in regions):
            return
        with suppress(ResourceExhaustedError):  # kernels run without copies
            regions[-1].follow(PackedConstants(constants, room))
            self._contexts[_INTERVAL] = self._contexts[_INTERVAL] or _FIRST_LOOK

    @property
    def kept(self) -> int:
        """Bytes of memory that they take."""
        return sum(region.copied for region in chain(self._kept))

    @property
    def most_kept(self) -> int:
        """Bytes that they may come to take."""
        return sum(region.most_copied for region in chain(self.constants))

    @property
    def reserved(self) -> int:
        """Bytes of addresses that they have."""
        return sum(region.reserved for region in chain(self._kept))

    def give_up(self) -> None:
        """Frees them as soon as no kernel reads them; there are none from then on."""
        constants, self.constants = self.constants, None
        self.held = 0
        if constants is not None:
            for region in chain(constants):
                region.retire()
            self._look_soon()
        for reader in tuple(self._readers):
            if reader.let_go():
                self._readers.pop(reader, None)
        if not self._readers:
            self._kept, self._contexts[_INTERVAL] = None, 0

    def _look_soon(self) -> None:
        """Has the next thread that has run a span look."""
        self._contexts[_INTERVAL], self._contexts[_DUE] = _HASTE, 1

    withdraw = give_up
    """See :class:`~jitree.regs.memory.Lessee`."""

    def look(self) -> None:
        """Gives them up if memory is short; goes on with that where it has begun."""
        spare_memory.look()
        executor = native_executor()
        if self.constants is None:
            self.give_up()
        elif executor is not None:
            self._contexts[_INTERVAL] = int(_LOOKS * executor.ticks_per_microsecond)


def copies_for(data: memoryview, lender: Lender | None) -> Copies | None:
    """For the file in which an executable lies, and for parameters; for these alone where the bytes of the
    file may change. None where there is no room."""
    whole = stable_memory(data)
    if whole is None and lender is not None:
        return None
    try:
        return Copies(PackedConstants(_NOTHING if whole is None else whole), lender)
    except ResourceExhaustedError:  # kernels run without copies
        return None


def stable_memory(data: memoryview) -> memoryview | None:
    """All the memory that some bytes are part of; None where it may change.

    That of a file which is the process's own changes when kernels store to it, which ``note_stores`` hears of
    before.
    """
    owner, whole = _owner_of(data)
    if isinstance(owner, PrivateFile):
        return None if owner.is_changed else whole
    if not isinstance(owner, MappedPages):  # which the array over it shows whole
        if not isinstance(owner, bytes) and not _is_mapping(owner):
            return None
        whole = memoryview(owner)
    return whole if whole.readonly else None


def _owner_of(data: memoryview) -> tuple[Any, memoryview]:
    """The object whose memory some bytes are part of, and all that memory."""
    owner: Any = data
    whole = data
    while isinstance(owner, memoryview | np.ndarray):
        whole = owner if isinstance(owner, memoryview) else owner.data
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    pages = pages_of(owner)
    return (owner, whole) if pages is None else (pages, pages.view())


def _is_mapping(owner: object) -> bool:
    """Whether it is of the module ``mmap``, which takes 0.25 ms to import."""
    return type(owner).__module__ == "mmap"


def chain(first: PackedConstants | None) -> Iterator[PackedConstants]:
    """Those, and all that follow them."""
    while first is not None:
        yield first
        first = first.following
