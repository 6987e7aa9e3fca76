"""``jitree dump --output=executables`` and ``locations``, also of damaged code.

Taps and profiles name the same lines of the source.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jitree
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    StatusError,
    locations,
)
from jitree.tools import dump
from jitree.tools.dump_summary import executable_lines, location_lines
from jitree.vmfb.archive import Archive
from jitree.vmfb.module import read_module
from tests.assembler import Assembler
from tests.cuda.executables import KernelExport, executable_bytes, with_header
from tests.loaders.samples import FOLDER, fatelf, patched, sample, section

MACHINES = {"aarch64": 0xB7, "riscv64": 0xF3}
QUERY = "iree_hal_executable_library_query"
TINY = sample("tiny-3.13.0.so")
CUBIN = patched(TINY, 18, "<H", 190)
"""The same for a machine that the loaders do not know."""


def lines(*constants: bytes) -> Iterator[str]:
    module = Assembler("m")
    for constant in constants:
        module.rodata(constant)
    return executable_lines(read_module(Archive.open(module.build(), "m.vmfb")))


def text(*constants: bytes) -> str:
    return "\n".join(lines(*constants))


def with_a_note(data: bytes, name: bytes, kind: int, content: bytes) -> bytes:
    """A 64-bit file whose section of debug abbreviations is a note instead."""
    place, room = section(data, ".debug_abbrev")
    note = struct.pack("<III", len(name) + 1, len(content), kind) + name + b"\0" + content
    assert len(note) <= room
    copy = bytearray(data)
    copy[place : place + len(note)] = note
    header = data.rindex(struct.pack("<QQ", place, room)) - 24
    struct.pack_into("<I", copy, header + 4, 7)
    struct.pack_into("<Q", copy, header + 32, len(note))
    return bytes(copy)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.so")), ids=lambda path: path.name)
def test_sections_and_symbols_of_every_sample(path: Path) -> None:
    shown = text(path.read_bytes())
    assert shown.startswith(f"Executable in .rodata[0], {path.stat().st_size} bytes:\n")
    assert any(line.split(" | ")[-2:] == ["SHT_DYNAMIC       ", ".dynamic"] for line in shown.splitlines())
    query = next(line for line in shown.splitlines() if line.endswith(QUERY))
    assert query.split(" | ")[2:4] == ["STT_FUNC   ", "STB_GLOBAL"]


def test_notes() -> None:
    data = with_a_note(TINY, b"GNU", 3, bytes(range(20)))
    assert "  Notes in .debug_abbrev:\n      GNU, NT_GNU_BUILD_ID: 00 01 02" in text(data)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    program = "tests/data/programs/digits.vmfb"
    assert dump.main(["--output=executables", str(Path(__file__).parents[2] / program)]) == 0
    shown = capsys.readouterr().out
    heading = r"Executable in \.rodata\[5\], \d+ bytes:\n  64-bit EM_(X86_64|AARCH64), ET_DYN, entry 0x0\n"
    assert re.search(heading, shown)
    assert re.search(rf"[0-9a-f]+ \| +\d+ \| STT_FUNC    \| STB_GLOBAL \| \d+ +\| {QUERY}\n", shown)


def test_every_slice_of_a_fatelf() -> None:
    slices = [(MACHINES[name], 2, sample(f"mul_{name}-3.13.0.so")) for name in ("aarch64", "riscv64")]
    shown = text(fatelf(slices))
    assert shown.index("slice for arm_64") < shown.index("EM_AARCH64") < shown.index("slice for riscv_64")
    assert shown.count(QUERY) == 4


def test_kernels_and_cubins_of_cuda() -> None:
    ptx = executable_bytes(b".version 7.0", [KernelExport("add", (1, 1, 1), 0, 0)])
    assert "PTX of 12 bytes with kernels: add" in text(ptx)
    cubin = executable_bytes(CUBIN, [])
    for data in (cubin, with_header(cubin)):
        assert "EM_CUDA" in text(data) and QUERY in text(data)


def test_a_module_without_machine_code() -> None:
    assert text(b"data").startswith("No ELF, FatELF or CUDA executables")


OVERFULL = patched(CUBIN, 58, "<3H", 0, 65535, 0)
"""States many sections of no bytes."""


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (TINY[:40], FailedPreconditionError, "it has 40 bytes, fewer than an ELF header"),
        (TINY[:-100], FailedPreconditionError, "section header table .* the data is cut short"),
        (patched(TINY, 58, "<H", 7), FailedPreconditionError, "its headers are 64, 56 and 7 bytes long"),
        (OVERFULL, FailedPreconditionError, "it states 65535 sections"),
        (fatelf([(62, 2, TINY)])[:-1], OutOfRangeError, "FatELF slice for x86_64"),
        (CUBIN[:2000], FailedPreconditionError, "pyelftools finds ELFParseError"),
        (b"CDA1" + bytes(60), InvalidArgumentError, "the buffer ends before its root"),
    ],
)
def test_damage_is_raised_after_the_other_executables(
    data: bytes, kind: type[StatusError], message: str
) -> None:
    shown: list[str] = []
    with pytest.raises(kind, match=rf"{message}.*; reading the executable in \.rodata\[0\] of m\.vmfb"):
        for line in lines(data, TINY):
            shown.append(line)
    assert any("// not shown: " in line for line in shown)
    assert any(line.endswith(QUERY) for line in shown[shown.index("") :])


@given(st.data())
def test_flipped_bytes_are_shown_or_refused(data: st.DataObject) -> None:
    damaged = bytearray(TINY)
    headers = struct.unpack_from("<Q", TINY, 40)[0]
    places = st.one_of(st.integers(0, 63), st.integers(headers, len(TINY) - 1), st.integers(0, len(TINY) - 1))
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        damaged[place] = data.draw(st.integers(0, 255))
    if not damaged.startswith(b"\x7fELF"):
        return
    try:
        shown = text(bytes(damaged))
    except StatusError as error:
        assert "reading the executable in .rodata[0]" in str(error)
    else:
        assert "Sections:" in shown


RELEASES = Path(__file__).parents[1] / "data" / "releases"
TINY = sample("tiny-3.13.0.so")
LINE = "programs/simple_mul.mlir:3:8"


@pytest.mark.parametrize("release", ["20240129.785", "20240828.999", "3.9.0", "3.13.0"])
def test_lines_of_the_source(release: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = RELEASES / f"simple_mul-{release}.vmfb"
    assert dump.main(["--output=locations", str(path)]) == 0
    lines = dict(line.strip().split(": ", 1) for line in capsys.readouterr().out.splitlines() if ": " in line)
    dispatch = next(name for name in lines if "_dispatch_0" in name)
    assert LINE in lines[dispatch] and LINE in lines["__init"]
    has_all = release != "3.13.0"
    """That release keeps the lines of the last function only."""
    # the line of the operation comes before that of the function, which calls it
    assert lines["simple_mul"].startswith(LINE) if has_all else lines["simple_mul"].endswith("not say")
    with jitree.Session(device="local-sync", tier="plain") as session:
        function = session.load(path).simple_mul
        values = np.ones(4, np.float32)
        with session.tap() as taps:
            function(values, values)
        with session.profile() as profile:
            function(values, values)
    assert f"compiled from {lines[dispatch]}" in taps[0].location
    assert (f" at {LINE}" in taps[0].location) is has_all
    first = lines[dispatch].split(", ")[0]
    assert [row.location for row in profile.rows] == [first] and first in str(profile.rows)
    assert profile.table("function")[0].location == (lines["simple_mul"].split(", ")[0] if has_all else None)
    profile.save(tmp_path / "trace.json")
    assert f'"location": "{first}"' in (tmp_path / "trace.json").read_text()


def test_executables_of_every_kind() -> None:
    kernel = KernelExport("kernel", (64, 1, 1), 0, 1, location=("model.mlir", 7))
    module = Assembler("m")
    for data in (sample("tiny_sources-20240410.859.so"), executable_bytes(b"//", [kernel]), TINY[:400]):
        module.rodata(data)
    found = []
    with pytest.raises(FailedPreconditionError, match="cut short"):
        for line in location_lines(read_module(Archive.open(module.build(), "m.vmfb"))):
            found.append(line.strip())
    tiny = next(line for line in found if line.startswith("tiny_dispatch_0"))
    assert ": tiny.mlir:1, " in tiny and ":9 (0.source)" in tiny and ":9 (2.translated)" in tiny
    assert sum(line.endswith("bytes of source in the executable") for line in found) == 3
    assert "kernel: model.mlir:7" in found


def test_messages_name_some_of_many_lines() -> None:
    """A kernel may be fused of hundreds of operations."""
    lines = [f"model.mlir:{number}:3" for number in range(200)]
    assert locations(lines) == ", ".join(lines[:8]) + " and 192 more"
    assert locations(lines[:8]) == ", ".join(lines[:8])
