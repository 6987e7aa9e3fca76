"""Accesses that checked machine code lets happen or not, a line each: for ``test_checked.py``, by a command
of its own, since it follows all memory of its process."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from jitree.base import platform
from jitree.base.finalizers import Finalizer
from jitree.codegen import image
from jitree.codegen.checked import memory
from jitree.codegen.checked.layout import AFTER, BEFORE, BETWEEN, FREED, POOLED, UNKNOWN
from jitree.codegen.image.compile import compile_object, host_target
from jitree.codegen.image.flat import Image, Recipe, map_image
from jitree.codegen.image.link import link
from jitree.hal.heap import HeapAllocator
from jitree.regs.buffer import VmBuffer
from jitree.regs.memory import MemoryBlock
from tests.checked.begin import begin, let_only, report_to

LENGTH: Final = 96
_MASKED: Final = "call void @llvm.masked.store.v4i32.p0"
ACCESSES: Final = {
    "load": (8, "%v = load volatile i64, ptr %p, align 1"),
    "store": (4, "store i32 7, ptr %p, align 1"),
    "vector": (16, "store <4 x float> zeroinitializer, ptr %p, align 1"),
    "wide": (64, "%v = load volatile <16 x i32>, ptr %p, align 4"),
    "atomic": (8, "%v = atomicrmw add ptr %p, i64 0 seq_cst"),
    "compared": (8, "%v = cmpxchg ptr %p, i64 0, i64 0 seq_cst seq_cst"),
    "masked": (12, f"{_MASKED}(<4 x i32> zeroinitializer, ptr %p, <4 x i1> <i1 1, i1 0, i1 1, i1 0>)"),
    "filled": (12, "call void @llvm.memset.p0.i64(ptr %p, i8 0, i64 12, i1 false)"),
    "moved": (24, "call void @llvm.memmove.p0.p0.i64(ptr %p, ptr %p, i64 24, i1 true)"),
}
"""Instructions, with how many bytes they access."""
_DECLARED: Final = """
declare void @llvm.masked.store.v4i32.p0(<4 x i32>, ptr, <4 x i1>)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
"""
_kept: Final[list[object]] = []


class Place(NamedTuple):
    """LENGTH bytes, and what the map says where an access is that it does not allow."""

    make: Callable[[], int]
    where: str
    says: int | None


def array() -> int:
    _kept.append(np.zeros(LENGTH, np.uint8))
    return _kept[-1].ctypes.data  # type: ignore[attr-defined,no-any-return]


def object_of_python() -> int:
    _kept.append(ctypes.create_string_buffer(LENGTH))
    return ctypes.addressof(_kept[-1])  # type: ignore[arg-type]


def freed_array() -> int:
    return np.zeros(LENGTH, np.uint8).ctypes.data


def buffer() -> int:
    allocator = HeapAllocator()
    made = allocator.allocate(0, 0, LENGTH)
    _kept.append((allocator, made))
    return made.address


def arena() -> int:
    """As Python has its frames in; given back with all that is kept."""
    table = (ctypes.c_int64 * 3)()
    ctypes.pythonapi.PyObject_GetArenaAllocator(table)
    context, take, give_back = table
    address: int = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(take)(context, LENGTH)
    end = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(give_back)
    _kept.append(Finalizer(partial(end, context, address, LENGTH)))
    return address


def arena_given_back() -> int:
    address = arena()
    _kept.pop()
    return address


def pooled_buffer() -> int:
    allocator = HeapAllocator()
    address = allocator.allocate(0, 0, LENGTH).address
    assert allocator.kept_bytes
    _kept.append(allocator)
    return address


def pages() -> int:
    _kept.append(MemoryBlock(LENGTH))
    return _kept[-1].address  # type: ignore[attr-defined,no-any-return]


def of_programs() -> int:
    _kept.append(VmBuffer(LENGTH))
    return _kept[-1].address  # type: ignore[attr-defined,no-any-return]


def part() -> int:
    block = np.zeros(1024, np.uint8)
    let_only(block, [512], LENGTH)
    _kept.append(block)
    return block.ctypes.data + 512


def nothing() -> int:
    return 1 << 45


PLACES: Final = (
    *(
        Place(make, where, None)
        for make in (array, object_of_python, arena, buffer, pages, of_programs, part)
        for where in ("first", "last")
    ),
    Place(array, "past", AFTER),
    Place(array, "before", BEFORE),
    Place(object_of_python, "past", AFTER),
    Place(freed_array, "first", FREED),
    Place(arena, "past", UNKNOWN),
    Place(arena_given_back, "first", UNKNOWN),
    Place(buffer, "past", BETWEEN),
    Place(pooled_buffer, "first", POOLED),
    Place(pages, "past", BETWEEN),
    Place(of_programs, "past", BETWEEN),
    Place(part, "before", BETWEEN),
    Place(nothing, "first", UNKNOWN),
)


def address_of(place: Place, size: int) -> int:
    start = place.make()
    offsets = {"first": 0, "last": LENGTH - size, "past": LENGTH - size + 1, "before": -8}
    return start + offsets[place.where]


def ending(function: int, address: int) -> str:
    """What is reported of a call in a child process; nothing if that goes well."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        report_to(writing)
        ctypes.CFUNCTYPE(None, ctypes.c_int64)(function)(address)
        os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as file:
        report = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == (-signal.SIGABRT if report else 0), (status, report)
    return report


def begin_twice() -> None:
    """A thread that has an image mapped while another begins waits for it."""
    has_begun = threading.Event()

    def slowly(recipe: Recipe) -> Image:
        has_begun.set()
        time.sleep(0.1)
        return image.wait(recipe)

    thread = threading.Thread(target=memory.install, args=(slowly,))
    thread.start()
    has_begun.wait()
    mapped = platform._mapped
    memory.install(image.wait)
    if platform._mapped is mapped:
        print("a thread goes on before all memory is followed")
    thread.join()


def main() -> None:
    """Prints a line for each access that ends otherwise than it is to."""
    begin_twice()
    begin()
    for name, (size, line) in ACCESSES.items():
        text = f"define void @{name}(ptr %p) {{\n  {line}\n  ret void\n}}\n{_DECLARED}"
        mapped = map_image(link([compile_object([text], [name], host_target())], [name]))
        for place in PLACES:
            report = ending(mapped.addresses[name], address_of(place, size))
            expected = f"the map says {place.says:#x} there" if place.says else "the map says 0 there"
            is_right = not report if place.says is None else f"{name}, line" in report and expected in report
            if not is_right:
                print(f"{name} of {place.make.__name__}, {place.where}: {report or 'nothing'}")
    print("done")


if __name__ == "__main__":
    main()
