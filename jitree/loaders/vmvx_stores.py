"""Finds which bindings of a kernel it may store to: bits, all of them where the bytecode does not say it.

Compilers have kernels take their bindings in the first block, by constant numbers. What registers hold is
told by where references come from anywhere in the function, so this does not follow its ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jitree.dispatch.native.reading import ReadBlock, ReadInstruction, read_blocks
from jitree.dispatch.native.source import ModuleSource
from jitree.dispatch.native.ssa import REF, Variable
from jitree.vmfb.words import TAG_VALUE32, TAG_VALUE64

ALL: Final = -1
_NONE: Final = 0
_MOST: Final = 64
_OWN_MEMORY: Final = ("buffer.alloc", "buffer.clone", "const.ref.zero")
"""Instructions whose result is memory of the kernel, or none. Constants of its module are no bindings."""
_STORES: Final = ("buffer.store", "buffer.fill", "buffer.copy", "call")
"""Beginnings of mnemonics of what changes memory; that of any buffer among the operands, to be brief."""
_NUMBERS: Final = ("const.i32", "const.i32.zero")
_LOCAL, _CONSTANTS, _BINDINGS = range(3)
"""References among the arguments of a kernel, in their order."""


def stored_bindings(source: ModuleSource, ordinal: int) -> int:
    """A bit for each binding that the kernel, a function of the module, may store to."""
    function = source.functions[ordinal]
    references = [register for kind, register in function.arguments if kind == REF]
    held = {references[_LOCAL]: _NONE, references[_CONSTANTS]: _NONE, references[_BINDINGS]: _NONE}
    blocks = read_blocks(source, function, ()).values()
    for block in blocks:
        _hold(block, references[_BINDINGS], held)
    stored = _NONE
    for instruction in _all_of(blocks):
        if instruction.mnemonic.startswith(_STORES):
            for variable in instruction.inputs:
                if variable.type == REF:
                    stored |= held.get(variable.slot, ALL)
    return stored


def _hold(block: ReadBlock, bindings: int, held: dict[int, int]) -> None:
    """Adds what the instructions of a block put into registers to what these may hold."""
    numbers: dict[Variable, int] = {}
    for instruction in block.instructions:
        for output in instruction.outputs:
            numbers.pop(output, None)
            if output.type == REF:
                held[output.slot] = held.get(output.slot, _NONE) | _taken(instruction, bindings, numbers)
        if instruction.mnemonic in _NUMBERS:
            numbers[instruction.outputs[0]] = instruction.literals[0] if instruction.literals else 0
        held.update(
            (move.destination, ALL)
            for move in instruction.moves
            if move.tag not in (TAG_VALUE32, TAG_VALUE64)
        )


def _taken(instruction: ReadInstruction, bindings: int, numbers: dict[Variable, int]) -> int:
    """What the result of an instruction may be."""
    if instruction.mnemonic in _OWN_MEMORY:
        return _NONE
    if instruction.mnemonic != "list.get.ref" or instruction.inputs[0].slot != bindings:
        return ALL
    number = numbers.get(instruction.inputs[1], _MOST)
    return 1 << number if 0 <= number < _MOST - 1 else ALL


def _all_of(blocks: Iterable[ReadBlock]) -> Iterable[ReadInstruction]:
    return (instruction for block in blocks for instruction in block.instructions)
