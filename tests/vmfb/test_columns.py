"""Columns of tables: machine code reads what its functions read in Python, nothing outside of the file."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jitree.base.platform import PAGE_SIZE, READ, WRITE, Mapping
from jitree.codegen import image
from jitree.errors import InvalidArgumentError, StatusError
from jitree.vmfb import module as modules
from jitree.vmfb import native as code
from jitree.vmfb.archive import IDENTIFIER, Archive
from jitree.vmfb.flatbuffer import FlatBuffer, columns_of
from jitree.vmfb.native import RECIPE, Code
from jitree.vmfb.native.layout import COLUMN_ALIKE, COLUMN_COUNT, COLUMN_NUMBER, COLUMN_TARGET
from tests.assembler import Assembler
from tests.assembler.container import TableBuilder

DATA = Path(__file__).parents[1] / "data"
MODULES = sorted(DATA.rglob("*.vmfb"))[:12]
VECTORS = (
    (modules._IMPORTS, modules._IMPORT_COLUMNS),
    (modules._SIGNATURES, modules._SIGNATURE_COLUMNS),
    (modules._RODATA, modules._RODATA_COLUMNS),
)
FLIPS = 300


@pytest.fixture(scope="module")
def compiled() -> Code:
    image.wait(RECIPE)
    found = code.compiled()
    assert found is not None
    return found


def with_code(chosen: Code, content: memoryview, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The columns of all vectors, or what is said instead."""
    monkeypatch.setattr("jitree.vmfb.flatbuffer.compiled", lambda: chosen)
    found: list[Any] = []
    for slot, columns in VECTORS:
        try:
            found.append(columns_of(FlatBuffer(content).root(IDENTIFIER), slot, columns).tolist())
        except StatusError as error:
            found.append(error.message)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_modules(path: Path, compiled: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    content = Archive.open(path).flatbuffer
    found = with_code(compiled, content, monkeypatch)
    assert found == with_code(code.interpreted(), content, monkeypatch)
    assert all(isinstance(columns, list) for columns in found)


def test_memory_that_changes_is_not_left(compiled: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the FlatBuffer there is no memory."""
    module = Assembler("m").function("f", "0i_i", "return [%i0]").function("g", "0i_i", "return [%i0]")
    module.import_function("a.b", "0i_i")
    module.rodata(b"embedded")
    module.rodata(b"external", external=True)
    whole = Archive.open(module.build("plain")).flatbuffer
    mapping = Mapping(len(whole) + PAGE_SIZE)
    end = mapping.size - PAGE_SIZE
    mapping.protect(0, end, READ | WRITE)
    content = mapping.view()[end - len(whole) & ~7 : end][: len(whole) & ~7]
    choices, answers = random.Random(7), set()
    for _ in range(FLIPS):
        content[:] = whole[: len(content)]
        for _ in range(4):
            content[choices.randrange(8, len(content))] = choices.randrange(256)
        found = with_code(compiled, content, monkeypatch)
        assert found == with_code(code.interpreted(), content, monkeypatch)
        answers |= {type(columns) for columns in found}
    assert answers == {str, list}


def signatures(conventions: list[str]) -> npt.NDArray[np.int64]:
    module = Assembler("m")
    for number, cconv in enumerate(conventions):
        body = "%i0 = const.i32 1\nreturn [%i0]" if cconv.endswith("_i") else "return []"
        module.function(f"f{number}", cconv, body)
    root = FlatBuffer(Archive.open(module.build()).flatbuffer).root(IDENTIFIER)
    return columns_of(root, modules._SIGNATURES, modules._SIGNATURE_COLUMNS)


def test_equal_texts_are_found(compiled: Code) -> None:
    conventions = ["0v_v", "0i_i", "0v_v", "0ii_i", "0i_i", "0v_v"]
    assert signatures(conventions)[2].tolist() == [0, 1, 0, 3, 1, 0]


def test_texts_are_compared_with_few_others(compiled: Code) -> None:
    """A file of many texts is read in time that grows as the file does."""
    conventions = [f"0{'i' * count}_v" for count in range(1, 40)]
    alike = signatures([*conventions, conventions[0], conventions[-1]])[2].tolist()
    assert alike == [*range(39), 39, 38]


COLUMNS = np.array((
    (COLUMN_NUMBER, 1, 0, 5), (COLUMN_TARGET, -1, 0, 0), (COLUMN_COUNT, -1, 0, 0), (COLUMN_ALIKE, -1, 0, 0),
), np.int32)  # fmt: skip
"""A number of an inner table, and equal texts."""
CHANGES: dict[str, tuple[str, dict[str, tuple[str, int | str]], list[list[int]] | None]] = {
    "nothing": ("x", {}, [[1, 2], [0, 0]]),
    "texts that are long": (300 * "x", {}, [[1, 2], [0, 1]]),
    "a table outside": ("x", {"element": ("I", 1 << 30)}, None),
    "a vtable in front": ("x", {"table": ("i", 1 << 30)}, None),
    "a vtable that ends outside": ("x", {"end": ("H", 0xFFFF), "table": ("i", "end")}, None),
    "an inner table outside": ("x", {"second field": ("H", 0xFFFC)}, None),
    "tables that are one": ("x", {"second element": ("I", "table")}, [[1, 1], [0, 0]]),
    "no inner table": ("x", {"second field": ("H", 0)}, [[5, 5], [0, 0]]),
    "texts that end outside": ("x", {"text": ("I", 250), "other text": ("I", 250)}, [[1, 2], [0, 1]]),
}
"""What changes in a file that has been verified: the text of both its tables; where which words change, a
name for the distance from there; then its numbers and equal texts, None where that is refused."""


def read_again(name: str) -> list[list[int]] | None:
    """Reads the columns of a file after a change of CHANGES."""
    text, words, _ = CHANGES[name]
    builder = TableBuilder()
    inner = [builder.table({0: ("u32", number)}) for number in (1, 2)]
    fields = [{0: ("ref", builder.text(text)), 1: ("ref", table)} for table in inner]
    root = builder.table({3: ("ref", builder.tables(fields))})
    data = bytearray(builder.finish(root, b"TEST")[4:])
    parent = FlatBuffer(memoryview(data)).root(b"TEST")
    first, _ = parent.vector(3, 4) or (0, 0)
    tables = parent.tables(3)
    table = tables[0].position
    vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    texts = [parent.buffer.vector(each.field(0, 4), 1)[0] - 4 for each in tables]
    places = {"element": first, "second element": first + 4, "table": table, "second field": vtable + 6}
    places |= {"end": len(data) - 2, "text": texts[0], "other text": texts[1]}
    for place, (kind, value) in words.items():
        at = places[place]
        distance = value if isinstance(value, int) else places[value] - at
        struct.pack_into(f"<{kind}", data, at, -distance if value == "end" else distance)
    try:
        columns = columns_of(parent, 3, COLUMNS).tolist()
    except InvalidArgumentError:
        return None
    return [columns[0], columns[-1]]


@pytest.mark.parametrize("name", CHANGES)
def test_what_changes_after_it_was_verified(
    name: str, compiled: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    for chosen in (compiled, code.interpreted()):
        monkeypatch.setattr("jitree.vmfb.flatbuffer.compiled", lambda chosen=chosen: chosen)
        assert read_again(name) == CHANGES[name][2]
