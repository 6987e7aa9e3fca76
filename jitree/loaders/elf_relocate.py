"""Relocating an embedded ELF library in place by the rows of its architecture.

Almost all relocations are of the RELATIVE kind: those of a table are one vectorised store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from jitree.loaders.elf_dynamic import Dynamic, RelocationTable
from jitree.loaders.elf_file import ElfFile, bad_elf, unsupported_elf
from jitree.loaders.elf_format import Relocation

if TYPE_CHECKING:
    import numpy.typing as npt

Words: TypeAlias = "npt.NDArray[Any]"

_DTYPES: Final[dict[int, np.dtype[Any]]] = {4: np.dtype("<u4"), 8: np.dtype("<u8")}


def relocate(file: ElfFile, dynamic: Dynamic, image: memoryview, bias: int) -> None:
    """Applies every relocation.

    ``image`` holds the bytes from ``file.low`` on and is writable where segments are; ``bias`` is added to
    the file's addresses. UNIMPLEMENTED for an unknown type, FAILED_PRECONDITION for a place outside the
    segments.
    """
    for table in dynamic.relocations:
        _relocate_table(file, dynamic, image, bias, table)


def _relocate_table(
    file: ElfFile, dynamic: Dynamic, image: memoryview, bias: int, table: RelocationTable
) -> None:
    architecture = file.architecture
    word = architecture.word_size.bits // 8
    columns = 3 if table.addends == "RELA" else 2
    start = table.address - file.low
    count = table.size // (columns * word)
    data: Words = np.frombuffer(image, _DTYPES[word], count * columns, start).reshape(count, columns)
    places = data[:, 0]
    types = data[:, 1] & ((1 << architecture.word_size.symbol_shift) - 1)
    relative = types == architecture.relative
    if relative.all():
        addends = data[:, 2] if columns == 3 else None
        _store_relative(file, image, bias, places, addends)
        return
    symbols = data[:, 1] >> architecture.word_size.symbol_shift
    for index in range(count):
        kind, symbol, place = int(types[index]), int(symbols[index]), int(places[index])
        row = architecture.relocations.get(kind)
        if row is None:
            raise unsupported_elf(f"relocation type {kind:#x} is not one of {architecture.name}'s")
        if symbol >= len(dynamic.symbol_values):
            raise bad_elf(f"a relocation names symbol {symbol} of {len(dynamic.symbol_values)}")
        value = bias + dynamic.symbol_values[symbol] if symbol else 0
        _store(file, image, bias, row, place, value, int(data[index, 2]) if columns == 3 else None)


def _store(
    file: ElfFile, image: memoryview, bias: int, row: Relocation, place: int, symbol: int, addend: int | None
) -> None:
    if row.size == 0:
        return
    file.load_with(place, row.size, f"the place of a {row.name} relocation")
    target = image[place - file.low : place - file.low + row.size]
    if addend is None:
        addend = int.from_bytes(target, "little")
    terms = {"S": symbol, "A": addend, "B": bias, "P": -(bias + place)}
    value = sum(terms[term] for term in row.terms)
    target[:] = (value & (1 << 8 * row.size) - 1).to_bytes(row.size, "little")


def _store_relative(
    file: ElfFile, image: memoryview, bias: int, places: Words, addends: Words | None
) -> None:
    """Stores bias + addend at every place; ``addends`` None means that they are at the places."""
    dtype = places.dtype
    if not len(places):
        return
    low, high = int(places.min()), int(places.max())
    if not any(load.address <= low and high + dtype.itemsize <= load.end for load in file.loads):
        for place in places.tolist():
            file.load_with(place, dtype.itemsize, "the place of a relocation")
    if ((places - file.low) % dtype.itemsize).any():
        row = file.architecture.relocations[file.architecture.relative]
        fixed = [None] * len(places) if addends is None else addends.tolist()
        for place, addend in zip(places.tolist(), fixed, strict=True):
            _store(file, image, bias, row, place, 0, addend)
        return
    words: Words = np.frombuffer(image[: len(image) // dtype.itemsize * dtype.itemsize], dtype)
    where = (places - file.low) // dtype.itemsize
    wrapped_bias = dtype.type(bias & (1 << 8 * dtype.itemsize) - 1)
    words[where] = (words[where] if addends is None else addends) + wrapped_bias
