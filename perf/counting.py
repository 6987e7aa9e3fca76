"""Runs another file of this folder and writes down what its rows took; against.py uses it.

    python perf/counting.py EVENTS SCRIPT [ARGUMENTS ...]

Each line that the script prints becomes one of EVENTS, as JSON, with what the calls took that it has timed
before by `comparison.alternate`: processor time, and instructions where the system counts them.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import runpy
import struct
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TextIO

_SYSTEM_CALLS = {"x86_64": 298, "aarch64": 241}
_ATTRIBUTES = struct.Struct("=IIQQQQQ72x")
"""perf_event_attr: kind, size, event, period, fields of samples, of reads, flags."""
_INSTRUCTIONS, _INHERIT, _USER_ONLY = 1, 1 << 1, 1 << 5 | 1 << 6
_BATCH_SECONDS, _BATCHES = 0.02, 3

Call = Callable[[], object]
Taken = dict[str, float]
"""By measure, what one call took."""


class Events:
    """Takes the place of standard output."""

    def __init__(self, file: TextIO, output: TextIO) -> None:
        self._file, self._output, self._part = file, output, ""
        self.calls: list[Taken] = []

    def write(self, text: str) -> int:
        *lines, self._part = (self._part + text).split("\n")
        for line in lines:
            self._file.write(json.dumps({"line": line, "calls": self.calls}) + "\n")
            self._file.flush()
            self.calls = []
        return self._output.write(text)

    def flush(self) -> None:
        self._output.flush()


class SystemCounter:
    """Instructions of this process and the threads it starts from now on, by the processor."""

    def __init__(self) -> None:
        attributes = _ATTRIBUTES.pack(0, _ATTRIBUTES.size, _INSTRUCTIONS, 0, 0, 0, _INHERIT | _USER_ONLY)
        number = _SYSTEM_CALLS.get(platform.machine(), -1)
        self._file = ctypes.CDLL(None, use_errno=True).syscall(number, attributes, 0, -1, -1, 0)

    def read(self) -> int:
        """0 where the system counts none."""
        return int.from_bytes(os.read(self._file, 8), sys.byteorder) if self._file >= 0 else 0


def alternate(
    events: Events, counter: SystemCounter, times: Any, calls: Sequence[Call], *options: Any, **named: Any
) -> Any:
    """As the function of comparison.py, which is `times`."""
    seconds = times(calls, *options, **named)
    batches = [max(3, int(_BATCH_SECONDS / max(spent, 1e-7))) for spent in seconds]
    found = [
        [batch(counter, call, count) for call, count in zip(calls, batches, strict=True)]
        for _ in range(_BATCHES)
    ]
    events.calls = [
        {measure: least for measure in turns[0] if (least := min(turn[measure] for turn in turns)) > 0}
        for turns in zip(*found, strict=True)
    ]
    return seconds


def batch(counter: SystemCounter, call: Call, count: int) -> Taken:
    """What a call takes of the processor."""
    instructions, begun = counter.read(), time.process_time()
    for _ in range(count):
        call()
    spent = time.process_time() - begun
    return {"processor": spent / count, "instructions": (counter.read() - instructions) / count}


def main() -> int:
    path, script, *arguments = sys.argv[1:]
    sys.path[0] = str(Path(script).parent)
    sys.argv = [script, *arguments]
    import comparison

    with open(path, "w", encoding="utf-8") as file:
        events = Events(file, sys.stdout)
        comparison.alternate = partial(alternate, events, SystemCounter(), comparison.alternate)
        sys.stdout = events  # type: ignore[assignment]
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            return int(end.code or 0)
        finally:
            sys.stdout = sys.__stdout__
    return 0


if __name__ == "__main__":
    sys.exit(main())
