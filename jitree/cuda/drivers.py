"""Declares the driver of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from jitree.hal.driver import Driver, DriverRow


def _cuda() -> Driver:
    from jitree.cuda.driver import CudaDriver

    return CudaDriver()


DRIVERS: Final[dict[str, DriverRow]] = {"cuda": ("NVIDIA GPUs by the CUDA driver", _cuda)}
