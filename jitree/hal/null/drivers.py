"""Declares the driver of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jitree.hal.driver import Driver, DriverRow


def _null() -> Driver:
    from jitree.hal.null.device import NullDriver

    return NullDriver()


DRIVERS: Final[dict[str, DriverRow]] = {"null": ("executes nothing, for measurements", _null)}
