"""Regions of memory from the driver."""

from __future__ import annotations

from typing import Final

from jitree.cuda.context import CudaContext
from jitree.cuda.suballocator import Region

_PORTABLE: Final = 0x1
"""Pinned for every context of the process."""
_DEVICE_MAP: Final = 0x2


class DeviceRegions:
    """Memory of the device."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context

    def allocate(self, size: int) -> Region:
        self._context.enter()
        return Region(int(self._context.api.call("cuMemAlloc", size)), None, size)

    def free(self, region: Region) -> None:
        self._context.api.attempt("cuMemFree", region.address)


class PinnedRegions:
    """Host memory that does not move and that the device sees."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context

    def allocate(self, size: int) -> Region:
        self._context.enter()
        api = self._context.api
        host_address = int(api.call("cuMemHostAlloc", size, _PORTABLE | _DEVICE_MAP))
        return Region(int(api.call("cuMemHostGetDevicePointer", host_address, 0)), host_address, size)

    def free(self, region: Region) -> None:
        self._context.api.attempt("cuMemFreeHost", region.host_address)
