"""Asks the system for pages, makes them code, and finds C functions.

This folder is the one place that names Linux and macOS, their calls and their files; all other parts ask it.
Names of the C library that a system lacks are looked for, rather than the system's own name.

A mapping starts without access or writable, is filled, and then made read-only or executable. No page is
ever writable and executable at the same time: :meth:`Mapping.protect` refuses it. macOS on arm64 has that
for a thread rather than for a page (:class:`SwitchedMapping`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from functools import cache, partial
from operator import call
from typing import TYPE_CHECKING, Any, Final

from jitree.base.finalizers import Finalizer
from jitree.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnimplementedError,
    pass_interruption,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SYSTEM: Final = sys.platform
_NAMES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
UNAME: Final = os.uname().machine
"""The processor's architecture by the system's name for it, for messages."""
MACHINE: Final = _NAMES.get(UNAME.lower(), UNAME.lower())
"""By the one name that the package has for it: ``x86_64``, ``aarch64``, ``riscv64``."""

NONE: Final = 0
READ: Final = 1
WRITE: Final = 2
EXECUTE: Final = 4
"""PROT_* of mmap(2)."""

PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")
"""16 KB on macOS' arm64, up to 64 KB on Linux'."""

_FAILED: Final = ctypes.c_void_p(-1).value
C_LIBRARY: Final = ctypes.CDLL(None, use_errno=True)
_mmap: Final = C_LIBRARY.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_mprotect: Final = C_LIBRARY.mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_munmap: Final = C_LIBRARY.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_SHARED, _PRIVATE = 0x01, 0x02
_ANONYMOUS, _NO_RESERVE = (0x1000, 0x40) if SYSTEM == "darwin" else (0x20, 0x4000)
_SWITCHED: Final = 0x800
"""MAP_* of the system, the last one MAP_JIT. The module ``mmap`` has them, and takes 0.25 ms of a first
result to import."""
OWN: Final = READ | WRITE, _PRIVATE | _NO_RESERVE
"""Access and kind of a file's pages of which a process changes its own copy."""

_switch: Final = getattr(C_LIBRARY, "pthread_jit_write_protect_np", None)
"""Of macOS: makes all mappings with MAP_JIT executable (1) or writable (0), for the thread that calls it."""


_PAGES: Final = "pages"
"""The attribute of the object that a view is of: its memory, which stays as long as there is a view."""


class MappedPages:
    """Mapped memory, for views and numpy arrays, which keep it."""

    __slots__ = ("__array_interface__", "_ending", "place")

    def __init__(self, size: int, access: int, flags: int, file: int = -1) -> None:
        start = _mapped(size, access, flags, file)
        self._ending = Finalizer(partial(_munmap, start, size))
        self.place = start, size
        """Address and bytes."""
        data = (start, not access & WRITE)
        self.__array_interface__: dict[str, Any] = {
            "version": 3, "shape": (size,), "typestr": "|u1", "data": data,
        }  # fmt: skip

    def view(self) -> memoryview:
        """All of it; not by numpy, which builders do not import."""
        start, size = self.place
        memory = (ctypes.c_ubyte * size).from_address(start)
        memory.__dict__[_PAGES] = self
        whole = memoryview(memory).cast("B")
        return whole.toreadonly() if self.__array_interface__["data"][1] else whole


def mapped_file(file: int, size: int, access: int = READ) -> memoryview:
    """Maps the first bytes of a file, one at least, never beyond its end. No descriptor is used up: a process
    has few. OSError if the file cannot be mapped."""
    return MappedPages(size, access, _SHARED, file).view()


def open_at_once(path: str, access: int) -> int:
    """Opens a file, as an ``opener``. Named pipes and devices are not waited for."""
    return os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC)


def pages_of(owner: object) -> MappedPages | None:
    """The mapped memory that is what a view is of (``memoryview.obj``)."""
    return owner.__dict__.get(_PAGES) if isinstance(owner, ctypes.Array) else None


def zero_pages(size: int) -> npt.NDArray[np.uint8]:
    """Reserves zero bytes, from a page's start: they take room where they are written.

    OSError if the address space has no room.
    """
    import numpy as np

    return np.asarray(MappedPages(size, READ | WRITE, _PRIVATE | _ANONYMOUS | _NO_RESERVE))


def _mapped(size: int, access: int, flags: int, file: int) -> int:
    start: int | None = _mmap(None, size, access, flags, file, 0)
    if start is None or start == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return start


class Mapping:
    """Private anonymous pages, unmapped when the object goes."""

    __slots__ = ("_ending", "address", "size")

    def __init__(self, size: int, alignment: int = PAGE_SIZE, access: int = NONE) -> None:
        """Reserves ``size`` bytes, in whole pages, at a multiple of ``alignment``. That is a power of two.
        ``access``: NONE, or what :meth:`protect` would grant then.

        RESOURCE_EXHAUSTED if the address space has no room; PERMISSION_DENIED where the system lets this
        process make no code.
        """
        self.size = max(size, 1) + PAGE_SIZE - 1 & -PAGE_SIZE
        slack = max(alignment, PAGE_SIZE) - PAGE_SIZE
        whole = self.size + slack
        try:
            start = self._reserved(whole, access)
        except OSError as error:
            pass_interruption(error)
            text = f"{whole} bytes of memory could not be reserved: {error.strerror}"
            is_refused = error.errno in (errno.EACCES, errno.EPERM)
            raise (PermissionDeniedError if is_refused else ResourceExhaustedError)(text) from None
        self._ending = Finalizer(partial(_munmap, start, whole))
        self.address = start + slack & -max(alignment, PAGE_SIZE)

    _reserved = staticmethod(partial(_mapped, flags=_PRIVATE | _ANONYMOUS, file=-1))
    _set_access: Callable[[int, int, int], int] = staticmethod(_mprotect)

    def protect(self, offset: int, size: int, access: int) -> None:
        """Sets the access of the pages that hold these bytes.

        PERMISSION_DENIED for writable and executable, and where the system refuses (hardened kernels refuse
        to make memory executable that was writable).
        """
        start, end = whole_pages(offset, size)
        if not 0 <= start <= end <= self.size:
            raise InvalidArgumentError(f"bytes {offset} to {offset + size} of a mapping of {self.size}")
        if access & WRITE and access & EXECUTE:
            raise PermissionDeniedError("memory that is both writable and executable is refused")
        # Emulators refuse access to no bytes, which an image without machine code asks for.
        if start < end and self._set_access(self.address + start, end - start, access) != 0:
            number = ctypes.get_errno()
            what = f"the system refused access {access} to {end - start} bytes: {os.strerror(number)}"
            if number == errno.ENOMEM:
                raise ResourceExhaustedError(what)
            raise PermissionDeniedError(what)

    def view(self) -> memoryview:
        """The bytes, of which only accessible pages may be touched. It must not outlive the mapping."""
        return memoryview((ctypes.c_ubyte * self.size).from_address(self.address)).cast("B")

    def publish(self) -> None:
        """Makes code that was written visible to instruction fetch; nothing to do on x86."""
        # order of pages: who is told of the address is told by a word that is released, or with the GIL
        clear = _clear_cache()
        if clear is not None:
            clear(self.address, self.address + self.size)


class SwitchedMapping(Mapping):
    """Maps code that threads switch between writing and running: macOS on arm64.

    Its bytes are kept aside until they are published, so that no thread is switched for longer than the copy
    takes: it may run other code at any time. Nobody has run this on such a machine; it is what Apple's
    "Porting just-in-time compilers to Apple silicon" asks for.
    """

    __slots__ = ("_access", "_aside")

    def __init__(self, size: int, alignment: int = PAGE_SIZE, access: int = NONE) -> None:
        super().__init__(size, alignment, READ | WRITE | EXECUTE)
        self._aside = (ctypes.c_ubyte * self.size)()
        self._access = bytearray([access]) * (self.size // PAGE_SIZE)

    _reserved = staticmethod(partial(_mapped, flags=_PRIVATE | _ANONYMOUS | _SWITCHED, file=-1))

    def _set_access(self, address: int, size: int, access: int) -> int:
        first, count = (address - self.address) // PAGE_SIZE, size // PAGE_SIZE
        self._access[first : first + count] = bytes([access]) * count
        return 0

    def view(self) -> memoryview:
        return memoryview(self._aside).cast("B")

    def publish(self) -> None:
        """Copies what was written to where it runs. UNIMPLEMENTED if code is to store beside itself."""
        if any(access & WRITE for access in self._access):
            raise UnimplementedError(
                "code with data that it stores to beside it cannot be loaded on this system; "
                "compile the module for VMVX, which needs no such code"
            )
        assert _switch is not None
        copy = partial(ctypes.memmove, self.address, self._aside, self.size)
        tuple(map(call, (partial(_switch, 0), copy, partial(_switch, 1))))  # nothing of Python's in between
        super().publish()


_switches: Final = getattr(C_LIBRARY, "pthread_jit_write_protect_supported_np", None)
CodeMapping: Final = SwitchedMapping if _switches is not None and _switches() else Mapping
"""The kind of mapping that code needs here."""


def whole_pages(start: int, size: int) -> tuple[int, int]:
    """Where the pages that hold these bytes begin and end."""
    return start & -PAGE_SIZE, start + size + PAGE_SIZE - 1 & -PAGE_SIZE


def map_code(code: bytes) -> Mapping:
    """Machine code without relocations, ready to be called at the mapping's address."""
    mapping = CodeMapping(len(code), access=READ | WRITE)
    mapping.view()[: len(code)] = code
    mapping.protect(0, len(code), READ | EXECUTE)
    mapping.publish()
    return mapping


@cache
def _clear_cache() -> Callable[[int, int], object] | None:
    """A function of first and last address; None where instruction fetch sees what was stored."""
    if MACHINE in ("x86_64", "i686"):
        return None
    invalidate = getattr(C_LIBRARY, "sys_icache_invalidate", None)  # of macOS
    if invalidate is not None:
        invalidate.argtypes, invalidate.restype = [ctypes.c_void_p, ctypes.c_size_t], None
        return lambda start, end: invalidate(start, end - start)
    clear: ctypes._NamedFuncPointer = ctypes.CDLL("libgcc_s.so.1").__clear_cache
    clear.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    clear.restype = None
    return clear


_FIRST_VERSIONS: Final = {"x86_64": b"GLIBC_2.2.5", "aarch64": b"GLIBC_2.17"}
"""What the GNU C library calls its first version for a machine."""
_REPLACED: Final = frozenset(("exp", "exp2", "log", "log2", "pow"))
"""The official runtime's wheels are built for a C library of before 2.29, which gave these, of binary64, new
versions. The old ones are there still, and call the new ones, but for an invalid operand they answer +NaN
where the new ones answer what the processor makes of it: -NaN."""


def address_of_function(name: str) -> int:
    """The address of a function of the C library, in the official runtime's version; 0 if it has none."""
    if name in _REPLACED and MACHINE in _FIRST_VERSIONS and hasattr(C_LIBRARY, "dlvsym"):
        find = C_LIBRARY.dlvsym
        find.argtypes, find.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p), ctypes.c_void_p
        found: int | None = find(None, name.encode(), _FIRST_VERSIONS[MACHINE])
        if found is not None:
            return found
    function = getattr(C_LIBRARY, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


FUNCTIONS: Final = {
    "park": "syscall",
    "give_way": "sched_yield",
    "running_on": "sched_getcpu",
    "place_thread": "sched_setaffinity",
    "this_thread": "pthread_self",
}
"""C functions that machine code calls, by what they do; others have their own names."""


def open_library(path: str) -> ctypes.CDLL:
    """Opens a library with all that it needs; OSError with the linker's message if it cannot. All symbols are
    bound now: with lazy binding a missing one would end the process when called."""
    return ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)


@cache
def open_math_library() -> ctypes.CDLL | None:
    """Makes the mathematics library known to all: libraries use it without saying so.
    None where it is part of the C library, as on macOS."""
    try:
        return ctypes.CDLL("libm.so.6", mode=os.RTLD_GLOBAL | os.RTLD_NOW)
    except OSError as error:
        pass_interruption(error)
        return None


_malloc_trim: Final = getattr(C_LIBRARY, "malloc_trim", None)
"""A function of the GNU C library; others have nothing like it."""
_MOST_KEPT: Final = 8 << 20
_FREE: Final = 8
"""Bytes that may stay free, and where mallinfo2 says how many do, among its ten numbers."""


def give_back_free_memory() -> None:
    """Gives freed memory that the C allocator keeps back to the system."""
    if _malloc_trim is not None:
        _malloc_trim(ctypes.c_size_t(0))


def give_back_much_free_memory() -> None:
    """The same where it is much. A page that the system gives again costs a microsecond or two, and the next
    session would ask for hundreds of them."""
    if _free_memory() > _MOST_KEPT:
        give_back_free_memory()


def _free_memory() -> int:
    """Bytes that the C allocator keeps; more than there can be where it does not say."""
    count = _counter()
    return count().numbers[_FREE] if count else 1 << 63


@cache
def _counter() -> Callable[[], Any] | None:
    class Numbers(ctypes.Structure):
        _fields_ = (("numbers", ctypes.c_size_t * 10),)

    count = getattr(C_LIBRARY, "mallinfo2", None)
    if count is not None:
        count.restype = Numbers
    return count
