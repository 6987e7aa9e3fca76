"""Times looking through machine code for what it needs of the processor, beside a digest of the same bytes.

    python perf/needs.py [FILE.vmfb …]

Of the executables for x86-64 in modules (those of the tests, unless files are given), repeated to two
megabytes. Prints milliseconds of processor time a megabyte, the least of some turns each, and the ratio of
the two.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from jitree.codegen.image.flat import hashed
from jitree.loaders.code_scan import PADDING
from jitree.loaders.elf_file import read_elf
from jitree.loaders.elf_format import ARCHITECTURES, PF_X
from jitree.loaders.instruction_tables import X86, features, needed
from jitree.loaders.processor_needs import functions_in, relocated
from jitree.vmfb.decode import BytecodeModule

ROOT = Path(__file__).resolve().parent.parent
SIZE = 2_000_000
TURNS = 15
WANTED = frozenset(name for name in features(X86) if name.startswith(("avx512", "amx-", "avxvnni")))
"""What a processor of level x86-64-v3 lacks."""


def main(paths: list[str]) -> None:
    files = paths or sorted(map(str, (ROOT / "tests" / "data").rglob("*.vmfb")))
    parts = [part for path in files for part in executables(path)]
    whole = b"".join(code for code, _ in parts)
    if not whole:
        sys.exit("no executable for x86-64")
    offsets = np.cumsum([0] + [len(code) for code, _ in parts])[:-1]
    starts = np.concatenate([places + offset for (_, places), offset in zip(parts, offsets, strict=True)])
    times = SIZE // len(whole) + 1
    all_starts = np.concatenate([starts + number * len(whole) for number in range(times)])
    code = memoryview(whole * times + bytes(PADDING))
    without = frozenset(name for name in WANTED if name not in needed(code, all_starts, X86, WANTED))
    megabytes = len(code) / 1e6
    scan, digest = least(lambda: needed(code, all_starts, X86, without), lambda: hashed((code,)))
    print(f"{len(parts)} executables, {len(whole)} bytes, {len(starts)} functions")
    print(f"looking through it {scan / megabytes:.2f} ms/MB, a digest {digest / megabytes:.2f} ms/MB", end="")
    print(f", ratio {scan / digest:.2f}")


def executables(path: str) -> list[tuple[bytes, np.ndarray]]:
    """The code of executables for x86-64, and where functions begin in it."""
    found = []
    for row in BytecodeModule.load(path).module.rodata:
        if bytes(row.data[:4]) == b"\x7fELF" and int.from_bytes(row.data[18:20], "little") == 0x3E:
            file = read_elf(row.data, ARCHITECTURES[0])
            for load in file.loads:
                if load.flags & PF_X:
                    code = bytes(row.data[load.offset : load.offset + load.file_size])
                    found.append((code, functions_in(relocated(file, row.data), load)))
    return found


def least(*calls: Callable[[], object]) -> list[float]:
    """Milliseconds of processor time, of calls in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(TURNS):
        for call, taken in zip(calls, times, strict=True):
            begun = time.process_time()
            call()
            taken.append(1000 * (time.process_time() - begun))
    return [min(taken) for taken in times]


if __name__ == "__main__":
    main(sys.argv[1:])
