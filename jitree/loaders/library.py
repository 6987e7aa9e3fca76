"""Reads what a library says about itself: executable library ABI, versions 3 to 6.

The versions differ in where fields lie: one row of offsets each. Everything is read through a
``LibraryMemory``, which refuses addresses that are not the library's. ``NativeExecutable`` is
what the local drivers run of it, as KernelEntry records with names.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.memory import NAMES_CODE, name_code
from jitree.base.records import NamedTuple, Protocol, rows_of
from jitree.codegen.record import size_of, words_of
from jitree.errors import FailedPreconditionError, NotFoundError, OutOfRangeError, UnavailableError
from jitree.hal.command_layout import ENTRY_SEQUENTIAL, KernelEntry
from jitree.hal.executable import LocalExecutable
from jitree.loaders.environment import Environment
from jitree.regs.memory import address_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.hal.executable import Replacing
    from jitree.hal.pipeline_layout import SourceLocation
    from jitree.regs.handles import HandleTable


_ENTRY: Final = words_of(KernelEntry)
_ENTRY_WORDS: Final = size_of(KernelEntry) // 8
_UNKNOWN: Final = -1
_NONE: Final[tuple[tuple[Any, ...], ...]] = ((),) * 7


class EntryPoint(NamedTuple):
    """Describes a function. Counts are None when the executable does not state them."""

    name: str | None
    code: int
    """The address of its machine code."""
    environment: int
    """Address that every call gets."""
    local_memory: int
    """Bytes that each workgroup in flight needs for itself."""
    constant_count: int | None
    binding_count: int | None
    flags: int
    """ENTRY_*"""


class EntryTable(NamedTuple):
    """Tables the functions of an executable for machine code."""

    names: Sequence[bytes]
    """UTF-8, empty where there is none."""
    records: npt.NDArray[np.int64]
    """An KernelEntry record each."""

    @staticmethod
    def of(rows: Sequence[EntryPoint]) -> EntryTable:
        names, *columns = zip(*rows, strict=True) if rows else _NONE
        codes, environments, memory, *counts, flags = columns
        constants, bindings = ([_UNKNOWN if number is None else number for number in row] for row in counts)
        return EntryTable.with_columns(
            [(name or "").encode() for name in names], codes, environments, memory, constants, bindings, flags
        )

    @staticmethod
    def with_columns(
        names: Sequence[bytes],
        codes: npt.ArrayLike,
        environments: npt.ArrayLike,
        local_memory: npt.ArrayLike,
        constant_counts: npt.ArrayLike,
        binding_counts: npt.ArrayLike,
        flags: npt.ArrayLike,
    ) -> EntryTable:
        """From what each of them has, or all.

        Counts are -1 where they are not stated.
        """
        records = np.zeros((len(names), size_of(KernelEntry) // 8), np.int64)
        halves = records.view(np.int32)
        records[:, _ENTRY.code], records[:, _ENTRY.environment] = codes, environments
        halves[:, _ENTRY.local_memory], halves[:, _ENTRY.flags] = local_memory, flags
        halves[:, _ENTRY.constant_count], halves[:, _ENTRY.binding_count] = constant_counts, binding_counts
        halves[:, _ENTRY.ordinal] = range(len(names))
        return EntryTable(names, records)


class TabledExecutable(LocalExecutable):
    """Holds functions that are known when an executable is loaded.

    Code that keeps the address of an entry point, an environment or a function keeps the executable.
    """

    def __init__(self, name: str, table: EntryTable) -> None:
        self._name = name
        self._names = table.names
        self._entries = array("q", table.records.tobytes())
        self._first_entry: int = self._entries.buffer_info()[0]
        self._numbers = memoryview(self._entries).cast("B").cast("i")
        self._replaced: dict[int, tuple[Replacing, array[int]]] = {}
        """What runs in place of functions, with their own records."""

    def fill_entry(self, table: HandleTable, address: int) -> None:
        """Its functions."""
        self.publish(table, address, self._first_entry, address_of(self._name_table[0]))

    @cached_property
    def _name_table(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """Tabulates (address, length) of function names, the first match being taken; and the bytes. The
        length is -1 where only Python knows what is equal."""
        text = b"".join(self._names)
        content = np.frombuffer(text or b"\0", np.uint8)
        lengths = np.array([*map(len, self._names)], np.int64)
        table = np.empty((max(len(lengths), 1), 2), np.int64)
        table[: len(lengths), 0] = address_of(content) + lengths.cumsum() - lengths
        table[: len(lengths), 1] = lengths if text.isascii() else [
            len(name) if name.isascii() else -1 for name in self._names
        ]  # fmt: skip
        table[table[:, 1] == 0, 1] = -1
        return table, content

    @cached_property
    def _ordinals(self) -> dict[str, int]:
        ordinals: dict[str, int] = {}
        for ordinal, name in enumerate(self._names):
            if name:
                ordinals.setdefault(str(name, "utf-8", "backslashreplace"), ordinal)
        return ordinals

    def _number(self, ordinal: int, word: int) -> int:
        self.entry_point(ordinal)  # which says that there is none
        return self._numbers[ordinal * (size_of(KernelEntry) // 4) + word]

    @property
    def name(self) -> str:
        return self._name

    @property
    def function_count(self) -> int:
        return len(self._names)

    def function_name(self, ordinal: int) -> str:
        """The symbol name, ``""`` when the executable has no names."""
        return str(self._names[ordinal], "utf-8", "backslashreplace")

    def function_label(self, ordinal: int) -> str:
        """A name for messages: the function's, or ``executable[ordinal]``."""
        return self.function_name(ordinal) or f"{self._name}[{ordinal}]"

    def lookup(self, name: str) -> int:
        """The ordinal of a function.

        NOT_FOUND when there is none, UNAVAILABLE when there are no names.
        """
        ordinal = self._ordinals.get(name)
        if ordinal is not None:
            return ordinal
        if self._names and not self._ordinals:
            raise UnavailableError(
                f"executable '{self.name}' was compiled without function names, so '{name}' cannot be looked "
                "up; compile with --iree-llvmcpu-debug-symbols=true"
            )
        raise NotFoundError(
            f"executable '{self.name}' has no function '{name}'; it has {', '.join(self._ordinals) or 'none'}"
        )

    def constant_count(self, ordinal: int) -> int | None:
        """32-bit words that the function takes; None when the executable does not say."""
        count = self._number(ordinal, _ENTRY.constant_count)
        return None if count < 0 else count

    def binding_count(self, ordinal: int) -> int | None:
        """Bindings that the function takes; None when the executable does not say."""
        count = self._number(ordinal, _ENTRY.binding_count)
        return None if count < 0 else count

    def flags(self, ordinal: int) -> int:
        """ENTRY_*."""
        return self._number(ordinal, _ENTRY.flags)

    def local_memory(self, ordinal: int) -> int:
        """Bytes of memory that each workgroup in flight needs for itself."""
        return self._number(ordinal, _ENTRY.local_memory)

    def function_address(self, ordinal: int) -> int:
        return self._entries[ordinal * _ENTRY_WORDS + _ENTRY.code]

    def replace_function(
        self, ordinal: int, kernel: Replacing, code: int, flags: int, environment: int
    ) -> array[int]:
        place = (self.entry_point(ordinal) - self._first_entry) // 8
        if ordinal not in self._replaced:
            self._replaced[ordinal] = kernel, self._entries[place : place + _ENTRY_WORDS]
            self._numbers[2 * place + _ENTRY.parts] = 0
        self._entries[place + _ENTRY.cost] = 1
        self._entries[place + _ENTRY.environment] = environment
        self._entries[place + _ENTRY.code] = code  # before the flags: code for spans takes any
        self._numbers[2 * place + _ENTRY.flags] = flags
        return self._replaced[ordinal][1]

    def restore_function(self, ordinal: int) -> None:
        place = (self.entry_point(ordinal) - self._first_entry) // 8
        if ordinal in self._replaced:
            self._entries[place : place + _ENTRY_WORDS] = self._replaced[ordinal][1]
            del self._replaced[ordinal]  # last: an interrupt before leaves what is to be written

    def replacing(self, ordinal: int) -> Replacing | None:
        replaced = self._replaced.get(ordinal)
        return None if replaced is None else replaced[0]

    def take_failure(self, result: int) -> BaseException | None:
        failures = (kernel.take_failure(result) for kernel, _ in tuple(self._replaced.values()))
        return next((failure for failure in failures if failure is not None), None)

    def entry_point(self, ordinal: int) -> int:
        """Address of the function's KernelEntry record. OUT_OF_RANGE for a function that does not exist."""
        if not 0 <= ordinal < len(self._names):
            raise OutOfRangeError(
                f"executable '{self.name}' has {self.function_count} functions, but number {ordinal} was used"
            )
        return self._first_entry + ordinal * size_of(KernelEntry)


QUERY_SYMBOL: Final = "iree_hal_executable_library_query"
LOCAL_MEMORY_PAGE: Final = 4096
"""Bytes, whatever the page size of the system."""
UNKNOWN_LOCAL_MEMORY: Final = 256 * 1024
"""Libraries of versions 3 and 4 without attributes may need local memory without saying how much."""
MAXIMUM_COUNT: Final = 64
"""Constants and bindings of a function."""

_QUERY: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)
_SANITIZERS: Final = ("none", "address", "memory", "thread", "undefined behaviour")


class LibraryMemory(Protocol):
    """Reads a loaded library's tables; each raises FAILED_PRECONDITION for addresses outside the library."""

    def read(self, address: int, size: int, what: str) -> memoryview: ...

    def read_string(self, address: int, what: str) -> bytes: ...

    def check_code(self, address: int, size: int, what: str) -> int: ...


class LibraryLayout(NamedTuple):
    """Lists a version's byte offsets in the library struct; -1: no such field."""

    version: int
    size: int
    names: int
    tags: int
    source_locations: int
    stage_locations: int
    constant_count: int
    sources: int
    attributes_size: int
    local_memory_pages: int
    constants: int
    bindings: int
    flags: int
    """The last four: offsets in one attributes record."""


LAYOUTS: Final = (
    #      version size names tags source stage constants sources | size pages constants bindings flags
    LibraryLayout(6, 128, 64, 72, 88, 96, 104, 112, 64, 8, 10, 11, 0),
    LibraryLayout(5, 104, 48, 56, 64, 72, 80, 88, 72, 0, 2, 3, -1),
    LibraryLayout(4, 104, 48, 56, 64, 72, 80, 88, 4, 0, -1, -1, -1),
    LibraryLayout(3, 80, 48, 56, 64, -1, 72, -1, 4, 0, -1, -1, -1),
)
"""The newest is asked for first; a library answers to its own version only."""
_HEADER_SIZE: Final = 24
_IMPORTS: Final = 8
_EXPORTS: Final = 24
_FUNCTIONS: Final = 32
_ATTRIBUTES: Final = 40
assert ENTRY_SEQUENTIAL == 1  # as the flag of a library's function


class Library:
    """Reads the tables of a library in memory.

    ``address`` is that of its struct, which the query function gave for ``layout.version``; every call of a
    function gets ``environment``.
    """

    def __init__(self, memory: LibraryMemory, address: int, layout: LibraryLayout, environment: int) -> None:
        self._memory = memory
        self._layout = layout
        self._fields = bytes(memory.read(address, layout.size, "the library struct"))
        self.version: int = layout.version
        self.name = self._read_header()
        self.constant_count = self._u32(layout.constant_count)
        count, symbols = self._u32(_IMPORTS), self._pointer(_IMPORTS + 8)
        self.imports = tuple(self._strings(self._pointers(symbols, count, "the import table"), "imports"))
        """Symbols; a leading ``?`` marks an optional one."""
        self.functions = self._read_functions(environment)

    def source_location(self, function: int) -> SourceLocation | None:
        """Where the function comes from, if the library was compiled with that."""
        table = self._pointer(self._layout.source_locations)
        return self._location(table + 16 * function) if table else None

    def stage_locations(self, function: int) -> dict[str, SourceLocation]:
        """Source location by compilation stage, for libraries compiled with debug information."""
        table = self._pointer(self._layout.stage_locations)
        if not table:
            return {}
        record = self._memory.read(table + 24 * function, 24, "a stage location table")
        count, names, locations = struct.unpack("<IxxxxQQ", record)
        return {
            name: self._location(locations + 16 * index)
            for index, name in enumerate(
                self._strings(self._pointers(names, count, "the stage names"), "stages")
            )
        }

    def source_files(self) -> dict[str, bytes]:
        """Contents by path of the sources that the library carries."""
        if self._layout.sources < 0:
            return {}
        count, files = self._u32(self._layout.sources), self._pointer(self._layout.sources + 8)
        table = self._memory.read(files, 32 * count, "the source file table") if count else b""
        return {
            self._text(path, path_length): bytes(self._memory.read(content, length, "a source file"))
            for path_length, path, length, content in rows_of(struct.Struct("<IxxxxQIxxxxQ"), table)
        }

    def _read_header(self) -> str:
        header = self._memory.read(self._pointer(0), _HEADER_SIZE, "the library header")
        version, name, _, sanitizer = struct.unpack("<IxxxxQII", header)
        if version != self._layout.version:
            raise FailedPreconditionError(
                f"the executable library answers to version {self._layout.version}, but its header says "
                f"{version}"
            )
        if sanitizer:
            kind = _SANITIZERS[sanitizer] if sanitizer < len(_SANITIZERS) else f"number {sanitizer}"
            raise UnavailableError(
                f"the executable library was compiled for the {kind} sanitizer, which this process does not "
                "run; compile without sanitizer"
            )
        if not name:
            return ""
        return str(self._memory.read_string(name, "the names of the library"), "utf-8", "backslashreplace")

    def _read_functions(self, environment: int) -> EntryTable:
        layout, count = self._layout, self._u32(_EXPORTS)
        codes = self._pointers(self._pointer(_FUNCTIONS), count, "the function table")
        first = min(codes, default=0)
        size = max(codes, default=0) - first + 1
        end = self._memory.check_code(first, size, "the functions of the library") if codes else 0
        table = self._pointer(layout.names)
        places = self._pointers(table, count, "the function names") if table else (0,) * count
        names = self._texts(places, "functions")
        if NAMES_CODE:
            known = (str(name, "utf-8", "backslashreplace") or None for name in names)
            name_code({f"{self.name}.{name}": code for name, code in zip(known, codes, strict=True)}, end)
        memory, constants, bindings, flags = self._read_attributes(count)
        wrong = np.flatnonzero((constants > MAXIMUM_COUNT) | (bindings > MAXIMUM_COUNT))
        if len(wrong):
            number = int(wrong[0])
            raise OutOfRangeError(
                f"function {str(names[number], 'utf-8', 'replace') or None} of the executable library has "
                f"{constants[number]} constants and {bindings[number]} bindings; at most {MAXIMUM_COUNT} of "
                "each can be passed"
            )
        return EntryTable.with_columns(names, codes, environment, memory, constants, bindings, flags)

    def _read_attributes(self, count: int) -> Sequence[npt.NDArray[np.int64]]:
        """The local memory, constants, bindings and ENTRY_* of each function."""
        layout, size = self._layout, self._layout.attributes_size
        unknown = np.full(count, _UNKNOWN, np.int64)
        address = self._pointer(_ATTRIBUTES)
        if not address:
            memory = UNKNOWN_LOCAL_MEMORY if layout.constants < 0 else 0
            return np.full(count, memory, np.int64), unknown, unknown, unknown + 1
        content = self._memory.read(address, size * count, "the function attributes")
        table = np.frombuffer(content, np.uint8).reshape(count, size).astype(np.int64)
        low, high = (table[:, layout.local_memory_pages + byte] for byte in range(2))
        return (
            (low + (high << 8)) * LOCAL_MEMORY_PAGE,
            unknown if layout.constants < 0 else table[:, layout.constants],
            unknown if layout.bindings < 0 else table[:, layout.bindings],
            unknown + 1 if layout.flags < 0 else table[:, layout.flags] & ENTRY_SEQUENTIAL,
        )

    def _location(self, address: int) -> SourceLocation:
        record = self._memory.read(address, 16, "a source location")
        line, length, path = struct.unpack("<IIQ", record)
        from jitree.hal.pipeline_layout import SourceLocation

        return SourceLocation(self._text(path, length), line)

    def _strings(self, places: Sequence[int], what: str) -> list[str]:
        return [str(text, "utf-8", "backslashreplace") for text in self._texts(places, what)]

    def _texts(self, places: Sequence[int], what: str) -> list[bytes]:
        """The names at addresses, all of one segment; empty ones at null."""
        what, known = f"the names of {what}", [place for place in places if place]
        if not known:
            return [b""] * len(places)
        first, last = min(known), max(known)
        end = last + len(self._memory.read_string(last, what))
        texts = bytes(self._memory.read(first, end + 1 - first, what))
        starts = np.array(places, np.int64) - first
        zeros = np.flatnonzero(np.frombuffer(texts, np.uint8) == 0)
        ends = zeros[np.searchsorted(zeros, np.maximum(starts, 0))]
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        return [texts[start:end] if start >= 0 else b"" for start, end in pairs]

    def _text(self, address: int, length: int) -> str:
        if not length:
            return ""
        return bytes(self._memory.read(address, length, "a path")).decode("utf-8", "backslashreplace")

    def _pointers(self, table: int, count: int, what: str) -> tuple[int, ...]:
        if not count:
            return ()
        return struct.unpack(f"<{count}Q", self._memory.read(table, 8 * count, what))

    def _u32(self, offset: int) -> int:
        return int.from_bytes(self._fields[offset : offset + 4], "little")

    def _pointer(self, offset: int) -> int:
        return int.from_bytes(self._fields[offset : offset + 8], "little") if offset >= 0 else 0


def query_library(memory: LibraryMemory, query: int, environment: int) -> Library:
    """Asks the query function at address ``query`` for each known version in turn.

    FAILED_PRECONDITION if it answers to none, UNAVAILABLE for sanitizer builds.
    """
    function = _QUERY(query)
    for layout in LAYOUTS:
        address = function(layout.version, environment)
        if address:
            return Library(memory, address, layout, environment)
    versions = ", ".join(str(layout.version) for layout in reversed(LAYOUTS))
    raise FailedPreconditionError(
        f"the executable library has none of the versions {versions} that can be run; it was compiled by an "
        "IREE release older than January 2024 or newer than 3.13"
    )


class NativeExecutable(TabledExecutable):
    """Holds a loaded library with its environment.

    Its memory is unmapped when the last reference goes.
    """

    def __init__(self, library: Library, environment: Environment, image: object) -> None:
        """``image`` is what keeps the library mapped."""
        self._library = library
        self._environment = environment
        self._image = image
        super().__init__(library.name, library.functions)

    @property
    def library_version(self) -> int:
        """The version of the executable library ABI, 3 to 6."""
        return self._library.version

    @property
    def environment_address(self) -> int:
        return self._environment.address

    def source_location(self, ordinal: int) -> SourceLocation | None:
        return self._library.source_location(ordinal)

    def stage_locations(self, ordinal: int) -> dict[str, SourceLocation]:
        return self._library.stage_locations(ordinal)

    def source_files(self) -> dict[str, bytes]:
        return self._library.source_files()
