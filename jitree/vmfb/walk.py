"""The one walk over a function's bytes that verifies every operand and makes decoded blocks.

It is the hot part of loading a module. Instructions with operands of fixed size go through the plans of
:mod:`jitree.vmfb.plans` in the loop of :meth:`FunctionWalk.run`; the others have functions in
:mod:`jitree.vmfb.special` and :mod:`jitree.vmfb.calls`, which read as :mod:`jitree.vmfb.operands` does.
"""

from __future__ import annotations

import struct

from jitree.errors import InvalidArgumentError, OutOfRangeError, StatusError
from jitree.vmfb import operand_classes, plans
from jitree.vmfb.blocks import CodeBlock, Exit
from jitree.vmfb.instructions import MOVE_BIT, read_instruction
from jitree.vmfb.isa import BY_MNEMONIC, CORE, PREFIXES
from jitree.vmfb.operands import OperandReader
from jitree.vmfb.schema import FEATURE_EXT_F32, FEATURE_EXT_F64

_BLOCK_MARKER = BY_MNEMONIC["block"].opcode
_FEATURES = {0xE0: FEATURE_EXT_F32, 0xE1: FEATURE_EXT_F64}
_ALIGNMENTS = {operand_classes.PAIR: 2, operand_classes.GLOBAL32: 4, operand_classes.GLOBAL64: 8}
_MISALIGNED = tuple(_ALIGNMENTS.get(number, 1) - 1 for number in range(operand_classes.CLASS_COUNT))
"""Bits that must be clear in operands of a class."""


class FunctionWalk(OperandReader):
    """Walks one function."""

    def run(self) -> None:
        """Walks the whole body. Raises the failed check with the place of the instruction as context."""
        at = 0
        try:
            while at < len(self.body):
                self.offset = at
                if self.body[at] != _BLOCK_MARKER:
                    raise InvalidArgumentError("expected a block marker: the previous block has ended")
                block = CodeBlock(at)
                at = self._run_block(block, at + 1)
                self.blocks.append(block)
        except struct.error:
            raise OutOfRangeError("the body ends inside an instruction", self._place()) from None
        except StatusError as error:
            raise error.with_context(self._place()) from None
        self._check_blocks()

    def _run_block(self, block: CodeBlock, at: int) -> int:
        """Reads instructions up to the block's exit; returns the position after it."""
        body, limits, misaligned = self.body, self.limits, _MISALIGNED
        table = plans.plan_table(self.version, CORE)
        kept, ref, movable = operand_classes.REF_KEPT, operand_classes.REF, operand_classes.REF_MOVABLE
        length = len(body)
        self._begin(block)
        words, append = block.words, block.words.append
        mark_start, mark_offset = block.starts.append, block.offsets.append
        while True:
            offset = self.offset = at
            if at >= length:
                raise InvalidArgumentError("the last block has no terminator")
            plan = table[body[at]]
            at += 1
            if plan is None:
                plan, at = self._find_plan(offset)
            opcode, size, unpack, kinds, special = plan
            start = len(words)
            if special is None:
                append(opcode)
                for value, operand_class in zip(unpack(body, at), kinds, strict=True):
                    if value < limits[operand_class] and not value & misaligned[operand_class]:
                        append(value)
                    elif operand_class >= kept:
                        append(self.ref(value))
                        if operand_class == kept and value & MOVE_BIT:
                            raise self.cannot_move(value)
                        if operand_class > ref:
                            append(int(operand_class == movable and value & MOVE_BIT != 0))
                    else:
                        raise self.refusal(value, operand_class)
                at += size
            else:
                at = special(self, opcode, at)
                if self.exit is not None:
                    if len(words) > start:  # a call in front of its branch
                        mark_start(start)
                        mark_offset(offset)
                    block.exit = Exit(offset, *self.exit)
                    return at
            mark_start(start)
            mark_offset(offset)

    def _begin(self, block: CodeBlock) -> None:
        self.block, self.words, self.exit = block, block.words, None

    def _find_plan(self, offset: int) -> tuple[plans.ReadingPlan, int]:
        """(plan, position of the operands) of an instruction with a prefix, or met for the first time. Raises
        why there is none."""
        byte = self.body[offset]
        if byte not in PREFIXES:
            plan = plans.find(self.version, CORE, byte)
            if plan is not None:
                return plan, offset + 1
            if byte == _BLOCK_MARKER:
                raise InvalidArgumentError("block marker inside a block: a terminator is missing")
            raise InvalidArgumentError(f"unknown opcode 0x{byte:02X} in bytecode version {self.version}")
        name = PREFIXES[byte]
        if not self.function.requirements & _FEATURES[byte]:
            raise InvalidArgumentError(f"{name} instruction, but the function does not require that feature")
        if offset + 1 >= len(self.body):
            raise OutOfRangeError("the body ends inside an instruction")
        opcode = self.body[offset + 1]
        plan = plans.find(self.version, name, opcode)
        if plan is None:
            raise InvalidArgumentError(
                f"unknown opcode 0x{opcode:02X} of the {name} set in bytecode version {self.version}"
            )
        return plan, offset + 2

    def _place(self) -> str:
        """Where the walk stands, for messages."""
        offset = self.offset
        try:
            mnemonic = read_instruction(self.body, offset, self.version).instruction.mnemonic
        except StatusError:
            return f"at byte offset {offset}"
        return f"at byte offset {offset} ({mnemonic})"

    def _check_blocks(self) -> None:
        markers = {block.offset for block in self.blocks}
        strays = self.targets - markers
        if strays:
            raise InvalidArgumentError(f"branch target {min(strays)} is not a block")
        if len(markers) != self.function.block_count:
            raise InvalidArgumentError(
                f"the body has {len(markers)} blocks but its descriptor says {self.function.block_count}"
            )
