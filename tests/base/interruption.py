"""Ctrl-C at any step of an action."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dis import opname
from types import FrameType, GeneratorType
from typing import Any, Final

import jitree

PACKAGE: Final = os.path.dirname(jitree.__file__) + os.sep


class Interruption:
    """Raises KeyboardInterrupt once, as Ctrl-C may, at the place of that number: where a function of Python
    begins, or after a call of a function in C."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.left = place
        self.was_none = False
        """Whether the place is one for the profiler alone: a generator that is dropped is closed there, and
        runs no instruction at which Python looks for signals."""

    @property
    def came(self) -> bool:
        return self.left <= 0

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_return"):
            return
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    def during(self, action: Callable[[], object]) -> bool:
        """Whether the interrupt came out of the action."""
        # Kept until the end: `call_trace` of ceval.c borrows it, and in 3.11 makes a frame's object before it
        # turns tracing off. A collection there runs finalizers and hooks, which are looked at: after what
        # this raises in one of these, Python calls it again for the frame, where a traceback may lie by now.
        look = self._look
        # A function in C: what is raised in one of Python is dropped, such as an interrupt that comes there,
        # also one that an end has put off (`raised_later`).
        swallowed, hook = list[Any](), sys.unraisablehook
        sys.unraisablehook = swallowed.append
        try:
            sys.setprofile(look)
            try:
                action()
            finally:
                sys.setprofile(None)
        except KeyboardInterrupt:
            return True
        finally:
            sys.unraisablehook = hook
            while swallowed:
                self.was_none = self.was_none or isinstance(swallowed[0].object, GeneratorType)
                hook(swallowed.pop(0))
        return False


class Handler(Interruption):
    """Calls something at the place, as a signal's handler in Python may, and raises nothing."""

    def __init__(self, place: int, handle: Callable[[], object]) -> None:
        super().__init__(place)
        self._handle = handle

    def _look(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.left > 0 and frame.f_code.co_filename.startswith(PACKAGE):
            try:
                super()._look(frame, event, argument)
            except KeyboardInterrupt:
                self._handle()


class AtJump(Interruption):
    """As :class:`Interruption`, at a place where a loop of the package begins again."""

    _jump: tuple[FrameType, int] | None = None
    """The function and the place of the jump that is done next."""

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "call" and not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event != "opcode":
            return self._trace
        jump, self._jump = self._jump, None
        if jump is not None and jump[0] is frame and frame.f_lasti < jump[1]:
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        if "JUMP_BACKWARD" in opname[frame.f_code.co_code[frame.f_lasti]]:
            self._jump = frame, frame.f_lasti
        return self._trace

    def during(self, action: Callable[[], object]) -> bool:
        """As of :class:`Interruption`."""
        before, trace = sys.gettrace(), self._trace  # kept as above
        try:
            sys.settrace(trace)
            action()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


def interruptions(spread: int, kind: Callable[[int], Interruption] = Interruption) -> Iterator[Interruption]:
    """One for each place of an action that the caller has done by it, up to the first that does not come;
    later ones further apart, as ``spread`` says, 0 = all of them."""
    place = 0
    while True:
        place += 1 + (place // spread if spread else 0)
        interruption = kind(place)
        yield interruption
        if not interruption.came:
            return
