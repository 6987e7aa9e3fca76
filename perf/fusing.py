"""What fusing dispatches of trained models could save at most: how much sooner command buffers end without
the commands that would be fused, or if nothing waited for anything.

    python perf/fusing.py [--threads 1] [--seconds 3] [--only REGEX] [--folder DIRECTORY]

The models are those of trained.py, which compiles them into the folder. The command buffers of one call are
executed again and again where they are submitted, in turn as they are and with commands taken out: fills
(what is around a padded image), copies (of images into larger ones, and transfers), dispatches that compute
nothing but elements of others; and without barriers. What that leaves in memory is wrong, and takes the same
time. Each figure is the part of the time that goes, of the shortest times.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from unittest.mock import patch

from trained import MODELS, argument, of_jitree, stem

import jitree
from jitree.base.events import EventReader
from jitree.codegen.record import layout_of, size_of
from jitree.hal import stepwise
from jitree.hal.command_layout import KIND_BARRIER, KIND_COPY, KIND_FILL, KIND_UPDATE, Command
from jitree.hal.command_list import BoundCommands, CommandList
from jitree.hal.local.failure import dispatched_function
from jitree.tools.cache import warm

_COPIES: Final = r"slow_memcpy|transpose"
_ELEMENTS: Final = r"_elementwise"
KINDS: Final = ("fills", "copies", "elementwise", "all three", "barriers")
_WORDS: Final = size_of(Command) // 4
_COUNT_X: Final = layout_of(Command).offsets["count_x"] // 4
_DATA_LENGTH: Final = layout_of(Command).offsets["data_length"] // 4

_TRANSFERS: Final = {KIND_BARRIER: "barriers", KIND_FILL: "fills", KIND_COPY: "copies", KIND_UPDATE: ""}

Execute = Callable[[BoundCommands], None]


class Hearing(EventReader):
    """Has command buffers executed by Python."""

    def submitted(self, work: object) -> EventReader:
        return self


def kinds_of(commands: CommandList) -> list[str]:
    """Of each row; empty: it stays."""
    found = []
    for number, row in enumerate(commands.decoded_rows()):
        kind = _TRANSFERS.get(row[0])
        if kind is None:
            name = dispatched_function(commands, number)[1]
            kind = "copies" if re.search(_COPIES, name) else "elementwise" * bool(re.search(_ELEMENTS, name))
        found.append(kind)
    return found


def without(commands: CommandList, left_out: Sequence[str]) -> CommandList:
    """The list with nothing to do in some rows."""
    part = commands.part(range(commands.row_count))
    words = memoryview(part.rows).cast("B").cast("i")
    for number, kind in enumerate(kinds_of(commands)):
        if kind not in left_out:
            continue
        first = number * _WORDS
        if words[first] in (KIND_BARRIER, KIND_FILL, KIND_COPY):
            words[first], words[first + _DATA_LENGTH] = KIND_UPDATE, 0
        else:
            words[first + _COUNT_X] = 0
    return part


class Measured:
    """Times of all command buffers of one call: as they are, and without each kind."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.buffers = 0
        self.whole = 0.0
        self.saved = dict.fromkeys(KINDS, 0.0)

    def execute(self, execute: Execute, readers: object, bound: BoundCommands) -> None:
        """In place of ``execute_stepwise``."""
        cases = [bound]
        for kind in KINDS:
            left_out = KINDS[:3] if kind == "all three" else (kind,)
            cases.append(bound._replace(commands=without(bound.commands, left_out)))
        times: list[list[float]] = [[] for _ in cases]
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end or len(times[0]) < 5:
            for case, spent in zip(cases, times, strict=True):
                begun = time.perf_counter()
                execute(case)
                spent.append(time.perf_counter() - begun)
        execute(bound)
        self.buffers += 1
        self.whole += min(times[0])
        for kind, spent in zip(KINDS, times[1:], strict=True):
            self.saved[kind] += min(times[0]) - min(spent)

    def report(self, name: str) -> str:
        parts = "  ".join(f"{kind} {self.saved[kind] / self.whole:6.1%}" for kind in KINDS)
        return f"{name:12s} {self.whole * 1e3:7.2f} ms  without {parts}"


def measured(module: Path, name: str, shape: tuple[int, ...], options: argparse.Namespace) -> Measured:
    device = "local-sync" if options.threads == 1 else f"local-task://?threads={options.threads}"
    with jitree.Session(device, tier="native") as session:
        call = of_jitree(session, module, argument(shape, name))
        for _ in range(3):
            call()
        session.device.listen(Hearing())
        seconds = 0.0
        for _ in range(2):  # the first time to count them
            found = Measured(seconds)
            with patch.object(stepwise, "execute_stepwise", found.execute):
                call()
            seconds = options.seconds / found.buffers
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description="bounds what fusing dispatches could save")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--folder", type=Path, default=Path("trained-models"))
    options = parser.parse_args()
    for name, model in MODELS.items():
        module = stem(options.folder, name).with_suffix(".vmvx.vmfb")
        if module.exists() and re.search(options.only, name):
            warm([str(module)])
            print(measured(module, name, model.shape, options).report(name), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
