"""Makes files in memory, and reads what systems say of process and machine.

Linux has memory files without a name. Elsewhere, and where they are refused, a temporary file whose name is
taken away does the same. What Linux says under ``/proc`` macOS has no file for: each function says what is
not to be had then.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from jitree.base.finalizers import OwnedDescriptor
from jitree.base.platform import SYSTEM
from jitree.base.records import NamedTuple
from jitree.errors import pass_interruption, system_refusals

if TYPE_CHECKING:
    import socket

_DESCRIPTORS: Final = "/proc/self/fd"
_MAPS: Final = "/proc/self/maps"
_MEMORY: Final = "/proc/self/mem"
_BOOT: Final = "/proc/sys/kernel/random/boot_id"
_ADD_SEALS: Final = 1033
_SEALS: Final = 1 | 2 | 4 | 8
"""F_ADD_SEALS of fcntl(2); F_SEAL_SEAL, SHRINK, GROW, WRITE."""
_GET_ADDRESS: Final = {"linux": 0x8915, "darwin": 0xC0206921}
"""SIOCGIFADDR of ioctl(2)."""
_REQUEST, _NAME, _ADDRESS = 256, 15, 20
"""Bytes of what it is asked with, at least; of a name; and where the address lies."""
_CLOSED_ON_EXECUTION: Final = 1
_EXECUTABLE: Final = 16
"""Linux 6.3 and newer want to be told that the file will be executed; older kernels refuse the flag."""

CAN_SEAL: Final = hasattr(os, "memfd_create")
SEALABLE: Final = (
    (os.memfd_create, "jitree-message", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) if CAN_SEAL else ()
)
"""Whether a file can be made that nobody changes any more, and what makes one, with its arguments. Confined
processes get no others."""


class AddressRange(NamedTuple):
    start: int
    end: int
    executable: bool


def memory_file(name: str) -> int:
    """The descriptor of an empty file that nobody else finds. Programs that are started do not get it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    import tempfile  # of the few that need it

    descriptor, path = tempfile.mkstemp(prefix=f"{name}-")
    os.unlink(path)
    return descriptor


MEMORY_FILE: Final[Callable[..., int]] = getattr(os, "memfd_create", memory_file)
"""The same by one function of C, where the system has one: no interrupt comes in between."""


def seal(file: int) -> None:
    """Has nobody change a file any more that :data:`SEALABLE` has made, nor its size."""
    fcntl.fcntl(file, _ADD_SEALS, _SEALS)


def code_file(data: bytes | memoryview) -> OwnedDescriptor | None:
    """A file in memory that code may be loaded from; None where there are none."""
    if not os.path.isdir(_DESCRIPTORS):
        return None
    for flags in (_CLOSED_ON_EXECUTION | _EXECUTABLE, _CLOSED_ON_EXECUTION):
        try:
            opened = OwnedDescriptor(os.memfd_create, "jitree-executable", flags)
        except (AttributeError, OSError) as error:
            pass_interruption(error)
            continue
        with open(opened.number, "wb", closefd=False) as file:
            file.write(data)
        return opened
    return None


def path_of(descriptor: int) -> str:
    """Where :func:`code_file` can be opened by its name."""
    return f"{_DESCRIPTORS}/{descriptor}"


def mapped_ranges(device: int, inode: int) -> tuple[AddressRange, ...]:
    """Where a file is mapped in this process; neighbouring ranges of one kind as one. UNAVAILABLE where the
    system does not say it."""
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}", str(inode)
    ranges: list[AddressRange] = []
    with (
        system_refusals(f"libraries of the system cannot be used without '{_MAPS}'"),
        open(_MAPS, "rb") as file,
    ):
        lines = os.fsdecode(file.read()).splitlines()
    for line in lines:
        place, rights, _, file_device, file_inode, *_ = line.split(maxsplit=5)
        if (file_device, file_inode) != wanted or "r" not in rights:
            continue
        start, end = (int(part, 16) for part in place.split("-"))
        ranges.append(AddressRange(start, end, "x" in rights))
    return tuple(ranges)


def readable_ranges() -> tuple[AddressRange, ...]:
    """Lists what this process may read, but for the kernel's; nothing where the system does not say it."""
    if not os.path.exists(_MAPS):
        return ()
    with open(_MAPS, "rb") as file:
        lines = os.fsdecode(file.read()).splitlines()
    ranges: list[AddressRange] = []
    for line in lines:
        place, rights, *_ = line.split()
        if "r" in rights and "[v" not in line:
            start, end = (int(part, 16) for part in place.split("-"))
            ranges.append(AddressRange(start, end, "x" in rights))
    return tuple(ranges)


def read_memory(address: int, size: int) -> bytes | None:
    """Bytes of this process; None where there is no memory, which a plain read would end the process for, and
    where the system gives no way to ask."""
    try:
        data = os.pread(_memory_of(os.getpid()).number, size, address)
    except (OSError, OverflowError) as error:
        pass_interruption(error)
        return None
    return data if len(data) == size else None


@lru_cache(maxsize=1)
def _memory_of(process: int) -> OwnedDescriptor:
    """The memory of this process: what a fork's child has of its parent is still the parent's."""
    return OwnedDescriptor(os.open, _MEMORY, os.O_RDONLY | os.O_CLOEXEC)


def address_of_interface(any_socket: socket.socket, name: str) -> str:
    """The IPv4 address of an interface of the network. OSError if it has none, and where the system does not
    say it."""
    if SYSTEM not in _GET_ADDRESS:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), name)
    answer = fcntl.ioctl(any_socket, _GET_ADDRESS[SYSTEM], name.encode()[:_NAME].ljust(_REQUEST, b"\0"))
    return ".".join(map(str, answer[_ADDRESS : _ADDRESS + 4]))


def machine_identity() -> str:
    """What tells this machine, or its container, from others; its name where the system says no more."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read().strip()
    except OSError as error:
        pass_interruption(error)
        import socket

        return socket.gethostname()
