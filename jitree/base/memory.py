"""Maps memory whose address never changes.

Pages have protections; they are for executables, code images and machine code snippets. C functions whose
last argument is fixed are here, too.

A mapping starts without access, is made writable, filled, and then made read-only or executable. No page is
ever writable and executable at the same time: :meth:`Mapping.protect` refuses it.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable
from collections.abc import Mapping as MappingOf
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jitree.base.finalizers import Finalizer
from jitree.base.weak_sets import SharedWeakSet
from jitree.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    ResourceExhaustedError,
    pass_interruption,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from jitree.base.code_listing import CodeListing
    from jitree.base.records import Protocol

    class Copied(Protocol):
        """Memory of which something keeps copies in another order."""

        @property
        def is_retired(self) -> bool:
            """Whether nobody finds the copies any more."""

        def holds(self, address: int) -> bool: ...
        def retire(self) -> None: ...


T = TypeVar("T")

_BOUND: Final = {
    # mov REGISTER, argument; mov rax, function; jmp rax
    "x86_64": ({2: "48ba", 3: "48b9", 4: "49b8"}, "", "48b8", "ffe0"),
    # ldr REGISTER, argument; ldr x16, function; br x16; nop
    "aarch64": ({2: "82000058", 3: "83000058", 4: "84000058"}, "b000005800021fd61f2003d5", "", ""),
}
"""By the number of arguments that come before; what stands around the two addresses."""

STRIDE: Final = 32


def once(make: Callable[[], T]) -> Callable[[], T]:
    """A function that gives what ``make`` makes when it is first called.

    For what machine code refers to by its address. Threads that come at the same time get the same object;
    :func:`functools.cache` gives each of them its own and keeps one, so the memory of the others goes while
    their addresses are used.
    """
    made: dict[None, T] = {}

    def first() -> T:
        try:
            return made[None]
        except KeyError:
            return made.setdefault(None, make())  # one step: the interpreter does not change threads inside

    return first


NONE: Final = 0
READ: Final = 1
WRITE: Final = 2
EXECUTE: Final = 4
"""PROT_* of mmap(2)."""

PAGE_SIZE: Final = os.sysconf("SC_PAGE_SIZE")

_PERF: Final = os.environ.get("JITREE_PERF", "")
NAMES_CODE: Final = bool(_PERF)
"""Whether ``perf`` is to know the names of functions: they are given to :func:`name_code`."""

_FAILED: Final = ctypes.c_void_p(-1).value
C_LIBRARY: Final = ctypes.CDLL(None, use_errno=True)
_mmap: Final = C_LIBRARY.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_mprotect: Final = C_LIBRARY.mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_munmap: Final = C_LIBRARY.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_SHARED, _PRIVATE, _ANONYMOUS, _NO_RESERVE = 0x01, 0x02, 0x20, 0x4000
"""MAP_* of Linux. The module ``mmap`` has them, and takes 0.25 ms of a first result to import."""


_view_of: Final = ctypes.c_char.from_buffer
_addressof: Final = ctypes.addressof


def address_of(array: npt.NDArray[Any]) -> int:
    """The address of an array's first element."""
    flags = array.flags
    if flags.writeable and flags.c_contiguous and array.size:
        return _addressof(_view_of(array))  # type: ignore[arg-type]
    return int(array.__array_interface__["data"][0])  # which takes three times as long


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


class PrivateFile(MappedPages):
    """Of a file. What is stored to them is the process's own."""

    __slots__ = ("__weakref__", "is_changed")

    def __init__(self, size: int, file: int) -> None:
        super().__init__(size, READ | WRITE, _PRIVATE | _NO_RESERVE, file)
        self.is_changed = False
        """Whether something may have been stored to them."""
        _private_files.add(self)

    def holds(self, address: int) -> bool:
        start, size = self.place
        return 0 <= address - start < size


_private_files: Final = SharedWeakSet[PrivateFile]()


COPIED: Final = SharedWeakSet["Copied"]()
"""Memory of which something keeps copies in another order."""


def may_be_copied(address: int) -> bool:
    """Whether constants at an address may have copies some day that :func:`note_stores` gives up. A signal's
    handler may have ended that before it was done."""
    some = any(file.holds(address) and not file.is_changed for file in _private_files)
    return some or any(constants.holds(address) and not constants.is_retired for constants in COPIED)


def note_stores(address: int, length: int) -> tuple[int, int]:
    """Hears that kernels are going to store to constants: their file's have no copies from now on. Address
    and size of all memory of which that is known then: the file's, or that of the constants."""
    place = address, length
    for file in _private_files:
        if file.holds(address):
            file.is_changed = True
            place = file.place
    for constants in COPIED:
        if constants.holds(address):
            constants.retire()
    return place


def note_native(executable: memoryview) -> None:
    """Hears that kernels of a file are machine code that others have compiled: what these store to is known
    to nobody, so that its constants have no copies."""
    import numpy as np

    array = np.frombuffer(executable, np.uint8)
    if array.size:
        note_stores(address_of(array), array.size)


def c_fields(text: str, **structures: type) -> tuple[tuple[str, Any], ...]:
    """Lists the fields of a structure of C, ``name:type``: a type of ctypes, or one of ``structures``."""
    pairs = (word.split(":") for word in text.split())
    return tuple((name, structures.get(kind) or getattr(ctypes, f"c_{kind}")) for name, kind in pairs)


def mapped_file(file: int, size: int) -> memoryview:
    """Maps the first bytes of a file, one at least, never beyond its end. No descriptor is used up: a process
    has few. OSError if the file cannot be mapped."""
    return MappedPages(size, READ, _SHARED, file).view()


def private_file(file: int, size: int) -> memoryview:
    """As :func:`mapped_file`; pages that are written become the process's own, the file stays as it is."""
    return PrivateFile(size, file).view()


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
    """Private anonymous pages, without access at first; unmapped when the object goes."""

    __slots__ = ("_ending", "address", "size")

    def __init__(self, size: int, alignment: int = PAGE_SIZE) -> None:
        """Reserves ``size`` bytes, in whole pages, at a multiple of ``alignment``. That is a power of two.

        RESOURCE_EXHAUSTED if the address space has no room.
        """
        self.size = max(size, 1) + PAGE_SIZE - 1 & -PAGE_SIZE
        slack = max(alignment, PAGE_SIZE) - PAGE_SIZE
        whole = self.size + slack
        try:
            start = _mapped(whole, NONE, _PRIVATE | _ANONYMOUS, -1)
        except OSError as error:
            pass_interruption(error)
            text = f"{whole} bytes of memory could not be reserved: {error.strerror}"
            raise ResourceExhaustedError(text) from None
        self._ending = Finalizer(partial(_munmap, start, whole))
        self.address = start + slack & -max(alignment, PAGE_SIZE)

    def protect(self, offset: int, size: int, access: int) -> None:
        """Sets the access of the pages that hold these bytes.

        PERMISSION_DENIED for writable and executable, and where the system refuses (hardened kernels refuse
        to make memory executable that was writable).
        """
        start, end = page_down(offset), page_up(offset + size)
        if not 0 <= start <= end <= self.size:
            raise InvalidArgumentError(f"bytes {offset} to {offset + size} of a mapping of {self.size}")
        if access & WRITE and access & EXECUTE:
            raise PermissionDeniedError("memory that is both writable and executable is refused")
        if _mprotect(self.address + start, end - start, access) != 0:
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
        clear = _clear_cache()
        if clear is not None:
            clear(self.address, self.address + self.size)


def page_down(position: int) -> int:
    return position & -PAGE_SIZE


def page_up(position: int) -> int:
    return position + PAGE_SIZE - 1 & -PAGE_SIZE


def map_code(code: bytes) -> Mapping:
    """Machine code without relocations, ready to be called at the mapping's address."""
    mapping = Mapping(len(code))
    mapping.protect(0, len(code), READ | WRITE)
    ctypes.memmove(mapping.address, code, len(code))
    mapping.protect(0, len(code), READ | EXECUTE)
    mapping.publish()
    return mapping


def name_code(functions: MappingOf[str, int], end: int) -> None:
    """Lists functions by name, with their addresses, as JITREE_PERF says (:mod:`jitree.base.code_listing`).
    Each goes on until the next begins, or the code ends."""
    _listing().add(functions, end)


def require_listing() -> None:
    """INVALID_ARGUMENT if JITREE_PERF is none of the known words."""
    if NAMES_CODE:
        _listing()


@cache
def _listing() -> CodeListing:
    from jitree.base.code_listing import CodeListing

    return CodeListing(_PERF)


@cache
def _clear_cache() -> ctypes._NamedFuncPointer | None:
    if os.uname().machine in ("x86_64", "i686"):
        return None
    clear: ctypes._NamedFuncPointer = ctypes.CDLL("libgcc_s.so.1").__clear_cache
    clear.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    clear.restype = None
    return clear


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


def can_bind() -> bool:
    """Whether :func:`bound` knows this machine."""
    return os.uname().machine in _BOUND


def bound(function: int, count: int, argument: int) -> Mapping:
    """Binds the last argument of a C function: the made one has ``count`` arguments. It lies at the mapping's
    address, and the argument is always the same."""
    return map_code(_code(function, count, argument))


def bound_together(functions: Iterable[int], count: int, argument: int) -> Mapping:
    """As :func:`bound`, of several: STRIDE bytes apart."""
    return map_code(
        b"".join([_code(function, count, argument).ljust(STRIDE, b"\0") for function in functions])
    )


def _code(function: int, count: int, argument: int) -> bytes:
    register, *around = _BOUND[os.uname().machine]
    before, between, after = map(bytes.fromhex, around)
    words = argument.to_bytes(8, "little") + between + function.to_bytes(8, "little")
    return bytes.fromhex(register[count]) + before + words + after
