"""States what a module file contains, as plain immutable records.

:func:`jitree.vmfb.module.read_module` builds them; all that follows (verifier, decoder, linker, dump) works
on these and never on the FlatBuffer. They are NamedTuples, since a frozen dataclass takes five times as long
to define and every process pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jitree.base.records import NamedTuple

if TYPE_CHECKING:
    from typing import overload

    import numpy as np
    import numpy.typing as npt

    from jitree.vmfb.archive import Archive
    from jitree.vmfb.debug import DebugDatabase


T = TypeVar("T")

FEATURE_EXT_F32: Final = 1
FEATURE_EXT_F64: Final = 2
FEATURE_YIELD: Final = 4
FEATURE_UNWIND: Final = 8
FEATURES: Final[dict[int, str]] = {
    FEATURE_EXT_F32: "EXT_F32",
    FEATURE_EXT_F64: "EXT_F64",
    FEATURE_YIELD: "YIELD",
    FEATURE_UNWIND: "UNWIND",
}
"""Bits of module and function requirements."""

FIRST_MOVING_VERSION: Final = 16
"""First bytecode version in which single ref operands and remaps honour the move flag, and those that cannot
be moved must not have it. Compilers of earlier ones set it at the last use, whatever that is."""
MAXIMUM_VALUE_SLOTS: Final = 0x7FFF
MAXIMUM_REFS: Final = 0x3FFF


if TYPE_CHECKING:
    Rows = Sequence
else:

    class Rows:
        """States what rows have beside a length and items. See :class:`collections.abc.Sequence`, from which
        inheriting takes several times as long."""

        __slots__ = ()

        __class_getitem__ = classmethod(GenericAlias)

        def __iter__(self) -> Iterator[Any]:
            return map(self.__getitem__, range(len(self)))

        def __contains__(self, value: object) -> bool:
            return any(row == value for row in self)

    Sequence.register(Rows)


class MadeRows(Rows[T]):
    """Rows that are made when they are first asked for."""

    __slots__ = ("_made", "_make")

    def __init__(self, count: int, make: Callable[[int], T]) -> None:
        self._make = make
        self._made: list[T | None] = [None] * count

    def __len__(self) -> int:
        return len(self._made)

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, index: int) -> T: ...

        @overload
        def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        row = self._made[index]
        if row is None:
            row = self._made[index] = self._make(index % len(self))
        return row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as for lists


class Attr(NamedTuple):
    """One entry of a module's reflection."""

    key: str
    value: str


class Dependency(NamedTuple):
    """A module that must (or may) be registered before this one."""

    name: str
    minimum_version: int
    required: bool


_MODULES_WITH_SIZES: Final = ("hal", "hal_inline", "hal_loader", "io_parameters")


class Import(NamedTuple):
    """A function expected from another module; its index is the import ordinal."""

    full_name: str
    """``module.function``."""
    cconv: str | None
    """None when the file states no signature: resolution then skips the comparison."""
    attrs: dict[str, str]
    optional: bool

    @property
    def may_take_sizes(self) -> bool:
        """Whether it is of a module whose functions are given sizes of memory."""
        return self.full_name.partition(".")[0] in _MODULES_WITH_SIZES


class Export(NamedTuple):
    """A public name of an internal function."""

    name: str
    ordinal: int


class FunctionRow(NamedTuple):
    """An internal function. Counts are as recorded in the file (the verifier judges them)."""

    ordinal: int
    offset: int
    """Byte offset of the body in the module's bytecode."""
    length: int
    """Bytes of the body, without padding after it."""
    requirements: int
    block_count: int
    value_count: int
    """32-bit slots of the value bank."""
    ref_count: int
    cconv: str
    attrs: dict[str, str]
    """Reflection, such as ``iree.abi.declaration``."""


class FunctionRows(MadeRows[FunctionRow]):
    """All functions, and what is asked of all of them."""

    __slots__ = ("columns", "conventions")

    def __init__(
        self,
        columns: dict[str, npt.NDArray[np.int64]],
        conventions: Sequence[str],
        make: Callable[[int], FunctionRow],
    ) -> None:
        super().__init__(len(conventions), make)
        self.columns = columns
        """The fields that are numbers, but for ``ordinal``."""
        self.conventions = conventions


class RodataSegment(NamedTuple):
    """Constant data. ``data`` aliases the archive (read-only) and keeps it alive; any alignment."""

    data: memoryview
    external: bool
    """Stored after the FlatBuffer instead of inside it."""
    file_offset: int
    """Bytes from the start of the archive."""


class RodataRows(MadeRows[RodataSegment]):
    """All constants, and where they lie."""

    __slots__ = ("lengths", "offsets")

    def __init__(
        self,
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        make: Callable[[int], RodataSegment],
    ) -> None:
        super().__init__(len(offsets), make)
        self.offsets = offsets
        """Bytes from the start of the archive."""
        self.lengths = lengths


_LIBRARIES: Final = (b"\x7fELF", b"\xfa\x70\x0e\x1f")
"""How ELF and FatELF files begin."""
_SMALLEST_LIBRARY: Final = 64
"""Bytes of the header of one."""


class ModuleTables(NamedTuple):
    """A parsed module file. Function bodies are raw bytes, not yet verified."""

    name: str
    version: int
    requirements: int
    attrs: tuple[Attr, ...]
    types: tuple[str, ...]
    """Type names as written (``i32``, ``!vm.buffer``, ``!vm.list<i8>``); the index is the type ordinal."""
    dependencies: tuple[Dependency, ...]
    imports: tuple[Import, ...]
    exports: tuple[Export, ...]
    functions: FunctionRows
    rodata: RodataRows
    globals_size: int
    """Bytes of value globals."""
    ref_global_count: int
    bytecode_version: tuple[int, int]
    """(major, minor)."""
    bytecode: memoryview
    debug: DebugDatabase | None
    """Source locations, None when stripped or not usable."""
    archive: Archive

    @property
    def has_machine_code(self) -> bool:
        """Whether executables of it are libraries that others have compiled."""
        data, rows = self.archive.data, self.rodata
        starts = rows.offsets[rows.lengths >= _SMALLEST_LIBRARY].tolist()
        return any(bytes(data[start : start + 4]) in _LIBRARIES for start in starts)

    def body(self, function: FunctionRow) -> memoryview:
        """The raw bytes of a function."""
        return self.bytecode[function.offset : function.offset + function.length]

    def export(self, name: str) -> Export | None:
        """The export of that name, None if there is none."""
        return next((export for export in self.exports if export.name == name), None)

    def function_name(self, ordinal: int) -> str:
        """A name for messages: the exported one, else the one in the debug database, else ``@N``."""
        for export in self.exports:
            if export.ordinal == ordinal:
                return export.name
        recorded = self.debug.function_name(ordinal) if self.debug else None
        return recorded or f"@{ordinal}"
