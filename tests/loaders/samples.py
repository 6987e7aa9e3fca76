"""Sample executables, and executables derived from them."""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

from jitree.hal.executable import ExecutableParameters
from jitree.loaders.elf_format import host_architecture
from jitree.loaders.embedded_elf import EmbeddedElfLoader
from jitree.loaders.environment import ImportProvider
from jitree.loaders.library import NativeExecutable

FOLDER = Path(__file__).parents[1] / "data" / "executables"
_architecture = host_architecture()
HERE = "" if _architecture is None else _architecture.name
"""As formats name this machine's processor."""
FORMAT = f"embedded-elf-{HERE}"
ON_X86_64 = HERE == "x86_64"
NEEDS_X86_64 = "the sample executables are compiled for x86-64"
MACHINE = struct.unpack_from("<H", (FOLDER / "tiny-3.13.0.so").read_bytes(), 18)[0]
"""That samples are for: `tests/aarch64/run` puts others in their place."""
FOR_THIS_PROCESSOR = _architecture is not None and _architecture.machine == MACHINE
NEEDS_SAMPLES = "the sample executables are compiled for another processor"


@cache
def manifest() -> dict[str, dict[str, Any]]:
    """Facts per file: release, library_version, exports, imports."""
    facts: dict[str, dict[str, Any]] = json.loads((FOLDER / "manifest.json").read_text())
    return facts


@cache
def sample(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def load(
    data: bytes, constants: tuple[int, ...] = (), providers: tuple[ImportProvider, ...] = ()
) -> NativeExecutable:
    return EmbeddedElfLoader(providers).try_load(ExecutableParameters(FORMAT, memoryview(data), constants))


def load_sample(name: str) -> NativeExecutable:
    return load(sample(name))


def patched(data: bytes, offset: int, layout: str, *values: int) -> bytes:
    """A copy with some fields overwritten."""
    copy = bytearray(data)
    struct.pack_into(layout, copy, offset, *values)
    return bytes(copy)


def program_header(data: bytes, kind: int, number: int = 0) -> int:
    """File offset of the number-th program header of a kind in a 64-bit file."""
    (start,) = struct.unpack_from("<Q", data, 32)
    (count,) = struct.unpack_from("<H", data, 56)
    places = range(start, start + 56 * count, 56)
    return [place for place in places if struct.unpack_from("<I", data, place)[0] == kind][number]


def section(data: bytes, name: str) -> tuple[int, int]:
    """File offset and size of a section."""
    import io

    found = ELFFile(io.BytesIO(data)).get_section_by_name(name)
    return found["sh_offset"], found["sh_size"]


def dynamic_entry(data: bytes, tag: int) -> int:
    """File offset of an entry of the dynamic section (tag, then value)."""
    offset, size = section(data, ".dynamic")
    for place in range(offset, offset + size, 16):
        if struct.unpack_from("<q", data, place)[0] == tag:
            return place
    raise KeyError(tag)


def file_offset(data: bytes, address: int) -> int:
    """Where the byte that is loaded at ``address`` lies in a 64-bit file."""
    number = 0
    while True:
        offset, virtual, _, size = struct.unpack_from("<4Q", data, program_header(data, 1, number) + 8)
        if virtual <= address < virtual + size:
            return int(offset + address - virtual)
        number += 1


def fatelf(slices: list[tuple[int, int, bytes]], version: int = 1) -> bytes:
    """A FatELF file of (machine, word size, ELF file) slices."""
    position = (8 + 24 * len(slices) + 63) // 64 * 64
    head = struct.pack("<IHBB", 0x1F0E70FA, version, len(slices), 0)
    body = b""
    for machine, word_size, data in slices:
        head += struct.pack("<HBBBBBBQQ", machine, 0, 0, word_size, 1, 0, 0, position + len(body), len(data))
        body += data
    return head + bytes(position - len(head)) + body
