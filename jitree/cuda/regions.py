"""Regions of memory from the driver."""

from __future__ import annotations

from typing import Final

from jitree.cuda.context import CudaContext
from jitree.cuda.suballocator import Region

_PORTABLE: Final = 0x1
"""Pinned for every context of the process."""
_DEVICE_MAP: Final = 0x2


def free(region: Region) -> None:
    """Gives a region back to the driver."""
    if region.owned is not None:
        region.owned.close()


class DeviceRegions:
    """Memory of the device."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context

    def allocate(self, size: int) -> Region:
        self._context.enter()
        owned = self._context.make("cuMemAlloc", (size,), "cuMemFree")
        return Region(int(owned), None, size, owned)

    def free(self, region: Region) -> None:
        free(region)


class PinnedRegions:
    """Host memory that does not move and that the device sees."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context

    def allocate(self, size: int) -> Region:
        self._context.enter()
        api = self._context.api
        owned = self._context.make("cuMemHostAlloc", (size, _PORTABLE | _DEVICE_MAP), "cuMemFreeHost")
        address = int(api.call("cuMemHostGetDevicePointer", int(owned), 0))
        return Region(address, int(owned), size, owned)

    def free(self, region: Region) -> None:
        free(region)
