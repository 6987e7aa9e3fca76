"""Says where a process stands that does not end: what its tasks await, what its gates and operations are at.

Python calls it for a signal, wherever the main thread waits. It prints numbers and names, no objects of
programs: those may be anything by then.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

from jitree.api.event_loop_fairness import CallGate
from jitree.dispatch.session_lock import ContextGate
from jitree.hal.local.operation import Operation
from jitree.hal.local.workers import WorkerPool


def _places(step: Any) -> Iterator[str]:
    """Where a coroutine waits, from the outside."""
    while step is not None:
        frame = getattr(step, "cr_frame", None) or getattr(step, "gi_frame", None)
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "?"
        yield f"  {getattr(step, '__qualname__', type(step).__name__)} {where}"
        step = getattr(step, "cr_await", None) or getattr(step, "gi_yieldfrom", None)


def _task(task: Any) -> Iterator[str]:
    if task.done():
        return
    waiter = getattr(task, "_fut_waiter", None)
    state = "nothing" if waiter is None else f"{type(waiter).__name__} {waiter._state}"
    told = len(getattr(waiter, "_callbacks", None) or ())
    yield f"{task.get_name()}: awaits {state}, which tells {told}; cancelled {task.cancelling()} times"
    yield from _places(task.get_coro())


def _gate(gate: CallGate) -> Iterator[str]:
    words = {name: getattr(gate, name) for name in gate.__slots__}
    yield f"gate of a loop: { {name: _number(value) for name, value in words.items()} }"


def _operation(operation: Operation) -> Iterator[str]:
    points = [
        [(semaphore._value, value, semaphore.failure is not None) for semaphore, value in fence.timepoints]
        for fence in (operation.wait, operation.signal)
        if fence is not None
    ]
    yield (
        f"{operation.name}: begun {operation.has_begun}, interrupted {operation.interrupted is not None}, "
        f"waits {operation.wait is not None}, posted {operation.post is not None}, "
        f"announced {operation in operation.queue.announced}, work {operation.work is not None}, {points}"
    )


def _context(gate: ContextGate) -> Iterator[str]:
    yield f"context: {list(gate.gate)}, {len(gate.waiting)} waits, lock {gate.lock!r}"


def _number(value: object) -> object:
    return value if isinstance(value, (int, float, type(None))) else len(value)  # type: ignore[arg-type]


def standing() -> str:
    """All of that, a line each."""
    lines: list[str] = []
    kinds: dict[type, Any] = {
        CallGate: _gate, Operation: _operation, ContextGate: _context,
        WorkerPool: WorkerPool.report, asyncio.Task: _task,
    }  # fmt: skip
    for found in gc.get_objects():
        for kind, describe in kinds.items():
            if isinstance(found, kind):
                lines += describe(found)
    return "\n".join(lines)
