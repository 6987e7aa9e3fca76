"""``local-sync``: everything runs on the thread that submits it, or that reaches its wait fence."""

from __future__ import annotations

from jitree.errors import InvalidArgumentError
from jitree.hal.driver import DeviceOptions
from jitree.hal.local.device import LocalDevice, LocalDriver
from jitree.hal.local.queue import CallerExecutor, LocalQueue
from jitree.hal.profiling import Profiler


class SyncDevice(LocalDevice):
    def __init__(self, options: DeviceOptions) -> None:
        if options.parameters:
            raise InvalidArgumentError(
                f"local-sync has no parameters, but {', '.join(options.parameters)} was given"
            )
        super().__init__("local-sync", (LocalQueue(CallerExecutor(), Profiler()),), options.loaders)
        self._let_machine_code_execute()


class SyncDriver(LocalDriver):
    name = "local-sync"
    description = "Runs on the calling thread"

    def _create(self, options: DeviceOptions) -> SyncDevice:
        return SyncDevice(options)
