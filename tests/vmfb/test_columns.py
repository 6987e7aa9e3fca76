"""Columns of tables: machine code reads what its functions read in Python, nothing outside of the file."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jitree.base.platform import PAGE_SIZE, READ, WRITE, Mapping
from jitree.codegen import image
from jitree.errors import StatusError
from jitree.vmfb import module as modules
from jitree.vmfb import native as code
from jitree.vmfb.archive import IDENTIFIER, Archive
from jitree.vmfb.flatbuffer import FlatBuffer, columns_of
from jitree.vmfb.native import RECIPE, Code
from tests.assembler import Assembler

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
    for slot, wanted in VECTORS:
        try:
            found.append(columns_of(FlatBuffer(content).root(IDENTIFIER), slot, wanted).tolist())
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
