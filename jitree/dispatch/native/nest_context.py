"""Describes the function around a rewritten loop nest.

It is what the nest has to know of it.
"""

from __future__ import annotations

from typing import Protocol

from jitree.base.records import NamedTuple
from jitree.dispatch.native import rows
from jitree.dispatch.native.counting import on_pointers
from jitree.dispatch.native.emitter import Emitter
from jitree.dispatch.native.prelude import BYTES
from jitree.dispatch.native.ssa import Block, SsaFunction, SsaLoop, Value, operand
from jitree.dispatch.semantics import SEMANTICS


class NestBuffer(NamedTuple):
    """A reference as a buffer: LLVM operands."""

    address: str
    length: str
    """Bytes (i64); 0 for null and what is no ``vm.buffer``."""
    room: str
    """Bytes that may be written."""


class NestContext:
    """Made for one nest, whose first block is under construction."""

    def __init__(self, emitter: Emitter, loop: SsaLoop, deopt: str, exit: str) -> None:
        self._emitter = emitter
        self._math: dict[str, str] = {}
        self._stopped = ""
        self.deopt = deopt
        """Label to go to when nothing of the nest has happened and the interpreter is to run it."""
        self.exit = exit
        """Label after the nest."""
        self.done = done_label(loop.header)
        """Label of the nest's last block, which branches to ``exit``."""
        self.prefix = f"n{loop.header.pc}."
        """What all local names of the nest begin with."""
        self.access = BYTES
        """Suffix of loads and stores of buffer bytes."""
        self.live_outs = list(loop.header.parameters)
        """Values that the nest has to define under their names."""

        self.declare = emitter.module.declare
        self.define = emitter.module.define
        self.metadata = emitter.module.metadata

    def value(self, value: Value) -> str:
        """A value that is defined outside."""
        return operand(value)

    def buffer(self, value: Value) -> NestBuffer:
        """A reference from outside whose elements are read or written."""
        return NestBuffer(*(self._emitter.buffer(value, extent) for extent in ("address", "length", "room")))

    def packed(self, first: str, depth: int, blocks: int) -> str:
        """How far copies of constants are from them, 0: there is none (``packed.py``)."""
        self.define(rows.function(self.declare, "packed"))
        self.define(on_pointers("packed"))
        return f"call fastcc i64 @vm.packed(ptr %state, ptr {first}, i64 {depth}, i64 {blocks})"

    def stopped(self) -> str:
        """Label to go to in the middle of the nest when the call is to end, and nothing goes on."""
        if not self._stopped:
            self._stopped = self._emitter.fresh("stopped")
            with self._emitter.aside(self._stopped):
                self._emitter.set_fuel("0")
                self._emitter.jump(self.deopt)
        return self._stopped

    def math(self, mnemonic: str) -> str:
        """The address of the C function that an instruction is."""
        name = SEMANTICS[mnemonic].math_function
        assert name is not None
        if name not in self._math:
            self._math[name] = self._emitter.math(name)
        return self._math[name]


def done_label(header: Block) -> str:
    return f"n{header.pc}.done"


def nest_label(header: Block) -> str:
    """The label of the block that every edge from outside into a nest leads to."""
    return f"nest{header.pc}"


def leaves_nothing_else(function: SsaFunction, loop: SsaLoop) -> bool:
    """Whether the frame after a nest needs none of its values but the parameters of its header."""
    for block in function.blocks:
        if block in loop.blocks:
            continue
        for value in block.entry.values():
            if value.block in loop.blocks and value not in loop.header.parameters:
                return False
    return True


class WrittenAnew(Protocol):
    """A nest (:class:`jitree.dispatch.native.nests.Nest`)."""

    @property
    def loop(self) -> SsaLoop: ...
    def emit(self, context: NestContext) -> str: ...


def emit_nest(emitter: Emitter, nest: WrittenAnew) -> None:
    """Writes a nest in place of its loops."""
    emitter.raw(nest.emit(nest_context(emitter, nest.loop)))


def nest_context(emitter: Emitter, loop: SsaLoop, deopt: str = "") -> NestContext:
    """Begins the block in which a nest is to be written. ``deopt``: where that goes when it cannot run;
    absent: the interpreter goes on at its header."""
    header = loop.header
    emitter.label(nest_label(header))
    initial = _parameters(emitter, loop)
    if not deopt:
        registers = {variable: initial.get(value, value) for variable, value in header.entry.items()}
        deopt = emitter.fresh("unfit")
        emitter.side_exit_block(deopt, header.instructions[0], registers, emitter.fuel_left)
    ((source, target),) = {(header, target) for _, target in loop.exits}
    exit_label = emitter.edge_from(source, target, done_label(header))
    return NestContext(emitter, loop, deopt, exit_label)


def _parameters(emitter: Emitter, loop: SsaLoop) -> dict[Value, Value]:
    """The header's parameters as they come from outside: new values where there are several ways in."""
    header = loop.header
    outside = [number for number, source in enumerate(header.predecessors) if source not in loop.blocks]
    found: dict[Value, Value] = {}
    for parameter in header.parameters:
        values = [parameter.operands[number] for number in outside]
        if len(values) == 1:
            found[parameter] = values[0]
            continue
        joined = Value(emitter.new_number(), parameter.type, "phi", values, (), header.pc, header)
        emitter.join(joined, header, outside)
        found[parameter] = joined
    return found
