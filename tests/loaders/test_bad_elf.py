"""Damaged and foreign libraries: one clear error each, and the process survives whatever the bytes are."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    StatusError,
    UnavailableError,
    UnimplementedError,
)
from jitree.loaders import elf_format as elf
from jitree.loaders import embedded_elf
from jitree.loaders.elf_format import host_architecture
from jitree.loaders.embedded_elf import load_image
from tests.loaders.samples import (
    FOR_THIS_PROCESSOR,
    HERE,
    MACHINE,
    NEEDS_SAMPLES,
    dynamic_entry,
    fatelf,
    file_offset,
    load,
    patched,
    program_header,
    sample,
    section,
)

pytestmark = pytest.mark.skipif(not FOR_THIS_PROCESSOR, reason=NEEDS_SAMPLES)

TINY = sample("tiny-3.13.0.so")
ARM, RISCV = 0x28, 0xF3
CODE = struct.unpack_from("<Q", TINY, program_header(TINY, elf.PT_LOAD, 1) + 16)[0]
PAGE = struct.unpack_from("<Q", TINY, program_header(TINY, elf.PT_LOAD, 1) + 48)[0]
WORD, UNKNOWN = {"arm_64": (257, 1031)}.get(HERE, (1, 37))
"""Types of relocations: of a word by a symbol, and one that the loader does not know."""


def _symbol(data: bytes, number: int) -> int:
    return section(data, ".dynsym")[0] + 24 * number


def _first_load(field: int, layout: str, value: int, number: int = 0) -> bytes:
    return patched(TINY, program_header(TINY, elf.PT_LOAD, number) + field, layout, value)


def _dynamic(tag: int, value: int) -> bytes:
    return patched(TINY, dynamic_entry(TINY, tag) + 8, "<Q", value)


def _retagged(tag: int, new_tag: int, value: int | None = None) -> bytes:
    place = dynamic_entry(TINY, tag)
    old = struct.unpack_from("<Q", TINY, place + 8)[0]
    return patched(TINY, place, "<qQ", new_tag, old if value is None else value)


def _repeated(count: int) -> bytes:
    """With so many segments more, each of all bytes, at addresses of their own."""
    (place,) = struct.unpack_from("<Q", TINY, 32)
    (known,) = struct.unpack_from("<H", TINY, 56)
    first, size = CODE - CODE % PAGE + 16 * PAGE, len(TINY)
    places = range(first, first + count * PAGE, PAGE)
    rows = [struct.pack("<II6Q", elf.PT_LOAD, 4, 0, at, at, size, size, PAGE) for at in places]
    data = patched(patched(TINY, 32, "<Q", size), 56, "<H", known + count)
    return data + TINY[place : place + 56 * known] + b"".join(rows)


def _with_segments(rows: list[bytes], added: bytes = b"") -> bytes:
    """With more program headers, and bytes at the end."""
    (place,) = struct.unpack_from("<Q", TINY, 32)
    (known,) = struct.unpack_from("<H", TINY, 56)
    start = -len(TINY) % PAGE + len(TINY) + len(added)
    data = patched(patched(TINY, 32, "<Q", start), 56, "<H", known + len(rows))
    data += bytes(-len(TINY) % PAGE) + added
    return data + TINY[place : place + 56 * known] + b"".join(rows)


def _many_segments(count: int) -> bytes:
    """With so many segments more, of a page without bytes each."""
    first = CODE - CODE % PAGE + 16 * PAGE
    places = range(first, first + count * PAGE, PAGE)
    return _with_segments([struct.pack("<II6Q", elf.PT_LOAD, 4, 0, at, at, 0, 16, PAGE) for at in places])


def _shared_names(count: int) -> bytes:
    """So many symbols, each with the one long name of the string table."""
    text = b"a" * 100 + b"\0"
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 1, 0, 0) * count
    added = struct.pack("<II", 1, count) + symbols + text
    at, start = CODE - CODE % PAGE + 16 * PAGE, -len(TINY) % PAGE + len(TINY)
    row = struct.pack("<II6Q", elf.PT_LOAD, 4, start, at, at, len(added), len(added), PAGE)
    data = _with_segments([row], added)
    values = {
        elf.DT_HASH: at, elf.DT_SYMTAB: at + 8, elf.DT_STRTAB: at + 8 + len(symbols), elf.DT_STRSZ: len(text)
    }  # fmt: skip
    for tag, value in values.items():
        data = patched(data, dynamic_entry(TINY, tag) + 8, "<Q", value)
    return data


RELA, RELA_SIZE = section(TINY, ".rela.dyn")
DYNAMIC = program_header(TINY, elf.PT_DYNAMIC)
DT_FLAGS, DT_FLAGS_1, DT_RELACOUNT = 30, 0x6FFFFFFB, 0x6FFFFFF9
"""Entries that the loader does not read: tests put others in their place."""
CASES = {
    "empty": (b"", "fewer than an ELF header"),
    "short": (TINY[:40], "has 40 bytes, fewer than an ELF header"),
    "magic": (b"\0" + TINY[1:], "does not start with the ELF identifier"),
    "class 32": (patched(TINY, 4, "B", 1), f"machine {MACHINE:#x} with 32 bits, but this machine is {HERE}"),
    "class 7": (patched(TINY, 4, "B", 7), "class 7"),
    "big endian": (patched(TINY, 5, "B", 2), "big-endian"),
    "identifier version": (patched(TINY, 6, "B", 2), "ELF version 2"),
    "version": (patched(TINY, 20, "<I", 9), "ELF version 9"),
    "executable file": (patched(TINY, 16, "<H", 2), "type 2 is not a shared object"),
    "header size": (patched(TINY, 52, "<H", 52), "52, 56 and 64 bytes"),
    "program header size": (patched(TINY, 54, "<H", 32), "64, 32 and 64 bytes"),
    "section header size": (patched(TINY, 58, "<H", 40), "64, 56 and 40 bytes"),
    "no program headers": (patched(TINY, 56, "<H", 0), "no program header table"),
    "no section headers": (patched(TINY, 40, "<Q", 0), "no section header table"),
    "program headers outside": (patched(TINY, 32, "<Q", 2**64 - 8), "program header table"),
    "section headers outside": (patched(TINY, 40, "<Q", len(TINY)), "section header table"),
    "truncated": (TINY[:1280], "cut short"),
    "no segments": (_first_load(0, "<I", 0).replace(b"\1\0\0\0\4\0\0\0", bytes(8)), "shared|segment|outside"),
    "segment outside": (_first_load(32, "<Q", 1 << 40), "cut short"),
    "segment offset wraps": (_first_load(8, "<Q", 2**64 - 16), "cut short"),
    "bytes of several segments": (_repeated(3), "filled with .* bytes of .*damaged"),
    "many segments": (_many_segments(64), "loadable segments, more than 64"),
    "names that share their bytes": (_shared_names(17), "share the 101 bytes of the string table"),
    "file larger than memory": (_first_load(40, "<Q", 1), "is filled with"),
    "alignment": (_first_load(48, "<Q", 3), "alignment 3 is not a power of two"),
    "huge alignment": (_first_load(48, "<Q", 1 << 62), "spread over"),
    "huge segment": (_first_load(40, "<Q", 1 << 50, 2), "spread over"),
    "overlapping segments": (_first_load(16, "<Q", CODE - PAGE, 1), "share a memory page|outside"),
    "code at another offset": (_first_load(8, "<Q", CODE % PAGE + 8, 1), f"modulo its alignment {PAGE:#x}"),
    "code at another address": (_first_load(16, "<Q", CODE + 8, 1), f"modulo its alignment {PAGE:#x}"),
    "code cut off": (_first_load(32, "<Q", 16, 1), "bytes of code is filled with 16"),
    "no dynamic segment": (patched(TINY, DYNAMIC, "<I", 0), "no dynamic segment"),
    "dynamic segment outside": (patched(TINY, DYNAMIC + 16, "<Q", 1 << 30), "the dynamic section"),
    "RELRO over code": (
        patched(TINY, program_header(TINY, elf.PT_GNU_RELRO) + 16, "<Q", CODE & -PAGE), "RELRO"
    ),
    "no string table": (_retagged(elf.DT_STRTAB, 0x70000001), "no string table"),
    "no string table size": (_retagged(elf.DT_STRSZ, 0x70000001), "no string table size"),
    "no symbol table": (_retagged(elf.DT_SYMTAB, 0x70000001), "no symbol table"),
    "no hash table": (_retagged(elf.DT_HASH, 0x70000001), "no symbol hash table"),
    "string table outside": (_dynamic(elf.DT_STRTAB, 1 << 40), "the string table"),
    "string table too long": (_dynamic(elf.DT_STRSZ, 1 << 40), "the string table"),
    "symbol table outside": (_dynamic(elf.DT_SYMTAB, 2**64 - 8), "the symbol table"),
    "hash table outside": (_dynamic(elf.DT_HASH, 2**64 - 4), "the symbol hash table"),
    "too many symbols": (patched(TINY, section(TINY, ".hash")[0] + 4, "<I", 2**32 - 1), "the symbol table"),
    "symbol size": (_dynamic(elf.DT_SYMENT, 16), "symbol records are 16 bytes"),
    "relocation size": (_dynamic(elf.DT_RELAENT, 16), "RELA records are 16 bytes"),
    "relocations outside": (_dynamic(elf.DT_RELA, 1 << 30), "the RELA relocation table"),
    "relocated place outside": (patched(TINY, RELA, "<Q", 2**64 - 4), "the place of a relocation"),
    "relocated place in a gap": (patched(TINY, RELA, "<Q", CODE + PAGE // 2), "the place of a relocation"),
    "symbol of a relocation": (patched(TINY, RELA + 8, "<Q", 77 << 32 | WORD), "symbol 77 of 2"),
    "name outside": (patched(TINY, _symbol(TINY, 1), "<I", 10_000), "symbol's name at 10000"),
    "query function in data": (patched(TINY, _symbol(TINY, 1) + 8, "<Q", 0x10), "executable segment"),
    "query function outside": (patched(TINY, _symbol(TINY, 1) + 8, "<Q", 1 << 45), "the query function"),
    "initialiser in data": (_retagged(DT_RELACOUNT, elf.DT_INIT, 0x10), "initialiser at 0x10 is not in"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_failed_precondition(case: str) -> None:
    data, text = CASES[case]
    with pytest.raises(FailedPreconditionError, match=text):
        load(data)


def test_other_statuses() -> None:
    segments = program_header(TINY, elf.PT_LOAD, 1)
    with pytest.raises(PermissionDeniedError, match="both writable and executable"):
        load(patched(TINY, segments + 4, "<I", 7))
    with pytest.raises(UnimplementedError, match=f"relocation type {UNKNOWN:#x} is not one of {HERE}'s"):
        load(patched(TINY, RELA + 8, "<Q", UNKNOWN))
    with pytest.raises(UnavailableError, match=r"symbols of other libraries \(iree_hal_exec"):
        load(patched(TINY, _symbol(TINY, 1) + 6, "<H", 0))
    with pytest.raises(UnimplementedError, match=f"relocation table of kind REL; {HERE} uses RELA"):
        data = _retagged(elf.DT_RELA, elf.DT_REL)
        load(patched(data, dynamic_entry(data, elf.DT_RELASZ), "<q", elf.DT_RELSZ))
    renamed = TINY.replace(b"iree_hal_executable_library_query", b"iree_hal_executable_library_querx")
    with pytest.raises(NotFoundError, match="does not export iree_hal_executable_library_query"):
        load(renamed)


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("aarch64", "arm_64"), ("riscv64", "riscv_64"), ("i686", "x86_32"), ("armv7a", "arm_32")],
)
def test_foreign_libraries_say_what_they_are_for(name: str, architecture: str) -> None:
    if architecture == HERE:
        pytest.skip("it is this machine's")
    with pytest.raises(FailedPreconditionError) as caught:
        load(sample(f"mul_{name}-3.13.0.so"))
    assert f"compiled for {architecture}, but this machine is {HERE}" in str(caught.value)


def test_fatelf() -> None:
    foreign = sample("mul_riscv64-3.13.0.so")
    assert load(fatelf([(RISCV, 2, foreign), (MACHINE, 2, TINY)])).function_count == 1
    with pytest.raises(InvalidArgumentError, match=f"for arm_32, riscv_64, but this machine is {HERE}"):
        load(fatelf([(ARM, 1, foreign), (RISCV, 2, foreign)]))
    with pytest.raises(UnimplementedError, match="FatELF version 2"):
        load(fatelf([(MACHINE, 2, TINY)], version=2))
    whole = fatelf([(MACHINE, 2, TINY)])
    with pytest.raises(OutOfRangeError, match=f"slice for {HERE}"):
        load(whole[:-1])
    with pytest.raises(InvalidArgumentError, match="table of 9 records"):
        load(patched(whole, 6, "B", 9)[:200])
    with pytest.raises(FailedPreconditionError):
        load(whole[:31])


def test_initialisers_run_after_relocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """DT_INIT first, then the array in order; placeholders are skipped."""
    called: list[int] = []
    monkeypatch.setattr(embedded_elf, "_run", called.append)
    architecture = host_architecture()
    assert architecture is not None
    code = struct.unpack_from("<Q", TINY, _symbol(TINY, 1) + 8)[0]
    first, second = (RELA + 24 * number for number in _adjacent_relocations())
    (array,) = struct.unpack_from("<Q", TINY, first)
    data = _retagged(DT_RELACOUNT, elf.DT_INIT, code)
    data = patched(data, dynamic_entry(data, DT_FLAGS_1), "<qQ", elf.DT_INIT_ARRAY, array)
    data = patched(data, dynamic_entry(data, DT_FLAGS), "<qQ", elf.DT_INIT_ARRAYSZ, 16)
    data = patched(patched(data, first + 16, "<q", code), second + 16, "<q", code + 4)
    image = load_image(memoryview(data), architecture)
    assert called == [image.bias + code, image.bias + code, image.bias + code + 4]
    called.clear()
    data = patched(patched(data, second + 8, "<Q", 0), file_offset(data, array + 8), "<Q", 2**64 - 1)
    image = load_image(memoryview(data), architecture)
    assert called == [image.bias + code] * 2


def _adjacent_relocations() -> tuple[int, int]:
    """Numbers of two relocations of neighbouring words."""
    places = [place for place, _, _ in struct.iter_unpack("<QQq", TINY[RELA : RELA + RELA_SIZE])]
    return next((number - 1, number) for number, place in enumerate(places) if place - 8 in places)


def test_every_truncation() -> None:
    for length in range(0, len(TINY), 7):
        with pytest.raises(StatusError):
            load(TINY[:length])


_MUTATE = """
import random, struct, sys
from jitree.errors import StatusError
from jitree.loaders import embedded_elf
from jitree.loaders.elf_format import host_architecture
from tests.loaders.samples import load, sample, section
embedded_elf._run = lambda address: None
data, generator, seen = sample(sys.argv[1]), random.Random(int(sys.argv[2])), set()
EDGES = (0, 1, 2, 7, 8, 0x7F, 0xFF, 0xFFF, 0x1000, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, -4096)
def tables(*names):
    return [place for name in names for o, s in [section(data, name)] for place in range(o, o + s)]
"""
_MUTATE_STRUCTURE = """
places = list(range(0, 64 + 56 * 8)) + tables(".dynamic", ".dynsym", ".hash", ".rela.dyn", ".dynstr")
for turn in range(2000):
    mutant = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 4))):
        place = generator.choice(places)
        width = generator.choice((1, 2, 4, 8))
        value = generator.choice((generator.choice(EDGES), generator.getrandbits(64)))
        mutant[place : place + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "little")
    try:
        embedded_elf.load_image(memoryview(bytes(mutant)), host_architecture())
        seen.add("loaded")
    except StatusError as error:
        seen.add(error.code.name)
assert {"loaded", "FAILED_PRECONDITION", "UNAVAILABLE", "UNIMPLEMENTED"} <= seen, seen
"""
_MUTATE_TABLES = """
# Neither code nor the query symbol: what the library says about itself, and where it says it is.
read_only, relocations = tables(".rodata"), section(data, ".rela.dyn")
for turn in range(1500):
    mutant = bytearray(data)
    for _ in range(generator.choice((1, 1, 2))):
        if generator.random() < 0.5:
            value = generator.choice((0, 1, 64, 65, 255, generator.getrandbits(8)))
            mutant[generator.choice(read_only)] = value
        else:
            place = relocations[0] + 24 * generator.randrange(relocations[1] // 24) + 16
            value = generator.choice((*EDGES, generator.randrange(0x5000))) & 2**64 - 1
            mutant[place : place + 8] = value.to_bytes(8, "little")
    try:
        executable = load(bytes(mutant))
        executable.source_files()
        for ordinal in range(executable.function_count):
            executable.function_label(ordinal), executable.stage_locations(ordinal)
            executable.source_location(ordinal), executable.entry_point(ordinal)
        seen.add("loaded")
    except StatusError as error:
        seen.add(error.code.name)
assert {"loaded", "FAILED_PRECONDITION"} <= seen, seen
"""


@pytest.mark.parametrize("name", ["tiny-3.13.0.so", "tiny_sources-20240410.859.so", "multi_export-3.9.0.so"])
@pytest.mark.parametrize("program", [_MUTATE_STRUCTURE, _MUTATE_TABLES], ids=["structure", "tables"])
def test_mutations_never_crash(name: str, program: str) -> None:
    subprocess.run([sys.executable, "-c", _MUTATE + program, name, "1"], check=True, timeout=120)
