"""Makes the map of accessible memory in this process, and keeps it right.

What is mapped when it begins may be accessed, as nothing is known of it. From then on what Python, numpy and
this package allocate and map is known to the byte. x86-64 and Linux only.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jitree.base import platform
from jitree.base.finalizers import ReentrantLock
from jitree.base.platform import NONE, PAGE_SIZE, READ, WRITE
from jitree.base.platform.files import readable_ranges
from jitree.codegen.checked.layout import (
    ACCESS,
    BETWEEN,
    CALLS,
    CALLS_SIZE,
    REPORTS,
    SHADOW,
    SHADOW_SIZE,
    UNKNOWN,
)
from jitree.codegen.image.flat import Image, Recipe
from jitree.errors import UnimplementedError

if TYPE_CHECKING:
    from collections.abc import Callable

RECIPE: Final = Recipe("checked", "the checks of machine code", "jitree.codegen.checked.shadow:generate", 4)
GOES_ON: Final = "JITREE_CHECKED_GOES_ON"
"""The variable that has processes go on after a report, for a first look."""
_MESSAGE: Final = (
    b"%s: %ld bytes, bad at %#lx; the map says %#lx there "
    b"(0 unknown, 0x80 freed, 0x81 before a block, 0x82 after one, 0x83 free in a pool, 0x84 between); "
    b"before %016lx from there %016lx\n\0"
)
_NAMES: Final = b"".join(name.ljust(16, b"\0") for name in (b"memmove", b"memcmp", b"memset", b"free"))
_STACK: Final = 8 << 20
_FIXED_NEW, _FIXED = 0x100000, 0x10
_PRIVATE, _ANONYMOUS, _NO_RESERVE = 2, 0x20, 0x4000
_DONT_NEED: Final = 4
_NUMPY_GET_HANDLER: Final = 305
"""PyDataMem_GetHandler in numpy's table of functions."""
_HANDLER_TABLE: Final = 128
"""Offset of the table of functions in a PyDataMem_Handler."""

_state: dict[str, Any] = {}
_beginning: Final = ReentrantLock()
"""Held until all memory is followed: what another thread mapped meanwhile would never be known."""


def install(wait: Callable[[Recipe], Image]) -> None:
    """Begins, once in a process; ``wait`` gives an image. UNIMPLEMENTED where the addresses are taken."""
    with _beginning:
        if not _state:
            _state["begun"] = True
            _begin(wait)


def _begin(wait: Callable[[Recipe], Image]) -> None:
    if not readable_ranges() or platform.MACHINE != "x86_64":
        raise UnimplementedError("checked machine code is for x86-64 and Linux")
    for address, size in ((CALLS, CALLS_SIZE), (SHADOW, SHADOW_SIZE)):
        kind = _PRIVATE | _ANONYMOUS | _NO_RESERVE | _FIXED_NEW
        found = platform._mmap(address, size, READ | WRITE, kind, -1, 0)
        if found != address:
            raise UnimplementedError(f"no room for {size} bytes at {address:#x}, where checked code looks")
    ready = wait(RECIPE)
    _state["image"] = ready
    functions = ready.addresses
    mark = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
    _state["open"] = mark(functions["checked_open"])
    _state["close"] = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(
        functions["checked_close"]
    )
    _state["texts"] = texts = (
        ctypes.create_string_buffer(_MESSAGE + bytes(16)),
        ctypes.create_string_buffer(_NAMES),
    )
    library = [platform.address_of_function(name) for name in (
        "dprintf", "abort", "malloc", "calloc", "free", "memset", "memmove", "memcmp",
    )]  # fmt: skip
    words = [
        functions[ACCESS],
        *library[:2],
        int(GOES_ON in os.environ),
        *library[2:],
        *map(ctypes.addressof, texts),
        _STACK,
        _reports(),
        functions["checked_outside"],
        functions["checked_open"],
        functions["checked_keep_out"],
        functions["checked_masked"],
    ]
    ctypes.memmove(CALLS, struct.pack(f"{len(words)}q", *words), 8 * len(words))
    _follow_mappings()
    _open_what_is_mapped()
    _follow_python(functions)
    _follow_numpy(functions)
    _replace_functions(functions)


def _reports() -> int:
    """A descriptor, which children keep and which is not among the first ones."""
    path = os.environ.get(REPORTS)
    if path is None:
        return 2
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    kept = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 900)
    os.close(file)
    return kept


def allow(address: int, size: int) -> None:
    """Lets code access memory, which begins at a multiple of 8."""
    _state["open"](address, size)


def forbid(address: int, size: int, kind: int = BETWEEN) -> None:
    """Lets no code access memory."""
    _state["close"](address, size, kind)


def forget(address: int, size: int) -> None:
    """Knows memory no more. Whole pages of the map are given back to the system: they are zero then."""
    first, last = SHADOW + (address >> 3), SHADOW + (address + size >> 3)
    low, high = -(-first & -platform.PAGE_SIZE), last & -platform.PAGE_SIZE
    if high > low:
        forbid(address, (low - first) << 3, UNKNOWN)
        platform.C_LIBRARY.madvise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), _DONT_NEED)
        address += (high - first) << 3
        size -= (high - first) << 3
    forbid(address, size, UNKNOWN)


def _open_what_is_mapped() -> None:
    for start, end, _ in readable_ranges():
        if start != SHADOW and end < 1 << 47:
            allow(start, end - start)


def _follow_mappings() -> None:
    """Has pages without access around each mapping, and knows its length."""
    mmap, munmap = platform._mmap, platform._munmap

    def mapped(size: int, access: int, flags: int, file: int) -> int:
        room = size + PAGE_SIZE - 1 & -PAGE_SIZE
        whole: int | None = mmap(None, room + 2 * PAGE_SIZE, NONE, _PRIVATE | _ANONYMOUS | _NO_RESERVE, -1, 0)
        start = None if whole in (None, platform._FAILED) else whole + PAGE_SIZE
        if start is None or mmap(start, size, access, flags | _FIXED, file, 0) != start:
            number = ctypes.get_errno()
            if start is not None:
                munmap(whole, room + 2 * PAGE_SIZE)
            raise OSError(number, os.strerror(number))
        forbid(start - PAGE_SIZE, PAGE_SIZE)
        allow(start, size)
        forbid(start + (size + 7 & -8), room + PAGE_SIZE - (size + 7 & -8))
        _ours[start] = size
        return start

    def unmapped(start: int, size: int) -> int:
        if _ours.pop(start, None) is None:
            return int(munmap(start, size))
        room = size + PAGE_SIZE - 1 & -PAGE_SIZE
        forget(start - PAGE_SIZE, room + 2 * PAGE_SIZE)
        return int(munmap(start - PAGE_SIZE, room + 2 * PAGE_SIZE))

    _ours: dict[int, int] = {}
    _put(platform, "_mapped", mapped)
    _put(platform, "_munmap", unmapped)
    reserved = partial(mapped, flags=_PRIVATE | _ANONYMOUS, file=-1)
    _put(platform.Mapping, "_reserved", staticmethod(reserved))


def _put(owner: object, name: str, value: object) -> None:
    """Replaces what is meant to stay as it is."""
    setattr(owner, name, value)


class _AllocatorTable(ctypes.Structure):
    """An allocator of Python's and of numpy's; of Python's arenas the first three words."""

    _fields_ = (("words", ctypes.c_int64 * 5),)


def _follow_python(functions: Any) -> None:
    get, put = ctypes.pythonapi.PyMem_GetAllocator, ctypes.pythonapi.PyMem_SetAllocator
    get.argtypes = put.argtypes = ctypes.c_int, ctypes.c_void_p
    get.restype = put.restype = None
    for domain in range(3):
        old = _AllocatorTable()
        get(domain, ctypes.addressof(old))
        _state[f"python {domain}"] = old
        new = _AllocatorTable((ctypes.addressof(old), *_allocator(functions)))
        put(domain, ctypes.addressof(new))
    _follow_arenas(functions)


def _follow_arenas(functions: Any) -> None:
    """Knows the memory of Python's frames, in which arguments of calls lie."""
    get, put = ctypes.pythonapi.PyObject_GetArenaAllocator, ctypes.pythonapi.PyObject_SetArenaAllocator
    get.argtypes = put.argtypes = (ctypes.c_void_p,)
    get.restype = put.restype = None
    old = _AllocatorTable()
    get(ctypes.addressof(old))
    _state["arenas"] = old
    taken, given_back = functions["checked_arena"], functions["checked_arena_ends"]
    put(ctypes.addressof(_AllocatorTable((ctypes.addressof(old), taken, given_back))))


def _allocator(functions: Any) -> tuple[int, ...]:
    return tuple(functions[f"checked_{name}"] for name in ("malloc", "calloc", "realloc", "free"))


def _follow_numpy(functions: Any) -> None:
    import numpy as np

    core = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.argtypes, pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p
    interface: int = pointer(core._ARRAY_API, None)
    place = ctypes.c_int64.from_address(interface + 8 * _NUMPY_GET_HANDLER).value
    get = ctypes.PYFUNCTYPE(ctypes.py_object)(place)
    handler: int = pointer(get(), b"mem_handler")
    assert ctypes.string_at(handler).startswith(b"default"), np.__version__
    table = _AllocatorTable.from_address(handler + _HANDLER_TABLE)
    old = _AllocatorTable.from_buffer_copy(table)
    _state["numpy"] = old
    table.words[:] = (ctypes.addressof(old), *_allocator(functions))


def _replace_functions(functions: Any) -> None:
    """Code calls these of the C library by addresses that it is given."""
    old = platform.address_of_function

    def address_of_function(name: str) -> int:
        return functions.get(f"checked_{name}") if name in ("memmove", "memcmp", "memset") else old(name)

    for module in list(sys.modules.values()):
        if getattr(module, "address_of_function", None) is old:
            _put(module, "address_of_function", address_of_function)
