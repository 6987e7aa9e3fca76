"""Which arguments a program only copies to the storage of a result, at its end: found in its bytecode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from jitree.dispatch.bytecode_module import BytecodeModule
from jitree.dispatch.function import BytecodeFunction
from jitree.vmfb.instructions import IMPORT_BIT, REF_BIT, REF_MASK, InstructionRecord, read_instructions

if TYPE_CHECKING:
    from jitree.dispatch.function import VmFunction

_COPY, _CREATE, _EXECUTE, _BUFFER, _VIEW = (
    "hal.command_buffer.copy_buffer", "hal.command_buffer.create", "hal.device.queue.execute",
    "hal.buffer_view.buffer", "hal.buffer_view.create",
)  # fmt: skip
_ENDING: Final = frozenset({
    "hal.buffer_view.assert", "hal.buffer.assert", "hal.device.allocator", "hal.device.queue.dealloca",
    "hal.fence.create", "hal.fence.await", _VIEW,
})  # fmt: skip
"""Imports that read and write no elements."""
_AFTER_COPIES: Final = _ENDING | {
    "hal.command_buffer.execution_barrier", "hal.command_buffer.finalize", _EXECUTE,
}  # fmt: skip
_MOST_BYTES: Final = 1 << 14
"""The most bytes of a function that is read: more in Python takes longer than copies do."""

Pairs = frozenset[tuple[int, int]]
"""Positions of a storage and of another argument."""


def updates_in_place(function: VmFunction) -> Pairs:
    """Pairs of storage and argument of which a program only copies the one to the other, at its end: no
    command follows that could see the difference, and none before it has to do with the storage.

    All commands must be in the first block, and one command buffer: there they happen in order."""
    if not isinstance(function, BytecodeFunction):
        return frozenset()
    module = cast(BytecodeModule, function.module).module
    names = [row.full_name for row in module.imports]
    body = bytes(module.body(module.functions[function.ordinal]))
    references = [index for index, item in enumerate(function.convention.arguments) if item == "r"]
    block = _FirstBlock(dict(enumerate(references)))
    blocks = 0
    for record in read_instructions(body, module.bytecode_version[0]) if len(body) <= _MOST_BYTES else ():
        blocks += record.instruction.block_marker
        is_call = record.instruction.mnemonic.startswith("call")
        name = names[record.operands[0] & ~IMPORT_BIT] if is_call and record.operands[0] & IMPORT_BIT else ""
        if blocks <= 1:
            block.step(record, name)
        elif is_call and name not in _ENDING:
            return frozenset()
    return frozenset(block.copies) if block.counts == {_CREATE: 1, _EXECUTE: 1} else frozenset()


class _FirstBlock:
    """What its instructions do with arguments; ``copies`` is empty once a command follows."""

    def __init__(self, arguments: dict[int, int]) -> None:
        self._held = arguments
        """The argument in each ref register, or its buffer."""
        self._used: set[int] = set()
        """Arguments that are passed on."""
        self.copies: set[tuple[int, int]] = set()
        self.counts = {_CREATE: 0, _EXECUTE: 0}

    def step(self, record: InstructionRecord, name: str) -> None:
        refs, held = _refs(record, False), None
        if name in self.counts:
            self.counts[name] += 1
        if name == _COPY:
            self._copy(record.operands[-2])
        elif name == _BUFFER:
            held = self._held.get(refs[0])
        elif name not in _AFTER_COPIES or name == _VIEW:
            self._used |= {self._held[ref] for ref in refs if ref in self._held}
            if name != _VIEW and record.instruction.mnemonic.startswith("call"):
                self.copies.clear()
        for ref in _refs(record, True):
            self._held.pop(ref, None)
            if held is not None:
                self._held[ref] = held

    def _copy(self, words: Sequence[int]) -> None:
        source, target = [at for at, word in enumerate(words) if word & REF_BIT][1:]
        argument, storage = (self._held.get(words[at] & REF_MASK) for at in (source, target))
        if (
            argument is None
            or storage is None
            or storage in self._used
            or words[source + 1] != words[target + 1]
        ):
            self.copies.clear()
        else:
            self.copies.add((storage, argument))
        self._used |= set() if storage is None else {storage}


def _refs(record: InstructionRecord, output: bool) -> list[int]:
    """Ref registers that an instruction reads or writes."""
    found: list[int] = []
    for operand, value in zip(record.instruction.operands, record.operands, strict=True):
        if (
            operand.output == output
            and operand.kind.startswith(("r.", "list."))
            and operand.kind != "list.segment"
        ):
            words = value if isinstance(value, tuple) else (value,)
            found += [word & REF_MASK for word in words if word & REF_BIT]
    return found
