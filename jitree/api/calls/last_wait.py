"""Finds a program's last wait, after which it reads no elements.

It is a ``hal.fence.await``. The host can make it when the call has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.instructions import IMPORT_BIT, InstructionRecord, read_instruction
from jitree.vmfb.words import BASE_OPCODE, OPCODE

if TYPE_CHECKING:
    from jitree.dispatch.function import BytecodeFunction

_AWAIT, _VIEW = "hal.fence.await", "hal.buffer_view.create"
_MOST_BYTES: Final = 1 << 14
"""The most bytes after the wait that are read."""
_MOST_WAITS: Final = 4
"""From the end on; the one before a function returns is seldom the last that is written there."""
_CALLEE, _IMPORT, _OPERANDS = 2, 3, 6
"""Words of calls: the function, the import, the first operand of one of an import."""
_BASE_OPCODES: Final = np.array(BASE_OPCODE)


def last_wait(function: BytecodeFunction) -> int:
    """The address of the operands of that call (``STATE.last_wait``), 0 if there is none."""
    owner = cast(BytecodeModule, function.module)
    module, program = owner.module, owner.program
    names = [row.full_name for row in module.imports]
    if _AWAIT not in names:
        return 0
    words, positions = program.words, np.array(program.instruction_words, np.int64)
    opcodes = _BASE_OPCODES[words[positions]]
    calls = positions[opcodes == OPCODE["call.internal"]]
    if (words[calls + _CALLEE] == function.ordinal).any():
        return 0  # what comes after that may look at elements
    row = program.functions[function.ordinal]
    is_own = (positions >= row.start) & (positions < row.end)
    waits = np.flatnonzero(is_own & (opcodes == OPCODE["call.import"]))
    waits = waits[words[positions[waits] + _IMPORT] == names.index(_AWAIT)]
    body = bytes(module.body(module.functions[function.ordinal]))
    for wait in waits[: -_MOST_WAITS - 1 : -1].tolist():
        offset = program.instruction_offsets[wait]
        if len(body) - offset > _MOST_BYTES:
            return 0
        if _only_ends(_records(body, offset, module.bytecode_version[0]), offset, names):
            return function.record.code_address + 4 * (int(positions[wait]) + _OPERANDS)
    return 0


def _records(body: bytes, offset: int, version: int) -> dict[int, InstructionRecord]:
    """The instructions from an offset on."""
    found = {}
    while offset < len(body):
        found[offset] = record = read_instruction(body, offset, version)
        offset += record.length
    return found


def _only_ends(records: dict[int, InstructionRecord], offset: int, names: list[str]) -> bool:
    """Whether what follows an instruction makes views at most, and ends. It stands at an offset, where
    ``records`` begin; a function returns or fails."""
    last = max(records)
    end = last + records[last].length  # after a `fail` with a status, as any status is there
    left, seen = [*_next(records[offset], offset)], {offset, end}
    while left:
        offset = left.pop()
        if offset in seen:
            continue
        record = records.get(offset)
        if record is None or not _looks_at_nothing(record, names):
            return False
        seen.add(offset)
        left += _next(record, offset)
    return True


def _next(record: InstructionRecord, offset: int) -> Iterator[int]:
    """Where a function goes on after an instruction."""
    exits = [target for target, _ in record.exits()]
    yield from exits
    if not exits and record.instruction.mnemonic != "return":
        yield offset + record.length


def _looks_at_nothing(record: InstructionRecord, names: list[str]) -> bool:
    if not record.instruction.mnemonic.startswith("call"):
        return True
    callee = record.operands[0]
    return bool(callee & IMPORT_BIT) and names[callee & ~IMPORT_BIT] == _VIEW
