"""Makes spans of OpenTelemetry of calls and dispatches, where its API is installed.

A session made in a process that has loaded the SDK traces its calls by itself: ``JITREE_TELEMETRY`` says
``calls`` (the default there), ``dispatches`` too, or ``off``. Nothing is imported, and nothing costs time,
in a process without it. Spans of dispatches take single steps, as taps do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from jitree.base.arguments import shown
from jitree.base.events import EventReader, listen, stop_listening
from jitree.base.finalizers import Unique
from jitree.errors import InvalidArgumentError, UnavailableError, UnimplementedError, pass_interruption

if TYPE_CHECKING:
    from jitree.hal.device import Device

SDK: Final = "opentelemetry.sdk.trace"
VARIABLE: Final = "JITREE_TELEMETRY"
CALLS: Final = "calls"
DISPATCHES: Final = "dispatches"
OFF: Final = "off"
_NAME: Final = "jitree"


class Spans(EventReader):
    """Makes spans of calls of functions, or of dispatches and transfers of a device. Spans
    that begin in a call are of its, on an event loop by task. Machine code goes on making the calls."""

    needs_python = False
    reads_awaited = True

    def __init__(self, tracer: Any, device: str) -> None:
        self._tracer = tracer
        self._attributes = {"jitree.device": device}
        self._open: dict[int, tuple[Any, Any]] = {}

    def submitted(self, work: Any) -> EventReader:
        return self

    def begins(self, event: Any) -> None:
        from opentelemetry import context, trace

        span = self._tracer.start_span(event.name or event.kind, attributes=self._attributes)
        self._open[id(event)] = span, context.attach(trace.set_span_in_context(span))

    def ends(self, event: Any) -> None:
        from opentelemetry import context

        span, token = self._open.pop(id(event), (None, None))
        if span is None:
            return
        context.detach(token)
        if getattr(event, "fence", None) is not None:  # the device ends it
            event.fence.on_reached(partial(_end, span))
        else:
            _end(span, getattr(event, "failed", False) and str(sys.exc_info()[1] or ""))


def _end(span: Any, failure: object) -> None:
    """``failure``: what the call has failed with; None or False for one that has not."""
    from opentelemetry import trace

    if failure is not None and failure is not False:
        span.set_status(trace.Status(trace.StatusCode.ERROR, str(failure)))
    span.end()


class Telemetry(Unique):
    """Traces a session until :meth:`stop`, or the end of a ``with`` block."""

    def __init__(self, devices: Sequence[Device], functions: Sequence[Any], dispatches: bool) -> None:
        """Begins. UNAVAILABLE without OpenTelemetry's API, UNIMPLEMENTED for dispatches of devices that do
        not tell of them."""
        tracer = _tracer()
        self._calls = Spans(tracer, ", ".join(device.uri for device in devices))
        self._listening: list[tuple[Any, EventReader]] = []
        for device in devices if dispatches else ():
            if not device.is_observable:
                raise UnimplementedError(f"telemetry: {device.uri} tells nothing of single dispatches")
            self._listen(device, Spans(tracer, device.uri))
        for function in functions:
            self.watch(function)

    def watch(self, function: Any) -> None:
        """A function of the session that has been looked up."""
        self._listen(function, self._calls)

    def _listen(self, source: Any, reader: EventReader) -> None:
        self._listening.append((source, reader))  # first: an interrupt of the next line leaves nothing
        listen(source, reader)

    def stop(self) -> None:
        while self._listening:
            stop_listening(*self._listening[-1])
            self._listening.pop()

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def _tracer() -> Any:
    try:
        from opentelemetry import trace
    except ImportError as error:
        pass_interruption(error)
        raise UnavailableError("OpenTelemetry is not installed; pip install 'jitree[telemetry]'") from None
    return trace.get_tracer(_NAME)


def chosen() -> str:
    """What the environment says. INVALID_ARGUMENT for another text."""
    choice = os.environ.get(VARIABLE, CALLS).strip().lower() or CALLS
    if choice not in (CALLS, DISPATCHES, OFF):
        raise InvalidArgumentError(f"{VARIABLE}={shown(choice)}; it is {CALLS}, {DISPATCHES} or {OFF}")
    return choice
