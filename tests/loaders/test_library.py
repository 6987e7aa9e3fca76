"""The executable library tables, written by hand for every version, and processor data."""

from __future__ import annotations

import ctypes
import struct
from typing import Final

import pytest

from jitree.codegen.record import words_of
from jitree.errors import FailedPreconditionError, NotFoundError, OutOfRangeError, UnavailableError
from jitree.hal.command_layout import ENTRY_SEQUENTIAL, KernelEntry
from jitree.loaders.environment import CpuData, host_cpu_data
from jitree.loaders.library import (
    LAYOUTS,
    UNKNOWN_LOCAL_MEMORY,
    EntryPoint,
    EntryTable,
    Library,
    LibraryLayout,
    TabledExecutable,
    query_library,
)
from tests.loaders.samples import NEEDS_X86_64, ON_X86_64

_ENTRY_POINT: Final = words_of(KernelEntry)

SIZES = {3: 80, 4: 104, 5: 104, 6: 128}
ATTRIBUTES = {
    3: struct.pack("<HH", 3, 0),
    4: struct.pack("<HH", 3, 0),
    5: struct.pack("<HBBI8Q", 3, 5, 7, 0, *[0] * 8),
    6: struct.pack("<QHBBIIHH5Q", 1, 3, 5, 7, 1, 1, 1, 0, *[0] * 5),
}
NAMES = {3: 48, 4: 48, 5: 48, 6: 64}


class FakeMemory:
    """Tables at made-up addresses; everything from CODE on is code."""

    CODE = 0x9000

    def __init__(self) -> None:
        self.bytes = bytearray(0x1000)

    def read(self, address: int, size: int, what: str) -> memoryview:
        if not 0 <= address <= address + size <= len(self.bytes):
            raise FailedPreconditionError(what)
        return memoryview(self.bytes)[address : address + size]

    def read_string(self, address: int, what: str) -> bytes:
        return bytes(self.bytes[address : self.bytes.index(0, address)])

    def check_code(self, address: int, size: int, what: str) -> int:
        if address < self.CODE:
            raise FailedPreconditionError(what)
        return address + size


def library(version: int, attributes: bytes | None, names: bool = True) -> FakeMemory:
    """The struct at 0, header at 0x200, two functions."""
    memory = FakeMemory()
    put = memory.bytes.__setitem__
    put(slice(0x200, 0x218), struct.pack("<IxxxxQII", version, 0x300, 0, 0))
    put(slice(0x300, 0x308), b"library\0")
    put(slice(0x310, 0x316), b"first\0")
    put(slice(0x320, 0x327), b"second\0")
    put(slice(0x330, 0x336), b"?maybe")
    put(slice(0x400, 0x410), struct.pack("<QQ", FakeMemory.CODE, FakeMemory.CODE + 16))
    put(slice(0x420, 0x430), struct.pack("<QQ", 0x310, 0x320))
    put(slice(0x440, 0x448), struct.pack("<Q", 0x330))
    if attributes is not None:
        put(slice(0x500, 0x500 + 2 * len(attributes)), attributes + bytes(len(attributes)))
    for offset, layout, value in (
        (0, "<Q", 0x200), (8, "<I", 1), (16, "<Q", 0x440), (24, "<I", 2), (32, "<Q", 0x400),
        (40, "<Q", 0 if attributes is None else 0x500), (NAMES[version], "<Q", 0x420 if names else 0),
    ):  # fmt: skip
        struct.pack_into(layout, memory.bytes, offset, value)
    return memory


def layout_of(version: int) -> LibraryLayout:
    return next(layout for layout in LAYOUTS if layout.version == version)


@pytest.mark.parametrize("version", SIZES)
def test_every_version(version: int) -> None:
    layout = layout_of(version)
    assert layout.size == SIZES[version]
    read = Library(library(version, ATTRIBUTES[version]), 0, layout, 0x77)
    assert (read.name, read.imports) == ("library", ("?maybe",))
    made = TabledExecutable(read.name, read.functions)
    assert (made.function_name(0), made.function_name(1), made.function_count) == ("first", "second", 2)
    assert (made.function_address(0), made.local_memory(0)) == (0x9000, 3 * 4096)
    known = version >= 5
    assert (made.constant_count(0), made.binding_count(0)) == ((5, 7) if known else (None, None))
    assert (made.flags(0), made.flags(1)) == (ENTRY_SEQUENTIAL if version == 6 else 0, 0)
    assert read.functions.records[:, _ENTRY_POINT.environment].tolist() == [0x77, 0x77]
    assert (made.local_memory(1), made.constant_count(1)) == (0, 0 if known else None)


@pytest.mark.parametrize("version", SIZES)
def test_absent_tables(version: int) -> None:
    read = Library(library(version, None, names=False), 0, layout_of(version), 0x77)
    expected = UNKNOWN_LOCAL_MEMORY if version < 5 else 0
    made = TabledExecutable(read.name, read.functions)
    assert [made.function_name(number) for number in range(2)] == ["", ""]
    assert [(made.local_memory(number), made.binding_count(number)) for number in range(2)] == [
        (expected, None)
    ] * 2
    with pytest.raises(UnavailableError, match="without function names"):
        made.lookup("first")


def test_machine_code_and_python_find_the_same_function_by_a_name() -> None:
    names: list[str | None] = ["one", None, "two", "one", "größe", ""]
    made = TabledExecutable("m", EntryTable.of([EntryPoint(name, 0, 0, 0, None, None, 0) for name in names]))
    assert [made.lookup(name) for name in ("one", "two", "größe")] == [0, 2, 4]
    table, text = made._name_table
    assert text.tobytes() == "onetwoonegröße".encode()
    places = table[:, 0] - table[0, 0]
    assert places.tolist() == [0, 3, 3, 6, 9, 16]
    assert table[:, 1].tolist() == [3, -1, 3, 3, -1, -1], "-1: Python looks"
    with pytest.raises(NotFoundError, match="it has one, two, größe"):
        made.lookup("")


@pytest.mark.parametrize("version", SIZES)
@pytest.mark.parametrize("sanitizer", [(1, "address"), (3, "thread"), (9, "number 9")])
def test_sanitizers_are_refused(version: int, sanitizer: tuple[int, str]) -> None:
    memory = library(version, None)
    struct.pack_into("<I", memory.bytes, 0x200 + 20, sanitizer[0])
    with pytest.raises(UnavailableError, match=f"the {sanitizer[1]} sanitizer"):
        Library(memory, 0, layout_of(version), 0x77)


def test_lying_header() -> None:
    memory = library(6, None)
    struct.pack_into("<I", memory.bytes, 0x200, 5)
    with pytest.raises(FailedPreconditionError, match="answers to version 6, but its header says 5"):
        Library(memory, 0, layout_of(6), 0x77)


def test_too_many_bindings() -> None:
    memory = library(6, ATTRIBUTES[6][:11] + b"\x41" + ATTRIBUTES[6][12:])
    with pytest.raises(OutOfRangeError, match="5 constants and 65 bindings"):
        Library(memory, 0, layout_of(6), 0x77)


@pytest.mark.parametrize(
    ("offset", "value"), [(0, 0xFFFF), (16, 1 << 40), (24, 2**32 - 1), (32, 8), (64, 0xFF8)]
)
def test_tables_outside_the_library(offset: int, value: int) -> None:
    memory = library(6, ATTRIBUTES[6])
    struct.pack_into("<I" if offset == 24 else "<Q", memory.bytes, offset, value)
    with pytest.raises(FailedPreconditionError):
        Library(memory, 0, layout_of(6), 0x77)


def test_query_asks_for_each_version() -> None:
    asked: list[int] = []
    kind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)

    def answer(version: int, environment: int) -> int:
        assert environment == 0x77
        asked.append(version)
        return 0

    function = kind(answer)
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    with pytest.raises(FailedPreconditionError, match="none of the versions 3, 4, 5, 6"):
        query_library(FakeMemory(), address, 0x77)
    assert sorted(asked) == [3, 4, 5, 6]


def test_cpu_data_word() -> None:
    data = CpuData({"first": ("3", True), "second": ("50", True), "third": ("4", False)})
    assert data.words == (1 << 50 | 1 << 3, 0, 0, 0, 0, 0, 0, 0)
    assert (data.query("first"), data.query("third"), data.query("other")) == (1, 0, None)


@pytest.mark.skipif(not ON_X86_64, reason=NEEDS_X86_64)
def test_cpu_features_agree_with_llvm() -> None:
    import llvmlite.binding as llvm

    host = llvm.get_host_cpu_features()
    data = host_cpu_data()
    names = [name for name in host if data.query(name) is not None]
    assert len(names) > 20
    assert {name: bool(data.query(name)) for name in names} == {name: host[name] for name in names}
