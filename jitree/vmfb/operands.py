"""Reading the operands of one function's instructions, each of them checked."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

from jitree.errors import InvalidArgumentError, OutOfRangeError, StatusError
from jitree.vmfb import operand_classes
from jitree.vmfb.blocks import CodeBlock, Edge
from jitree.vmfb.cconv import RegisterSlot
from jitree.vmfb.instructions import MOVE_BIT, REF_BIT, REF_MASK, TARGET_LIMIT
from jitree.vmfb.linkage import Linkage
from jitree.vmfb.schema import FunctionRow
from jitree.vmfb.signature import FunctionSignature
from jitree.vmfb.words import TAG_REF_COPY, TAG_REF_MOVE, TAG_VALUE32, TAG_VALUE64

_UNLIMITED = 1 << 63
_U16, _U32 = struct.Struct("<H"), struct.Struct("<I")


@lru_cache(maxsize=256)
def _halfwords(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}H")


class OperandReader:
    """What is known of a function while it is walked. Afterwards ``blocks`` holds its code."""

    def __init__(
        self, function: FunctionRow, body: bytes, signature: FunctionSignature, linkage: Linkage
    ) -> None:
        self.function = function
        self.body = body
        self.signature = signature
        self.linkage = linkage
        self.version = linkage.version
        self.moves_honoured = linkage.version >= operand_classes.FIRST_MOVING_VERSION
        self.value_count = signature.value_count
        self.ref_count = signature.ref_count
        self.blocks: list[CodeBlock] = []
        self.targets: set[int] = set()
        self.words: list[int] = []
        """Words of the block under construction."""
        self.block = CodeBlock(0)
        self.offset = 0
        """Byte offset of the current instruction."""
        self.exit: tuple[list[int], list[Edge]] | None = None
        """Words and edges of the exit, once the block has it."""
        self.limits = (
            _UNLIMITED,
            self.value_count,
            self.value_count & ~1,
            linkage.rodata_count,
            linkage.type_count,
            linkage.globals_size - 3,
            linkage.globals_size - 7,
            linkage.ref_global_count,
            0,
            0,
            0,
            0,
        )
        """First operand value that is out of range, by class; refs are looked at one by one."""

    def value(self, operand: int) -> int:
        """The slot that a 32-bit value operand names."""
        if operand < self.value_count:
            return operand
        raise self.refusal(operand, operand_classes.VALUE)

    def pair(self, operand: int) -> int:
        """The even slot that a 64-bit value operand names."""
        if operand + 1 < self.value_count and not operand & 1:
            return operand
        raise self.refusal(operand, operand_classes.PAIR)

    def ref(self, operand: int) -> int:
        """The ref register that an operand names."""
        ordinal = operand & REF_MASK
        if operand < REF_BIT:
            raise InvalidArgumentError(f"value register {operand} where a ref is needed")
        if ordinal >= self.ref_count:
            raise OutOfRangeError(f"ref register {ordinal} out of range; the function has {self.ref_count}")
        return ordinal

    def cannot_move(self, operand: int) -> StatusError:
        return InvalidArgumentError(
            f"move flag on ref register {operand & REF_MASK}, which the instruction cannot take"
        )

    def refusal(self, value: int, operand_class: int) -> StatusError:
        """What is wrong with an operand that is not below the limit of its class, or not aligned."""
        if operand_class not in (operand_classes.VALUE, operand_classes.PAIR):
            return self.linkage.refusal(value, operand_class)
        if value & REF_BIT:
            return InvalidArgumentError(f"ref register {value & REF_MASK} where a value is needed")
        if value + (operand_class == operand_classes.PAIR) >= self.value_count:
            return OutOfRangeError(
                f"value register {value} out of range; the function has {self.value_count} slots"
            )
        return InvalidArgumentError(f"64-bit value register {value} is not even")

    def ordinal(self, operand: int, operand_class: int) -> int:
        """An ordinal below the limit of its class."""
        if operand < self.limits[operand_class]:
            return operand
        raise self.refusal(operand, operand_class)

    def register(self, operand: int, tag: int, honours_move: bool) -> RegisterSlot:
        """(tag, register) of a list entry that must hold what ``tag`` says."""
        if tag == TAG_VALUE32:
            return tag, self.value(operand)
        if tag == TAG_VALUE64:
            return tag, self.pair(operand)
        ordinal = self.ref(operand)
        return (TAG_REF_MOVE if honours_move and operand & MOVE_BIT else TAG_REF_COPY), ordinal

    def registers(
        self, what: str, entries: Sequence[int], tags: Sequence[int], honours_move: bool
    ) -> list[RegisterSlot]:
        """(tag, register) of each entry of a list that must hold what ``tags`` say; OUT_OF_RANGE when there
        are fewer or more."""
        if len(entries) != len(tags):
            raise OutOfRangeError(f"{what} list has {len(entries)} entries, the convention needs {len(tags)}")
        return [self.register(entry, tag, honours_move) for entry, tag in zip(entries, tags, strict=True)]

    def any_register(self, operand: int, honours_move: bool) -> RegisterSlot:
        """(tag, register) of a list entry of either bank; values count as one slot."""
        return self.register(operand, TAG_REF_COPY if operand & REF_BIT else TAG_VALUE32, honours_move)

    def word(self, at: int) -> int:
        """A 32-bit operand."""
        value: int = _U32.unpack_from(self.body, at)[0]
        return value

    def halfword(self, at: int) -> int:
        """A 16-bit operand."""
        value: int = _U16.unpack_from(self.body, at)[0]
        return value

    def entries(self, at: int, width: int = 1) -> tuple[tuple[int, ...], int]:
        """(entries, position after it) of an aligned list; ``width`` halfwords per counted entry."""
        at += at & 1
        count = _U16.unpack_from(self.body, at)[0] * width
        return _halfwords(count).unpack_from(self.body, at + 2), at + 2 + 2 * count

    def string(self, at: int) -> tuple[int, int]:
        """(its place in the bytecode, position after it)."""
        end = at + 2 + self.halfword(at)
        if end > len(self.body):
            raise OutOfRangeError("the body ends inside a string")
        return self.function.offset + at, end

    def edge(self, position: int, at: int) -> tuple[Edge, int]:
        """(edge, position after) of a target and its remap; ``position`` of its displacement in the exit."""
        target = self.target(at)
        moves, at = self._moves(at + 4)
        return Edge(position, target, moves), at

    def target(self, at: int) -> int:
        """The byte offset of a block."""
        target = self.word(at)
        if target >= TARGET_LIMIT:
            raise OutOfRangeError(f"branch target {target} out of range")
        self.targets.add(target)
        return target

    def _moves(self, at: int) -> tuple[list[int], int]:
        """(words of the moves, position after). Two slots that make up a pair on both sides become one move;
        moves of a register to itself are dropped."""
        entries, at = self.entries(at, width=2)
        moves: list[int] = []
        index = 0
        while index < len(entries):
            source, destination = entries[index], entries[index + 1]
            index += 2
            if (source ^ destination) & REF_BIT:
                raise InvalidArgumentError("branch move between the value and the ref bank")
            if source & REF_BIT:
                tag, source = self.register(source, TAG_REF_COPY, self.moves_honoured)
                destination = self.ref(destination)
            else:
                tag = TAG_VALUE32
                source, destination = self.value(source), self.value(destination)
                if (
                    not (source | destination) & 1
                    and entries[index : index + 2] == (source + 1, destination + 1)
                    and max(source, destination) + 1 < self.value_count
                ):
                    tag = TAG_VALUE64
                    index += 2
            if source != destination:
                moves += (tag, source, destination)
        return moves, at
