"""Begins to follow memory in a process of tests, and knows of pools what their blocks have."""

from __future__ import annotations

import _thread
import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from jitree.base import platform
from jitree.codegen import image
from jitree.codegen.checked import memory
from jitree.codegen.checked.layout import DESCRIPTOR, ENTRY_SHUT, POOLED
from jitree.codegen.image.shipped import CHECKED
from jitree.hal import heap
from jitree.regs import handles, machine
from jitree.regs import memory as regs_memory

_begun: list[bool] = []


def begin() -> None:
    """Once in a process, and only where code is checked."""
    if not CHECKED or _begun:
        return
    _begun.append(True)
    memory.install(image.wait)
    _follow_threads()
    _replace("mmap", mmap.mmap, _FollowedMap)
    _replace("zeroed", regs_memory.zeroed, _exact(regs_memory.zeroed))
    _follow_heap()
    _follow_machines()
    _follow_handles()


def let_only(block: np.ndarray[Any, Any], places: Iterable[int], length: int) -> None:
    """Lets code access some parts of an array alone. They begin at multiples of 8."""
    if _begun:
        memory.forbid(block.ctypes.data, block.nbytes)
        for place in places:
            memory.allow(block.ctypes.data + place, length)


def let(address: int, size: int) -> None:
    """Lets code access memory that a test has put back."""
    if _begun:
        memory.allow(address, size)


def report_to(descriptor: int) -> None:
    """Has the report written to a file that ends this process."""
    if _begun and memory.GOES_ON not in os.environ:
        ctypes.c_int64.from_address(DESCRIPTOR).value = descriptor


def _replace(name: str, old: object, new: object) -> None:
    """In each file that has imported it."""
    for module in list(sys.modules.values()):
        if getattr(module, name, None) is old:
            _put(module, name, new)


def _put(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)


def _follow_threads() -> None:
    """What a thread has on its stack while it waits, others may access: jobs for helpers, say."""
    start, stack = _thread.start_new_thread, _stack()
    memory.allow(*stack)

    def run(function: Callable[..., object], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        with _open_stack():
            function(*arguments, **named)

    def started(
        function: Callable[..., object], arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> int:
        return start(run, (function, arguments, named or {}))

    _replace("start_new_thread", start, started)
    _put(threading, "_start_new_thread", started)


@contextmanager
def _open_stack() -> Iterator[None]:
    address, size = _stack()
    memory.allow(address, size)
    try:
        yield
    finally:
        memory.forget(address, size)


def _stack() -> tuple[int, int]:
    """Address and bytes of this thread's stack."""
    library, attributes = platform.C_LIBRARY, (ctypes.c_int64 * 16)()
    address, size = ctypes.c_int64(), ctypes.c_int64()
    library.pthread_self.restype = ctypes.c_void_p
    library.pthread_getattr_np(ctypes.c_void_p(library.pthread_self()), attributes)
    library.pthread_attr_getstack(attributes, ctypes.byref(address), ctypes.byref(size))
    library.pthread_attr_destroy(attributes)
    return address.value, size.value


class _FollowedMap(mmap.mmap):
    """Python's maps of files, whose memory may be accessed as long as they are there."""

    __module__ = "mmap"  # by which the package knows them
    _place: tuple[int, int] | None = None

    def __new__(cls, *arguments: Any, **named: Any) -> _FollowedMap:
        made = super().__new__(cls, *arguments, **named)
        made._place = np.frombuffer(made, np.uint8).ctypes.data, len(made)
        memory.allow(*made._place)
        return made

    def close(self) -> None:
        """The map forgets it before the system does: a thread's stack may be there at once."""
        place, self._place = self._place, None
        if place is not None:
            memory.forget(*place)
        try:
            super().close()
        except BufferError:
            self._place = place
            if place is not None:
                memory.allow(*place)
            raise

    def __del__(self) -> None:
        if self._place is not None:
            memory.forget(*self._place)
        self._place = None


def _exact(old: Callable[..., Any]) -> Callable[..., Any]:
    """Blocks that are longer than what was asked for, since their address is a multiple of something."""

    def zeroed(length: int, alignment: int = 64) -> Any:
        part = old(length, alignment)
        whole, start = part.base, part.ctypes.data
        first = whole.ctypes.data
        memory.forbid(first, whole.nbytes)
        memory.allow(start, length)
        return part

    return zeroed


def _follow_machines() -> None:
    """Nothing lies between the frames, the values and the references of a machine."""
    make = machine.Machine.__init__

    def made(self: machine.Machine, *arguments: Any) -> None:
        make(self, *arguments)
        for end in (machine._VALUES_AT, machine._REFS_AT):
            memory.forbid(self.state_address + end - machine._MARGIN, machine._MARGIN)

    _put(machine.Machine, "__init__", made)


def _follow_handles() -> None:
    """Entries that machine code has freed may be accessed once Python has them again. Those that Python frees
    stay as they are: a call more at that place is one more that an interrupt ends."""
    take_back = handles.HandleTable.unreserve

    def unreserved(self: handles.HandleTable, address: int) -> None:
        memory.allow(address, ENTRY_SHUT)
        take_back(self, address)

    _put(handles.HandleTable, "unreserve", unreserved)


def _follow_heap() -> None:
    """Buffers of devices have as many bytes as were asked for, and none when they are in the pool."""
    take, put = heap.HeapAllocator._take, heap.HeapAllocator._put
    lend, reserve = heap.HeapAllocator.lend, heap.HeapAllocator._reserve

    def taken(self: heap.HeapAllocator, memory_type: int, size: int) -> heap.HeapBlock:
        block = take(self, memory_type, size)
        memory.forbid(block[0], block[1])
        memory.allow(block[0], size)
        return block

    def put_back(self: heap.HeapAllocator, block: heap.HeapBlock) -> None:
        memory.forbid(block[0], block[1], POOLED)
        put(self, block)

    def lent(self: heap.HeapAllocator, capacity: int, count: int, memory_type: int = 0) -> Any:
        blocks = lend(self, capacity, count, memory_type)
        for address, size, _ in blocks:  # machine code says of which bytes it makes a buffer
            memory.forbid(address, size, POOLED)
        return blocks

    def new_block(self: heap.HeapAllocator, capacity: int, size: int) -> heap.HeapBlock:
        block = reserve(self, capacity, size)
        whole = block[2].base
        assert isinstance(whole, np.ndarray)
        first = whole.ctypes.data
        memory.forbid(first, block[0] - first)
        memory.forbid(block[0] + capacity, first + whole.nbytes - block[0] - capacity)
        return block

    def apart(self: heap.HeapAllocator, capacity: int, count: int) -> list[heap.HeapBlock]:
        return [self._reserve(capacity, capacity) for _ in range(count)]

    _put(heap.HeapAllocator, "_take", taken)
    _put(heap.HeapAllocator, "_put", put_back)
    _put(heap.HeapAllocator, "lend", lent)
    _put(heap.HeapAllocator, "_reserve_some", apart)
    _put(heap.HeapAllocator, "_reserve", new_block)
