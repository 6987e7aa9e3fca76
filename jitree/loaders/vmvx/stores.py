"""Finds which bindings of a kernel it may store to.

Bits say it; all of them are set where the bytecode does not say it.

Compilers have kernels take their bindings in the first block, by constant numbers. What registers hold is
told by where references come from anywhere in the function, so this does not follow its ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from jitree.dispatch.native.reading import ReadBlock, ReadInstruction, read_blocks
from jitree.dispatch.native.source import ModuleSource, mnemonics
from jitree.dispatch.native.ssa import REF
from jitree.loaders.vmvx.kernels import CHANGE_LISTS, KEEPS
from jitree.vmfb.words import TAG_VALUE32, TAG_VALUE64

ALL: Final = -1
_NONE: Final = 0
_MOST: Final = 64
_OWN_MEMORY: Final = ("buffer.alloc", "buffer.clone", "const.ref.zero")
"""Instructions whose result is memory of the kernel, or none. Constants of its module are no bindings."""
_STORES: Final = ("buffer.store", "buffer.fill", "buffer.copy", "call")
"""Beginnings of mnemonics of what changes memory; that of any buffer among the operands, to be brief."""
_WIDE: Final = ("i64", "f64")
_NUMBERS: Final = ("const.i32", "const.i32.zero")
_LIST, _EITHER, _OTHER = range(3)
"""What the register of the bindings holds: their list as it was given, that is not known, something else."""
_LOCAL, _CONSTANTS, _BINDINGS = range(3)
"""References among the arguments of a kernel, in their order."""


def stored_bindings(source: ModuleSource, ordinal: int) -> int:
    """Gives a bit for each binding that a kernel may store to. The kernel is a function of the module."""
    function = source.functions[ordinal]
    references = [register for kind, register in function.arguments if kind == REF]
    list_register = references[_BINDINGS]
    held = dict.fromkeys((references[_LOCAL], references[_CONSTANTS], list_register), _NONE)
    keeps = not KEEPS.isdisjoint(mnemonics(source))
    changed = set[int]()
    for block, holds in _with_lists(read_blocks(source, function, ()), function.start, list_register):
        numbers: dict[int, int] = {}  # by slot
        for instruction in block.instructions:
            if instruction.mnemonic.startswith(_STORES):
                given = {variable.slot for variable in instruction.inputs if variable.type == REF}
                if list_register in given and holds != _OTHER:
                    return ALL
                changed |= given
            if keeps and instruction.mnemonic == "call.internal":  # which finds bindings in globals
                return ALL
            _hold(instruction, list_register if holds == _LIST else None, held, numbers)
            if list_register in _written(instruction):
                holds = _OTHER
    stored = _NONE
    for register in changed:
        stored |= held.get(register, ALL)
    return stored


def _with_lists(
    blocks: Mapping[int, ReadBlock], start: int, register: int
) -> Iterator[tuple[ReadBlock, int]]:
    """Blocks, and what the register of the bindings holds where they begin.

    Compilers use it again for something else in the first block, once they have taken all bindings.
    """
    instructions = [(pc, instruction) for pc, block in blocks.items() for instruction in block.instructions]
    changing = {pc for pc, instruction in instructions if register in _written(instruction)}
    is_start_only = sum(start in block.targets for block in blocks.values()) == 1
    first = _LIST if is_start_only or not changing else _EITHER
    if any(instruction.mnemonic.startswith(CHANGE_LISTS) for _, instruction in instructions):
        first = _EITHER
    later = _OTHER if start in changing else _EITHER if changing else first
    for pc, block in blocks.items():
        yield block, first if pc == start else later


def _written(instruction: ReadInstruction) -> set[int]:
    """Registers of references that an instruction writes."""
    written = {output.slot for output in instruction.outputs if output.type == REF}
    return written | _moved_to(instruction) if instruction.moves else written


def _moved_to(instruction: ReadInstruction) -> set[int]:
    """Registers to which a branch moves references."""
    return {move.destination for move in instruction.moves if move.tag not in (TAG_VALUE32, TAG_VALUE64)}


def _hold(
    instruction: ReadInstruction, bindings: int | None, held: dict[int, int], numbers: dict[int, int]
) -> None:
    """Adds an instruction's results to its registers and its block's numbers."""
    for output in instruction.outputs:
        if output.type == REF:
            held[output.slot] = held.get(output.slot, _NONE) | _taken(instruction, bindings, numbers)
        else:
            numbers.pop(output.slot, None)
            numbers.pop(output.slot + 1 if output.type in _WIDE else output.slot, None)
    if instruction.mnemonic in _NUMBERS:
        numbers[instruction.outputs[0].slot] = instruction.literals[0] if instruction.literals else 0
    if instruction.moves:
        held.update(dict.fromkeys(_moved_to(instruction), ALL))


def _taken(instruction: ReadInstruction, bindings: int | None, numbers: Mapping[int, int]) -> int:
    """What the result of an instruction may be."""
    if instruction.mnemonic in _OWN_MEMORY:
        return _NONE
    if instruction.mnemonic != "list.get.ref" or instruction.inputs[0].slot != bindings:
        return ALL
    number = numbers.get(instruction.inputs[1].slot, _MOST)
    return 1 << number if 0 <= number < _MOST - 1 else ALL
