"""From one relocatable ELF object to a flat image: no libraries, no symbols left to find."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable
from typing import Any, Final

from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection

from jitree.dispatch.image.flat import FlatImage
from jitree.dispatch.image.relocations import RELOCATIONS, absolute64
from jitree.errors import NotFoundError, UnimplementedError

_FLAG_ALLOCATED: Final = 2
_UNWIND_SECTIONS: Final = (".eh_frame", ".ARM.exidx")


def link(object_file: bytes, entries: Iterable[str]) -> FlatImage:
    """Lays out and relocates an object; ``entries`` names the functions to be called from outside.

    Raises NOT_FOUND for symbols the object does not define, UNIMPLEMENTED for relocation types or machines
    without a row in :mod:`~jitree.dispatch.image.relocations` and for writable or zero-filled data.
    """
    elf = ELFFile(io.BytesIO(object_file))
    machine = elf["e_machine"]
    if machine not in RELOCATIONS:
        raise UnimplementedError(f"no relocations known for machine {machine}")
    code, placed = _lay_out(elf)
    rebase: list[int] = []
    for section in elf.iter_sections():
        if isinstance(section, RelocationSection) and section["sh_info"] in placed:
            symbols = elf.get_section(section["sh_link"])
            start = placed[section["sh_info"]]
            for relocation in section.iter_relocations():
                patch = RELOCATIONS[machine].get(relocation["r_info_type"])
                if patch is None:
                    raise UnimplementedError(f"relocation type {relocation['r_info_type']} of {machine}")
                place = start + relocation["r_offset"]
                symbol = _address(symbols.get_symbol(relocation["r_info_sym"]), placed)
                patch(code, place, symbol + relocation["r_addend"])
                if patch is absolute64:
                    rebase.append(place)
    if any(place & 7 for place in rebase):
        raise UnimplementedError("an address constant that is not aligned to 8")
    found = _defined(elf, placed)
    missing = [name for name in entries if name not in found]
    if missing:
        raise NotFoundError(f"the object does not define {', '.join(missing)}")
    table = struct.pack(f"<{len(rebase)}I", *rebase)
    return FlatImage(bytes(code), table, {name: found[name] for name in entries})


def _lay_out(elf: Any) -> tuple[bytearray, dict[int, int]]:
    code = bytearray()
    placed: dict[int, int] = {}
    for index, section in enumerate(elf.iter_sections()):
        if not section["sh_flags"] & _FLAG_ALLOCATED or section.name in _UNWIND_SECTIONS:
            continue
        if section["sh_type"] == "SHT_NOBITS" and section["sh_size"] > 0:
            raise UnimplementedError(f"zero-filled data in section {section.name}")
        if section.name == ".data" and section["sh_size"] > 0:
            raise UnimplementedError("writable data: state belongs into the block that is passed in")
        alignment = max(section["sh_addralign"], 1)
        code += bytes(-len(code) % alignment)
        placed[index] = len(code)
        code += section.data()
    return code, placed


def _address(symbol: Any, placed: dict[int, int]) -> int:
    section = symbol["st_shndx"]
    if section not in placed:
        raise NotFoundError(f"machine code refers to {symbol.name or section!r}, which it does not contain")
    return placed[section] + int(symbol["st_value"])


def _defined(elf: Any, placed: dict[int, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for section in elf.iter_sections():
        if isinstance(section, SymbolTableSection):
            for symbol in section.iter_symbols():
                if symbol.name and symbol["st_shndx"] in placed:
                    found[symbol.name] = _address(symbol, placed)
    return found
