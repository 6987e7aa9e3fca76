"""What machine code knows about modules and functions, and the Python view of the same.

The memory follows MODULE, FUNCTION and IMPORT in :mod:`jitree.regs.layout`; it is written once, when a module
gets its state in a context, and never moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitree.errors import ResourceExhaustedError
from jitree.regs.buffer import VmBuffer
from jitree.regs.handles import HandleTable
from jitree.regs.layout import FUNCTION, IMPORT, MODULE
from jitree.regs.memory import address_of
from jitree.vmfb.cconv import RegisterSlot
from jitree.vmfb.program import Program
from jitree.vmfb.schema import ModuleTables

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    SiteCall = Callable[[Any], bool]
    """Performs the import call of a Machine's call site; true if it has to wait (Machine.pending)."""

_FUNCTION_WORDS = FUNCTION.size // 8


class FunctionRecord:
    """A function as frames refer to it: its FUNCTION record at ``address`` and where its words are."""

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
        """``memory`` is one FUNCTION record; ``counts`` are value slots (even) and refs of the frame."""
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
        memory[FUNCTION.word("code")] = self.code_address + 4 * start
        halves = memory.view(np.int32)
        halves[FUNCTION.word("value_count")] = self.value_count
        halves[FUNCTION.word("ref_count")] = self.ref_count
        halves[FUNCTION.word("argument_count")] = len(self.argument_slots)

    def attach(self, module: ModuleRecord, ordinal: int, name: str) -> None:
        """Completes the record: which module, under which number and name."""
        self.module, self.ordinal, self.name = module, ordinal, name
        self.memory[FUNCTION.word("module")] = module.address
        self.memory.view(np.int32)[FUNCTION.word("ordinal")] = ordinal


class ModuleRecord:
    """The state of one bytecode module in one context: globals, constants, and links to other modules."""

    __slots__ = (
        "_imports_at", "_memory", "_owned", "address", "code", "function_imports", "functions",
        "global_bytes", "global_f32", "global_f64", "global_i32", "global_i64", "index", "module", "native",
        "program", "ref_globals", "resolved", "rodata", "sites", "strings", "types",
    )  # fmt: skip

    def __init__(self, module: ModuleTables, program: Program, table: HandleTable, index: int) -> None:
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
        self.strings = program.strings
        function_count, import_count = len(program.functions), len(module.imports)
        types = np.array([table.ref_types.resolve(name) for name in module.types], np.int32)
        self.types: memoryview = types.data
        self._memory = np.zeros(
            (MODULE.size + function_count * FUNCTION.size + import_count * IMPORT.size) // 8, np.int64
        )
        self.address = address_of(self._memory)
        self._owned: list[npt.NDArray[Any]] = [types]
        values = self._own(np.zeros(module.globals_size // 8 + 1, np.int64))
        self._view_globals(values)
        ref_globals = self._own(np.zeros(module.ref_global_count, np.int64))
        self.ref_globals: memoryview = ref_globals.data
        self.functions = self._make_functions(program)
        self._imports_at = (MODULE.size + function_count * FUNCTION.size) // 8
        self.function_imports: list[FunctionRecord | None] = [None] * import_count
        """The callee of each import that is a bytecode function."""
        self.resolved = [False] * import_count
        self.sites: list[SiteCall | None] = [None] * len(program.sites)
        """How to call each site's native import, filled when first used."""
        constants = [VmBuffer.alias(segment.data) for segment in module.rodata]
        rodata = self._own(np.array([table.wrap(buffer) for buffer in constants], np.int64))
        self.rodata: memoryview = rodata.data
        first = address_of(self._memory) + MODULE.size
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
            self._memory[MODULE.word(name)] = value

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

    def _make_functions(self, program: Program) -> list[FunctionRecord]:
        flat = [slot for row in program.functions for _, slot in row.argument_slots]
        slots = np.array(flat or [0], np.int32)
        self._owned.append(slots)
        slots_address = address_of(slots)
        records = []
        for row in program.functions:
            begin = MODULE.size // 8 + row.ordinal * _FUNCTION_WORDS
            memory = self._memory[begin : begin + _FUNCTION_WORDS]
            counts = (row.value_count, row.ref_count)
            record = FunctionRecord(memory, program.words, row.start, counts, row.argument_slots)
            record.attach(self, row.ordinal, self.module.function_name(row.ordinal))
            memory[FUNCTION.word("arguments")] = slots_address
            slots_address += 4 * len(row.argument_slots)
            records.append(record)
        return records

    def link(self, ordinal: int, callee: FunctionRecord | None) -> None:
        """Resolves an import: to a bytecode function, or (None) to a native one."""
        self.resolved[ordinal] = True
        self.function_imports[ordinal] = callee
        begin = self._imports_at + ordinal * IMPORT.size // 8
        self._memory[begin + IMPORT.word("function")] = callee.address if callee else 0
        self._memory[begin + IMPORT.word("resolved")] = 1

    def link_native(self, ordinal: int, address: int) -> None:
        """Gives machine code for one of the module's own functions; it must stay where it is."""
        self.functions[ordinal].memory[FUNCTION.word("native")] = address

    def link_compiled(self, ordinal: int, address: int) -> None:
        """Gives machine code for an import that is a host function; it must stay where it is."""
        begin = self._imports_at + ordinal * IMPORT.size // 8
        self._memory[begin + IMPORT.word("compiled")] = address

    def copy_globals(self, other: ModuleRecord, table: HandleTable) -> None:
        """Takes over the globals of a module state of the same handle table: values copied, refs shared."""
        self.global_bytes[:] = other.global_bytes
        for slot, handle in enumerate(other.ref_globals):
            self.ref_globals[slot] = table.retain(handle)

    def release(self, table: HandleTable) -> None:
        """Drops every reference the state holds, and its functions, which know it; it must not run
        afterwards."""
        self.functions.clear()
        for handles in (self.ref_globals, self.rodata):
            for slot, handle in enumerate(handles):
                handles[slot] = 0
                table.release(handle)
