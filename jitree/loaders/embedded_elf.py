"""Loads embedded ELF libraries, the form in which IREE's compiler writes CPU code.

Segments are copied, relocated and protected; initialisers run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from jitree import errors
from jitree.base.memory import note_native
from jitree.base.platform import EXECUTE, NONE, READ, WRITE, CodeMapping, whole_pages
from jitree.errors import FailedPreconditionError, NotFoundError, PermissionDeniedError, error_context
from jitree.hal.executable import ExecutableLoader, ExecutableParameters
from jitree.loaders import elf_format as elf
from jitree.loaders.elf_file import (
    Dynamic,
    ElfFile,
    RelocationTable,
    bad_elf,
    read_dynamic,
    read_elf,
    unsupported_elf,
)
from jitree.loaders.elf_format import FATELF_MAGIC, Architecture, Relocation, host_architecture
from jitree.loaders.environment import Environment, ImportProvider, host_cpu_data
from jitree.loaders.library import QUERY_SYMBOL, LibraryMemory, NativeExecutable, query_library

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
    offsets = places - file.low
    if int(np.bitwise_or.reduce(offsets)) % dtype.itemsize:
        row = file.architecture.relocations[file.architecture.relative]
        fixed = [None] * len(places) if addends is None else addends.tolist()
        for place, addend in zip(places.tolist(), fixed, strict=True):
            _store(file, image, bias, row, place, 0, addend)
        return
    words: Words = np.frombuffer(image[: len(image) // dtype.itemsize * dtype.itemsize], dtype)
    where = (offsets // dtype.itemsize).astype(np.intp)  # other indices take three times as long
    wrapped_bias = dtype.type(bias & (1 << 8 * dtype.itemsize) - 1)
    words[where] = (words[where] if addends is None else addends) + wrapped_bias


_RIGHTS: Final = ((elf.PF_W, WRITE), (elf.PF_X, EXECUTE))
_SKIPPED_INITIALISERS: Final = (0, 0xFFFFFFFFFFFFFFFF)
"""Placeholders that linkers leave in initialiser arrays."""
_SHORT_TEXT: Final = 128


class ElfImage:
    """Owns a mapped library.

    Its memory goes with the object: code with an address in it must hold the image.
    """

    __slots__ = ("_file", "_mapping", "_symbols", "_view", "bias")

    def __init__(self, file: ElfFile, data: memoryview) -> None:
        alignment = max(load.alignment for load in file.loads)
        self._file = file
        self._mapping = CodeMapping(file.high - file.low, alignment)
        self.bias = self._mapping.address - file.low
        self._view = self._mapping.view()
        _check_pages(file)
        self._mapping.protect(0, self._mapping.size, READ | WRITE)
        for load in file.loads:
            start = load.address - file.low
            self._view[start : start + load.file_size] = data[load.offset : load.offset + load.file_size]
        dynamic = read_dynamic(file, self._view)
        relocate(file, dynamic, self._view, self.bias)
        self._protect()
        self._symbols = dict(zip(dynamic.symbol_names, dynamic.symbol_values, strict=True))
        self._initialise(dynamic)

    def symbol(self, name: str) -> int | None:
        """Finds a symbol's address in memory, None if the library exports none."""
        value = self._symbols.get(name)
        return None if value is None else self.bias + value

    def check_code(self, address: int, size: int, what: str) -> int:
        """Where the executable segment with these bytes ends; FAILED_PRECONDITION if there is none."""
        load = self._file.load_with(address - self.bias, size, what)
        if not load.flags & elf.PF_X:
            raise bad_elf(f"{what} at {address - self.bias:#x} is not in an executable segment")
        return self.bias + load.end

    def read(self, address: int, size: int, what: str) -> memoryview:
        """Views bytes in memory, as long as the image lives.

        FAILED_PRECONDITION unless all are in one segment.
        """
        self._file.load_with(address - self.bias, size, what)
        start = address - self._mapping.address
        return self._view[start : start + size]

    def read_string(self, address: int, what: str) -> bytes:
        """Text up to its NUL, which must lie in the same segment."""
        load = self._file.load_with(address - self.bias, 1, what)
        start, end = address - self._mapping.address, load.end - self._file.low
        length = _SHORT_TEXT  # most are short, and segments long
        while True:
            text, terminator, _ = bytes(self._view[start : min(start + length, end)]).partition(b"\0")
            if terminator:
                return text
            if start + length >= end:
                raise bad_elf(f"{what} at {address - self.bias:#x} has no end")
            length *= 8

    def _protect(self) -> None:
        low, covered = self._file.low, 0
        for load in sorted(self._file.loads, key=attrgetter("address")):
            if load.flags & elf.PF_W and load.flags & elf.PF_X:
                raise PermissionDeniedError(
                    "the ELF library cannot be loaded: it has a segment that is both writable and executable"
                )
            rights = READ | sum(right for flag, right in _RIGHTS if load.flags & flag)
            start, end = whole_pages(load.address - low, load.memory_size)
            if start > covered:
                self._mapping.protect(covered, start - covered, NONE)
            covered = end
            self._mapping.protect(start, covered - start, rights)
        if covered < self._mapping.size:
            self._mapping.protect(covered, self._mapping.size - covered, NONE)
        for relro in self._file.relro:
            self._mapping.protect(relro.address - low, relro.memory_size, READ)
        self._mapping.publish()

    def _initialise(self, dynamic: Dynamic) -> None:
        functions = [self.bias + dynamic.initialiser] if dynamic.initialiser else []
        address, size = dynamic.initialiser_array
        word = self._file.architecture.word_size.bits // 8
        array = self.read(self.bias + address, size, "the initialiser array") if size else memoryview(b"")
        for start in range(0, size // word * word, word):
            functions.append(int.from_bytes(array[start : start + word], "little"))
        for function in functions:
            if function not in _SKIPPED_INITIALISERS:
                self.check_code(function, 1, "an initialiser")
                _run(function)


def _run(initialiser: int) -> None:
    """Calls a function of the library.

    Tests replace this, so that damaged code is not run.
    """
    ctypes.CFUNCTYPE(None)(initialiser)()


def load_image(data: memoryview, architecture: Architecture) -> ElfImage:
    """Maps the library in ``data``, a view of bytes needed no longer afterwards."""
    return ElfImage(read_elf(data, architecture), data)


def _check_pages(file: ElfFile) -> None:
    """Protection is by page: no two segments may share one, and RELRO only takes rights from data."""
    pages = [whole_pages(load.address, load.memory_size) for load in file.loads]
    for (_, end), (start, _) in pairwise(sorted(pages)):
        if start < end:
            raise bad_elf("two of its segments share a memory page")
    for relro in file.relro:
        start, end = whole_pages(relro.address, relro.memory_size)
        for load, (first, last) in zip(file.loads, pages, strict=True):
            if load.flags & elf.PF_W and first <= start and end <= last:
                break
        else:
            raise bad_elf("its RELRO range is outside its writable segments")


_FORMAT_PREFIX: Final = "embedded-elf-"


class EmbeddedElfLoader(ExecutableLoader):
    """Loads ``embedded-elf-<architecture>`` of this machine, FatELF files included."""

    def __init__(self, providers: Sequence[ImportProvider] = ()) -> None:
        """``providers`` resolve the imports of executables, the last first; the list may grow later."""
        self._providers = providers

    def query_support(self, format: str) -> bool:
        architecture = host_architecture()
        return architecture is not None and format == _FORMAT_PREFIX + architecture.name

    def query_i64(self, category: str, key: str) -> int | None:
        """Answers ``hal.cpu``: 1 or 0 for a feature by LLVM's name."""
        return host_cpu_data().query(key) if category == "hal.cpu" else None

    def try_load(self, parameters: ExecutableParameters) -> NativeExecutable:
        """Maps and links the library; for the statuses see README.md."""
        with error_context(f"loading an executable of format '{parameters.format}'"):
            data = memoryview(parameters.data).cast("B")
            image, query = open_library(data)
            executable = link_library(image, query, parameters.constants, self._providers)
            note_native(data)
            return executable


def open_library(data: memoryview) -> tuple[ElfImage, int]:
    """A library in memory, and the address of its query function."""
    architecture = host_architecture()
    if architecture is None:
        raise errors.IncompatibleError(
            "embedded ELF libraries cannot be loaded on this machine's architecture"
        )
    if bytes(data[: len(FATELF_MAGIC)]) == FATELF_MAGIC:
        from jitree.loaders.elf_format import select_slice  # now: few programs hold such files

        data = select_slice(data, architecture)
    image = load_image(data, architecture)
    query = image.symbol(QUERY_SYMBOL)
    if query is None:
        raise NotFoundError(
            f"the embedded ELF library does not export {QUERY_SYMBOL}; it is not an IREE executable"
        )
    image.check_code(query, 1, "the query function")
    return image, query


def link_library(
    image: LibraryMemory, query: int, constants: Sequence[int], providers: Sequence[ImportProvider]
) -> NativeExecutable:
    """Makes the executable of a library in memory, from its query function's address."""
    environment = Environment(constants)
    library = query_library(image, query, environment.address)
    _check_constants(library.constant_count, len(constants))
    environment.link(library.imports, providers)
    return NativeExecutable(library, environment, image)


def _check_constants(declared: int, supplied: int) -> None:
    # Compilers up to 3.13 declare 0 even when the code reads some: only a count that is declared can be held
    # against the caller.
    if declared and declared != supplied:
        raise FailedPreconditionError(
            f"the executable takes {declared} specialization constants, but {supplied} were supplied"
        )
