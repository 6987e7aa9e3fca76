"""References across the border: objects of libraries in Python, buffers of programs in C.

An object of a library is a :class:`LibraryObject`, one per address, which owns one count of the C object as
long as anything in Python or a program refers to it. Numbers of counts are changed atomically because code
in libraries may start threads.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final

from jitree.base.callbacks import allocate, allocator_address, free
from jitree.base.finalizers import Finalizer, SharedWeakKeys, guard, uninterrupted
from jitree.base.platform.files import read_memory
from jitree.errors import InvalidArgumentError, UnimplementedError
from jitree.modules.hal.references import HAL_TYPES, type_name
from jitree.modules.native_library import hal_objects, layout
from jitree.modules.native_library.hal_objects import HalObjects
from jitree.modules.native_library.interface import TypeInstance, machine_code
from jitree.modules.native_library.interface import type_name as name_of_descriptor
from jitree.regs.buffer import VmBuffer
from jitree.regs.ref_types import RefTypes

INSTEAD: Final = (
    "only arrays, buffers, devices and allocators cross into C modules; write the module in Python (Numba "
    "compiles it where it has to be fast)"
)
_HAL: Final = "hal."
_BUFFER: Final = "vm.buffer"
_LIST: Final = "vm.list"
_WORD: Final = 8
_FARTHEST_BASE: Final = 4096


class LibraryObject:
    """An object of a C module's own type.

    It can be passed on, kept and dropped.
    """

    __slots__ = ("__weakref__", "ending", "pointer", "type")
    type_name: ClassVar[str]

    def __init__(self, pointer: int, type_word: int) -> None:
        self.pointer = pointer
        self.type = type_word
        self.ending: Finalizer | None = None
        """What gives the reference back when it dies."""

    def __repr__(self) -> str:
        return f"<!{self.type_name} at {self.pointer:#x}>"


class References:
    """All objects that libraries and programs of one jitree instance share."""

    def __init__(self, ref_types: RefTypes) -> None:
        self.instance = TypeInstance()
        self._ref_types = ref_types
        self._lock = guard()
        self._classes: dict[str, type[LibraryObject]] = {}
        self._objects: dict[tuple[int, int], weakref.ref[LibraryObject]] = {}
        self._buffers: dict[int, VmBuffer] = {}
        self._addresses: dict[int, int] = {}
        self._buffer_type = self._add_type(_BUFFER, self._destroy_buffer)
        self._add_type(_LIST, _leave)
        self._hal = HalObjects(self._add_type)
        for name in set(HAL_TYPES) - self._hal.type_names:
            self._add_type(name, _leave)

    @staticmethod
    def of(ref_types: RefTypes) -> References:
        """The one of an instance."""
        with _tables_lock:
            table = _tables.get(ref_types)
            if table is None:
                table = _tables[ref_types] = References(ref_types)
            return table

    def _add_type(self, name: str, destroy: Callable[[int], None]) -> int:
        return self.instance.add(name, partial(self._end, destroy))

    def _end(self, destroy: Callable[[int], None], address: int) -> None:
        """No ref of an object is left.

        One of ours ends as what it is, whatever a library took it for.
        """
        if address in self._buffers:
            self._destroy_buffer(address)
        else:
            (self._hal.destructor_of(address) or destroy)(address)

    def register_types(self) -> None:
        """Makes the types that libraries have registered known to programs."""
        for name in self.instance.names():
            if not self._is_builtin(name):
                self._class(name)

    @staticmethod
    def _is_builtin(name: str) -> bool:
        return name in (_BUFFER, _LIST) or name.startswith(_HAL)

    def _class(self, name: str) -> type[LibraryObject]:
        with self._lock:
            cls = self._classes.get(name)
            if cls is None:
                cls = type("LibraryObject", (LibraryObject,), {"__slots__": (), "type_name": name})
                self._ref_types.register(name, cls)
                self._classes[name] = cls
            return cls

    # -- from C ------------------------------------------------------------------------------------------

    def take(self, pointer: int, type_word: int, library: object) -> object:
        """Takes the object of a ref, whose count passes to the caller, always. ``library`` is kept open with
        it.

        UNIMPLEMENTED for lists and for HAL objects that only the library knows, see :class:`HalObjects`;
        INVALID_ARGUMENT for an object of ours with another type.
        """
        if not pointer:
            return None
        name = name_of_descriptor(type_word & ~layout.TYPE_MASK)
        own = _BUFFER if pointer in self._buffers else self._hal.name_of(pointer)
        if own is None and not self._is_builtin(name):
            return self._take_object(pointer, type_word, name, library)
        try:
            if own not in (None, name):
                raise InvalidArgumentError(
                    f"the C module gave a !{own} as a !{name}; the type of a ref is that of its object"
                )
            if name == _BUFFER:
                return self._find_buffer(pointer)
            if name == _LIST:
                raise UnimplementedError(f"the C module gave a !{name}: {INSTEAD}")
            return self._hal.find(pointer, name, library)
        finally:
            self.release(pointer, type_word)

    def _take_object(self, pointer: int, type_word: int, name: str, library: object) -> LibraryObject:
        cls = self._class(name)
        with self._lock:
            known = self._objects.get((pointer, type_word))
            obj = None if known is None else known()
            if obj is None:
                obj = cls(pointer, type_word)
                found = self._objects[pointer, type_word] = weakref.ref(obj)
                obj.ending = Finalizer(
                    uninterrupted(partial(self._forget, (pointer, type_word), found, library))
                )
                return obj
        self.release(pointer, type_word)
        return obj

    def borrow(self, pointer: int, type_word: int, library: object) -> object:
        """The object of a ref that stays its owner's."""
        if pointer:
            self._add(pointer, type_word, 1)
        return self.take(pointer, type_word, library)

    def _forget(self, key: tuple[int, int], gone: object, library: object) -> None:
        """A Python object is gone, which ``gone`` referred to; its library is open until then."""
        with self._lock:
            if self._objects.get(key) is gone:
                del self._objects[key]
        self.release(*key)

    def _find_buffer(self, pointer: int) -> VmBuffer:
        """FAILED_PRECONDITION for bytes that are nowhere."""
        buffer = self._buffers.get(pointer)
        if buffer is None:
            data = hal_objects.read(layout.CBuffer, pointer).data
            ends = (0, data.size - 1) if data.size else ()
            if any(read_memory((data.data or 0) + at, 1) is None for at in ends):
                raise hal_objects.other_layout(f"a !vm.buffer of {data.size} bytes")
            buffer = VmBuffer(data.size)
            ctypes.memmove(buffer.address, data.data, data.size)
        return buffer

    # -- to C --------------------------------------------------------------------------------------------

    def give(self, value: object) -> tuple[int, int]:
        """A new count of an object, as pointer and type.

        UNIMPLEMENTED for lists and what :class:`HalObjects` does not give, INVALID_ARGUMENT for what no C
        module knows.
        """
        if value is None:
            return 0, 0
        if isinstance(value, LibraryObject):
            self._add(value.pointer, value.type, 1)
            return value.pointer, value.type
        if isinstance(value, VmBuffer):
            return self._give_buffer(value), self._buffer_type
        given = self._hal.give(value)
        if given is not None:
            return given
        name = type_name(value)
        if name.startswith(_HAL) or self._ref_types.id_of(value) == self._ref_types.lookup(_LIST):
            raise UnimplementedError(f"a {name} was to be passed to a C module: {INSTEAD}")
        raise InvalidArgumentError(f"a {name} was to be passed to a C module, which can do nothing with it")

    def _give_buffer(self, buffer: VmBuffer) -> int:
        with self._lock:
            address = self._addresses.get(id(buffer))
            if address is not None:
                self._add(address, self._buffer_type, 1)
                return address
            address = allocate(ctypes.sizeof(layout.CBuffer))
            block = layout.CBuffer.from_address(address)
            block.count = 1
            block.access = layout.BUFFER_FROM_HOST | (layout.BUFFER_MUTABLE if buffer.writable else 0)
            block.data = layout.CSpan(buffer.address, buffer.length)
            self._buffers[address] = buffer
            self._addresses[id(buffer)] = address
            return address

    def _destroy_buffer(self, address: int) -> None:
        with self._lock:
            buffer = self._buffers.get(address)
            if buffer is not None:
                if (
                    layout.CBuffer.from_address(address).count <= 0
                ):  # else it was passed again in the meantime
                    del self._buffers[address], self._addresses[id(buffer)]
                    free(address)
                return
        self._free_foreign(address)

    @staticmethod
    def _free_foreign(address: int) -> None:
        """A buffer that code in a library made: one aligned block, its beginning noted in front."""
        allocator: layout.CAllocator = layout.CBuffer.from_address(address).allocator
        base = ctypes.c_size_t.from_address(address - _WORD).value
        if allocator.control == allocator_address() and address - _FARTHEST_BASE <= base < address:
            free(base)

    # -- counts ------------------------------------------------------------------------------------------

    def release(self, pointer: int, type_word: int) -> None:
        """Gives a count back."""
        if pointer and self._add(pointer, type_word, -1) == 1:
            destroy = layout.Descriptor.from_address(type_word & ~layout.TYPE_MASK).destroy
            if destroy:
                layout.DESTROY(destroy)(pointer)

    @staticmethod
    def _add(pointer: int, type_word: int, count: int) -> int:
        before: int = machine_code().add(pointer + 4 * (type_word & layout.TYPE_MASK), count)
        return before


def _leave(address: int) -> None:
    """An object of the HAL or a list that code of a library made: only that code could free it."""


_tables: SharedWeakKeys[RefTypes, References] = SharedWeakKeys()
_tables_lock = guard()
