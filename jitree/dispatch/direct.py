"""Direct calls: the caller writes the argument registers of the host's frame, enters machine code by itself
and reads the result registers.

Nothing generic runs on the way, so a call costs what its own arguments cost. Direct calls of a context share
one machine. They are possible while nothing else of the context runs (``Invoker.ready``) and the engine has
machine code; otherwise callers use :meth:`Invoker.invoke`, which does the same step by step.

A caller does this, with the lock of the invoker held::

    machine = invoker.ready             # None: no direct call now; give the lock up
    try:
        invoker.ready, invoker.nesting = None, 1
        if machine.host is not frame.host:
            machine.show_host(frame.host, frame.frame_words)
        …                               # arguments into frame.i32, i64, f32, f64, refs
        if not frame.sets_state:
            state[STATE_ENTRY] = frame.state_words
        machine.pc = RUNNING
        if frame.run():
            invoker.carry_on(machine, entry)
        …                               # results out of the same registers; refs that are taken become 0
        if state[RELEASED]:
            machine.table.drain(state)
        if invoker.shortcomings:
            invoker.require_faultless()
        invoker.nesting, invoker.ready = 0, machine
    except BaseException as error:
        invoker.abandon(error, machine, function)
        raise
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from jitree.dispatch.builtin_entry import builtin_entry
from jitree.regs.layout import STATE
from jitree.regs.machine import STATE_ENTRY

if TYPE_CHECKING:
    from jitree.dispatch.engine import Entry
    from jitree.dispatch.function import BytecodeFunction
    from jitree.dispatch.invocation import Invoker

RUNNING: Final = -1
"""As ``machine.pc``: machine code has the machine, STATE says where it is."""
RELEASED: Final = STATE.word("released")

__all__ = ["RELEASED", "RUNNING", "STATE_ENTRY", "DirectFrame"]


class DirectFrame:
    """The host's frame of one function on the machine of direct calls."""

    __slots__ = (
        "entry", "f32", "f64", "frame_words", "host", "i32", "i64", "machine", "refs", "run", "sets_state",
        "state", "state_words",
    )  # fmt: skip

    def __init__(self, function: BytecodeFunction, invoker: Invoker, entry: Entry) -> None:
        """The lock must be held, and the machine must be ready or new."""
        machine = invoker.direct_machine(entry)
        self.entry = entry
        self.machine = machine
        self.host = function.host
        self.state = machine.state
        self.frame_words, self.state_words = machine.host_words(function.host)
        target = ctypes.cast(entry.run, ctypes.c_void_p).value or 0  # type: ignore[arg-type]  # a C function
        presets = {8 * (STATE_ENTRY.start + place): word for place, word in enumerate(self.state_words)}
        run = builtin_entry(target, machine.state_address, presets)
        self.sets_state = run is not None
        """Whether ``run`` writes ``state_words`` itself."""
        self.run: Callable[[], int] = run or partial(entry.run, machine.state_address)
        self.i32, self.i64, self.f32, self.f64 = machine.i32, machine.i64, machine.f32, machine.f64
        self.refs = machine.refs
