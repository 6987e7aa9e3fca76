"""Modules that carry executables in several formats, and their choice among them.

Such a module asks its device which formats it takes, and executes ``br_table`` over the number of the first
one: where it creates an executable, and where it dispatches one of its functions, since numbers of
workgroups differ. All executables of a module share that number. This file finds the tables, and the
executable that each is about, so that two executables can take different formats: a table whose edges all
lead to one case is a choice.

A table is recognised by what it means, not by how it is written: the device's replies alone must decide on
its number, and nothing else in the module may depend on them. Modules that are made otherwise choose for
themselves.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final

from jitree.base.finalizers import SharedWeakKeys
from jitree.base.records import NamedTuple
from jitree.dispatch.native.build import Refusal, build
from jitree.dispatch.native.source import ModuleSource, from_program
from jitree.dispatch.native.ssa import (
    ARGUMENT,
    PHI,
    ZERO,
    Block,
    SsaFunction,
    SsaInstruction,
    Value,
    constant,
)
from jitree.dispatch.semantics import SEMANTICS
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.program import DecodedModule
from jitree.vmfb.schema import ModuleTables
from jitree.vmfb.words import signed

_QUERY: Final = "hal.device.query.i64"
_FORMATS: Final = b"hal.executable.format"
_CREATE: Final = "hal.executable.create"
_LOOKUP: Final = "hal.executable.lookup.function"
_DISPATCHES: Final = ("hal.command_buffer.dispatch", "hal.command_buffer.dispatch.indirect")
_IMPORT, _TABLE, _STORE_REF = "call.import", "br_table", "global.store.ref"
_CONSTANTS: Final = ("const.i32", "const.i64")
_ZEROS: Final = ("const.i32.zero", "const.i64.zero", ZERO)
_MOST_STEPS: Final = 64
"""Operations between a reply of the device and the number of a table."""


class Switch(NamedTuple):
    """A table over the formats."""

    word: int
    """The place of its opcode's word in the program."""
    cases: tuple[int, ...]
    """The case of each format."""


class Alternatives(NamedTuple):
    """Lists an executable's formats in a module. Of executables that share their format, as one is always
    dispatched with another by one table, it lists those of all."""

    functions: frozenset[str]
    """Those of the functions that the module looks up."""
    switches: tuple[Switch, ...]


class Variants(NamedTuple):
    """What a module offers."""

    formats: tuple[str, ...]
    """The formats, in the order in which the module prefers them."""
    executables: tuple[Alternatives, ...]


def find_variants(module: BytecodeModule) -> Variants | None:
    """The executables that a module has in several formats; None if it has none, or does not choose by
    tables."""
    if not {_QUERY, _CREATE} <= {item.full_name for item in module.imports}:
        return None
    source = from_program(module.program)
    try:
        functions = [build(source, function.ordinal) for function in source.functions]
    except Refusal:
        return None
    return _Search(module.module, functions).run()


def with_formats(module: BytecodeModule, variants: Variants, formats: Sequence[str]) -> BytecodeModule:
    """Returns the module with executable formats in ``variants.executables``' order."""
    words = module.program.words.copy()
    for executable, wanted in zip(variants.executables, formats, strict=True):
        number = variants.formats.index(wanted)
        for switch in executable.switches:
            count = words[switch.word + 3]
            displacement = words[switch.word + 4 + switch.cases[number]]
            words[switch.word + 2] = displacement
            words[switch.word + 4 : switch.word + 4 + count] = displacement
    return BytecodeModule(module.module, module.program.with_words(words))


class _Unknown(Exception):
    """A module that depends on the replies in another way."""


class _FormatTable(NamedTuple):
    """A table, and the globals of the executables that it is about."""

    switch: Switch
    places: frozenset[int]


class _Search:
    def __init__(self, module: ModuleTables, functions: Sequence[SsaFunction]) -> None:
        self._module = module
        self._functions = functions
        self._replies: dict[Value, tuple[str, bool]] = {}
        """By result of a query: its format, and whether it is the value (or whether there is one)."""
        self._stored: dict[int, list[Value]] = {}
        """Values that the program stores in a global, by the global's place."""
        self._known: dict[tuple[Value, str], int | None] = {}
        for instruction in self._instructions():
            if self._called(instruction) == _QUERY and self._text(instruction.operands[1]) == _FORMATS:
                wanted = (self._text(instruction.operands[2]) or b"").decode(errors="backslashreplace")
                self._replies[instruction.results[0]] = wanted, False
                self._replies[instruction.results[1]] = wanted, True
            elif instruction.mnemonic == "global.store.i32":
                self._stored.setdefault(instruction.literals[0], []).append(instruction.operands[0])
        self._formats = sorted({wanted for wanted, _ in self._replies.values()} - {""})

    def run(self) -> Variants | None:
        if len(self._formats) < 2:
            return None
        try:
            return self._variants()
        except _Unknown:
            return None

    def _variants(self) -> Variants | None:
        tables: list[_FormatTable] = []
        covered: set[int] = set()
        for function in self._functions:
            for block in function.blocks:
                cases = self._cases(block)
                if cases is not None:
                    calls = [self._calls(block.successors[1 + case]) for case in cases]
                    covered.update(call.pc for found in calls for call in found)
                    switch = Switch(block.terminator.pc, cases)
                    tables.append(_FormatTable(switch, self._places(function, calls)))
        groups = _groups([table.places for table in tables])
        words = {table.switch.word for table in tables}
        self._require_nothing_else(words, covered, {place for group in groups for place in group})
        if not tables:
            return None
        order = sorted(range(len(self._formats)), key=lambda number: tables[0].switch.cases[number])
        names = self._looked_up()
        return Variants(
            tuple(self._formats[number] for number in order),
            tuple(
                Alternatives(
                    frozenset(name for place in group for name in names.get(place, ())),
                    tuple(
                        Switch(word, tuple(cases[number] for number in order))
                        for (word, cases), places in tables
                        if places <= group
                    ),
                )
                for group in groups
            ),
        )

    # -- what is known -----------------------------------------------------------------------------------

    def _cases(self, block: Block) -> tuple[int, ...] | None:
        """The case of a block's table by format; None if it has no table that depends on the formats."""
        terminator = block.terminator
        if terminator.mnemonic != _TABLE:
            return None
        numbers = [self._value(terminator.operands[0], wanted) for wanted in self._formats]
        known = tuple(number for number in numbers if number is not None)
        if not self._depends(terminator.operands[0]):
            return None
        count = len(block.successors) - 1
        if len(known) != len(numbers) or not all(0 <= number < count for number in known):
            raise _Unknown
        return known

    def _depends(self, value: Value) -> bool:
        return len({self._value(value, wanted) for wanted in self._formats}) > 1

    def _value(self, value: Value, wanted: str) -> int | None:
        """What a value is where a device takes one format and no other; None if the replies do not say."""
        place = value, wanted
        if place not in self._known:
            self._known[place] = None  # of a value that depends on itself
            self._known[place] = self._computed(value, wanted)
        return self._known[place]

    def _computed(self, value: Value, wanted: str) -> int | None:
        if value in self._replies:
            asked, is_value = self._replies[value]
            return int(asked == wanted) if is_value else 1
        if value.operation in _ZEROS:
            return 0
        if value.operation in _CONSTANTS:
            return signed(value.literals[0], 32 if value.type == "i32" else 64)
        if value.operation == "global.load.i32":
            stored = self._stored.get(value.literals[0], [])
            return self._value(stored[0], wanted) if len(stored) == 1 else None
        semantic = SEMANTICS.get(value.operation)
        if semantic is None or value.type not in ("i32", "i64") or semantic.refusal is not None:
            return None
        operands = [self._value(operand, wanted) for operand in value.operands]
        known = [operand for operand in operands if operand is not None]
        return int(semantic.function(*known)) if len(known) == len(operands) else None

    def _require_nothing_else(self, tables: set[int], covered: set[int], places: Container[int]) -> None:
        """Requires that only tables, before all dispatches, depend on replies."""
        for instruction in self._instructions():
            if instruction.mnemonic == "global.store.i32" or instruction.pc in tables:
                continue
            known = [self._value(result, self._formats[0]) is not None for result in instruction.results]
            if not (known and all(known)) and any([self._depends(each) for each in instruction.operands]):
                raise _Unknown
            if self._called(instruction) not in _DISPATCHES or instruction.pc in covered:
                continue
            place = self._place(instruction.operands[1])
            if place is None or place in places:
                raise _Unknown

    # -- what tables are about ---------------------------------------------------------------------------

    def _calls(self, block: Block) -> list[SsaInstruction]:
        """Lists first executable calls that a block reaches without a condition."""
        for _ in range(_MOST_STEPS):
            found = [each for each in block.instructions if self._called(each) in (_CREATE, *_DISPATCHES)]
            if found or len(block.successors) != 1:
                return found
            (block,) = block.successors
        return []

    def _places(self, function: SsaFunction, calls: Sequence[Sequence[SsaInstruction]]) -> frozenset[int]:
        """Lists globals of the executables that all cases use."""
        names = {self._called(call) for found in calls for call in found}
        if names == {_CREATE} and all(len(found) == 1 for found in calls):
            created = {found[0].results[0] for found in calls}
            places: list[set[int | None]] = [{
                instruction.literals[0]
                for block in function.blocks
                for instruction in block.instructions
                if instruction.mnemonic == _STORE_REF and created <= _sources(instruction.operands[0])
            }]  # fmt: skip
            if len(places[0]) != 1:
                raise _Unknown
        else:
            if not names <= set(_DISPATCHES):
                raise _Unknown
            places = [{self._place(call.operands[1]) for call in found} for found in calls]
        if any(one != places[0] for one in places) or not places[0] or None in places[0]:
            raise _Unknown
        return frozenset(place for place in places[0] if place is not None)

    def _looked_up(self) -> dict[int, set[str]]:
        """The names of an executable's functions, by the global that has it."""
        found: dict[int, set[str]] = {}
        for instruction in self._instructions():
            if self._called(instruction) == _LOOKUP:
                place = self._place(instruction.operands[0])
                name = self._text(instruction.operands[1])
                if place is not None and name is not None:
                    found.setdefault(place, set()).add(name.decode(errors="backslashreplace"))
        return found

    @staticmethod
    def _place(executable: Value) -> int | None:
        return executable.literals[0] if executable.operation == "global.load.ref" else None

    # -- instructions ------------------------------------------------------------------------------------

    def _instructions(self) -> Iterator[SsaInstruction]:
        for function in self._functions:
            for block in function.blocks:
                yield from block.instructions

    def _called(self, instruction: SsaInstruction) -> str | None:
        """The name of the import that an instruction calls."""
        if instruction.mnemonic != _IMPORT:
            return None
        return self._module.imports[instruction.literals[1]].full_name

    def _text(self, value: Value) -> bytes | None:
        """The bytes of a constant."""
        if value.operation != "const.ref.rodata":
            return None
        return bytes(self._module.rodata[value.literals[0]].data)


def _groups(sets: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """The members of sets; those that share one are together."""
    groups: list[frozenset[int]] = []
    for one in sets:
        apart = [group for group in groups if not group & one]
        groups = [*apart, one.union(*(group for group in groups if group & one))]
    return sorted(groups, key=min)


def _sources(value: Value) -> set[Value]:
    """The values that one may be, through the parameters of blocks."""
    found: set[Value] = set()
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += value.operands if value.operation == PHI else ()
    return found


_ASSERT: Final = "hal.buffer_view.assert"
_asking: Final[SharedWeakKeys[DecodedModule, ModuleSource]] = SharedWeakKeys()
"""Programs that were asked: some for each of their functions."""
_FIRST_SIZE: Final = 4
"""Argument of the assertion, after the view, a name, element type and encoding."""


class AssertedTensor(NamedTuple):
    """An argument."""

    element_type: int
    shape: tuple[int | None, ...]
    """None: any size."""


def asserted_tensors(module: BytecodeModule, ordinal: int) -> dict[int, AssertedTensor]:
    """The tensors that an internal function asserts, by position of the argument; those of which it asserts
    nothing are left out."""
    try:
        source = _asking.get(module.program)
        if source is None:
            source = _asking[module.program] = from_program(module.program)
        function = build(source, ordinal)
    except Refusal:
        return {}
    found: dict[int, AssertedTensor] = {}
    for block in function.blocks:
        for instruction in block.instructions:
            if instruction.mnemonic != "call.import":
                continue
            view, *facts = instruction.operands or (None,)
            if module.imports[instruction.literals[1]].full_name != _ASSERT or view is None:
                continue
            element_type = _number(facts[1])
            if view.operation == ARGUMENT and element_type is not None:
                sizes = tuple([_number(fact) for fact in facts[_FIRST_SIZE - 1 :]])
                found[view.literals[0]] = AssertedTensor(element_type, sizes)
    return found


def _number(value: Value) -> int | None:
    text = constant(value)
    return None if text is None else int(text)
