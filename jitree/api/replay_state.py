"""What calls that are made again find in a program's globals, and what they leave there.

Variables of a program are references to buffers, with fences that are reached when their contents are there.
A call that changes a variable stores another buffer and fence. For a recording such buffers are arguments,
and what the call left in their place is made anew, as results are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from jitree.base.records import NamedTuple
from jitree.dispatch.context import ContextFlags
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.fence import Fence
from jitree.modules.hal.module import HalModule
from jitree.regs.buffer import VmBuffer
from jitree.regs.list import VmList
from jitree.vmfb.words import BASE_OPCODE, OPCODE

if TYPE_CHECKING:
    from jitree.dispatch.context import Context
    from jitree.hal.recording import CallRecording
    from jitree.regs.records import ModuleRecord

_STORE_REFERENCE: Final = OPCODE["global.store.ref"]
_UNSUITABLE: Final = [
    number
    for name, number in OPCODE.items()
    if name.startswith(("global.store.", "trace", "print", "break", "cond_break"))
    and number != _STORE_REFERENCE
]
"""Instructions outside of the initialiser that make calls differ in ways that do not show from outside."""
_UNSUITABLE_IMPORTS: Final = (
    "hal.buffer_view.trace", "hal.buffer.allocation.", "hal.channel.", "hal.fence.query",
    "hal.fence.signal", "hal.fence.fail",
)  # fmt: skip
_INITIALISER: Final = "__init"
_BASE_OPCODES: Final = np.array(BASE_OPCODE)


class Place(NamedTuple):
    """Where a buffer of a recorded call comes from: one of its arguments, or an allocation that it made."""

    argument: int
    """Number among the caller's buffers and, after them, those of variables; -1 = an allocation."""
    allocation: int
    offset: int
    length: int

    def find(self, arguments: Callable[[], Sequence[Buffer]], fresh: dict[int, Buffer]) -> Buffer:
        whole = arguments()[self.argument] if self.argument >= 0 else fresh[self.allocation]
        return whole.subspan(self.offset, self.length)


def place_of(buffer: Buffer, made: CallRecording) -> Place | None:
    """Where a buffer comes from; None when it was there before and is no argument."""
    allocation = buffer.allocation
    for number, argument in enumerate(made.arguments):
        if argument.allocation is allocation:
            offset = buffer.byte_offset - argument.byte_offset
            inside = offset >= 0 and offset + buffer.byte_length <= argument.byte_length
            return Place(number, -1, offset, buffer.byte_length) if inside else None
    for number, request in enumerate(made.requests):
        if request.buffer.allocation is allocation:
            return Place(-1, number, buffer.byte_offset - request.buffer.byte_offset, buffer.byte_length)
    return None


class Store(NamedTuple):
    """What a call leaves in a variable; neither: a fence that is reached with the call's work."""

    variable: int
    place: Place | None


class Variables:
    """The ref globals of a context's programs that calls may change. The caller holds the context's lock."""

    def __init__(self, context: Context, slots: Sequence[tuple[ModuleRecord, int]]) -> None:
        self._table = context.table
        self._slots = tuple(slots)

    def __len__(self) -> int:
        return len(self._slots)

    def read(self) -> list[object]:
        """Their values now."""
        values = self._table.object
        return [values(record.ref_globals[slot]) for record, slot in self._slots]

    def write(self, variable: int, value: object) -> None:
        record, slot = self._slots[variable]
        old = record.ref_globals[slot]
        record.ref_globals[slot] = self._table.wrap(value)
        self._table.release(old)

    def stores(
        self, before: Sequence[object], made: CallRecording, caller_count: int
    ) -> tuple[Store, ...] | None:
        """What a recorded call has changed; None when that cannot be done again.

        The first ``caller_count`` arguments are the caller's, which must not become variables.
        """
        found = []
        for variable, (old, new) in enumerate(zip(before, self.read(), strict=True)):
            if new is old:
                continue
            if type(new) is Fence:
                found.append(Store(variable, None))
                continue
            place = place_of(new, made) if type(new) is Buffer else None
            if place is None or 0 <= place.argument < caller_count:
                return None
            found.append(Store(variable, place))
        return tuple(found)


def buffers_of(values: Iterable[object]) -> list[Buffer]:
    """The buffers among the values of variables."""
    return [value for value in values if type(value) is Buffer]


def state_key(values: Sequence[object]) -> tuple[object, ...] | None:
    """All that a program can find out about its variables; None when that is too much."""
    key: list[object] = []
    for value in values:
        if type(value) is Buffer:
            key += (value.byte_length, value.memory_type, value.allowed_usage, value.allowed_access)
        elif value is None or type(value) is Fence:
            key.append(type(value))
        else:
            return None
    return tuple(key)


def lasting_memory(context: Context, variables: Variables) -> list[Buffer] | None:
    """The allocations that programs keep for good, each as one buffer; None when one keeps what calls change
    unseen."""
    found: dict[int, Buffer] = {}
    changing = {(id(record), slot) for record, slot in variables._slots}
    for record in context.module_records:
        for slot, handle in enumerate(record.ref_globals):
            value = context.table.object(handle) if handle else None
            if isinstance(value, VmList) or (isinstance(value, VmBuffer) and value.writable):
                return None
            buffer = value.buffer if isinstance(value, BufferView) else value
            if isinstance(buffer, Buffer) and (id(record), slot) not in changing:
                found[id(buffer.allocation)] = Buffer(buffer.allocation)
    return list(found.values())


def find_variables(context: Context) -> Variables | None:
    """The variables of the context's programs; None when calls of them must not be made again: they keep
    other state, print, or call something else than the HAL."""
    if context.flags != ContextFlags.NONE:
        return None
    records = context.module_records
    known = {"io_parameters", *(record.module.name for record in records)}
    if not all(isinstance(module, HalModule) for module in context.modules if module.name == "hal"):
        return None
    slots: list[tuple[ModuleRecord, int]] = []
    for record in records:
        stored = _stored_slots(record)
        if stored is None or not _calls_hal_only(record, known):
            return None
        slots += ((record, slot) for slot in stored)
    return Variables(context, slots)


def _calls_hal_only(record: ModuleRecord, known: set[str]) -> bool:
    for item in record.module.imports:
        name = item.full_name
        if name.startswith(_UNSUITABLE_IMPORTS):
            return False
        if not name.startswith("hal.") and name.partition(".")[0] not in known:
            return False
    return True


def _stored_slots(record: ModuleRecord) -> list[int] | None:
    """Ref globals that functions other than the initialiser store; None when one does what is unsuitable."""
    program, words = record.program, record.program.words
    positions = np.array(program.instruction_words, np.int64)
    initialiser = record.module.export(_INITIALISER)
    if initialiser is not None:
        function = program.functions[initialiser.ordinal]
        positions = positions[(positions < function.start) | (positions >= function.end)]
    opcodes = _BASE_OPCODES[words[positions]]
    if np.isin(opcodes, _UNSUITABLE).any():
        return None
    stores = positions[opcodes == _STORE_REFERENCE]
    return [int(slot) for slot in np.unique(words[stores + 1])]
