"""Damaged FlatBuffers: every step is checked, and no damage does worse than INVALID_ARGUMENT."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.errors import InvalidArgumentError, StatusError
from jitree.vmfb.archive import Archive
from jitree.vmfb.flatbuffer import FlatBuffer, Table
from jitree.vmfb.module import read_module
from tests.assembler import Assembler
from tests.assembler.container import TableBuilder


def built() -> bytearray:
    """A root with text in slot 0, a u32 in slot 1, a u64 in slot 2, a vector of tables in 3, bytes in 4."""
    builder = TableBuilder()
    root = builder.table(
        {
            0: ("ref", builder.text("héllo")),
            1: ("u32", 7),
            2: ("u64", 1 << 40),
            3: ("ref", builder.tables([{0: ("u32", 1)}, {0: ("u32", 2)}])),
            4: ("ref", builder.byte_vector(b"abc")),
        }
    )
    return bytearray(builder.finish(root, b"TEST")[4:])


def root(data: bytes | bytearray) -> Table:
    return FlatBuffer(memoryview(bytes(data))).root(b"TEST")


def word(data: bytearray, position: int) -> int:
    return int(struct.unpack_from("<I", data, position)[0])


def test_reads() -> None:
    table = root(built())
    assert table.text(0) == "héllo"
    assert table.uint32(1) == 7
    assert table.uint64(2) == 1 << 40
    assert [element.uint32(0) for element in table.tables(3)] == [1, 2]
    assert bytes(table.content(4) or b"") == b"abc"
    assert (table.text(9), table.uint32(9, default=4), table.tables(9), table.table(9)) == (None, 4, [], None)


def test_text_that_is_not_utf8_stays_readable() -> None:
    data = built()
    data[data.index("é".encode())] = 0xFF
    assert root(data).text(0) == "h\\xff\\xa9llo"


def test_identifier() -> None:
    with pytest.raises(InvalidArgumentError, match="identifier mismatch"):
        FlatBuffer(memoryview(bytes(built()))).root(b"IREE")


@pytest.mark.parametrize("length", range(0, 8))
def test_too_short_for_a_root(length: int) -> None:
    with pytest.raises(InvalidArgumentError):
        root(built()[:length])


@pytest.mark.parametrize("offset", [1, 2, 0x7FFFFFFC, 0xFFFFFFFF])
def test_root_offset(offset: int) -> None:
    data = built()
    struct.pack_into("<I", data, 0, offset)
    with pytest.raises(InvalidArgumentError, match="table header"):
        root(data)


@pytest.mark.parametrize("offset", [1 << 30, -(1 << 30), 1, -1])
def test_vtable_offset(offset: int) -> None:
    data = built()
    struct.pack_into("<i", data, word(data, 0), offset)
    with pytest.raises(InvalidArgumentError):
        root(data)


@pytest.mark.parametrize(("index", "value"), [(0, 3), (0, 0), (0, 0xFFFE), (1, 0), (1, 0xFFFF)])
def test_vtable_header(index: int, value: int) -> None:
    data = built()
    table = word(data, 0)
    vtable = table - word(data, table)
    struct.pack_into("<H", data, vtable + 2 * index, value)
    with pytest.raises(InvalidArgumentError):
        root(data)


@pytest.mark.parametrize("value", [1, 2, 3, 5, 0x1000, 0xFFFC])
def test_field_offset(value: int) -> None:
    data = built()
    table = word(data, 0)
    vtable = table - word(data, table)
    struct.pack_into("<H", data, vtable + 4 + 2 * 1, value)
    with pytest.raises(InvalidArgumentError, match="field 1"):
        root(data).uint32(1)


def test_string_without_terminator() -> None:
    data = built()
    data[data.index("héllo".encode()) + 6] = ord("x")
    with pytest.raises(InvalidArgumentError, match="zero terminated"):
        root(data).text(0)


def test_vector_beyond_the_buffer() -> None:
    data = built()
    struct.pack_into("<I", data, data.index(b"abc") - 4, 0x40000000)
    with pytest.raises(InvalidArgumentError, match="vector out of range"):
        root(data).content(4)


def test_a_table_that_contains_itself_ends() -> None:
    data = bytearray(24)
    struct.pack_into("<I4sHHHxxi", data, 0, 16, b"TEST", 6, 8, 4, 8)
    struct.pack_into("<iI", data, 16, 8, 0)
    with pytest.raises(InvalidArgumentError, match="null offset"):
        root(data).table(0)


@given(st.data())
def test_no_damage_does_worse_than_a_status(data: st.DataObject) -> None:
    damaged = bytearray(MODULE)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] = data.draw(st.integers(0, 255))
    read_or_refuse(bytes(damaged))


def test_many_damaged_words() -> None:
    rng = random.Random(5)
    for _ in range(3000):
        damaged = bytearray(MODULE)
        position = rng.randrange(16, len(damaged) // 4) * 4
        value = rng.choice([0, 1, 4, len(MODULE), 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, rng.getrandbits(32)])
        struct.pack_into("<I", damaged, position, value)
        read_or_refuse(bytes(damaged))


def read_or_refuse(data: bytes) -> None:
    try:
        module = read_module(Archive.open(data))
    except StatusError:
        return
    for function in module.functions:
        module.function_name(function.ordinal)
        if module.debug:
            module.debug.locate(function.ordinal, 3)


def _module() -> bytes:
    module = Assembler("m", source="a.mlir", globals_size=8).dependency("hal", 6)
    module.import_function("hal.x", "0r_v").attr("a", "b")
    module.rodata(b"data")
    module.rodata(b"more data", external=True)
    module.type("i32")
    module.function("f", "0i_i", "return [%i0]", attrs={"k": "v"})
    return module.build()


MODULE = _module()
