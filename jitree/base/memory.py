"""Knows what is stored to mapped files, names code, and binds C functions' arguments.

The pages themselves are :mod:`jitree.base.platform`'s.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from collections.abc import Mapping as MappingOf
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jitree.base import platform
from jitree.base.finalizers import SharedWeakSet
from jitree.base.platform import OWN, MappedPages, Mapping, map_code

if TYPE_CHECKING:
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


_PERF: Final = os.environ.get("JITREE_PERF", "")
NAMES_CODE: Final = bool(_PERF)
"""Whether ``perf`` is to know the names of functions: they are given to :func:`name_code`."""

_view_of: Final = ctypes.c_char.from_buffer
_addressof: Final = ctypes.addressof


def address_of(array: npt.NDArray[Any]) -> int:
    """The address of an array's first element."""
    flags = array.flags
    if flags.writeable and flags.c_contiguous and array.size:
        return _addressof(_view_of(array))  # type: ignore[arg-type]
    return int(array.__array_interface__["data"][0])  # which takes three times as long


class PrivateFile(MappedPages):
    """Of a file. What is stored to them is the process's own."""

    __slots__ = ("__weakref__", "is_changed")

    def __init__(self, size: int, file: int) -> None:
        super().__init__(size, *OWN, file)
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


def c_fields(text: str, *structures: type, **named: type) -> tuple[tuple[str, Any], ...]:
    """Lists the fields of a structure of C, ``name:type``: a type of ctypes, or one of ``structures``."""
    kinds = {kind.__name__: kind for kind in structures} | named
    pairs = (word.split(":") for word in text.split())
    return tuple((name, kinds.get(kind) or getattr(ctypes, f"c_{kind}")) for name, kind in pairs)


def private_file(file: int, size: int) -> memoryview:
    """As :func:`mapped_file`; pages that are written become the process's own, the file stays as it is."""
    return PrivateFile(size, file).view()


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


def can_bind() -> bool:
    """Whether :func:`bound` knows this machine."""
    return platform.MACHINE in _BOUND


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
    register, *around = _BOUND[platform.MACHINE]
    before, between, after = map(bytes.fromhex, around)
    words = argument.to_bytes(8, "little") + between + function.to_bytes(8, "little")
    return bytes.fromhex(register[count]) + before + words + after
