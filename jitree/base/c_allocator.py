"""The memory allocator that libraries of users are given: the C library's."""

from __future__ import annotations

import ctypes
from typing import Final

from jitree.base.callbacks import Callback, keep
from jitree.base.memory import once
from jitree.errors import StatusCode

_MALLOC, _CALLOC, _REALLOC, _FREE = range(4)

_libc: Final = ctypes.CDLL(None)
for _name, _arguments in (
    ("malloc", [ctypes.c_size_t]),
    ("calloc", [ctypes.c_size_t, ctypes.c_size_t]),
    ("realloc", [ctypes.c_void_p, ctypes.c_size_t]),
    ("free", [ctypes.c_void_p]),
):
    _function = getattr(_libc, _name)
    _function.restype = ctypes.c_void_p
    _function.argtypes = _arguments


def allocate(size: int) -> int:
    """Zeroed bytes of the C library. MemoryError if there is no room."""
    address: int | None = _libc.calloc(1, size)
    if address is None:
        raise MemoryError(f"{size} bytes")
    return address


def free(address: int) -> None:
    """Frees a block that the C library allocated."""
    _libc.free(address)


def _control(_: int, command: int, parameters: int, place: int) -> int:
    """``parameters`` points to a size, ``place`` to the block's address, which is read or written."""
    block = ctypes.c_void_p.from_address(place)
    command &= 0xFFFFFFFF
    if command == _FREE:
        _libc.free(block.value)
        block.value = None
        return int(StatusCode.OK)
    if command not in (_MALLOC, _CALLOC, _REALLOC):
        return int(StatusCode.UNIMPLEMENTED)
    size = ctypes.c_size_t.from_address(parameters).value
    if command == _MALLOC:
        address = _libc.malloc(size)
    elif command == _CALLOC:
        address = _libc.calloc(1, size)
    else:
        address = _libc.realloc(block.value, size)
    if address is None:
        return int(StatusCode.RESOURCE_EXHAUSTED)
    block.value = address
    return int(StatusCode.OK)


def _failed(error: BaseException, *_: int) -> int:
    keep(error)
    return int(StatusCode.RESOURCE_EXHAUSTED)


@once
def _callback() -> Callback:
    return Callback(_control, 4, _failed, int(StatusCode.RESOURCE_EXHAUSTED))


def allocator_address() -> int:
    """The address of the allocator's control function; valid as long as the process."""
    return _callback().address
