"""Confines this process for good.

The system limits it, and it makes no system calls but those that computing takes.

The filter is a program for the kernel's packet filter (seccomp(2)): it compares the number of a call with a
list, and what is not in the list fails with EPERM. New threads may be made, new processes not.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from jitree.base.platform import C_LIBRARY, MACHINE, SYSTEM, UNAME
from jitree.errors import UnavailableError, system_refusals

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_SECCOMP: Final = 22
_PR_SET_NO_NEW_PRIVS: Final = 38
_FILTER_MODE: Final = 2
_THREAD: Final = 0x10F00
"""Flags of ``clone`` that all threads have: what is common to those of a process, its files among that."""
_SPACES: Final = 0x7E020000
"""Flags of ``clone`` that make namespaces, as root may. No thread is made with any of them."""
_CAPABILITIES: Final = 0x20080522
"""The version of the records of capset(2)."""

_LOAD: Final = 0x20
_EQUAL: Final = 0x15
_AND: Final = 0x54
_RETURN: Final = 0x06
"""Operations of the filter: load a word, compare and jump, keep some bits, return."""
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENT_AT = 0, 4, 16
_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000
_FAIL: Final = 0x00050000

_X86_64: Final = {
    "read": 0, "write": 1, "close": 3, "fstat": 5, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10,
    "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17,
    "pwrite64": 18, "sched_yield": 24, "mremap": 25, "madvise": 28, "nanosleep": 35, "getpid": 39,
    "recvmsg": 47, "exit": 60, "gettid": 186, "futex": 202, "exit_group": 231,
    "clock_gettime": 228,
    "clock_nanosleep": 230, "set_robust_list": 273, "sigaltstack": 131, "getcpu": 309, "getrandom": 318,
    "membarrier": 324, "rseq": 334, "restart_syscall": 219, "gettimeofday": 96,
    "uname": 63, "eventfd2": 290,
}  # fmt: skip
_AARCH64: Final = {
    "read": 63, "write": 64, "close": 57, "fstat": 80, "ppoll": 73, "lseek": 62, "mmap": 222,
    "mprotect": 226, "munmap": 215, "brk": 214, "rt_sigaction": 134, "rt_sigprocmask": 135,
    "rt_sigreturn": 139, "pread64": 67, "pwrite64": 68, "sched_yield": 124, "mremap": 216, "madvise": 233,
    "nanosleep": 101, "getpid": 172, "recvmsg": 212, "exit": 93, "gettid": 178,
    "futex": 98, "exit_group": 94,
    "clock_gettime": 113, "clock_nanosleep": 115, "set_robust_list": 99, "sigaltstack": 132, "getcpu": 168,
    "getrandom": 278, "membarrier": 283, "rseq": 293, "restart_syscall": 128,
    "gettimeofday": 169, "uname": 160, "eventfd2": 19,
}  # fmt: skip
_FCNTL: Final = {fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_DUPFD_CLOEXEC}
"""What ``fcntl`` may do: not seal the files of answers, nor have a signal sent to another process."""
_SELF: Final = {0}
"""The thread number that means the calling thread."""
_FILES: Final = 12
"""What may be open: more than that many messages cannot be held."""
_THREADS: Final = 256
"""That it may have: the system counts those of all processes of the user, and does not limit root."""
_LIMITED: Final = {
    "x86_64": {72: (1, _FCNTL), 203: (0, _SELF), 204: (0, _SELF)},
    "aarch64": {25: (1, _FCNTL), 122: (0, _SELF), 123: (0, _SELF)},
}
"""``fcntl``, ``sched_setaffinity``, ``sched_getaffinity``: which argument may be what."""
_CLONE: Final = {"x86_64": (56, 435), "aarch64": (220, 435)}
"""``clone`` and ``clone3``: the C library makes threads by the first where the second is not there."""
_ARCHITECTURES: Final = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}


def confine(parent: int, memory: int | None, file_size: int) -> None:
    """Nothing takes this back. UNAVAILABLE where the system does not do it.

    ``parent``: the process that this one is to die with. ``memory``: bytes of address space beyond what it
    has by now. ``file_size``: bytes of the largest memory file.
    """
    if SYSTEM != "linux" or MACHINE not in _ARCHITECTURES:
        raise UnavailableError(f"no process can be confined on {SYSTEM} and {UNAME}")
    library = C_LIBRARY
    _require(library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(1)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_NOFILE, _FILES)
    _limit(resource.RLIMIT_FSIZE, file_size)
    _limit(resource.RLIMIT_NPROC, _threads_of_all() + _THREADS)
    if memory is not None:
        _limit(resource.RLIMIT_AS, _address_space() + memory)
    _require(library.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    _require(library.capset(struct.pack("Ii", _CAPABILITIES, 0), bytes(24)))  # root may exceed some limits
    _require(library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    architecture, numbers = _ARCHITECTURES[MACHINE]
    rows = _filter(architecture, sorted(numbers.values()), _LIMITED[MACHINE], *_CLONE[MACHINE])
    code = ctypes.create_string_buffer(b"".join(rows))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rows), ctypes.addressof(code)))
    _require(library.prctl(_PR_SET_SECCOMP, _FILTER_MODE, program, 0, 0))


def _filter(
    architecture: int,
    numbers: Sequence[int],
    limited: Mapping[int, tuple[int, set[int]]],
    clone: int,
    clone3: int,
) -> list[bytes]:
    rows = [
        _row(_LOAD, _ARCHITECTURE_AT),
        _row(_EQUAL, architecture, 1, 0),
        _row(_RETURN, _KILL),
        _row(_LOAD, _NUMBER_AT),
    ]
    for number in numbers:
        rows += [_row(_EQUAL, number, 0, 1), _row(_RETURN, _ALLOW)]
    for number, (argument, values) in limited.items():
        rows += [_row(_EQUAL, number, 0, 2 * len(values) + 2), _row(_LOAD, _ARGUMENT_AT + 8 * argument)]
        for value in values:
            rows += [_row(_EQUAL, value, 0, 1), _row(_RETURN, _ALLOW)]
        rows += [_row(_RETURN, _FAIL | errno.EPERM)]
    rows += [
        _row(_EQUAL, clone3, 0, 1),
        _row(_RETURN, _FAIL | errno.ENOSYS),
        _row(_EQUAL, clone, 0, 4),
        _row(_LOAD, _ARGUMENT_AT),
        _row(_AND, _THREAD | _SPACES),
        _row(_EQUAL, _THREAD, 0, 1),
        _row(_RETURN, _ALLOW),
        _row(_RETURN, _FAIL | errno.EPERM),
    ]
    return rows


def _row(operation: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", operation, if_true, if_false, operand)


def _limit(kind: int, value: int) -> None:
    _, most = resource.getrlimit(kind)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    resource.setrlimit(kind, (value, value))


def _threads_of_all() -> int:
    """How many threads the system has, of all users."""
    return int(_read("/proc/loadavg").split()[3].split(b"/")[1])


def _address_space() -> int:
    return int(_read("/proc/self/statm").split()[0]) * resource.getpagesize()


def _read(path: str) -> bytes:
    with system_refusals(f"no process can be confined where '{path}' cannot be read"):
        return Path(path).read_bytes()


def _require(result: int) -> None:
    if result != 0:
        reason = os.strerror(ctypes.get_errno())
        raise UnavailableError(f"the system does not confine the process: {reason}")
