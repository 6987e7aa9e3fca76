"""Lists machine code for Linux' ``perf``.

JITREE_PERF asks for it: that code lies in no file.

``map``: ``/tmp/perf-PID.map``, a line for each function (``tools/perf/Documentation/jit-interface.txt`` of
Linux). ``jitdump``: ``/tmp/jit-PID.dump``, with the code, which ``perf inject --jit`` takes up
(``jitdump-specification.txt`` there). ``map,jitdump``: both. Code that is unmapped stays in the files.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final, Protocol

from jitree.base.finalizers import OwnedDescriptor, guard
from jitree.errors import InvalidArgumentError, PermissionDeniedError

_FOLDER: Final = "/tmp"  # where perf looks
_OPEN: Final = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_HEADER: Final = struct.Struct("=6I2Q")
_MAGIC: Final = 0x4A695444
_LOAD: Final = struct.Struct("=2IQ2I4Q")
_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""Numbers of ELF."""


class CodeFile(Protocol):
    """A file of this process."""

    def add(self, name: bytes, address: int, size: int) -> None: ...


class MapFile:
    """Lines of address and size (hexadecimal) and name. CPython's own support for perf adds to the same."""

    def __init__(self) -> None:
        self._opened = _open(f"perf-{os.getpid()}.map")

    def add(self, name: bytes, address: int, size: int) -> None:
        os.write(self._opened.number, b"%x %x %s\n" % (address, size, name))


class DumpFile:
    """Records with the code. ``perf record`` notices the file when a page of it is mapped as executable."""

    def __init__(self) -> None:
        self._opened = _open(f"jit-{os.getpid()}.dump")
        descriptor = self._opened.number
        os.ftruncate(descriptor, 0)  # what an earlier process of this number has written
        machine = _MACHINES.get(os.uname().machine, 0)
        now = time.monotonic_ns()
        os.write(descriptor, _HEADER.pack(_MAGIC, 1, _HEADER.size, machine, 0, os.getpid(), now, 0))
        access = mmap.PROT_READ | mmap.PROT_EXEC
        self._page = mmap.mmap(descriptor, _HEADER.size, mmap.MAP_PRIVATE, access)
        self._count = 0

    def add(self, name: bytes, address: int, size: int) -> None:
        length = _LOAD.size + len(name) + 1 + size
        process, thread = os.getpid(), threading.get_native_id()
        fields = length, time.monotonic_ns(), process, thread, address, address, size, self._count
        record = b"%s%s\0%s" % (_LOAD.pack(0, *fields), name, ctypes.string_at(address, size))
        os.write(self._opened.number, record)
        self._count += 1


_KINDS: Final[dict[str, Callable[[], CodeFile]]] = {"map": MapFile, "jitdump": DumpFile}


class CodeListing:
    """Writes the files that ``kinds`` names. INVALID_ARGUMENT for others; PERMISSION_DENIED for a file that
    belongs to another user."""

    def __init__(self, kinds: str) -> None:
        self._kinds = kinds.split(",")
        for kind in self._kinds:
            if kind not in _KINDS:
                raise InvalidArgumentError(
                    f"JITREE_PERF='{kinds}' asks for '{kind}'; give map, jitdump or both"
                )
        self._lock = guard()
        self._written: dict[int, tuple[bytes, int]] = {}
        self._open()
        os.register_at_fork(after_in_child=self._write_again)

    def add(self, functions: Mapping[str, int], end: int) -> None:
        """Names functions by their addresses. One ends where the next begins, the last at ``end``."""
        names = {address: b" ".join(name.encode().split()) for name, address in functions.items()}
        with self._lock:
            for address, following in pairwise([*sorted(names), end]):
                known = names[address], following - address
                if self._written.get(address) != known:
                    self._write(address, *known)

    def _write(self, address: int, name: bytes, size: int) -> None:
        self._written[address] = name, size
        for file in self._files:
            file.add(name, address, size)

    def _open(self) -> None:
        self._files: list[CodeFile] = [_KINDS[kind]() for kind in self._kinds]

    def _write_again(self) -> None:
        """In a forked child, which has another number."""
        self._lock = guard()
        self._open()
        for address, (name, size) in list(self._written.items()):
            self._write(address, name, size)


def _open(name: str) -> OwnedDescriptor:
    path = f"{_FOLDER}/{name}"
    opened = OwnedDescriptor(os.open, path, _OPEN, 0o600)
    status = os.fstat(opened.number)
    if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
        raise PermissionDeniedError(f"'{path}', which JITREE_PERF asks for, is another user's; remove it")
    return opened
