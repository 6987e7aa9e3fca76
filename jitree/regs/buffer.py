"""``vm.buffer``: bytes that VM code reads and writes directly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.arguments import natural
from jitree.base.finalizers import Unique
from jitree.codegen.record import words_of
from jitree.errors import InvalidArgumentError, ResourceExhaustedError, pass_interruption
from jitree.regs.layout import ACCESS_READ, ACCESS_WRITE, KIND_BUFFER, Entry
from jitree.regs.memory import Bytes, address_of, zeroed
from jitree.regs.ref_types import BUFFER_NAME

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.regs.handles import HandleTable

    Offsets = npt.NDArray[np.int64]

_ENTRY: Final = words_of(Entry)
DEFAULT_ALIGNMENT: Final = 64
"""What compiled kernels assume of the memory they are given."""


class VmBuffer(Unique):
    r"""Holds bytes that programs read and write. Memory is its own, or an alias made by :meth:`alias`.

    ``data`` (numpy uint8, rank 1) and ``view`` (memoryview of bytes) show the same memory and keep it alive;
    ``np.asarray(buffer)`` aliases it too, ``bytes(buffer)`` copies it.

    >>> buffer = jitree.VmBuffer(4)
    >>> buffer.data[1] = 7
    >>> bytes(buffer), len(buffer), buffer.writable
    (b'\x00\x07\x00\x00', 4, True)
    """

    VM_TYPE: Final = BUFFER_NAME
    """The type by which programs refer to it."""
    __slots__ = ("__weakref__", "access", "address", "charge", "data", "length", "view")

    access: int
    """ACCESS_READ, with ACCESS_WRITE if VM code may change the bytes, or ACCESS_PRIVATE."""
    charge: object
    """What counts the bytes of one that a program has made (:class:`jitree.regs.memory.Bounds`)."""

    def __init__(self, length: int, alignment: int = DEFAULT_ALIGNMENT) -> None:
        """``length``: bytes, which are 0. ``alignment``: of the address, at least 64 bytes. INVALID_ARGUMENT
        for negative ones, RESOURCE_EXHAUSTED if there is no such room.
        """
        size, step = natural("length", length), natural("alignment", alignment)
        try:
            data = zeroed(size, max(step, DEFAULT_ALIGNMENT))
        except (MemoryError, ValueError, OverflowError) as error:
            pass_interruption(error)
            raise ResourceExhaustedError(f"no memory for a buffer of {length} bytes") from None
        self._show(data, ACCESS_READ | ACCESS_WRITE)

    @classmethod
    def alias(cls, source: Any) -> VmBuffer:
        """Makes a buffer over an object's bytes; writable when the object is.

        ``source``: has the buffer protocol, C-contiguous, any alignment, any shape. INVALID_ARGUMENT for
        anything else.
        """
        data: Bytes
        try:
            data = np.frombuffer(source, np.uint8)
        except (TypeError, ValueError, BufferError) as error:
            pass_interruption(error)
            raise InvalidArgumentError(
                "source: expected an object with the buffer protocol, its bytes in one piece, but got one of "
                f"type {type(source).__name__}: {error}"
            ) from None
        buffer = cls.__new__(cls)
        buffer._show(data, ACCESS_READ | ACCESS_WRITE if data.flags.writeable else ACCESS_READ)
        return buffer

    @classmethod
    def parts(
        cls, table: HandleTable, source: memoryview, starts: Offsets, lengths: Offsets, access: int
    ) -> npt.NDArray[np.int64]:
        """Makes handles of read-only buffers over parts of bytes, an array of rank 1.

        ``source``: the bytes. ``starts`` and ``lengths``: first byte and bytes of each part. ``table``: has
        the handles. ``access``: bits. RESOURCE_EXHAUSTED for a full table.
        """
        whole: Bytes = np.frombuffer(source, np.uint8)

        first = address_of(whole)

        def make(table: HandleTable, handle: int) -> VmBuffer:
            address, length = table.extent(handle)
            part = cls.alias(whole[address - first : address - first + length])
            part.access = access
            return part

        return table.wrap_later(len(starts), make, {
            "kind": KIND_BUFFER, "address": starts + first, "length": lengths, "access": access,
        })  # fmt: skip

    def show(self, data: Bytes) -> None:
        """Makes it a buffer over other bytes, ``data``, an array of rank 1.

        The caller has changed its handles' entries before. It raises nothing.
        """
        self._show(data, self.access)

    def _show(self, data: Bytes, access: int) -> None:
        self.data = data
        self.view = data.data
        self.length = len(data)
        self.address = address_of(data)
        self.access = access

    @property
    def writable(self) -> bool:
        """Whether programs may write to it."""
        return bool(self.access & ACCESS_WRITE)

    def fill_entry(self, table: HandleTable, address: int) -> None:
        """Writes what programs ask of it into its entry of ``table`` at ``address``. It raises nothing."""
        table.set_extent(address, self.address, self.length)
        table.i32[((address - table.base) >> 2) + _ENTRY.access] = self.access

    def __len__(self) -> int:
        return self.length

    def __bytes__(self) -> bytes:
        return self.view.tobytes()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if dtype is not None and np.dtype(dtype) != np.uint8:
            if copy is False:
                raise ValueError(f"bytes as {np.dtype(dtype)} need a copy")
            return self.data.astype(dtype)
        return self.data.copy() if copy else self.data

    def __repr__(self) -> str:
        return f"<VmBuffer of {self.length} bytes{'' if self.writable else ', read-only'}>"
