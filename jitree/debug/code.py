"""Shows a function's bytecode as people see it: instructions, source lines, types of registers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from typing import TYPE_CHECKING, Final

from jitree.vmfb.cconv import parse
from jitree.vmfb.disassemble import Disassembler, block_numbers, function_symbol
from jitree.vmfb.instructions import (
    IMPORT_BIT,
    MOVE_BIT,
    REF_BIT,
    REF_MASK,
    InstructionRecord,
    read_instructions,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from jitree.vmfb.program import DecodedModule
    from jitree.vmfb.schema import ModuleTables

REF: Final = "ref"
_KINDS: Final = {"i": "i32", "I": "i64", "f": "f32", "F": "f64", "r": REF}
_CALL: Final = "call"
KEPT: Final = "IREE keeps them without --iree-vm-bytecode-module-strip-source-map, 3.13 for one function"
"""Source locations."""

Register = tuple[bool, int]
"""Whether it is a ref, and its number."""


class FunctionCode:
    """The code of one function."""

    def __init__(self, module: ModuleTables, program: DecodedModule, ordinal: int) -> None:
        self.module, self.program, self.ordinal = module, program, ordinal
        self.name = module.function_name(ordinal)
        self.full_name = f"{module.name}.{self.name}"
        self.symbol = function_symbol(module, ordinal)

    @cached_property
    def records(self) -> list[InstructionRecord]:
        """Its instructions, without the marks of blocks."""
        body = bytes(self.module.body(self.module.functions[self.ordinal]))
        return list(read_instructions(body, self.module.bytecode_version[0]))

    @cached_property
    def words(self) -> dict[int, int]:
        """Words of its instructions by their byte offsets."""
        function, program = self.program.functions[self.ordinal], self.program
        first = bisect_left(program.instruction_words, function.start)
        last = bisect_left(program.instruction_words, function.end)
        found: dict[int, int] = {}
        for place in range(first, last):
            found.setdefault(program.instruction_offsets[place], program.instruction_words[place])
        return found

    def offset(self, word: int) -> int:
        """The byte offset of the instruction that a word is of."""
        return self.program.location(word)[1]

    def is_instruction(self, word: int) -> bool:
        """Whether an instruction begins there; not the stub of a branch."""
        words = self.program.instruction_words
        place = bisect_right(words, word) - 1
        return words[place] == word and self.words.get(self.program.instruction_offsets[place]) == word

    def line_of(self, offset: int) -> str:
        """Where an instruction comes from, as far as the module says."""
        debug = self.module.debug
        places = [] if debug is None else debug.locate(self.ordinal, offset)
        return places[0] if places else ""

    @cached_property
    def lines(self) -> dict[int, str]:
        """The listing: all instructions and marks of blocks, by offset."""
        disassembler, blocks = Disassembler(self.module), block_numbers(self.records)
        return {row.offset: disassembler.instruction(row, blocks) for row in self.records}

    @cached_property
    def calls(self) -> list[tuple[int, bool, int]]:
        """Its calls: offset, whether of an import, number of what is called."""
        found = []
        for record in self.records:
            if record.instruction.mnemonic.split(".")[0] == _CALL:
                callee = record.named["callee"]
                is_import = bool(callee & IMPORT_BIT)
                found.append((record.offset, is_import, callee & ~IMPORT_BIT))
        return found

    def kinds(self, offset: int) -> dict[Register, str]:
        """Types of registers that are written in front of an offset, by order."""
        function = self.program.functions[self.ordinal]
        found: dict[Register, str] = {}
        for item, (_, register) in zip(function.cconv.arguments, function.argument_slots, strict=False):
            kind = _KINDS.get(str(item), "i32")
            found[kind == REF, register] = kind
        for record in self.records:
            if record.offset >= offset:
                break
            found.update(self._written(record, found))
        return found

    def _written(
        self, record: InstructionRecord, known: dict[Register, str]
    ) -> Iterator[tuple[Register, str]]:
        for operand, value in zip(record.instruction.operands, record.operands, strict=True):
            kind = operand.kind.rpartition(".")[2]
            if operand.kind == "remap":
                for source, target in value:
                    yield _register(target), known.get(_register(source), "i32")
            elif operand.output and operand.kind.startswith("r."):
                yield _register(value | REF_BIT if kind == REF else value), kind
            elif operand.output and operand.kind.startswith("list."):
                yield from zip(map(_register, value), self._results(record), strict=False)

    def _results(self, record: InstructionRecord) -> Iterable[str]:
        callee = record.named.get("callee", 0)
        if callee & IMPORT_BIT:
            cconv = self.module.imports[callee & ~IMPORT_BIT].cconv or ""
        else:
            cconv = self.module.functions[callee].cconv
        return [_KINDS.get(str(item), "i32") for item in parse(cconv).results]


def _register(value: int) -> Register:
    is_ref = bool(value & REF_BIT)
    return is_ref, value & REF_MASK if is_ref else value & ~MOVE_BIT


class Codes:
    """The code of all functions that a debugger has been asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], FunctionCode] = {}

    def find(self, module: ModuleTables, program: DecodedModule, ordinal: int) -> FunctionCode:
        """The code of a function, the same each time."""
        key = id(program), ordinal
        if key not in self._known:
            self._known[key] = FunctionCode(module, program, ordinal)
        return self._known[key]
