"""Finds the call, program location and Python line that submitted a dispatch.

They are read from the stack of the thread that submits, so that calls keep nothing of it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from jitree.base.folding import caller
from jitree.base.records import NamedTuple
from jitree.dispatch.backtrace import describe
from jitree.dispatch.invocation import Invoker
from jitree.dispatch.plain.calls import call_import
from jitree.hal.stepwise import looked_at

if TYPE_CHECKING:
    from types import CodeType, FrameType

    from jitree.hal.stepwise import Look

RUN: Final[CodeType] = Invoker._run.__code__
"""Code that is on the stack wherever a call goes on: a generator's frame is one for the whole call."""
_IMPORT: Final[CodeType] = call_import.__code__


class ObservedCall:
    """A call of a function of the session."""

    def __init__(self, number: int, function: str, arguments: tuple[Any, ...]) -> None:
        self.number = number
        """The number of the call, from 0, in the order in which calls first submit something."""
        self.function = function
        """``module.function`` as Python called it."""
        self.arguments = arguments
        """What the program got; only while the first of its submissions is looked at."""
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


_OBSERVED: Final = "observed"


class Origins:
    """Tells the calls of one session apart."""

    def __init__(self, invoker: Invoker) -> None:
        self._invoker = invoker
        self.count = 0
        """Calls so far."""

    def is_foreign(self) -> bool:
        """Whether this thread submits for another session."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not caller(frame):
            if frame.f_code is RUN:
                return frame.f_locals["self"] is not self._invoker
            frame = frame.f_back
        return False

    def find(self) -> CallOrigin | None:
        """The origin of what this thread is submitting; None if another session does it."""
        location, call_site, call = "", "", None
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not (call_site and call):
            code = frame.f_code
            if code is _IMPORT and not location:
                location = describe(*next(frame.f_locals["machine"].locations(frame.f_locals["pc"])))
            elif code is RUN and call is None and not call_site:
                if frame.f_locals["self"] is not self._invoker:
                    return None
                call = self._call(frame.f_locals)
            elif not call_site:
                call_site = caller(frame)
                if call_site and call is None:
                    break
            frame = frame.f_back
        return CallOrigin(call, location, call_site)

    def _call(self, variables: dict[str, Any]) -> ObservedCall:
        """Keeps what is known of a call as long as what begins the call."""
        start = variables["start"]
        found: dict[Origins, ObservedCall] = vars(start).setdefault(_OBSERVED, {})
        if self not in found:
            arguments = tuple(start.keywords.get("arguments", ()))
            found[self] = ObservedCall(self.count, variables["function"].full_name, arguments)
            self.count += 1
        return found[self]
