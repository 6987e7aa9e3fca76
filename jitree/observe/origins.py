"""Finds the call, program location and Python line that submitted a dispatch.

Machines have the calls; the rest is read from the stack of the thread that submits.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from jitree.base.events import Handle
from jitree.base.records import NamedTuple
from jitree.codegen.record import words_of
from jitree.dispatch.backtrace import asking, describe
from jitree.hal.buffer import BufferView
from jitree.hal.stepwise import looked_at
from jitree.observe.export_names import TensorKind, kind_and_length
from jitree.regs.layout import Entry

if TYPE_CHECKING:
    from jitree.base.events import Place
    from jitree.hal.stepwise import Extent, Look
    from jitree.regs.handles import HandleTable
    from jitree.regs.machine import Machine

Argument = float | tuple["Extent", TensorKind]
"""A number, or a tensor and where it lies."""

_ENTRY: Final = words_of(Entry)
_OPERANDS: Final = 6
"""Words of an import call before those of its operands."""


class ObservedCall:
    """A call of a function of the session."""

    def __init__(self, function: str, arguments: dict[int, Argument]) -> None:
        self.number = -1
        """The number of the call, from 0, in the order in which calls first submit something; -1: not yet."""
        self.function = function
        """``module.function`` as Python called it."""
        self.arguments = arguments
        """What the program got, tensors and numbers by position; until its first submission is looked at."""
        self.look: Look = looked_at
        """Looks at the memory."""
        self.dispatches = 0
        """Submitted so far."""


class CallOrigin(NamedTuple):
    """Where a submission comes from."""

    call: ObservedCall | None
    """None for what Python submits by itself, without a program."""
    location: str
    """The function of the program that submits, and its source where the module says it."""
    call_site: str
    """The line of Python that called: ``model.py:12 in main``; empty on a thread whose function is ours."""


class Origins:
    """Tells the calls of one session apart."""

    def __init__(self, table: HandleTable) -> None:
        self._table = table
        self._machines: Any = table.machines
        self.count = 0
        """Calls so far."""
        self._view = table.ref_types.lookup("hal.buffer_view")
        self._found: dict[int, ref[Machine]] = {}
        """Machines by the addresses of their state."""

    def forget(self) -> None:
        """Nothing is known of calls that have begun."""
        for machine in self._machines:
            machine.observed = None

    def begin(self, event: Any) -> None:
        """A call begins: its machine has what is known of it."""
        known: dict[int, Argument] = {}
        registers = getattr(event, "registers", None)
        for place, value in enumerate(event.arguments if registers is None else registers):
            if type(value) is Handle:
                value = self._seen(value)
            elif isinstance(value, BufferView):
                kind, length = kind_and_length(value.element_type, value.shape)
                value = (value.buffer.address, length), kind
            if type(value) in (float, tuple):
                known[place] = value
        event.machine.observed = ObservedCall(event.name, known)

    def _seen(self, handle: int) -> Argument | None:
        """A buffer view in a register, as its entry has it."""
        table = self._table
        word = (handle - table.base) >> 3
        if not handle or table.i32[2 * word + _ENTRY.kind] != self._view:
            return None
        shape = word + (table.extension >> 3)
        sizes = tuple(table.i64[shape : shape + table.i32[2 * word + _ENTRY.rank]])
        kind, length = kind_and_length(table.i32[2 * word + _ENTRY.element_type], sizes)
        return (table.i64[word + _ENTRY.address], length), kind

    def is_foreign(self, place: Place | None) -> bool:
        """Whether a program of another session does what is told."""
        if place is not None:
            return self._machine(place) is None
        machine = asking(sys._getframe(1))[0]
        return machine is not None and machine.table is not self._table

    def find(self, place: Place | None) -> CallOrigin | None:
        """Finds the origin of what this thread is submitting.

        None if another session does it."""
        machine, word, call_site = asking(sys._getframe(1))
        if place is not None:
            machine = self._machine(place)
            if machine is None:
                return None
            location = _location(machine, place[1])
        elif machine is not None and machine.table is not self._table:
            return None
        else:
            location = "" if machine is None else describe(*next(machine.locations(word)))
        call = None if machine is None else machine.observed
        if call is not None and call.number < 0:
            call.number = self.count
            self.count += 1
        return CallOrigin(call, location, call_site)

    def _machine(self, place: Place) -> Machine | None:
        """The machine of the session that machine code runs on; None for one of another session."""
        address = place[0]
        known = self._found.get(address)
        machine = None if known is None else known()
        if machine is None or machine.state_address != address:
            machine = next((each for each in self._machines if each.state_address == address), None)
            if machine is not None:
                self._found[address] = ref(machine)
        return machine


def _location(machine: Machine, operands: int) -> str:
    """The place in a program of the import call with these operands."""
    for module in machine.functions.modules:
        word = (operands - module.code_address >> 2) - _OPERANDS
        if 0 <= word < len(module.program.words):
            known = module.places.get(word)
            return known or describe(module.function(module.program.location(word)[0]), word)
    return ""
