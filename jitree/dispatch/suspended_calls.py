"""Suspends an awaited call that has to wait, so that its thread is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitree.dispatch.engine import YIELD
from jitree.regs.layout import PATIENT, STATE_WORDS

if TYPE_CHECKING:
    from jitree.dispatch.engine import EngineEntry
    from jitree.dispatch.function import BytecodeFunction
    from jitree.dispatch.invocation import Call, Invoker
    from jitree.regs.machine import Machine


def go_on_promptly(
    invoker: Invoker, machine: Machine, entry: EngineEntry, function: BytecodeFunction
) -> Call | None:
    """As :meth:`Invoker.carry_on`, without waiting: the rest of the call if it has to wait for something, to
    whom the machine belongs until it ends."""
    call = None
    try:
        invoker.is_direct_going_on = True
        entry.go_on(machine)
        if machine.pending is None:
            invoker.end_call(None)
        else:
            call = _rest(invoker, function, machine)
            next(call)  # from here on it has an end even if nothing awaits it
    except BaseException:  # also before that, where its own end does not see to anything
        invoker.is_direct_going_on = False
        if call is not None:
            call.close()
        raise
    invoker.is_direct_going_on = call is not None
    return call


def _rest(invoker: Invoker, function: BytecodeFunction, machine: Machine) -> Call:
    try:
        yield YIELD
        yield from invoker.rest(machine)
        found = function.unpack(machine)
        invoker.require_faultless()
        return found
    except BaseException as error:
        invoker.explain(error, machine, function)
        raise
    finally:
        try:
            invoker.free_direct(machine)
        except BaseException:  # an interrupt
            invoker.free_direct(machine)
            raise
        finally:
            machine.state[STATE_WORDS.prompt] = PATIENT
            invoker.is_direct_going_on = False
