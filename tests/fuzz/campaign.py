"""What a campaign is, the campaigns there are, and the findings of one of their cases."""

from __future__ import annotations

import gc
import resource
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

Result = tuple[list[str], Counter[str]]
"""What was found, a line each, and numbers of what was done."""

NAMES: Final = (
    "modules", "executables", "archives", "programs", "nests", "kernels", "sandboxes", "interruptions",
    "tensors", "machines", "faults", "drivers", "turns",
)  # fmt: skip
"""Campaigns, which are files of this folder, in the order of the table."""
CASES: Final = "cases"
"""The number of what a campaign counts, in all of its results."""
SECONDS: Final = 60.0
_MEMORY: Final = 6 << 30


def _none(case: Any) -> Iterator[Any]:
    return iter(())


def limit_memory() -> None:
    """Gives this process some address space: what asks for more fails with a status, the machine goes on."""
    gc.freeze()  # what the parent has is not looked at again
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@dataclass(frozen=True)
class Campaign:
    """Makes cases of numbers, and says what is wrong with one."""

    counts: str
    """The plural of what the table counts."""
    generate: Callable[[int], Any]
    """The case of a number: the same each time."""
    run: Callable[[Any], Result]
    """The findings of a case, and numbers of what was done. An exception is a finding, too."""
    smaller: Callable[[Any], Iterator[Any]] = _none
    """Cases that are a little less than one; the largest steps first."""
    written: Callable[[Any], bytes] = lambda case: repr(case).encode()
    """A case as a file, to keep."""
    batch: int = 1
    """Cases that a child process runs at a time: as many as take a second or so."""
    seconds: float = SECONDS
    """That a case may take before it counts as one without end."""
    prepare: Callable[[], None] = limit_memory
    """What a child process does before its first case."""

    def check(self, number: int) -> Result:
        return self.run(self.generate(number))


def campaign(name: str) -> Campaign:
    found: Campaign = import_module(f"tests.fuzz.{name}").CAMPAIGN
    return found
