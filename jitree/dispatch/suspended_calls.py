"""Suspends awaited calls while they wait, and goes on with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from jitree.base.cancel_scopes import LOOK_SECONDS, Scope
from jitree.base.finalizers import with_lock
from jitree.dispatch.engine import YIELD, happened
from jitree.dispatch.session_lock import Shortcomings
from jitree.errors import is_return
from jitree.regs.layout import PATIENT, STATE_WORDS

if TYPE_CHECKING:
    from jitree.dispatch.engine import EngineEntry
    from jitree.dispatch.function import BytecodeFunction
    from jitree.dispatch.invocation import Call, Invoker
    from jitree.regs.machine import Awaited, Machine


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
        with invoker.turn_of(function):
            yield YIELD
            yield from invoker.rest(machine, function)
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


async def drive(invoker: Invoker, call: Call, begun: int, submitted: dict[Any, None]) -> list[Any]:
    """Makes a call and awaits whatever it waits for. It began with those cancellations and has submitted
    that so far."""
    try:
        shortcomings = Shortcomings()
        step: Callable[[], Awaited] = partial(next, call)
        while True:
            try:
                pending = invoker.take_step(call, step, shortcomings, begun, submitted)
            except BaseException as end:
                if not is_return(end):
                    raise
                if shortcomings.count:  # of a call inside another, on whose thread the event loop runs
                    raise shortcomings.take() from None
                results: list[Any] = end.value
                return results
            try:
                step = partial(next, call)
                if pending is YIELD:
                    await happened(pending)
                else:
                    await _happened(invoker, pending, begun)
            except BaseException as error:
                step = partial(call.throw, error)
    except BaseException as error:
        end_call(invoker, call, error)
        invoker.submissions.give_up(submitted, error)
        raise


def end_call(invoker: Invoker, call: Call, error: BaseException) -> None:
    """Ends a call that an error has left between its steps, with the lock.

    At once: what is dropped later may be dropped by another thread. The garbage collector, which closes
    coroutines, waits for no lock."""

    def end() -> None:
        call.close()
        invoker.settle()

    with_lock(invoker.lock, end, 0.0 if isinstance(error, GeneratorExit) else LOOK_SECONDS)


async def _happened(invoker: Invoker, pending: Awaited, begun: int) -> None:
    with Scope() as scope:
        try:
            await invoker.is_ended_by(scope, begun).watched(happened(pending))
        finally:
            invoker.waiting.pop(scope, None)
