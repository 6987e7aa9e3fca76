"""Executes command lists by machine code, or in Python until its image is there."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

from jitree.base.platform import MACHINE
from jitree.base.platform.processor import MACHINES
from jitree.codegen import image

if TYPE_CHECKING:
    from jitree.hal.command_list import CommandList
    from jitree.hal.local.executor.calling import NativeExecutor


RECIPE: Final = image.Recipe(
    "executor", "the executor of command buffers", "jitree.hal.local.executor.command_lists:generate", 4.0
)


SUPPORTED: Final = MACHINE in MACHINES
"""Whether there is a native command executor for this processor."""


_native: NativeExecutor | None = None


def execute(
    commands: CommandList,
    addresses: array[int],
    lengths: array[int],
    accesses: array[int],
    logged: tuple[int, int] = (0, 0),
) -> None:
    """Runs a list on this thread. ``addresses``, ``lengths`` and ``accesses`` are what
    :meth:`CommandList.bind` gave; for ``logged`` see :meth:`CommandExecutor.execute`.

    INTERNAL when a function fails, naming executable, function, workgroup and what it returned.
    """
    executor = _native or native_executor()
    if executor is None:
        from jitree.hal.local.executor.calling import executor_in_python

        executor_in_python().execute(commands, addresses, lengths, accesses, logged=logged)
    else:
        executor.execute(commands, addresses, lengths, accesses, logged=logged)


def native_executor() -> NativeExecutor | None:
    """Returns the executor if its image is ready; starts building it."""
    if _native is not None or not SUPPORTED:
        return _native
    ready = image.get(RECIPE)
    return None if ready is None else _use(ready)


def require_native_executor() -> NativeExecutor:
    """The native executor, waiting for its image if need be. UNAVAILABLE if it cannot be built."""
    return _native or _use(image.wait(RECIPE))


def _use(ready: image.Image) -> NativeExecutor:
    global _native
    from jitree.hal.local.executor.calling import NativeExecutor

    _native = NativeExecutor(ready)
    return _native
