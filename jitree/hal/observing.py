"""Tells observers of each step of a device: dispatches, transfers, file reads and writes.

A :class:`~jitree.hal.operations.Listener` hears of what is submitted, on the thread that submits it. The
observer that it gives is told before and after each step of that submission, on the thread that executes
them. What an observer raises ends the submission, as a failure of the step would.
"""

from __future__ import annotations

import abc
import ctypes
from _thread import _local
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.finalizers import Unique
from jitree.errors import InternalError, StatusError, is_interruption

if TYPE_CHECKING:
    from jitree.base.elements import Bytes
    from jitree.hal.executable import Executable

Extent = tuple[int, int]
"""Address and bytes of a range of memory."""
Look = Callable[[Extent], "Bytes"]
"""Gives the bytes of a range: as they are now, or over the memory itself."""

DISPATCH: Final = "dispatch"


def memory(extent: Extent, owner: object = None) -> Bytes:
    """Views a range that the host sees, now and later. The bytes keep the owner, if given."""
    address, length = extent
    if not length:
        return np.empty(0, np.uint8)
    array: Any = (ctypes.c_uint8 * length).from_address(address)
    array.owner = owner
    return np.ctypeslib.as_array(array)


def looked_at(extent: Extent) -> Bytes:
    """As :func:`memory`, for observers, which only read: constants must not change."""
    found = memory(extent)
    found.flags.writeable = False
    return found


class DeviceStep(Unique):
    """Describes one command, or one transfer of a queue."""

    def __init__(
        self,
        kind: str,
        operands: Sequence[Extent],
        *,
        executable: Executable | None = None,
        function: int = 0,
        name: str = "",
        workgroups: tuple[int, int, int] = (0, 0, 0),
        constants: Sequence[int] = (),
        index: int = 0,
        look: Look = looked_at,
    ) -> None:
        self.kind = kind
        """DISPATCH, ``fill``, ``copy``, ``update``, ``read``, ``write`` or ``collective``."""
        self.name = name or kind
        """The full name of a dispatch's function."""
        self.operands = tuple(operands)
        """Bindings of a dispatch; source, target of a copy or a collective; else the one range of memory."""
        self.executable = executable
        self.function = function
        """Its ordinal in the executable."""
        self.workgroups = workgroups
        self.constants = tuple(constants)
        self.index = index
        """Number among the dispatches of the submission."""
        self.look = look
        """Looks at the memory of its operands, while it is observed."""

    @property
    def written(self) -> tuple[int, ...] | None:
        """Numbers of the operands that it writes to; None where only the kernel knows."""
        known = {DISPATCH: None, "copy": (1,), "collective": (1,), "write": ()}
        return known.get(self.kind, (0,))


class Observer(abc.ABC):
    """Hears of the steps of one submission, with memory as it is then."""

    @abc.abstractmethod
    def before(self, step: DeviceStep) -> None: ...

    @abc.abstractmethod
    def after(self, step: DeviceStep) -> None: ...


class _ThisObserver(_local):
    is_observing = False


_this_thread = _ThisObserver()


def is_observing() -> bool:
    """Whether an observer runs on this thread: what it submits itself is not told."""
    return _this_thread.is_observing


@contextmanager
def unobserved() -> Iterator[None]:
    """What this thread submits inside is not told."""
    outer, _this_thread.is_observing = _this_thread.is_observing, True
    try:
        yield
    finally:
        _this_thread.is_observing = outer


def perform(step: DeviceStep, observers: Sequence[Observer], work: Callable[[], object]) -> None:
    """Does a step and tells its observers."""
    with unobserved(), _failing_as_itself(step):
        for observer in observers:
            observer.before(step)
    work()
    with unobserved(), _failing_as_itself(step):
        for observer in observers:
            observer.after(step)


class _failing_as_itself:
    """Fences carry statuses only: what else an observer raises goes with one to the call that waits. A
    generator would raise it without one if it is a StopIteration."""

    __slots__ = ("_step",)

    def __init__(self, step: DeviceStep) -> None:
        self._step = step

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, StatusError) or is_interruption(error):
            return
        from jitree.base.folding import fold_tracebacks

        name = self._step.name
        failure = InternalError(f"what looks at {name} failed: {type(error).__name__}: {error}")
        fold_tracebacks(error)
        failure.raised, failure.raised_at = error, error.__traceback__
        raise failure from error
