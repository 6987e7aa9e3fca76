"""Debugs calls of a session. A stepper in the place of its engine asks a front end how to go on."""

from __future__ import annotations

import abc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from jitree.base.events import CALL, CallEvent
from jitree.base.records import NamedTuple
from jitree.debug.breakpoints import DISPATCH, Breakpoints, DispatchBreakpoint
from jitree.debug.code import Codes
from jitree.debug.frames import Frame, Showing, frames_of
from jitree.debug.stepper import CONTINUE, STEP, Stepper, Stop, Way
from jitree.dispatch.plain.counting import CountingEngine
from jitree.errors import FailedPreconditionError, UnimplementedError
from jitree.observe.observation import Observation, Onlooker
from jitree.observe.tolerance import statistics as compute_statistics

if TYPE_CHECKING:
    from types import FrameType

    from jitree.observe.tensors import ObservedDispatch


class FrontEnd(abc.ABC):
    """What shows a stopped program and says how it goes on."""

    is_waiting = False
    """Whether it waits for an answer, which Ctrl-C ends."""

    @abc.abstractmethod
    def attach(self, debugger: Debugger) -> None:
        """Gets the debugger whose program it shows."""

    @abc.abstractmethod
    def ask(self, stopped: Stopped) -> Way:
        """How to go on."""

    @abc.abstractmethod
    def tell(self, text: str) -> None:
        """Shows a line."""


class Stopped(NamedTuple):
    """Shows a stopped program. It has its frames, and the dispatch that was done last if that is why."""

    stop: Stop
    frames: list[Frame]
    dispatch: ObservedDispatch | None = None

    def way(self, kind: str, place: int = 0) -> Way:
        """How to go on, of a kind; NEXT and FINISH are about a frame, by its place."""
        if not self.frames or kind in (STEP, CONTINUE):
            return Way(kind)
        return Way(kind, self.frames[place].machine, self.frames[place].place)


class Debugger(Onlooker):
    """The debugger of one session. Its calls stop while it is attached."""

    def __init__(self, session: Any, front: FrontEnd) -> None:
        """UNIMPLEMENTED for a session whose instructions are counted."""
        self.session, self.front = session, front
        self.invoker = session.context.invoker
        engine = self.invoker.engine
        if isinstance(engine, CountingEngine):
            raise UnimplementedError(
                "a session with a limit on instructions cannot be debugged: debug the module in one without"
            )
        self.codes, self.show = Codes(), Showing(session.device, session.context.table)
        self.breakpoints = Breakpoints(session, self.codes, self.show, self._look_at_dispatches)
        self.stepper = Stepper(engine, self.breakpoints, self._ask)
        self._engine = engine
        self._looking = ExitStack()
        self._is_looking = False

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Calls stop in a ``with`` block. Machine code makes none by itself meanwhile."""
        with self.invoker.lock:
            if isinstance(self.invoker.engine, Stepper):
                raise FailedPreconditionError("the session is being debugged already")
            self.session.leave_machine_code()
            self.invoker.engine = self.stepper
        try:
            with self._looking, self._interruptible():
                yield
        finally:
            self.invoker.engine = self._engine

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C stops the program at the next instruction; a second one, where none comes, ends it."""
        before = signal.getsignal(signal.SIGINT)
        if before is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(number: int, frame: FrameType | None) -> None:
            if self.stepper.is_interrupted or self.front.is_waiting:
                raise KeyboardInterrupt
            self.stepper.is_interrupted = True

        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _ask(self, stop: Stop) -> Way:
        assert stop.machine is not None
        return self.front.ask(Stopped(stop, frames_of(stop.machine, stop.pc, self.codes)))

    # -- dispatches --------------------------------------------------------------------------------------

    def _look_at_dispatches(self) -> None:
        """Has devices tell of dispatches from now on. UNIMPLEMENTED for those that cannot."""
        if self._is_looking:
            return
        self._looking.enter_context(self.session.looked_at(self))
        self._is_looking = True
        machine: Any = self.stepper.machine
        if machine is not None and machine.observed is None:  # its call has begun before
            event = CallEvent(CALL, machine.function.name, self._arguments(machine))
            event.machine = machine
            for reader in self.session.context.table.readers:
                if isinstance(reader, Observation):
                    reader.begins(event)

    def _arguments(self, machine: Any) -> list[object]:
        """References that the call got, by position, while it is at its first instruction."""
        *inner, frame = frames_of(machine, machine.pc, self.codes)
        if inner or frame.offset != min(frame.code.words):
            return []
        function = frame.code.program.functions[frame.code.ordinal]
        slots = zip(function.cconv.arguments, function.argument_slots, strict=False)
        return [frame.ref(number) if item == "r" else None for item, (_, number) in slots]

    def looks_at(self, dispatch: ObservedDispatch) -> None:
        reasons = list[str]()
        for item in [item for item in self.breakpoints.dispatches if item.matches(dispatch)]:
            before, reason = item.hits, item.hit_by(dispatch)
            if item.prints and item.hits > before:
                self.front.tell("\n".join(describe_dispatch(dispatch, statistics=True)))
            elif reason:
                reasons.append(reason)
        if reasons:
            self._stop_in(dispatch, ", ".join(reasons))

    def _stop_in(self, dispatch: ObservedDispatch, reason: str) -> None:
        machine = self.stepper.machine
        frames = frames_of(machine, machine.pc, self.codes) if machine is not None and machine.frame else []
        stop = Stop(machine, machine.pc if machine is not None and frames else 0, reason)
        self.stepper.stop(stop, lambda stop: self.front.ask(Stopped(stop, frames, dispatch)))

    def tap(self, pattern: str) -> DispatchBreakpoint:
        """Tells of dispatches as they are done, without a stop."""
        item = self.breakpoints.add(f"{DISPATCH} {pattern}")
        assert isinstance(item, DispatchBreakpoint)
        item.prints, item.text = True, item.text.replace(DISPATCH, "tap", 1)
        return item


def describe_dispatch(dispatch: ObservedDispatch, statistics: bool = False) -> list[str]:
    """Its name, and each tensor that it read or wrote."""
    grid = "x".join(map(str, dispatch.workgroups))
    lines = [f"{dispatch.label}" + (f", workgroups {grid}" if any(dispatch.workgroups) else "")]
    if dispatch.location and not statistics:
        lines.append(f"  submitted by {dispatch.location}")
    for name, tensors in (("input", dispatch.inputs), ("output", dispatch.outputs)):
        for number, tensor in enumerate(tensors):
            if not statistics:
                lines.append(f"  {name} {number}: {tensor.type} ({tensor.source})")
            elif name == "output":
                found = compute_statistics(tensor.pieces, tensor.shape, tensor.type)
                lines.append(f"  {name} {number}: {found}")
    return lines


def debug_call(session: Any, call: Callable[[], Any], front: FrontEnd) -> Any:
    """Makes a call with a front end; gives what the call gives."""
    debugger = Debugger(session, front)
    front.attach(debugger)
    with debugger.attached():
        return call()
