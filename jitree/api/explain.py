"""What a call does with memory: what it allocates, copies, and updates in place (:meth:`Session.explain`).

Calls keep nothing of that, so that it costs nothing. From the first question on Python makes the
calls of the function and looks: at where arguments and results lie, at what was in the arguments before, at
what the device was asked to copy.
"""

from __future__ import annotations

import zlib
from _thread import get_ident
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.api.array import Array
from jitree.api.calls.donations import arrays_of
from jitree.api.calls.overlaps import shares_memory
from jitree.api.calls.tensor_packing import Donation
from jitree.api.function import Function, Watcher
from jitree.api.session_arguments import require
from jitree.base.endings import Unique
from jitree.base.records import NamedTuple
from jitree.hal.buffer import Buffer, BufferView
from jitree.hal.command_buffer import CommandBuffer
from jitree.hal.operations import Listener
from jitree.hal.transfers import Copy

if TYPE_CHECKING:
    from jitree.api.calls.declaration import Parameter
    from jitree.hal.command_list import CommandList
    from jitree.hal.device import Device
    from jitree.hal.transfers import Transfer

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
    """Whether a result was put there, or the caller's memory has other contents after the call; None: it is
    too large to look at."""

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

    def __init__(self, function: Function) -> None:
        self._function = function
        self.calls = 0
        """How many calls have been looked at; 0: there is nothing to say yet."""
        self.arguments: tuple[ExplainedArgument, ...] = ()
        self.results: tuple[ExplainedResult, ...] = ()
        self.allocated = 0
        """Bytes of device memory that were asked for, most of them again and again the same."""
        self.reserved = 0
        """Bytes that the device's pool did not have and took from the system or the driver."""
        self.copied = 0
        """Bytes that the program copied on the device."""

    @property
    def function(self) -> str:
        return self._function.full_name

    @property
    def updated(self) -> tuple[str, ...]:
        """Names of the arguments that were updated in place."""
        return tuple(argument.name for argument in self.arguments if argument.updated)

    def stop(self) -> None:
        """Looks at no further calls."""
        self._function.watch(None)

    def __enter__(self) -> Explanation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __str__(self) -> str:
        if not self.calls:
            return (
                f"{self.function}: no call has been looked at. From now on all that wait for their "
                "results are (not submitted and awaited ones): call it, and ask again.\n"
                f"  {self._function.declaration}"
            )
        passed = sum(argument.copied for argument in self.arguments)
        lines = [
            f"{self.function}, the last call:", *(f"  {item}" for item in (*self.arguments, *self.results)),
            f"  allocated: {self.allocated} bytes; {self.reserved} were new to the pool",
            f"  copied: {passed} bytes to pass arguments, {self.copied} by the program",
        ]  # fmt: skip
        return "\n".join(lines)

    __repr__ = __str__


class CallWatcher(Watcher):
    """Makes the calls of a function that is being explained."""

    def __init__(self, function: Function) -> None:
        self.explanation = Explanation(function)
        self._function = function
        self._packed: Sequence[object] = ()

    def call(
        self,
        make: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        function = self._function
        device, given = function.device, function.order(*arguments, **named) if named else arguments
        before = [_Before(value, device) for value in given]
        listener = _Listener()
        allocator = device.device_allocator
        allocated, reserved = allocator.statistics, allocator.reserved
        device.listen(listener)
        try:
            results = make(given, {})
        finally:
            device.stop_listening(listener)
        after = allocator.statistics
        found, explanation = self._packed, self.explanation
        self._packed = ()
        explanation.arguments = tuple(
            _argument(parameter, known, value, device)
            for parameter, known, value in zip(function.arguments, before, found, strict=False)
            if _buffer(value) is not None
        )
        explanation.results = tuple(self._results(results, found))
        explanation.allocated = sum(
            now.allocated - then.allocated for now, then in zip(after, allocated, strict=True)
        )
        explanation.reserved, explanation.copied = allocator.reserved - reserved, listener.copied
        explanation.calls += 1
        return results

    def passes(self, packed: Sequence[object]) -> None:
        """What the program gets, in the middle of :meth:`call`."""
        self._packed = packed

    def _results(self, results: Any, packed: Sequence[object]) -> list[ExplainedResult]:
        function = self._function
        values = results if len(function.results) > 1 else (results,)
        explained = []
        for parameter, value in zip(function.results, values, strict=False):
            if not isinstance(value, Array):
                continue
            buffer, where = value.view.buffer, None
            for argument, passed in zip(function.arguments, packed, strict=False):
                if shares_memory(passed, [buffer]):
                    where = argument.name
            explained.append(ExplainedResult(parameter.name, buffer.byte_length, where))
        return explained


class _Listener(Listener):
    """Hears what this thread has the device copy."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self.copied = 0

    def submitted(self, work: Transfer | CommandBuffer | CommandList) -> None:
        if get_ident() == self._thread:
            if isinstance(work, Copy):
                self.copied += work.length
            elif isinstance(work, CommandBuffer):
                self.copied += work.copied_bytes


class _Before:
    """An argument before the call."""

    def __init__(self, value: Any, device: Device) -> None:
        self.is_donated = isinstance(value, Donation)
        arrays = list(arrays_of((value,))) if isinstance(value, (Array, Donation)) else []
        self.is_device_array = bool(arrays)
        buffer = arrays[0].wait().view.buffer if arrays else _buffer(value)
        self.address = None if buffer is None else buffer.address
        if isinstance(value, np.ndarray):
            self.address = value.ctypes.data
        exchange = device.array_exchange
        self.is_foreign = exchange is not None and buffer is None and exchange.is_importable(value)
        self.is_writable = buffer is None or buffer.is_writable
        self.contents = None if buffer is None or not arrays else _digest(buffer, arrays[0].device)


def _buffer(value: object) -> Buffer | None:
    if isinstance(value, BufferView):
        return value.buffer
    return value if isinstance(value, Buffer) else None


def _digest(buffer: Buffer, device: Device) -> int | None:
    if buffer.byte_length > _LARGEST_COMPARED:
        return None
    return zlib.crc32(device.read_buffer(buffer).data)


def _argument(parameter: Parameter, before: _Before, value: object, device: Device) -> ExplainedArgument:
    buffer = _buffer(value)
    assert buffer is not None
    why = _why_copied(parameter, before, buffer)
    updated: bool | None = False
    if not why and parameter.storage_of is not None:
        updated = True
    elif not why and before.is_device_array:
        updated = None if before.contents is None else _digest(buffer, device) != before.contents
    size = buffer.byte_length
    return ExplainedArgument(parameter.name, size, size if why else 0, why, updated)


def _why_copied(parameter: Parameter, before: _Before, buffer: Buffer) -> str:
    if before.is_foreign or before.address == buffer.address:
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


def explain(session: Any, function: str | Function | None) -> Explanation | dict[str, Explanation]:
    """What the last call of a function did; for None a dictionary of all functions that are looked at. Calls
    are looked at from the first question on: those before have kept nothing. Submitted and awaited ones are
    not: others may use the device before they end."""
    require("function", "a function or its name", function, Function, str, type(None))
    if function is None:
        known = (
            session.lookup(f"{module.name}.{name}") for module in session.modules.values() for name in module
        )
        return {
            item.full_name: item.watcher.explanation
            for item in known
            if isinstance(item.watcher, CallWatcher)
        }
    found = session.lookup(function) if isinstance(function, str) else function
    if found.watcher is None:
        found.watch(CallWatcher(found))
    assert found.watcher is not None
    explanation = found.watcher.explanation
    assert isinstance(explanation, Explanation)
    return explanation
