"""The command executor in Python: the functions of :mod:`jitree.hal.local.executor.lists`, not compiled.

It needs neither numba nor llvmlite. A workgroup takes it some microseconds.
"""

from __future__ import annotations

from typing import Final

from jitree.hal.local.executor.calling import CommandExecutor
from jitree.hal.local.executor.lists import execute
from jitree.hal.local.executor.records import Job


def _execute(job: int) -> int:
    return execute(Job(job))


EXECUTOR: Final = CommandExecutor(_execute)
