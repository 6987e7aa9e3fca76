"""Records modules and functions for machine code, with Python's view.

The memory follows MODULE, FUNCTION and IMPORT in :mod:`jitree.regs.layout`; it is written once, when a module
gets its state in a context, and never moves. The Python views of functions and the calls of host functions
are made when they are first asked for: most programs use few of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.platform import PAGE_SIZE
from jitree.codegen.record import words_of
from jitree.errors import ResourceExhaustedError, pass_interruption
from jitree.regs.buffer import VmBuffer
from jitree.regs.handles import HandleTable
from jitree.regs.layout import (
    ACCESS_PRIVATE,
    ACCESS_READ,
    FUNCTION,
    IMPORT,
    MODULE,
    FunctionEntry,
    ImportEntry,
    ModuleEntry,
)
from jitree.regs.memory import UNBOUNDED, address_of, zeroed
from jitree.vmfb.cconv import RegisterSlot
from jitree.vmfb.program import DecodedModule
from jitree.vmfb.schema import ModuleTables

_FUNCTION: Final = words_of(FunctionEntry)
_MODULE: Final = words_of(ModuleEntry)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    SiteCall = Callable[[Any], int]
    """Performs the import call of a Machine's call site; true if it has to wait (Machine.pending), AGAIN
    (``dispatch.engine``) if nothing has happened yet."""
    FirstCall = Callable[[int, Any], int]
    """Performs the first import call of the call site with that number, for which no SiteCall is made yet."""


COPIED_BYTES = 64 << 20
"""Bytes of a caller's module that programs have a copy of, which they may change: to look whether they do
takes longer, a tenth of a second for 88 kernels. Machine code says nothing, and has a copy of any size."""


def _copied(data: memoryview) -> memoryview:
    """A copy that begins with a page, as files do. RESOURCE_EXHAUSTED if there is no room."""
    try:
        copy = zeroed(data.nbytes, PAGE_SIZE)
    except MemoryError as error:
        pass_interruption(error)
        raise ResourceExhaustedError(
            f"there is no memory for a copy of the module's {data.nbytes} bytes"
        ) from None
    copy[:] = np.frombuffer(data, np.uint8)
    return copy.data.toreadonly()


_FUNCTION_WORDS = FUNCTION.size // 8
_IMPORT: Final = words_of(ImportEntry)


class FunctionRecord:
    """Describes a function to frames that refer to it. Its FUNCTION record is at ``address``, and says where
    its words are."""

    __slots__ = (
        "address", "argument_slots", "code", "code_address", "memory", "module", "name", "null_refs",
        "ordinal", "ref_count", "start", "value_count", "zero_values",
    )  # fmt: skip

    def __init__(
        self,
        memory: npt.NDArray[np.int64],
        words: npt.NDArray[np.int32],
        start: int,
        counts: tuple[int, int],
        argument_slots: Sequence[RegisterSlot],
    ) -> None:
        """``memory`` is one FUNCTION record, written; ``counts`` are value slots (even) and refs of the
        frame."""
        self.memory = memory
        self.address = address_of(memory)
        self.code: memoryview = words.data
        """The words that ``start`` and every pc of the function index."""
        self.code_address = address_of(words)
        self.start = start
        self.value_count, self.ref_count = counts
        self.zero_values = memoryview(bytes(4 * self.value_count)).cast("i")
        self.null_refs = memoryview(bytes(8 * self.ref_count)).cast("q")
        self.argument_slots = tuple(slot for _, slot in argument_slots)
        self.ordinal = 0
        self.name = ""
        self.module: ModuleRecord

    def write(self, module: int) -> None:
        """Writes the record of a function without arguments; ``module`` is the address of its module's."""
        self.memory[_FUNCTION.code] = self.code_address + 4 * self.start
        self.memory[_FUNCTION.module] = module
        halves = self.memory.view(np.int32)
        halves[_FUNCTION.value_count] = self.value_count
        halves[_FUNCTION.ref_count] = self.ref_count
        halves[_FUNCTION.ordinal] = self.ordinal


class FunctionRecords(dict[int, FunctionRecord]):
    """The function records of a context by address: what frames refer to. Those of ``modules`` are made when
    first asked for."""

    def __init__(self) -> None:
        self.modules: list[ModuleRecord] = []

    def __missing__(self, address: int) -> FunctionRecord:
        for module in self.modules:
            ordinal = module.ordinal_at(address)
            if ordinal is not None:
                record = self[address] = module.function(ordinal)
                return record
        raise KeyError(address)

    def forget(self, module: ModuleRecord) -> None:
        """Removes a module's functions, those that the host runs too."""
        self.modules.remove(module)
        for address in [address for address, record in self.items() if record.module is module]:
            del self[address]


class ModuleRecord:
    """Keeps the state of one bytecode module in one context. It has globals, constants, and links to other
    modules."""

    __slots__ = (
        "_charge", "_functions", "_imports_at", "_memory", "_owned", "address", "builds", "code",
        "first_calls", "function_imports", "global_bytes", "global_f32", "global_f64", "global_i32",
        "global_i64", "index", "module", "native", "places", "program", "ref_globals", "resolved", "rodata",
        "sites", "types",
    )  # fmt: skip

    def __init__(self, module: ModuleTables, program: DecodedModule, table: HandleTable, index: int) -> None:
        """``index`` is the module's position in its context. NOT_FOUND if a type name is not registered,
        RESOURCE_EXHAUSTED for more ref globals than there can be objects."""
        if module.ref_global_count > table.capacity:
            raise ResourceExhaustedError(
                f"{module.ref_global_count} ref globals; a context has room for {table.capacity} objects"
            )
        self.module = module
        self.program = program
        self.native: object = None
        """What keeps the machine code of its functions alive; the native tier's."""
        self.index = index
        self.places: dict[int, str] = {}
        """What messages and readers were told of words, as places of the program."""
        function_count, import_count = len(program.functions), len(module.imports)
        types = np.array([table.ref_types.resolve(name) for name in module.types], np.int32)
        self.types: memoryview = types.data
        self._memory = np.zeros(
            (MODULE.size + function_count * FUNCTION.size + import_count * IMPORT.size) // 8, np.int64
        )
        self.address = address_of(self._memory)
        self._owned: list[npt.NDArray[Any]] = [types]
        self.builds = table.bounds.builds
        self._charge = table.bounds.charge(module.globals_size + 8 * module.ref_global_count)
        values = self._own(np.zeros(module.globals_size // 8 + 1, np.int64))
        self._view_globals(values)
        ref_globals = self._own(np.zeros(module.ref_global_count, np.int64))
        self.ref_globals: memoryview = ref_globals.data
        self._functions: dict[int, FunctionRecord] = {}
        self._write_functions(program)
        self._imports_at = (MODULE.size + function_count * FUNCTION.size) // 8
        self.function_imports: list[FunctionRecord | None] = [None] * import_count
        """The callee of each import that is a bytecode function."""
        self.resolved = [False] * import_count
        self.sites: list[SiteCall | None] = [None] * program.site_count
        """How each site calls its host function, once it is known."""
        self.first_calls: dict[int, FirstCall] = {}
        """How sites call the imports that are host functions until then."""
        constants = module.rodata
        data = module.archive.data
        is_own = module.archive.is_private
        if table.bounds != UNBOUNDED:  # sandboxes share opened programs
            is_own = False
        elif module.archive.is_of_caller and (module.has_machine_code or data.nbytes <= COPIED_BYTES):
            data, is_own = _copied(data), True
        access = ACCESS_READ | (ACCESS_PRIVATE if is_own else 0)
        rodata = self._own(VmBuffer.parts(table, data, constants.offsets, constants.lengths, access))
        self.rodata: memoryview = rodata.data
        first = self.address + MODULE.size
        fields = {
            "code": address_of(program.words),
            "functions": first,
            "imports": first + function_count * FUNCTION.size,
            "globals": address_of(values),
            "globals_size": module.globals_size,
            "ref_globals": address_of(ref_globals),
            "ref_global_count": module.ref_global_count,
            "rodata": address_of(rodata),
            "types": address_of(types),
            "index": index,
        }
        for name, value in fields.items():
            self._memory[getattr(_MODULE, name)] = value

    def _own(self, array: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        self._owned.append(array)
        return array

    def _view_globals(self, values: npt.NDArray[np.int64]) -> None:
        view = values.data.cast("B")
        self.global_bytes: memoryview = view
        self.global_i32: memoryview = view.cast("i")
        self.global_i64: memoryview = view.cast("q")
        self.global_f32: memoryview[float] = view.cast("f")
        self.global_f64: memoryview[float] = view.cast("d")

    def _write_functions(self, program: DecodedModule) -> None:
        rows, distinct = program.functions, program.functions.signatures.distinct
        slots = np.array([slot for row in distinct for _, slot in row.argument_slots] or [0], np.int32)
        self._owned.append(slots)
        counts = [len(row.argument_slots) for row in distinct]
        at = address_of(slots)
        places = [at + 4 * before for before in accumulate([0, *counts[:-1]])]
        first = MODULE.size // 8
        words = self._memory[first : first + len(rows) * _FUNCTION_WORDS].reshape(-1, _FUNCTION_WORDS)
        halves = words.view(np.int32)
        words[:, _FUNCTION.code] = address_of(program.words) + 4 * rows.starts
        words[:, _FUNCTION.module] = self.address
        words[:, _FUNCTION.arguments] = rows.signatures.column(places)
        halves[:, _FUNCTION.value_count] = rows.value_counts
        halves[:, _FUNCTION.ref_count] = rows.ref_counts
        halves[:, _FUNCTION.argument_count] = rows.signatures.column(counts)
        halves[:, _FUNCTION.ordinal] = range(len(rows))

    def function(self, ordinal: int) -> FunctionRecord:
        """The view of an internal function, the same each time."""
        record = self._functions.get(ordinal)
        if record is None:
            row = self.program.functions[ordinal]
            begin = MODULE.size // 8 + ordinal * _FUNCTION_WORDS
            record = FunctionRecord(
                self._memory[begin : begin + _FUNCTION_WORDS],
                self.program.words,
                row.start,
                (row.value_count, row.ref_count),
                row.argument_slots,
            )
            record.module, record.ordinal = self, ordinal
            record.name = self.module.function_name(ordinal)
            self._functions[ordinal] = record
        return record

    @property
    def code_address(self) -> int:
        """Where its decoded words are."""
        return int(self._memory[_MODULE.code])

    def ordinal_at(self, address: int) -> int | None:
        """Returns the number of a FUNCTION record, None of another module's."""
        ordinal, inside = divmod(address - self.address - MODULE.size, FUNCTION.size)
        return None if inside or not 0 <= ordinal < len(self.program.functions) else ordinal

    def link(
        self, ordinal: int, callee: FunctionRecord | None, first: FirstCall | None = None, compiled: int = 0
    ) -> None:
        """Resolves an import: to a bytecode function, or (None) to a host function, which is called by
        ``first`` until its sites know how, and may have machine code."""
        self.resolved[ordinal] = True
        self.function_imports[ordinal] = callee
        if first is not None:
            self.first_calls[ordinal] = first
        begin, memory = self._imports_at + ordinal * IMPORT.size // 8, self._memory
        memory[begin + _IMPORT.function] = callee.address if callee else 0
        memory[begin + _IMPORT.resolved] = 1
        memory[begin + _IMPORT.compiled] = compiled

    def link_native(self, ordinal: int, address: int) -> None:
        """Gives machine code for one of the module's own functions; it must stay where it is."""
        begin = MODULE.size // 8 + ordinal * _FUNCTION_WORDS
        # order of native: the session's lock, which who runs the function has taken since
        self._memory[begin + _FUNCTION.native] = address

    def link_compiled(self, ordinal: int, address: int) -> None:
        """Gives machine code for an import that is a host function; it must stay where it is."""
        begin = self._imports_at + ordinal * IMPORT.size // 8
        self._memory[begin + _IMPORT.compiled] = address

    def compiled(self, ordinal: int) -> int:
        """What :meth:`link_compiled` gave; 0: nothing."""
        return int(self._memory[self._imports_at + ordinal * IMPORT.size // 8 + _IMPORT.compiled])

    def copy_globals(self, other: ModuleRecord, table: HandleTable) -> None:
        """Takes over the globals of a module state of the same handle table: values copied, refs shared."""
        self.global_bytes[:] = other.global_bytes
        for slot, handle in enumerate(other.ref_globals):
            table.put(self.ref_globals, slot, handle)

    def release(self, table: HandleTable) -> None:
        """Drops every reference the state holds, and its functions, which know it; it must not run
        afterwards."""
        self._functions.clear()
        memories = np.asarray(self.ref_globals), np.asarray(self.rodata)
        dropped = self.ref_globals.tolist() + self.rodata.tolist()
        table.owed += dropped  # no interrupt comes from here on until all of them are owed
        memories[0][:] = 0
        memories[1][:] = 0
        table.release_owed()
