"""``hal.ex.file.*``"""

from __future__ import annotations

from jitree.errors import PermissionDeniedError
from jitree.hal.device import Device
from jitree.hal.enums import MemoryAccess, names
from jitree.hal.objects import File
from jitree.modules.hal.state import HalState
from jitree.regs.objects import VmBuffer


def from_memory(
    state: HalState,
    device: Device,
    queue_affinity: int,
    access: int,
    source: VmBuffer,
    offset: int,
    length: int,
    flags: int,
) -> File:
    """A file over the bytes of a host buffer, for reading only."""
    if access != MemoryAccess.READ:
        raise PermissionDeniedError(
            "a file over memory of the program can only be read; asked for access "
            f"{names(MemoryAccess(access))}"
        )
    return device.import_file(queue_affinity, access, source.view.toreadonly(), offset, length, flags)
