"""FlatBuffers are verified, as a whole and at every step that reads them.

No damage does worse than INVALID_ARGUMENT; machine code and Python agree on every table of a file, whether a
program reads it or not.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.codegen import image
from jitree.errors import InvalidArgumentError, StatusError
from jitree.vmfb import flatbuffer
from jitree.vmfb import native as code
from jitree.vmfb.archive import Archive
from jitree.vmfb.debug import DebugDatabase
from jitree.vmfb.flatbuffer import FlatBuffer, Table
from jitree.vmfb.module import read_module
from jitree.vmfb.native import RECIPE
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


HEADERS = [
    *(("root", "I", offset, "table header") for offset in (1, 2, 0x7FFFFFFC, 0xFFFFFFFF)),
    *(("table", "i", offset, "vtable") for offset in (1 << 30, -(1 << 30), 1, -1)),
    *(("vtable", "H", value, "vtable size") for value in (3, 0, 0xFFFE)),
    *(("size", "H", value, "table") for value in (0, 0xFFFF)),
    *(("field", "H", value, "field 1") for value in (1, 2, 3, 5, 0x1000, 0xFFFC)),
]


def with_header(place: str, kind: str, value: int) -> bytes:
    """A word of the root's table or vtable is another one."""
    data = built()
    table = word(data, 0)
    vtable = table - word(data, table)
    places = {"root": 0, "table": table, "vtable": vtable, "size": vtable + 2, "field": vtable + 4 + 2 * 1}
    struct.pack_into(f"<{kind}", data, places[place], value)
    return bytes(data)


@pytest.mark.parametrize(("place", "kind", "value", "expected"), HEADERS)
def test_headers(place: str, kind: str, value: int, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=expected):
        root(with_header(place, kind, value)).uint32(1)


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


DATA = Path(__file__).parents[1] / "data"
FLIPS = 4
LARGEST = 12_000


@pytest.fixture(scope="module", autouse=True)
def machine_code() -> None:
    image.wait(RECIPE)
    assert code.compiled() is not None


def findings(data: bytes | memoryview, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of machine code, and of the same functions in Python."""
    found = flatbuffer.table_findings(memoryview(data))
    with monkeypatch.context() as patch:
        patch.setattr(flatbuffer, "compiled", lambda: None)
        assert flatbuffer.table_findings(memoryview(data)) == found
    return found


@pytest.mark.parametrize("path", sorted(DATA.rglob("*.vmfb")), ids=lambda path: str(path.relative_to(DATA)))
def test_damage_is_found_by_both_and_the_rest_is_right(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive.open(path)
    assert not flatbuffer.table_findings(archive.flatbuffer)
    if len(archive.flatbuffer) > LARGEST:
        pytest.skip("takes Python too long")
    source = random.Random(path.name)
    for _ in range(FLIPS):
        damaged = bytearray(archive.flatbuffer)
        damaged[source.randrange(len(damaged))] ^= 1 << source.randrange(8)
        found = findings(bytes(damaged), monkeypatch)
        try:
            module = read_module(archive._replace(flatbuffer=memoryview(damaged).toreadonly()))
        except StatusError as error:
            assert not found or found[0] in str(error)
            continue
        assert not found
        if isinstance(module.debug, DebugDatabase):
            for function in module.functions:
                for lines in (
                    module.debug.locate(function.ordinal, 0),
                    module.debug.places(function.ordinal),
                ):
                    assert not any("damaged" in line for line in lines)


def module_with(build: str) -> bytes:
    """A module with a damaged field that is never read, ``rwdata_segments``."""
    builder, slot = TableBuilder(), 10
    tables = builder.tables([{0: ("u32", 1)}])
    root = builder.table({0: ("ref", builder.text("m")), slot: ("ref", tables)})
    data = bytearray(builder.finish(root, b"IREE")[4:])
    vector = tables_position(data, slot)
    if build == "count":
        struct.pack_into("<I", data, vector, 1 << 30)
    elif build == "null":
        struct.pack_into("<I", data, vector + 4, 0)
    elif build == "table":
        struct.pack_into("<I", data, vector + 4, 2)
    elif build == "text":
        data[tables_position(data, 0) + 5] = ord("x")
    elif build == "field":
        struct.pack_into("<I", data, field_position(data, slot), 0)
    elif build == "vtable":
        element = vector + 4 + struct.unpack_from("<I", data, vector + 4)[0]
        struct.pack_into("<i", data, element, -(1 << 20))
    return bytes(data)


def tables_position(data: bytearray, slot: int, table: int | None = None) -> int:
    """Where the vector, or the table, of a field begins; of the root if no table is given."""
    field = field_position(data, slot, table)
    return field + int(struct.unpack_from("<I", data, field)[0])


def field_position(data: bytearray, slot: int, table: int | None = None) -> int:
    root = int(struct.unpack_from("<I", data)[0]) if table is None else table
    vtable = root - int(struct.unpack_from("<i", data, root)[0])
    return root + int(struct.unpack_from("<H", data, vtable + 4 + 2 * slot)[0])


DAMAGES = [
    ("none", ""),
    ("count", "vector out of range"),
    ("null", "null offset"),
    ("table", "table header"),
    ("vtable", "vtable offset"),
    ("field", "null offset"),
    ("text", "string not zero terminated"),
]


@pytest.mark.parametrize(("damage", "expected"), DAMAGES)
def test_a_table_that_no_one_reads(damage: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(module_with(damage), monkeypatch)
    assert len(found) == bool(expected)
    assert all(expected in text and ("rwdata" in text) == (damage != "text") for text in found)


UNIONS = [
    (b"\0", "null", True),
    (b"\0", "sound", False),
    (b"\2", "sound", True),
    (b"\2", "null", False),
    (b"\x09", "sound", True),
    (b"\x09", "null", False),
    (b"\2\2", "sound", False),
    (b"\2", "too many", False),
    (b"\2", "none", False),
]
"""Tags, what their tables are, and whether that is sound."""
COMPRESSIONS = [(None, False), (0, False), (1, True)]


def damaged() -> Iterator[bytes]:
    """The files of these tables, and those that are refused for their size."""
    yield b"IREE"
    yield shared_parts(64)
    yield from (with_header(place, kind, value) for place, kind, value, _ in HEADERS)
    yield from (module_with(damage) for damage, _ in DAMAGES)
    yield from (module_with_unions(tags, tables) for tags, tables, _ in UNIONS)
    yield from (module_with_compression(tag) for tag, _ in COMPRESSIONS)


@pytest.mark.parametrize(("tags", "tables", "is_sound"), UNIONS)
def test_a_union_is_there_if_its_type_says_so(
    tags: bytes, tables: str, is_sound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a type that is not known."""
    found = findings(module_with_unions(tags, tables), monkeypatch)
    assert len(found) == (not is_sound) and all("debug.location_table" in text for text in found)


@pytest.mark.parametrize(("tag", "is_sound"), COMPRESSIONS)
def test_a_compression_has_a_type(tag: int | None, is_sound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(module_with_compression(tag), monkeypatch)
    assert len(found) == (not is_sound) and all("rodata.compression_type" in text for text in found)


def module_with_compression(tag: int | None) -> bytes:
    """``tag``: the field in front says so, None where there is none."""
    builder = TableBuilder()
    compression = ("ref", builder.table({0: ("u32", 1)}))
    fields = {1: compression} if tag is None else {0: ("u32", tag), 1: compression}
    segments = builder.offsets([builder.table(fields)])
    root = builder.table({0: ("ref", builder.text("m")), 9: ("ref", segments)})
    return builder.finish(root, b"IREE")[4:]


def module_with_unions(tags: bytes, tables: str) -> bytes:
    builder = TableBuilder()
    fields = {0: ("ref", builder.byte_vector(tags))}
    if tables != "none":
        fields[1] = ("ref", builder.offsets([builder.table({1: ("u32", 7)})]))
    root = builder.table({0: ("ref", builder.text("m")), 15: ("ref", builder.table(fields))})
    data = bytearray(builder.finish(root, b"IREE")[4:])
    if tables != "none":
        vector = tables_position(data, 1, tables_position(data, 15))
        if tables == "null":
            struct.pack_into("<I", data, vector + 4, 0)
        elif tables == "too many":
            struct.pack_into("<I", data, vector, 1 << 28)
    return bytes(data)


def test_loading_refuses_it() -> None:
    data = bytearray(Assembler("m").function("f", "0v", "return").build())
    archive = Archive.open(bytes(data))
    descriptors = archive.flatbuffer_offset + tables_position(bytearray(archive.flatbuffer), 8)
    first = descriptors + 4 + struct.unpack_from("<I", data, descriptors + 4)[0]
    struct.pack_into("<i", data, first, 1 << 20)
    with pytest.raises(InvalidArgumentError, match="FlatBuffer verification failed: vtable"):
        read_module(Archive.open(bytes(data)))


def shared_parts(many: int) -> bytes:
    """So many imports that all have one signature of so many attributes that are one."""
    builder = TableBuilder()
    attribute = builder.table({0: ("ref", builder.text("key"))})
    attributes = builder.offsets([attribute] * many)
    signature = builder.table({0: ("ref", builder.text("0v_v")), 1: ("ref", attributes)})
    entry = builder.table({0: ("ref", builder.text("x.y")), 1: ("ref", signature)})
    imports, state = builder.offsets([entry] * many), builder.table({0: ("u32", 0)})
    root = builder.table({0: ("ref", builder.text("m")), 6: ("ref", imports), 11: ("ref", state)})
    return builder.finish(root, b"IREE")[4:]


def test_tables_that_share_their_parts_end(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(shared_parts(1000), monkeypatch)
    assert len(found) == 1
    assert found[0].startswith("more content than the file can hold: its parts overlap")
