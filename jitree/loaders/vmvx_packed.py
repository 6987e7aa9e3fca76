"""Where compiled kernels keep copies of a program's constants (`dispatch/native/packed_text.py`), and when
these are given up.

A worker context keeps the copies that its kernels read, as long as it may. Those of an executable are given
up where memory is short: kernels find none from then on, and the contexts let go of them one by one, each at
a moment when no thread has it.
"""

from __future__ import annotations

import mmap
from array import array
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from jitree.base import spare_memory
from jitree.base.memory import READ, WRITE, Mapping
from jitree.errors import ResourceExhaustedError
from jitree.hal.local.executor import native_executor
from jitree.loaders.vmvx_layout import CONTEXTS
from jitree.regs.layout import PACKED, PACKED_LINE

if TYPE_CHECKING:
    from jitree.regs.memory import Lender

MOST_COPIED: Final = 32 << 20
"""Bytes. What is more does not stay in a cache from one call to the next, and waits for memory either way."""
_FIRST_LOOK: Final = 250_000_000
"""Ticks, a tenth of a second on usual processors: a first call does not wait for it."""
_HASTE: Final = 2_500_000
"""Ticks between looks while copies that are given up are still read."""
_LOOKS: Final = 2_000_000
"""Microseconds between others."""
_INTERVAL: Final = CONTEXTS.word("interval")
_DUE: Final = CONTEXTS.word("due")
_SIZE: Final = PACKED.word("size")
_ROOM: Final = PACKED.word("room")


class PackedConstants:
    """Room for copies of the constants of one file. Pages that are never written take no memory."""

    def __init__(self, constants: memoryview) -> None:
        """RESOURCE_EXHAUSTED if the address space has no room."""
        self._constants = constants  # keeps the file open
        elements = np.frombuffer(constants, np.uint8)
        begin: int = elements.__array_interface__["data"][0]
        start = -(-begin // PACKED_LINE) * PACKED_LINE
        size = max(begin + len(elements) - start, 0)
        lines = 4 * (size // PACKED_LINE + 1)
        self._copies = Mapping(size + lines)
        self._copies.protect(0, self._copies.size, READ | WRITE)
        copies = self._copies.address
        marks = copies + -(-size // PACKED_LINE) * PACKED_LINE
        self.most_copied = min(size, MOST_COPIED)
        """Bytes of constants that may come to have copies."""
        self._record = array("q", (start, size, copies - start, marks, self.most_copied))

    @property
    def address(self) -> int:
        """Of the PACKED record."""
        return self._record.buffer_info()[0]

    @property
    def copied(self) -> int:
        """Bytes of constants that have copies."""
        return self.most_copied - self._record[_ROOM]

    @property
    def reserved(self) -> int:
        """Bytes of addresses."""
        return self._copies.size

    def retire(self) -> None:
        """No kernel finds a copy from now on. Those that have found some may still read them."""
        self._record[_SIZE] = 0


class Reader(Protocol):
    """A worker context."""

    def let_go(self) -> bool:
        """Whether it keeps no copies any more: not while a thread has it."""


class Copies:
    """The copies of constants that the kernels of one executable read. It has bytes of a limit on memory,
    where there is one, until others need them."""

    def __init__(self, constants: PackedConstants, lender: Lender | None) -> None:
        """RESOURCE_EXHAUSTED if the limit has no room for them."""
        self.constants: PackedConstants | None = constants
        """For new readers; None when they are given up."""
        self._kept: PackedConstants | None = constants
        self._readers: dict[Reader, None] = {}
        self._contexts = array("q", bytes(CONTEXTS.size))
        self.held = 0
        """See :class:`~jitree.regs.memory.Lessee`."""
        if lender is not None:
            lender.extend(self, constants.most_copied)
        spare_memory.add(self)

    def watch(self, contexts: array[int], look: int) -> None:
        """``contexts`` is the CONTEXTS record of the readers; ``look`` is the address of a C function that
        calls :meth:`look`."""
        self._contexts = contexts
        contexts[CONTEXTS.word("look")] = look
        contexts[_INTERVAL] = _FIRST_LOOK

    def add(self, reader: Reader) -> None:
        """Something reads them, and lets go of them some day."""
        self._readers[reader] = None

    @property
    def kept(self) -> int:
        """Bytes of memory that they take."""
        return 0 if self._kept is None else self._kept.copied

    @property
    def most_kept(self) -> int:
        """Bytes that they may come to take."""
        return 0 if self.constants is None else self.constants.most_copied

    @property
    def reserved(self) -> int:
        """Bytes of addresses that they have."""
        return 0 if self._kept is None else self._kept.reserved

    def give_up(self) -> None:
        """Frees them as soon as no kernel reads them; there are none from then on."""
        constants, self.constants = self.constants, None
        self.held = 0
        if constants is not None:
            constants.retire()
            self._contexts[_INTERVAL], self._contexts[_DUE] = _HASTE, 1
        for reader in tuple(self._readers):
            if reader.let_go():
                self._readers.pop(reader, None)
        if not self._readers:
            self._kept, self._contexts[_INTERVAL] = None, 0

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
    """For the file in which an executable lies; None where its bytes may change, or there is no room."""
    owner: object = data
    while isinstance(owner, (memoryview, np.ndarray)):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base
    if not isinstance(owner, (bytes, mmap.mmap)):
        return None
    whole = memoryview(owner)
    if not whole.readonly:
        return None
    try:
        return Copies(PackedConstants(whole), lender)
    except ResourceExhaustedError:  # kernels run without copies
        return None
