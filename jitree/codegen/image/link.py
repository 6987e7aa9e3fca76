"""From relocatable ELF objects to one flat image: no libraries, no symbols left to find."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from jitree.codegen.image.flat import FlatImage
from jitree.codegen.image.object_file import (
    FLAG_ALLOCATED,
    SECTION_RELOCATIONS,
    SECTION_ZEROS,
    ObjectFile,
    Symbol,
    is_defined,
)
from jitree.codegen.image.relocations import MACHINES, RELOCATIONS, absolute64
from jitree.errors import AlreadyExistsError, NotFoundError, UnimplementedError

_UNWIND_SECTIONS: Final = (".eh_frame", ".ARM.exidx")


def link(
    object_files: Sequence[bytes],
    entries: Iterable[str],
    notes: bytes = b"",
    base: FlatImage | None = None,
) -> FlatImage:
    """Lays out and relocates objects, after a copy of ``base``, whose entries they may call. ``entries``
    names the functions to be called from outside.

    Raises NOT_FOUND for symbols that no object defines, ALREADY_EXISTS for those that two define,
    UNIMPLEMENTED for relocation types or machines without a row in
    :mod:`~jitree.codegen.image.relocations` and for writable or zero-filled data.
    """
    layout = _Layout([ObjectFile(data) for data in object_files], base or FlatImage(b"", b"", {}))
    rebase = layout.relocate()
    if any(place & 7 for place in rebase):
        raise UnimplementedError("an address constant that is not aligned to 8")
    missing = [name for name in entries if name not in layout.defined]
    if missing:
        raise NotFoundError(f"the object does not define {', '.join(missing)}")
    table = struct.pack(f"<{len(rebase)}I", *rebase)
    if base is not None:
        table = base.rebase + table
    return FlatImage(bytes(layout.code), table, {name: layout.defined[name] for name in entries}, notes)


class _Layout:
    """Objects placed one after the other."""

    def __init__(self, objects: Sequence[ObjectFile], base: FlatImage) -> None:
        """``base`` stays where it is: what it refers to by pages (aarch64) cannot move."""
        self.code = bytearray(base.code)
        self._objects = objects
        self._placed = [self._place(item) for item in objects]
        self.defined = dict(base.entries)
        for item, placed in zip(objects, self._placed, strict=True):
            for symbol in item.symbols:
                if symbol.local or not is_defined(symbol) or symbol.section not in placed:
                    continue
                if symbol.name in self.defined:
                    raise AlreadyExistsError(f"two units of an image define {symbol.name}")
                self.defined[symbol.name] = placed[symbol.section] + symbol.value

    def _place(self, item: ObjectFile) -> dict[int, int]:
        """Appends the object's sections; the offset of each by its number."""
        placed: dict[int, int] = {}
        for number, section in enumerate(item.sections):
            if not section.flags & FLAG_ALLOCATED or section.name in _UNWIND_SECTIONS:
                continue
            if section.kind == SECTION_ZEROS and section.size > 0:
                raise UnimplementedError(f"zero-filled data in section {section.name}")
            if section.name == ".data" and section.size > 0:
                raise UnimplementedError("writable data: state belongs into the block that is passed in")
            self.code += bytes(-len(self.code) % section.alignment)
            placed[number] = len(self.code)
            self.code += section.data
        return placed

    def relocate(self) -> list[int]:
        """Patches all code; the offsets of the words that hold image offsets."""
        rebase: list[int] = []
        for item, placed in zip(self._objects, self._placed, strict=True):
            name = MACHINES.get(item.machine)
            if name is None:
                raise UnimplementedError(f"no relocations known for machine {item.machine}")
            patches = RELOCATIONS[name]
            for section in item.sections:
                if section.kind != SECTION_RELOCATIONS or section.target not in placed:
                    continue
                start = placed[section.target]
                for relocation in item.relocations(section):
                    patch = patches.get(relocation.kind)
                    if patch is None:
                        raise UnimplementedError(f"relocation type {relocation.kind} of {name}")
                    place = start + relocation.offset
                    target = self._address(item.symbols[relocation.symbol], placed)
                    patch(self.code, place, target + relocation.addend)
                    if patch is absolute64:
                        rebase.append(place)
        return rebase

    def _address(self, symbol: Symbol, placed: dict[int, int]) -> int:
        if symbol.section in placed:
            return placed[symbol.section] + symbol.value
        if symbol.name in self.defined:
            return self.defined[symbol.name]
        raise NotFoundError(
            f"machine code refers to {symbol.name or f'section {symbol.section}'}, which it does not contain"
        )
