"""Relocations of every architecture, on sample files up to the point where code would run, and row by row."""

from __future__ import annotations

import io
import struct

import pytest
from elftools.elf.elffile import ELFFile

from jitree.errors import FailedPreconditionError, UnavailableError, UnimplementedError
from jitree.loaders import elf_format as elf
from jitree.loaders.elf_file import Dynamic, ElfFile, RelocationTable, Segment, read_dynamic, read_elf
from jitree.loaders.elf_format import ARCHITECTURES, WORD_64, Architecture, machine_name
from jitree.loaders.embedded_elf import relocate
from tests.loaders.samples import MACHINE, sample

BIAS = 0x12345000
ROWS = {row.name: row for row in ARCHITECTURES}


def _laid_out(data: bytes, file: ElfFile) -> memoryview:
    image = memoryview(bytearray(file.high - file.low))
    for load in file.loads:
        start = load.address - file.low
        image[start : start + load.file_size] = data[load.offset : load.offset + load.file_size]
    return image


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("tiny-3.13.0.so", machine_name(MACHINE, WORD_64.elf_class)), ("mul_aarch64-3.13.0.so", "arm_64"),
        ("mul_riscv64-3.13.0.so", "riscv_64"), ("mul_riscv64-20240129.785.so", "riscv_64"),
        ("mul_i686-3.13.0.so", "x86_32"),
    ],
)  # fmt: skip
def test_samples_against_pyelftools(name: str, architecture: str) -> None:
    data = sample(name)
    file = read_elf(memoryview(data), ROWS[architecture])
    before = _laid_out(data, file)
    image = _laid_out(data, file)
    dynamic = read_dynamic(file, image)
    relocate(file, dynamic, image, BIAS)

    word = file.architecture.word_size.bits // 8
    expected = bytearray(before)
    count = 0
    reference = ELFFile(io.BytesIO(data))
    for table in (".rela.dyn", ".rel.dyn"):
        section = reference.get_section_by_name(table)
        for relocation in section.iter_relocations() if section is not None else ():
            assert relocation["r_info_type"] == file.architecture.relative
            place = relocation["r_offset"] - file.low
            addend = (
                relocation["r_addend"] if relocation.is_RELA()
                else int.from_bytes(before[place : place + word], "little")
            )  # fmt: skip
            expected[place : place + word] = (addend + BIAS).to_bytes(word, "little")
            count += 1
    assert count >= 10
    assert bytes(image) == bytes(expected)
    assert "iree_hal_executable_library_query" in dynamic.symbol_names


@pytest.mark.parametrize("name", ["mul_armv7a-20240129.785.so", "mul_armv7a-3.13.0.so"])
def test_arm_samples_want_an_unwinder(name: str) -> None:
    data = sample(name)
    file = read_elf(memoryview(data), ROWS["arm_32"])
    with pytest.raises(UnavailableError, match="__aeabi_unwind_cpp_pr0"):
        read_dynamic(file, _laid_out(data, file))


EXPECTED = {
    "x86_64": {
        0: None, 1: "S+A/8", 2: "S+A-P/4", 5: "S/8", 6: "S/8", 7: "S/8", 8: "B+A/8", 10: "S+A/4", 11: "S+A/4",
    },
    "arm_64": {0: None, 257: "S+A/8", 1025: "S+A/8", 1026: "S+A/8", 1027: "B+A/8"},
    "riscv_64": {0: None, 1: "S+A/4", 2: "S+A/8", 3: "B+A/8", 5: "S/8"},
    "x86_32": {0: None, 1: "S+A/4", 2: "S+A-P/4", 6: "S/4", 7: "S/4", 8: "B+A/4"},
    "arm_32": {0: None, 2: "S+A/4", 3: "S+A-P/4", 21: "S/4", 22: "S/4", 23: "B+A/4"},
}  # fmt: skip
"""The psABI documents' formulas / bytes stored, of the types that a self-contained library may have."""


@pytest.mark.parametrize("architecture", EXPECTED)
@pytest.mark.parametrize("place", [0x100, 0x104])
def test_rows(architecture: str, place: int) -> None:
    """Each type in one table with the others, so that the general path is taken, at even and odd words."""
    row = ROWS[architecture]
    assert set(row.relocations) == set(EXPECTED[architecture])
    for kind, formula in EXPECTED[architecture].items():
        addend, symbol = 0x20, 0x40
        image, file = _synthetic(row, [(place, kind, 1, addend), (0x180, 0, 0, 0)])
        before = bytes(image)
        relocate(file, _dynamic(row, 2), image, BIAS)
        if formula is None:
            assert bytes(image) == before
            continue
        terms, size = formula.split("/")
        values = {"S": BIAS + symbol, "A": addend, "P": BIAS + place, "B": BIAS}
        value = eval(terms, {}, values) & (1 << 8 * int(size)) - 1
        assert image[place : place + int(size)].hex() == value.to_bytes(int(size), "little").hex(), kind
        rest = bytes(image[:place]) + bytes(image[place + int(size) :])
        assert rest == before[:place] + before[place + int(size) :]


@pytest.mark.parametrize("architecture", EXPECTED)
def test_relative_relocations_at_unaligned_places(architecture: str) -> None:
    row = ROWS[architecture]
    word = row.word_size.bits // 8
    image, file = _synthetic(row, [(0x101, row.relative, 0, 0x33), (0x140, row.relative, 0, 0x44)])
    relocate(file, _dynamic(row, 2), image, BIAS)
    assert int.from_bytes(image[0x101 : 0x101 + word], "little") == BIAS + 0x33
    assert int.from_bytes(image[0x140 : 0x140 + word], "little") == BIAS + 0x44


def test_refusals() -> None:
    row = ROWS["x86_64"]
    for kind, place, symbol, error in (
        (37, 0x100, 0, UnimplementedError), (1, 0x100, 5, FailedPreconditionError),
        (1, 0xFFC, 0, FailedPreconditionError), (8, 0xFFC, 0, FailedPreconditionError),
        (8, 2**64 - 8, 0, FailedPreconditionError),
    ):  # fmt: skip
        image, file = _synthetic(row, [(place, kind, symbol, 0)])
        with pytest.raises(error):
            relocate(file, _dynamic(row, 1), image, BIAS)


def _synthetic(row: Architecture, entries: list[tuple[int, int, int, int]]) -> tuple[memoryview, ElfFile]:
    """An image of one segment [0, 0x1000) whose first bytes are a relocation table."""
    image = bytearray(0x1000)
    word = row.word_size.bits // 8
    code = "Q" if word == 8 else "I"
    position = 0
    for place, kind, symbol, addend in entries:
        info = symbol << row.word_size.symbol_shift | kind
        if row.addends == "RELA":
            struct.pack_into(f"<3{code}", image, position, place, info, addend)
            position += 3 * word
        else:
            struct.pack_into(f"<2{code}", image, position, place, info)
            position += 2 * word
            if kind:
                image[place : place + word] = addend.to_bytes(word, "little")
    segment = Segment(elf.PT_LOAD, 6, 0, 0, 0x1000, 0x1000, 0x1000)
    return memoryview(image), ElfFile(row, (segment,), segment, (), 0, 0x1000)


def _dynamic(row: Architecture, count: int) -> Dynamic:
    size = count * (row.word_size.rela_size if row.addends == "RELA" else row.word_size.rel_size)
    return Dynamic((0, 0x40), ("", "symbol"), (RelocationTable(0, size, row.addends),), 0, (0, 0))
