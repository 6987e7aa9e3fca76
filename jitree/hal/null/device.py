"""Accepts everything and executes nothing, to measure the rest of a call.

Buffers hold zeros unless the host writes to them. Fences behave as on ``local-sync``.
"""

from __future__ import annotations

from array import array

from jitree.base.finalizers import guard
from jitree.codegen.record import size_of
from jitree.errors import InvalidArgumentError, StatusError
from jitree.hal.command_layout import KernelEntry
from jitree.hal.driver import DeviceOptions
from jitree.hal.executable import Executable, ExecutableLoader, ExecutableParameters, LocalExecutable
from jitree.hal.heap import HeapAllocator
from jitree.hal.local.device import LocalDevice, LocalDriver
from jitree.hal.local.operation import Operation
from jitree.hal.local.queue import CallerExecutor, LocalQueue
from jitree.hal.local.queue_record import QueueRecord

_FUNCTION_LIMIT = 1 << 16


class NullExecutable(LocalExecutable):
    """Has every function that is asked for; none states its counts."""

    def __init__(self) -> None:
        self._lock = guard()
        self._ordinals: dict[str, int] = {}
        self._entry = array("q", bytes(size_of(KernelEntry)))

    @property
    def name(self) -> str:
        return "null"

    @property
    def function_count(self) -> int:
        return _FUNCTION_LIMIT

    def function_name(self, ordinal: int) -> str:
        return ""

    def lookup(self, name: str) -> int:
        with self._lock:
            return self._ordinals.setdefault(name, len(self._ordinals))

    def constant_count(self, ordinal: int) -> int | None:
        return None

    def binding_count(self, ordinal: int) -> int | None:
        return None

    def entry_point(self, ordinal: int) -> int:
        return self._entry.buffer_info()[0]

    def local_memory(self, ordinal: int) -> int:
        return 0


class NullLoader(ExecutableLoader):
    """Takes every format without looking at the bytes."""

    def query_support(self, format: str) -> bool:
        return True

    def try_load(self, parameters: ExecutableParameters) -> Executable:
        return NullExecutable()


class IdleExecutor(CallerExecutor):
    """Signals fences and does no work."""

    def start(self, operation: Operation) -> StatusError | None:
        operation.work = None
        return super().start(operation)

    def start_deferred(self, operation: Operation) -> None:
        operation.work = None
        super().start_deferred(operation)


class NullDevice(LocalDevice):
    def __init__(self, options: DeviceOptions) -> None:
        if options.parameters:
            raise InvalidArgumentError(
                f"null has no parameters, but {', '.join(options.parameters)} was given"
            )
        super().__init__("null", (QueueRecord(),), (NullLoader(),), HeapAllocator(is_zeroed=True))

    def _make_queue(self, record: QueueRecord) -> LocalQueue:
        return LocalQueue(IdleExecutor(), self.profiler, record)

    is_observable = False
    """It does no step that could be told of."""

    @property
    def measures(self) -> str:
        return "nothing, since it executes nothing"

    def query_i64(self, category: str, key: str) -> tuple[bool, int]:
        """As :meth:`Device.query_i64`; stands for whatever device a program was compiled for."""
        return (True, 1) if category == "hal.device.id" else super().query_i64(category, key)


class NullDriver(LocalDriver):
    name = "null"
    description = "Executes nothing; measures what a call costs without its work"

    def _create(self, options: DeviceOptions) -> NullDevice:
        return NullDevice(options)
