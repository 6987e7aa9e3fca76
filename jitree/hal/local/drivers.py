"""Declares the drivers of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jitree.hal.driver import Driver, DriverRow


def _sync() -> Driver:
    from jitree.hal.local.device import SyncDriver

    return SyncDriver()


def _task() -> Driver:
    from jitree.hal.local.task import TaskDriver

    return TaskDriver()


DRIVERS: Final[dict[str, DriverRow]] = {
    "local-sync": ("local execution on the calling thread", _sync),
    "local-task": ("local execution on worker threads of the CPU", _task),
}
