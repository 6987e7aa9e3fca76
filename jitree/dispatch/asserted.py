"""What a function asserts of the tensors that it takes, where its compiler declares no types."""

from __future__ import annotations

from typing import Final

from jitree.base.records import NamedTuple
from jitree.dispatch.bytecode_module import BytecodeModule
from jitree.dispatch.native.build import Refusal, build
from jitree.dispatch.native.source import from_program
from jitree.dispatch.native.ssa import ARGUMENT, Value, constant

_ASSERT: Final = "hal.buffer_view.assert"
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
        function = build(from_program(module.program), ordinal)
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
