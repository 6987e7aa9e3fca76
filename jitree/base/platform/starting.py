"""Starts programs without holding up other threads, and holds on to processes.

What Python itself has keeps the interpreter until the new process runs its program, for milliseconds on a
busy machine.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Mapping, Sequence
from typing import Final

from jitree.base.finalizers import OwnedDescriptor
from jitree.base.platform import C_LIBRARY, SYSTEM
from jitree.errors import ignored

CAN_OPEN_PROCESSES: Final = hasattr(os, "pidfd_open")
"""Whether there is :class:`OpenedProcess`."""
_LOWEST: Final = 19
"""The niceness below which there is none."""
_LARGEST: Final = 1024
"""Bytes, more than any C library's objects for file actions, attributes and sets of signals have."""
_FLAGS: Final = 0x04 | 0x08 | (0x400 if SYSTEM == "darwin" else 0x80)
"""POSIX_SPAWN_SETSIGDEF, SETSIGMASK, SETSID: the last one has another number on macOS."""


def spawn(arguments: Sequence[str], environment: Mapping[str, str], descriptors: Mapping[int, int]) -> int:
    """Starts the program ``arguments[0]`` in a new session. It has ``descriptors`` by the number that they
    are given, an empty standard input and no signal ignored or blocked (a program of which SIGCHLD is ignored
    cannot wait for its processes); the number of the process. OSError if that fails."""
    library = C_LIBRARY
    actions, attributes, signals = (ctypes.create_string_buffer(_LARGEST) for _ in range(3))
    process = ctypes.c_int()
    library.posix_spawn_file_actions_init(actions)
    library.posix_spawnattr_init(attributes)
    library.posix_spawnattr_setflags(attributes, ctypes.c_short(_FLAGS))
    library.posix_spawnattr_setsigmask(attributes, signals)
    library.sigfillset(signals)
    library.posix_spawnattr_setsigdefault(attributes, signals)
    try:
        # Numbers of a program that has closed its own may be 0 to 2, which other files are to have.
        above = max(*descriptors, *descriptors.values()) + 1
        for place, here in enumerate(descriptors.values(), above):
            library.posix_spawn_file_actions_adddup2(actions, here, place)
        library.posix_spawn_file_actions_addopen(actions, 0, os.devnull.encode(), os.O_RDONLY, 0)
        for place, there in enumerate(descriptors, above):
            library.posix_spawn_file_actions_adddup2(actions, place, there)
            library.posix_spawn_file_actions_addclose(actions, place)
        variables = [f"{name}={value}" for name, value in environment.items()]
        failure = library.posix_spawn(
            ctypes.byref(process),
            os.fsencode(arguments[0]),
            actions,
            attributes,
            _texts(arguments),
            _texts(variables),
        )
    finally:
        library.posix_spawnattr_destroy(attributes)
        library.posix_spawn_file_actions_destroy(actions)
    if failure:
        raise OSError(failure, os.strerror(failure), arguments[0])
    return process.value


Priority = tuple[int, int]
"""The niceness of a process, and of its group: Linux may share processors between sessions first (sched(7),
autogroup). That of a process which leads one says nothing to others then, its group's does."""


def priority_of(process: int) -> Priority:
    """Asks the system; 0 where it does not say."""
    own = group = 0
    with ignored(OSError):
        own = os.getpriority(os.PRIO_PROCESS, process)
    with ignored(OSError), open(f"/proc/{process}/autogroup", encoding="ascii") as file:
        group = int((file.read().split() or ["0"])[-1])  # nothing: it is in none
    return own, group


def place(process: int, wanted: Priority) -> None:
    """Sets the priority of a process and of its group, as the system lets: that lowers any process, and
    raises an administrator's, or any group.

    It takes one word for a group in a tenth of a second, of all users together: who wants one says so again
    now and then.
    """
    own, group = (min(niceness, _LOWEST) for niceness in wanted)
    with ignored(OSError):
        os.setpriority(os.PRIO_PROCESS, process, own)
    if priority_of(process)[1] != group:
        with ignored(OSError), open(f"/proc/{process}/autogroup", "w", encoding="ascii") as file:
            file.write(str(group))


class OpenedProcess:
    """A process that no other takes the number of while this is open. ``descriptor`` is readable when it has
    ended."""

    def __init__(self, pid: int) -> None:
        """OSError if it has ended, or no process can be opened.

        Linux opens processes."""
        if not CAN_OPEN_PROCESSES:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), f"process {pid}")
        self._file = OwnedDescriptor(os.pidfd_open, pid)
        self.descriptor = self._file.number

    def signal(self, number: int) -> None:
        """ProcessLookupError if it has ended."""
        import signal  # few programs ask: it takes as long as all else here

        signal.pidfd_send_signal(self.descriptor, number)


def _texts(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(texts) + 1))(*map(os.fsencode, texts))
