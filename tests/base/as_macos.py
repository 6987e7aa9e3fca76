"""Makes this process look like macOS to what is imported afterwards, as far as Linux lets it.

The platform has macOS' name, its constants, pages of 16 KB and pages of code that threads switch. What only
Linux has is missing: names of Python's modules, C functions, files. On an aarch64 the processor's name is
macOS', too; ``JITREE_TEST_MACHINE=arm64`` gives it to another one, which may make no machine code then.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import ml_dtypes  # noqa: F401  # before the platform has another name
import numpy  # noqa: F401

PAGE: Final = 1 << 14
IS_ARM: Final = os.uname().machine == "aarch64"
MAY_RUN: Final = IS_ARM or os.environ.get("JITREE_TEST_MACHINE") != "arm64"
switched: Final[list[int]] = []
"""What threads were told: 0 to write pages of code, 1 to run them."""
code_pages: Final[list[int]] = []
"""Sizes of mappings with MAP_JIT."""

_MISSING: Final = (
    (os, "memfd_|MFD_|sched_|SCHED_|eventfd|EFD_|pidfd_|posix_fa|copy_file|splice|getrandom"
         "|O_TMP|O_PATH|O_DIRECT$|P_PIDFD|.*xattr|unshare|setns|timerfd"),
    (fcntl, "F_ADD_SEALS|F_GET_SEALS|F_SEAL|F_.*PIPE_SZ|F_NOTIFY|DN_"),
    (socket, "AF_NETLINK|AF_PACKET|AF_ALG|SO_PEERCRED|SO_BIND|TCP_KEEPIDLE|TCP_USER|TCP_QUICK"
             "|TCP_CORK|SOCK_C|SOCK_N|MSG_CMSG"),
    (resource, "prlimit|RLIMIT_(MSG|NICE|RT|SIGP)"),
    (select, "epoll|EPOLL"),
    (signal, "SIGRT|SIGPWR|SIGSTKFLT|sigtimedwait|sigwaitinfo|pidfd_"),
    (time, "CLOCK_(BOOT|TAI|PROF)|clock_getcpu|pthread_getcpu"),
)  # fmt: skip
_NOT_THERE: Final = re.compile(
    "malloc_trim|mallinfo2|dlvsym|getauxval|sched_getcpu|sched_[gs]etaff|prctl|capset|memfd|syscall"
)
_NO_FILES: Final = ("/proc", "/sys", "/dev/shm")
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED: Final = ctypes.c_void_p(-1).value
_EXECUTE: Final = 4
_FLAGS: Final = {0x01: 0x01, 0x02: 0x02, 0x40: 0x4000, 0x1000: 0x20, 0x800: 0}
"""MAP_SHARED, PRIVATE, NORESERVE, ANON and JIT, and what Linux calls them."""
_JIT, _FIXED, _RESERVED = 0x800, 0x10, 0x4022


_clear: Final = ctypes.CDLL("libgcc_s.so.1").__clear_cache if IS_ARM else None
if _clear is not None:
    _clear.argtypes, _clear.restype = [ctypes.c_void_p, ctypes.c_void_p], None


def _refused(number: int) -> Any:
    ctypes.set_errno(number)
    return _FAILED if number == errno.EACCES else -1


def _mmap(place: object, size: int, access: int, flags: int, file: int, offset: int) -> int | None:
    """Begins at multiples of 16 KB, and takes flags of macOS alone."""
    assert place is None and not flags & ~sum(_FLAGS), hex(flags)
    if access & _EXECUTE and not (MAY_RUN and flags & _JIT):
        return _refused(errno.EACCES)  # type: ignore[no-any-return]
    start = _libc.mmap(None, size + PAGE, 0, _RESERVED, -1, 0)
    if start == _FAILED:
        return start  # type: ignore[no-any-return]
    code_pages.extend([size] if flags & _JIT else [])
    start = start + PAGE - 1 & -PAGE
    kinds = sum(linux for macos, linux in _FLAGS.items() if flags & macos)
    return _libc.mmap(start, size, access, kinds | _FIXED, file, offset)  # type: ignore[no-any-return]


def _mprotect(address: int, size: int, access: int) -> int:
    if address % PAGE or access & _EXECUTE:
        return _refused(errno.EINVAL if address % PAGE else errno.EPERM)  # type: ignore[no-any-return]
    return _libc.mprotect(address, size, access)  # type: ignore[no-any-return]


def _sysctlbyname(name: bytes, value: Any, size: Any, new: object, new_size: object) -> int:
    """All extensions are there whose names are asked for."""
    assert name.startswith(b"hw.optional.arm.FEAT_") or name == b"hw.optional.arm.AdvSIMD", name
    value._obj.value = 1
    return 0


_THERE: Final[dict[str, Callable[..., Any]]] = {
    "mmap": _mmap,
    "mprotect": _mprotect,
    "munmap": lambda address, size: _libc.munmap(address, size),
    "pthread_jit_write_protect_np": switched.append,
    "pthread_jit_write_protect_supported_np": lambda: 1,
    "sys_icache_invalidate": lambda start, size: _clear and _clear(start, start + size),
    "sysctlbyname": _sysctlbyname,
}


class _Library(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        if not self._name and name in _THERE:
            return _THERE[name]
        if _NOT_THERE.match(name):
            raise AttributeError(name)
        return super().__getattr__(name)


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    path = arguments[0] if event in ("open", "os.listdir", "os.scandir") else ""
    if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(_NO_FILES):
        if event == "os.scandir":  # pathlib has asked whether it is there, which no hook hears
            raise PermissionError(errno.EACCES, "no such folder", path)
        raise FileNotFoundError(errno.ENOENT, "no such file", path)
    if event == "ctypes.dlopen" and re.search(r"lib(m|gcc_s)\.so", str(path)):
        raise OSError(f"{path}: no such library")


def begin() -> None:
    for module, names in _MISSING:
        for name in [name for name in dir(module) if re.match(names, name)]:
            delattr(module, name)
    uname, sysconf = os.uname(), os.sysconf
    machine = uname.machine if MAY_RUN and not IS_ARM else "arm64"
    here = os.uname_result(("Darwin", uname.nodename, "23.0.0", "Darwin Kernel Version 23.0.0", machine))
    os.uname = lambda: here
    os.sysconf = lambda name: PAGE if name in ("SC_PAGE_SIZE", "SC_PAGESIZE") else sysconf(name)
    ctypes.CDLL = _Library  # type: ignore[misc]
    sys.platform = "darwin"
    sys.addaudithook(_audit)


begin()
