"""Every driver of this process."""

from __future__ import annotations

from functools import cache

from jitree.hal.driver import Driver, DriverRegistry
from jitree.hal.registry import default_registry


@cache
def all_drivers() -> DriverRegistry:
    """The process's registry with the local drivers and ``cuda``, which starts when first asked for."""
    registry = default_registry()
    registry.register("cuda", "NVIDIA GPUs by the CUDA driver", _cuda)
    return registry


def _cuda() -> Driver:
    from jitree.cuda.driver import CudaDriver

    return CudaDriver()
