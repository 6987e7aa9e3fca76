"""What functions of C modules return: 0, or a code with an address of more about the failure."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Final

from jitree.base.c_allocator import free
from jitree.errors import StatusCode, StatusError, pass_interruption, status_error
from jitree.modules.native_library import layout

_LONGEST_MESSAGE: Final = 1 << 16
_MOST_PAYLOADS: Final = 64
_NO_MESSAGE: Final = "the library gave no message"


def take_status(status: int) -> StatusError | None:
    """What a status means; None for success. Its storage is freed."""
    if status == 0:
        return None
    message, blocks = _read(status & ~layout.CODE_MASK)
    for block in blocks:
        free(block)
    return status_error(status & layout.CODE_MASK, message)


def code_of(error: BaseException) -> int:
    """The status to return to C for an exception; it has no storage, which every library knows to free."""
    return int(error.code) if isinstance(error, StatusError) else int(StatusCode.UNKNOWN)


def _read(address: int) -> tuple[str, list[int]]:
    """The message, and the blocks that the status consists of.

    Libraries can be built without parts of the storage, so what is not what it should be is not believed.
    """
    storage = layout.StatusStorage()
    if not address or not _copy(address, storage):
        return _NO_MESSAGE, []
    blocks, texts, place = [address], [_text(storage.message)], storage.payloads
    while place and len(blocks) <= _MOST_PAYLOADS and place not in blocks:
        payload = layout.StatusPayload()
        if not _copy(place, payload) or payload.type != layout.PAYLOAD_MESSAGE:
            break
        blocks.append(place)
        texts.append(_text(payload.message))
        place = payload.next
    return "; ".join(filter(None, texts)) or _NO_MESSAGE, blocks


def _text(string: layout.String) -> str:
    if not string.data or string.size > _LONGEST_MESSAGE:
        return ""
    data = read_memory(string.data, string.size)
    return "" if data is None else data.decode("utf-8", "backslashreplace")


def _copy(address: int, structure: ctypes.Structure) -> bool:
    data = read_memory(address, ctypes.sizeof(structure))
    if data is None:
        return False
    ctypes.memmove(ctypes.addressof(structure), data, len(data))
    return True


def read_memory(address: int, size: int) -> bytes | None:
    """Bytes of this process; None where there is no memory, which a plain read would end the process for."""
    try:
        data = os.pread(_own_memory(), size, address)
    except (OSError, OverflowError) as error:
        pass_interruption(error)
        return None
    return data if len(data) == size else None


@cache
def _own_memory() -> int:
    return os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
