"""Memory for the buffers of compiled kernels, where a limit counts it.

Machine code counts by itself: a worker context holds bytes of the limit, takes some for each buffer
(:func:`jitree.dispatch.native.side_exits.is_paid`) and gets them back when a workgroup is over. What it lacks
Python adds. An allocation elsewhere takes back what no buffer uses.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jitree.base.callbacks import Callback
from jitree.base.endings import object_at
from jitree.codegen import image
from jitree.errors import ResourceExhaustedError
from jitree.loaders.vmvx.images import SPANS
from jitree.regs.layout import SCRATCH

if TYPE_CHECKING:
    from jitree.regs.memory import Lender

_WITHDRAW: Final = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)  # no thread extends a lease meanwhile
_HELD: Final = SCRATCH.word("held")
_PACKED: Final = SCRATCH.word("packed")
_PAID: Final = SCRATCH.word("paid")
_ROOM: Final = SCRATCH.word("room")
_REFUSED: Final = SCRATCH.word("refused")


class Lease:
    """The SCRATCH record of a worker context, and the bytes of a limit that it holds."""

    def __init__(self, lender: Lender | None) -> None:
        self._lender = lender
        self._record = array("q", bytes(SCRATCH.size))
        self._refusal: BaseException | None = None
        if lender is not None:
            self._record[SCRATCH.word("owner")] = id(self)
            self._record[SCRATCH.word("lend")] = _LEND.address

    @property
    def address(self) -> int:
        """The address of the record."""
        return self._record.buffer_info()[0]

    @property
    def free(self) -> int:
        """The first handle that no buffer uses, 0 = none."""
        return self._record[SCRATCH.word("free")]

    def begin(self, free: int, memory: int, size: int, packed: int) -> None:
        """No buffer is in use: there are handles from ``free`` on, memory, and a PACKED record or 0."""
        self._record[:4] = array("q", (free, memory, memory + size, 0))
        self._record[_PACKED] = packed

    @property
    def held(self) -> int:
        """See :class:`~jitree.regs.memory.Lessee`."""
        return self._record[_HELD]

    @held.setter
    def held(self, size: int) -> None:
        self._record[_HELD] = size

    def withdraw(self) -> None:
        """See :class:`~jitree.regs.memory.Lessee`."""
        spans = image.get(SPANS)
        if spans is not None:
            _WITHDRAW(spans.addresses["withdraw"])(self.address)

    def lend(self, size: int) -> int:
        """Has the limit count so many bytes more, for a buffer: 1."""
        assert self._lender is not None
        self._lender.extend(self, size)
        return 1

    def refuse(self, error: BaseException) -> int:
        """There are none: 0."""
        self._refusal = error
        return 0

    def end(self) -> None:
        """Nothing is held any more."""
        self._record[_ROOM] = self.held = 0

    def convert(self, kept: Sequence[int]) -> list[object]:
        """Nothing is counted here any more of what buffers use. Those that are ``kept``, with so many bytes
        each, count until what this gives for each dies."""
        if self._lender is None:
            return [None] * len(kept)
        size, self._record[_PAID] = self._record[_PAID], 0
        return self._lender.convert(self, size, kept)

    def require_whole(self, parts: int) -> None:
        """Is called when a workgroup, of which other threads run parts, has left machine code. Raises why it
        has no memory: it cannot be done over, as parts of it may be done. Where no other thread runs a part,
        the VM raises that."""
        refused, self._record[_REFUSED] = self._record[_REFUSED], 0
        error, self._refusal = self._refusal, None
        if not refused or (parts <= 1 and isinstance(error, ResourceExhaustedError)):
            return
        raise error or ResourceExhaustedError("no stack or memory was left for the code that counts memory")


def _lend(owner: int, size: int) -> int:
    lease: Lease = object_at(owner)
    return lease.lend(size)


def _refuse(error: BaseException, owner: int, size: int) -> int:
    lease: Lease = object_at(owner)
    return lease.refuse(error)


_LEND: Final = Callback(_lend, 2, _refuse, 0)
