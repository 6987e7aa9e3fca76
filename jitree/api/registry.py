"""Every driver of this process: those that folders in ``jitree`` and ``jitree/hal`` declare."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final

from jitree import hal
from jitree.hal.driver import DriverRegistry

if TYPE_CHECKING:
    from jitree.hal.driver import DriverRow

DECLARATION: Final = "drivers"
"""The file of a folder whose ``DRIVERS`` has a row for each driver; a row imports it when it is needed."""


@cache
def all_drivers() -> DriverRegistry:
    """The process's registry; a driver is imported, and starts, when it is first asked for."""
    return DriverRegistry(declared_drivers())


def declared_drivers() -> Iterator[tuple[str, DriverRow]]:
    """The rows of all folders of drivers, those of :mod:`jitree.hal` first."""
    inner = os.path.dirname(hal.__file__)
    for package, folder in (("jitree.hal", inner), ("jitree", os.path.dirname(inner))):
        for name in sorted(os.listdir(folder)):
            if "." not in name and os.path.isfile(f"{folder}/{name}/{DECLARATION}.py"):
                yield from import_module(f"{package}.{name}.{DECLARATION}").DRIVERS.items()
