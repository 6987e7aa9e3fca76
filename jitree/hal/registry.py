"""The registry that programs use unless they make their own. Drivers are imported when first asked for."""

from __future__ import annotations

from functools import cache

from jitree.hal.driver import Driver, DriverRegistry


def _sync() -> Driver:
    from jitree.hal.local.sync import SyncDriver

    return SyncDriver()


def _task() -> Driver:
    from jitree.hal.local.task import TaskDriver

    return TaskDriver()


def _null() -> Driver:
    from jitree.hal.local.null import NullDriver

    return NullDriver()


def register_local_drivers(registry: DriverRegistry) -> None:
    """Adds local-sync, local-task and null."""
    registry.register("local-sync", "local execution on the calling thread", _sync)
    registry.register("local-task", "local execution on worker threads", _task)
    registry.register("null", "executes nothing, for measurements", _null)


@cache
def default_registry() -> DriverRegistry:
    """The process's registry with the local drivers; ``jitree.api.drivers`` adds the others."""
    registry = DriverRegistry()
    register_local_drivers(registry)
    return registry
