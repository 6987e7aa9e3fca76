"""An executable of native functions, as the local drivers run it."""

from __future__ import annotations

import struct
from array import array
from typing import Final

from jitree.errors import NotFoundError, OutOfRangeError, UnavailableError
from jitree.hal.executable import LocalExecutable
from jitree.hal.local.commands import ENTRY_POINT, ENTRY_SEQUENTIAL
from jitree.loaders.environment import Environment
from jitree.loaders.library import Library, SourceLocation

_ENTRY: Final = struct.Struct("<3q6i")
assert _ENTRY.size == ENTRY_POINT.size
_UNKNOWN: Final = -1


class NativeExecutable(LocalExecutable):
    """A loaded library with its environment and the entry point records of its functions.

    Whoever keeps the address of an entry point, an environment or a function keeps the executable: its memory
    is unmapped when the last reference goes.
    """

    def __init__(self, library: Library, environment: Environment, image: object) -> None:
        """``image`` is what keeps the library mapped."""
        self._library = library
        self._environment = environment
        self._image = image
        self._ordinals = {f.name: i for i, f in enumerate(library.functions) if f.name is not None}
        self._entries = array("q")
        for ordinal, function in enumerate(library.functions):
            self._entries.frombytes(_ENTRY.pack(
                function.code, environment.address, 0, function.local_memory,
                ENTRY_SEQUENTIAL if function.sequential else 0,
                _UNKNOWN if function.constant_count is None else function.constant_count,
                _UNKNOWN if function.binding_count is None else function.binding_count, ordinal, 0,
            ))  # fmt: skip
        self._first_entry: int = self._entries.buffer_info()[0]

    @property
    def name(self) -> str:
        return self._library.name

    @property
    def library_version(self) -> int:
        """Of the executable library ABI, 3 to 6."""
        return self._library.version

    @property
    def environment_address(self) -> int:
        return self._environment.address

    @property
    def function_count(self) -> int:
        return len(self._library.functions)

    def function_name(self, ordinal: int) -> str:
        """The symbol name, ``""`` when the library has no names."""
        return self._library.functions[ordinal].name or ""

    def function_label(self, ordinal: int) -> str:
        """A name for messages: the function's, or ``library[ordinal]``."""
        return self._library.functions[ordinal].name or f"{self._library.name}[{ordinal}]"

    def lookup(self, name: str) -> int:
        """The ordinal of a function. NOT_FOUND when there is none, UNAVAILABLE in a library without names."""
        ordinal = self._ordinals.get(name)
        if ordinal is not None:
            return ordinal
        if self._library.functions and not self._ordinals:
            raise UnavailableError(
                f"executable '{self.name}' was compiled without function names, so '{name}' cannot be looked "
                "up; compile with --iree-llvmcpu-debug-symbols=true"
            )
        raise NotFoundError(
            f"executable '{self.name}' has no function '{name}'; it has {', '.join(self._ordinals) or 'none'}"
        )

    def constant_count(self, ordinal: int) -> int | None:
        """32-bit words that the function takes; None when the library does not say."""
        return self._library.functions[ordinal].constant_count

    def binding_count(self, ordinal: int) -> int | None:
        """Bindings that the function takes; None when the library does not say."""
        return self._library.functions[ordinal].binding_count

    def function_address(self, ordinal: int) -> int:
        return self._library.functions[ordinal].code

    def local_memory(self, ordinal: int) -> int:
        """Bytes of memory that each workgroup in flight needs for itself."""
        return self._library.functions[ordinal].local_memory

    def sequential(self, ordinal: int) -> bool:
        """Whether workgroups of one dispatch must not run at the same time."""
        return self._library.functions[ordinal].sequential

    def entry_point(self, ordinal: int) -> int:
        """Address of the function's ENTRY_POINT record. OUT_OF_RANGE for a function that does not exist."""
        if not 0 <= ordinal < len(self._library.functions):
            raise OutOfRangeError(
                f"executable '{self.name}' has {self.function_count} functions, but number {ordinal} was used"
            )
        return self._first_entry + ordinal * ENTRY_POINT.size

    def source_location(self, ordinal: int) -> SourceLocation | None:
        """Where the function comes from, if the library was compiled with that."""
        return self._library.source_location(ordinal)

    def stage_locations(self, ordinal: int) -> dict[str, SourceLocation]:
        """Source location by compilation stage, for libraries with debug information."""
        return self._library.stage_locations(ordinal)

    def source_files(self) -> dict[str, bytes]:
        """Contents by path of the sources that the library carries."""
        return self._library.source_files()
