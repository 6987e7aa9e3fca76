"""Registers the ref types of libraries, and finds the built-in ones."""

from __future__ import annotations

import ctypes
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from typing import Final

from jitree.base.c_allocator import allocator_address
from jitree.base.callbacks import Callback, keep
from jitree.base.finalizers import guard, with_lock
from jitree.errors import FailedPreconditionError, is_interruption
from jitree.modules.native_library import layout
from jitree.modules.native_library.interface import read_memory

_CAPACITY: Final = 1024
_PLAUSIBLE_NAME: Final = 256


class TypeInstance:
    """The C object. It outlives all libraries that were given it.

    A library takes its types out of the table when its module ends, which is where a garbage collector runs:
    in any thread, also in the one that reads the table. Modules that end meanwhile are kept until it is read.
    """

    def __init__(self) -> None:
        self.creating = guard()
        """Held while a library creates a module, which puts types in."""
        self._reading = allocate_lock()
        self._due: deque[Callable[[], object]] = deque()
        size = ctypes.sizeof(layout.RegisteredType)
        self._block = ctypes.create_string_buffer(ctypes.sizeof(layout.CInstance) + _CAPACITY * size)
        self._instance = layout.CInstance.from_buffer(self._block)
        self._instance.count = 1  # never released: the destructor in the library must not run
        self._instance.allocator = layout.CAllocator(None, allocator_address())
        self._instance.capacity = _CAPACITY
        self._types = (layout.RegisteredType * _CAPACITY).from_buffer(
            self._block, ctypes.sizeof(layout.CInstance)
        )
        self._kept: list[object] = []

    @property
    def address(self) -> int:
        return ctypes.addressof(self._block)

    def add(self, name: str, destroy: Callable[[int], None]) -> int:
        """Registers a type of the runtime; gives what the refs of it have as type."""
        text = ctypes.create_string_buffer(name.encode())
        function = destructor(destroy)
        block = ctypes.create_string_buffer(ctypes.sizeof(layout.Descriptor) + 8)
        address = ctypes.addressof(block) + 7 & -8
        descriptor = layout.Descriptor.from_address(address)
        descriptor.destroy = function.address
        descriptor.name = layout.String(ctypes.addressof(text), len(name))
        self._kept += (text, function, block)
        entry = self._types[self._instance.type_count]
        entry.descriptor, entry.count = address, 1
        self._instance.type_count += 1
        return address

    def names(self) -> list[str]:
        """Names of all registered types. FAILED_PRECONDITION if a library has left nonsense."""
        try:
            with self.creating, self._reading:
                return [type_name(address) for address in self._descriptors()]
        finally:
            self._end_due()

    def end(self, release: Callable[[], object]) -> None:
        """Calls ``release``, the end of a library's module; while the table is read, after that."""
        self._due.append(release)
        self._end_due()

    def _end_due(self) -> None:
        while self._due and with_lock(self._reading, self._end_first) is not None:
            pass

    def _end_first(self) -> bool:
        if self._due:
            self._due.popleft()()
        return True

    def _descriptors(self) -> list[int]:
        if self._instance.mutex or self._instance.type_count > _CAPACITY:
            raise _other_layout()
        found = [entry.descriptor or 0 for entry in self._types[: self._instance.type_count]]
        if not all(found) or any(address % 8 for address in found):
            raise _other_layout()
        return found


def destructor(destroy: Callable[..., None], count: int = 1) -> Callback:
    """A C function for the end of an object. What it is interrupted in is done all the same."""

    def end(*arguments: int) -> int:
        destroy(*arguments)
        return 0

    def failed(error: BaseException, *arguments: int) -> int:
        keep(error)
        return end(*arguments) if is_interruption(error) else 0

    return Callback(end, count, failed, 0)


def type_name(address: int) -> str:
    """The name of the type with the descriptor at ``address``."""
    if not address or read_memory(address, ctypes.sizeof(layout.Descriptor)) is None:
        raise _other_layout()
    name = layout.Descriptor.from_address(address).name
    data = read_memory(name.data or 0, name.size) if 0 < name.size <= _PLAUSIBLE_NAME else None
    if data is None:
        raise _other_layout()
    return data.decode("utf-8", "backslashreplace")


def _other_layout() -> FailedPreconditionError:
    return FailedPreconditionError(
        "the library does not keep to the layout of the VM instance of releases 2023 to 3.13, where types "
        "are registered; build it against one of these releases"
    )
