"""Every table of a file is verified, whether a program reads it or not; machine code and Python agree."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from jitree.codegen import image
from jitree.errors import InvalidArgumentError, StatusError
from jitree.vmfb import flatbuffer
from jitree.vmfb.archive import Archive
from jitree.vmfb.debug import DebugDatabase
from jitree.vmfb.module import read_module
from jitree.vmfb.native import code
from jitree.vmfb.native.code import RECIPE
from tests.assembler import Assembler
from tests.assembler.container import TableBuilder

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


def module_with(slot: int, build: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is found in a module with a damaged field that is never read."""
    builder = TableBuilder()
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
    elif build == "vtable":
        element = vector + 4 + struct.unpack_from("<I", data, vector + 4)[0]
        struct.pack_into("<i", data, element, -(1 << 20))
    return findings(bytes(data), monkeypatch)


def tables_position(data: bytearray, slot: int, table: int | None = None) -> int:
    """Where the vector, or the table, of a field begins; of the root if no table is given."""
    root = int(struct.unpack_from("<I", data)[0]) if table is None else table
    vtable = root - int(struct.unpack_from("<i", data, root)[0])
    field = root + int(struct.unpack_from("<H", data, vtable + 4 + 2 * slot)[0])
    return field + int(struct.unpack_from("<I", data, field)[0])


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("none", ""),
        ("count", "vector out of range"),
        ("null", "null offset"),
        ("table", "table header"),
        ("vtable", "vtable offset"),
    ],
)
def test_a_table_that_no_one_reads(damage: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rwdata = 10
    found = module_with(rwdata, damage, monkeypatch)
    assert len(found) == bool(expected)
    assert all(expected in text and "rwdata" in text for text in found)


@pytest.mark.parametrize(
    ("tag", "is_there", "is_sound"),
    [
        (0, False, True),
        (0, True, False),
        (2, True, True),
        (2, False, False),
        (9, True, True),
        (9, False, False),
    ],
)
def test_a_union_is_there_if_its_type_says_so(
    tag: int, is_there: bool, is_sound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a type that is not known."""
    builder = TableBuilder()
    locations = builder.offsets([builder.table({1: ("u32", 7)})])
    debug = builder.table({0: ("ref", builder.byte_vector(bytes([tag]))), 1: ("ref", locations)})
    root = builder.table({0: ("ref", builder.text("m")), 15: ("ref", debug)})
    data = bytearray(builder.finish(root, b"IREE")[4:])
    if not is_there:
        place = tables_position(data, 1, tables_position(data, 15)) + 4
        struct.pack_into("<I", data, place, 0)
    found = findings(bytes(data), monkeypatch)
    assert len(found) == (not is_sound) and all("debug.location_table" in text for text in found)


def test_loading_refuses_it() -> None:
    data = bytearray(Assembler("m").function("f", "0v", "return").build())
    archive = Archive.open(bytes(data))
    descriptors = archive.flatbuffer_offset + tables_position(bytearray(archive.flatbuffer), 8)
    first = descriptors + 4 + struct.unpack_from("<I", data, descriptors + 4)[0]
    struct.pack_into("<i", data, first, 1 << 20)
    with pytest.raises(InvalidArgumentError, match="FlatBuffer verification failed: vtable"):
        read_module(Archive.open(bytes(data)))


def test_tables_that_share_their_parts_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand imports that all have one signature of a thousand attributes that are one."""
    builder = TableBuilder()
    attribute = builder.table({0: ("ref", builder.text("key"))})
    many = 1000
    attributes = builder.offsets([attribute] * many)
    signature = builder.table({0: ("ref", builder.text("0v_v")), 1: ("ref", attributes)})
    entry = builder.table({0: ("ref", builder.text("x.y")), 1: ("ref", signature)})
    root = builder.table({0: ("ref", builder.text("m")), 6: ("ref", builder.offsets([entry] * many))})
    found = findings(builder.finish(root, b"IREE")[4:], monkeypatch)
    assert len(found) == 1
    assert found[0].startswith("more content than the file can hold: its parts overlap")
