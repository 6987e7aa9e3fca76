"""Everything that executes command lists, for tests that run on each."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jitree.hal.command_list import CommandList
from jitree.hal.local import walk
from jitree.hal.local.team import Team
from jitree.hal.local.topology import Topology
from jitree.hal.local.walk_python import PythonWalker

Execute = Callable[[CommandList], None]
WALKERS = ("python", "native", "team")
_THREADS = 3


@contextmanager
def walker(name: str) -> Iterator[Execute]:
    """One of WALKERS, which executes lists without slots."""
    if name == "python":
        yield lambda commands: _python(commands, *commands.bind(()))
        return
    native = walk.require_native_walker()
    if name == "native":
        yield lambda commands: native.execute(commands, *commands.bind(()))
        return
    team = Team("test", Topology((None,) * _THREADS), 20)
    try:
        yield lambda commands: team.execute(commands, *commands.bind(()))
    finally:
        team.close()


def _python(commands: CommandList, addresses: array[int], lengths: array[int]) -> None:
    PythonWalker(commands, addresses, lengths).run()
