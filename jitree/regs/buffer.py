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
    """``length`` bytes at ``address``: owned zero-filled memory, or an alias made by :meth:`alias`.

    ``data`` (numpy uint8) and ``view`` (memoryview of bytes) show the same memory and keep it alive;
    ``np.asarray(buffer)`` aliases it too, ``bytes(buffer)`` copies it.
    """

    VM_TYPE: Final = BUFFER_NAME
    __slots__ = ("__weakref__", "access", "address", "charge", "data", "length", "view")

    access: int
    """ACCESS_READ, with ACCESS_WRITE if VM code may change the bytes, or ACCESS_PRIVATE."""
    charge: object
    """What counts the bytes of one that a program has made (:class:`jitree.regs.memory.Bounds`)."""

    def __init__(self, length: int, alignment: int = DEFAULT_ALIGNMENT) -> None:
        """INVALID_ARGUMENT for a negative length, RESOURCE_EXHAUSTED if there is no such room."""
        size, step = natural("length", length), natural("alignment", alignment)
        try:
            data = zeroed(size, max(step, DEFAULT_ALIGNMENT))
        except (MemoryError, ValueError, OverflowError) as error:
            pass_interruption(error)
            raise ResourceExhaustedError(f"no memory for a buffer of {length} bytes") from None
        self._show(data, ACCESS_READ | ACCESS_WRITE)

    @classmethod
    def alias(cls, source: Any) -> VmBuffer:
        """Makes a buffer over an object's bytes (C-contiguous, any alignment); writable when the source is.
        INVALID_ARGUMENT for anything else."""
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
        """Makes handles of read-only buffers over parts of bytes. First bytes and lengths give the parts."""
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
        """Makes it a buffer over other bytes. The caller has changed its handles' entries before."""
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
        """Writes what programs ask of it into its entry."""
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
