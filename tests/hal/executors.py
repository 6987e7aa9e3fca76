"""Everything that executes command lists, for tests that run on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jitree.hal.command_list import CommandList
from jitree.hal.local import executor
from jitree.hal.local.executor.calling import executor_in_python
from jitree.hal.local.thread_team import Team
from jitree.hal.local.topology import Topology

Execute = Callable[[CommandList], None]
EXECUTORS = ("python", "native", "team")
_THREADS = 3


@contextmanager
def executing(name: str) -> Iterator[Execute]:
    """One of EXECUTORS, which executes lists without slots."""
    if name == "python":
        yield lambda commands: executor_in_python().execute(commands, *commands.bind(()))
        return
    native = executor.require_native_executor()
    if name == "native":
        yield lambda commands: native.execute(commands, *commands.bind(()))
        return
    team = Team("test", Topology((None,) * _THREADS), 20)
    try:
        yield lambda commands: team.execute(commands, *commands.bind(()))
    finally:
        team.close()
