"""Explains what a call allocates, copies and updates in place (:meth:`Session.explain`).

Calls keep nothing of that, so that it costs nothing. From the first question on Python makes the
calls of the function and looks: at where arguments and results lie, at what was in the arguments before, at
what the device was asked to copy.
"""

from __future__ import annotations

import zlib
from _thread import get_ident
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from jitree.api.array import Array
from jitree.api.calls.native.cpython_layout import unsupported_because
from jitree.api.calls.overlaps import extent_of, shares_memory
from jitree.api.calls.tensor_packing import Donation, as_array
from jitree.api.function import Function
from jitree.api.session_arguments import require
from jitree.api.showing import placement
from jitree.base.events import CALL, CallEvent, EventReader, listen, stop_listening
from jitree.base.finalizers import Unique
from jitree.base.records import NamedTuple
from jitree.errors import FailedPreconditionError, StatusError, pass_interruption
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.transfers import Copy
from jitree.observe.profiled import CallRecorder

if TYPE_CHECKING:
    import numpy.typing as npt

    from jitree.api.calls.declaration import Parameter
    from jitree.hal.device import Device

_LARGEST_COMPARED: Final = 256 << 20
"""Bytes of an argument that are looked at before and after a call."""


class ExplainedArgument(NamedTuple):
    """An array or buffer that was passed."""

    name: str
    bytes: int
    copied: int
    """Bytes copied to pass it."""
    why: str
    """Why it was copied, and what to do about it; empty if it was not."""
    updated: bool | None
    """Whether a result was put there, or the caller's memory has other contents after the call. None: the
    program may write there, and the contents are as they were, or too large to look at; nothing else tells
    of what kernels write."""

    def __str__(self) -> str:
        how = f"copied ({self.why})" if self.copied else "used where it lies"
        changes = {True: ", updated in place", False: "", None: ", perhaps updated"}[self.updated]
        return f"{self.name}: {self.bytes} bytes, {how}{changes}"


class ExplainedResult(NamedTuple):
    """An array that was returned."""

    name: str
    bytes: int
    lies_in: str | None
    """The name of the argument in whose memory the result lies; None where it lies in other memory."""

    def __str__(self) -> str:
        place = "new memory" if self.lies_in is None else f"in the memory of {self.lies_in}"
        return f"{self.name}: {self.bytes} bytes, {place}"


class Explanation(Unique):
    """The last call of a function that was looked at. :meth:`stop`, or the end of a ``with`` block, makes its
    calls as fast as before."""

    def __init__(self, function: Function, watcher: CallWatcher) -> None:
        self._function, self._watcher = function, watcher
        self.calls = 0
        """How many calls have been looked at; 0: there is nothing to say yet."""
        self.failures = 0
        """How many calls have failed since the last one that is explained: nothing is known of them."""
        self.arguments: tuple[ExplainedArgument, ...] = ()
        self.results: tuple[ExplainedResult, ...] = ()
        self.allocated = 0
        """Bytes of device memory that were asked for, most of them again and again the same."""
        self.reserved = 0
        """Bytes that the device's pool did not have and took from the system or the driver."""
        self.copied = 0
        """Bytes that the program copied on the device, those aside that pass arguments and return results."""

    @property
    def function(self) -> str:
        return self._function.full_name

    @property
    def updated(self) -> tuple[str, ...]:
        """Names of the arguments that were updated in place for certain. A program that writes the bytes that
        are there already, as a second identical call does, shows as perhaps updated."""
        return tuple(argument.name for argument in self.arguments if argument.updated)

    def stop(self) -> None:
        """Looks at no further calls."""
        stop_listening(self._function, self._watcher)

    def __enter__(self) -> Explanation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __str__(self) -> str:
        failed = f" ({self.failures} failed)" if self.failures else ""
        if not self.calls:
            return (
                f"{self.function}: no call has been looked at{failed}. From now on all that wait for their "
                "results are (not submitted and awaited ones): call it, and ask again.\n"
                f"  {self._function.declaration}"
            )
        passed = sum(argument.copied for argument in self.arguments)
        which = (
            f"the last call that did not fail ({self.failures} failed since)" if failed else "the last call"
        )
        lines = [
            f"{self.function}, {which}:", *(f"  {item}" for item in (*self.arguments, *self.results)),
            f"  allocated: {self.allocated} bytes; {self.reserved} were new to the pool",
            f"  copied: {passed} bytes to pass arguments, {self.copied} by the program",
        ]  # fmt: skip
        return "\n".join(lines)

    __repr__ = __str__


class CallWatcher(EventReader):
    """Reads the calls of a function that is being explained."""

    is_exclusive = True

    def __init__(self, function: Function) -> None:
        self.needs_python = function.device.shared_timeline is not None
        self.explanation = Explanation(function, self)
        self._function = function
        self._looks: dict[CallEvent, _Look] = {}
        """At calls in progress."""

    def begins(self, event: CallEvent) -> None:
        function = self._function
        given = function.order(*event.arguments, **event.named) if event.named else event.arguments
        self._looks[event] = _Look(function, given)

    def ends(self, event: CallEvent) -> None:
        look, explanation = self._looks.pop(event, None), self.explanation
        if look is not None:
            look.end()
        if look is None or event.failed:
            explanation.failures += 1
            return
        explanation.arguments = tuple(look.explained())
        explanation.results = tuple(self._results(event.results, look))
        explanation.allocated, explanation.reserved = look.taken
        explanation.copied = look.copied
        explanation.calls += 1
        explanation.failures = 0

    def _results(self, results: Any, look: _Look) -> list[ExplainedResult]:
        parameters = self._function.results
        values = results if len(parameters) > 1 else (results,)
        explained = []
        for parameter, value in zip(parameters, values, strict=False):
            if not isinstance(value, Array):
                continue
            (address, size), where = extent_of(value), None
            for passed in look.passed:  # nearly all lie before the result, or after it
                buffer = passed.buffer
                is_apart = buffer is not None and (
                    buffer.address >= address + size or buffer.address + buffer.byte_length <= address
                )
                if not is_apart and shares_memory(passed.value, [value.buffer_view.buffer]):
                    where = passed.parameter.name
            explained.append(ExplainedResult(parameter.name, size, where))
        return explained


class _Passed(NamedTuple):
    """An argument as the program got it."""

    parameter: Parameter
    before: _Before
    value: object
    buffer: Buffer | None
    """None for what is no array."""
    contents: int | None


class _Look(EventReader):
    """What is seen of a call in progress, on its thread."""

    reads_calls = True

    def __init__(self, function: Function, given: Sequence[Any]) -> None:
        self._parameters = function.arguments
        self._name = function.full_name
        self._table, self._device = function.invoker.table, function.device
        self._allocator = self._device.device_allocator
        self._thread = get_ident()
        self._before = [_Before(value, self._device) for value in given]
        self._has_begun = False
        self.passed: Sequence[_Passed] = ()
        self.copied = 0
        self._allocated, self._reserved = self._allocator.allocated, self._allocator.reserved
        self.taken = (0, 0)
        """Bytes of memory that it has asked for, and those that were new to the pool."""
        listen(self._table, self)
        listen(self._device, self)

    def begins(self, event: Any) -> None:
        """The program gets its arguments. Memory for looking at them is not counted."""
        if self._has_begun or event.kind != CALL or event.name != self._name or get_ident() != self._thread:
            return
        self._has_begun = True
        allocator, passed = self._allocator, []
        for parameter, before, value in zip(self._parameters, self._before, event.arguments, strict=False):
            buffer = _buffer(value)
            if buffer is None or buffer.host_address is not None:
                contents = _digest(buffer, self._device)
            else:
                allocated, reserved = allocator.allocated, allocator.reserved
                contents = _digest(buffer, self._device)
                self._allocated += allocator.allocated - allocated
                self._reserved += allocator.reserved - reserved
            passed.append(_Passed(parameter, before, value, buffer, contents))
        self.passed = passed

    def submitted(self, work: Any) -> None:
        if self._has_begun and get_ident() == self._thread:
            self.copied += work.length if isinstance(work, Copy) else getattr(work, "copied_bytes", 0)

    def end(self) -> None:
        """Looks at nothing more."""
        stop_listening(self._table, self)
        stop_listening(self._device, self)
        allocator = self._allocator
        self.taken = allocator.allocated - self._allocated, allocator.reserved - self._reserved

    def explained(self) -> list[ExplainedArgument]:
        whys = [_why_copied(passed) for passed in self.passed]
        storage = [
            passed.value
            for passed, why in zip(self.passed, whys, strict=True)
            if passed.parameter.storage_of is not None and not why
        ]
        explained = []
        for passed, why in zip(self.passed, whys, strict=True):
            if passed.buffer is None:
                continue
            updated: bool | None = False
            if not why:
                lies_there = bool(storage) and shares_memory(passed.value, storage)
                updated = lies_there or self._has_changed(passed)
            size = passed.buffer.byte_length
            explained.append(ExplainedArgument(passed.parameter.name, size, size if why else 0, why, updated))
        return explained

    def _has_changed(self, passed: _Passed) -> bool | None:
        if passed.contents is not None and _digest(passed.buffer, self._device) != passed.contents:
            return True
        return None if passed.parameter.written or passed.before.is_donated else False


class _Before:
    """An argument before the call."""

    def __init__(self, value: Any, device: Device) -> None:
        self.is_donated = isinstance(value, Donation)
        array = value.array if isinstance(value, Donation) else value
        self.is_device_array = isinstance(array, Array)
        buffer = array.wait().buffer_view.buffer if self.is_device_array else _buffer(value)
        self.is_writable = buffer is None or buffer.is_writable
        self.is_foreign = False
        self.address = None if buffer is None else buffer.address
        if buffer is None:
            exchange = device.array_exchange
            self.is_foreign = exchange is not None and exchange.is_importable(value)
            self._host = None if self.is_foreign else _host_array(value)
            """Kept, so that its address is not that of other memory meanwhile."""
            if self._host is not None:
                self.address = self._host.ctypes.data


def _host_array(value: Any) -> npt.NDArray[Any] | None:
    """An array over memory that arrays of other libraries have on the host."""
    try:
        return as_array(value)
    except (StatusError, TypeError, ValueError) as error:  # which the call complains of
        pass_interruption(error)
        return None


def _buffer(value: object) -> Buffer | None:
    if isinstance(value, BufferView):
        return value.buffer
    return value if isinstance(value, Buffer) else None


def _digest(buffer: Buffer | None, device: Device) -> int | None:
    if buffer is None or buffer.byte_length > _LARGEST_COMPARED:
        return None
    data = device.read_buffer(buffer) if buffer.host_address is None else buffer.host_array()
    return zlib.crc32(data.data)


def _why_copied(passed: _Passed) -> str:
    parameter, before, _, buffer, _ = passed
    if buffer is None or before.is_foreign or before.address == buffer.address:
        return ""
    if not before.is_device_array:
        return "it came from the host; keep it on the device with session.to_device"
    if not before.is_writable:
        return (
            "the program may write to it, and its memory is read-only; pass session.to_device(numpy.array(x))"
        )
    if parameter.consumed and not before.is_donated:
        return "the program overwrites it and the caller keeps it; pass jitree.donate(x) and use the result"
    return "its memory is not where the program can use it, or a result is put there; pass out= other memory"


class Explanations(dict[str, Explanation]):
    """The functions of a session that are looked at, by name. Printed, it also says what lies where."""

    def __init__(self, session: Any, looked_at: Iterable[tuple[str, Explanation]]) -> None:
        super().__init__(looked_at)
        self.placement = placement(session)
        """Lines that say which device is which, and which of them functions have arguments and results on."""

    def __str__(self) -> str:
        return "\n".join([self.placement, *_slow_calls(), *map(str, self.values())])

    __repr__ = __str__


def _slow_calls() -> list[str]:
    """A line that says why Python makes all calls, where it does."""
    why = unsupported_because()
    return [f"calls: Python makes them: {why} (docs/platforms.md)"] if why else []


def explain(session: Any, function: str | Function | None) -> Explanation | Explanations:
    """What the last call of a function did; for None a dictionary of all functions that are looked at, which
    shows where functions have their arguments and results. Calls
    are looked at from the first question on: those before have kept nothing. Submitted and awaited ones are
    not: others may use the device before they end."""
    require("function", "a function or its name", function, Function, str, type(None))
    if function is None:
        known = (module[name] for module in session.modules.values() for name in module)
        looked_at = (
            (item.full_name, reader.explanation)
            for item in known
            for reader in item.readers
            if isinstance(reader, CallWatcher)
        )
        return Explanations(session, looked_at)
    found = session.lookup(function) if isinstance(function, str) else function
    if any(isinstance(reader, CallRecorder) for reader in found.readers):
        raise FailedPreconditionError(f"{found.full_name} is profiled; explain it when that has ended")
    watchers = [reader for reader in found.readers if isinstance(reader, CallWatcher)]
    if not watchers:
        watchers = [CallWatcher(found)]
        listen(found, watchers[0])
    return watchers[0].explanation
