"""Files that name machine code for ``perf``, made by another process and read back here."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

PROGRAM = """
import os
import numpy as np
import jitree

sessions = []
for path in ("tests/data/programs/digits.vmfb", "examples/digits/digits.vmvx.vmfb"):
    session = jitree.Session("local-sync", tier="native")
    digits = session.load(path)
    digits.classify(np.zeros((8, 8), np.float32))
    while not digits.classify.is_direct:
        digits.classify(np.zeros((8, 8), np.float32))
    sessions.append(session)
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
print(os.getpid(), child)
"""
ROOT = Path(__file__).resolve().parent.parent.parent


def run(kinds: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "JITREE_PERF": kinds, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def processes() -> Iterator[list[int]]:
    """Numbers of a process and of its child, which have written both files."""
    result = run("map,jitdump")
    assert result.returncode == 0, result.stderr
    numbers = [int(number) for number in result.stdout.split()]
    yield numbers
    for number in numbers:
        Path(f"/tmp/perf-{number}.map").unlink()
        Path(f"/tmp/jit-{number}.dump").unlink()


def read_map(process: int) -> dict[bytes, tuple[int, int]]:
    lines = Path(f"/tmp/perf-{process}.map").read_bytes().splitlines()
    parts = [line.split(b" ", 2) for line in lines]
    return {name: (int(address, 16), int(size, 16)) for address, size, name in parts}


def read_dump(process: int) -> dict[bytes, tuple[int, bytes]]:
    data = Path(f"/tmp/jit-{process}.dump").read_bytes()
    magic, version, size, _, _, owner, *_ = struct.unpack_from("=6I2Q", data)
    assert (magic, version, size, owner) == (0x4A695444, 1, 40, process)
    found: dict[bytes, tuple[int, bytes]] = {}
    position, before = size, 0
    while position < len(data):
        kind, length, when = struct.unpack_from("=2IQ", data, position)
        owner, _, virtual, address, code_size, index = struct.unpack_from("=2I4Q", data, position + 16)
        name, _, code = data[position + 56 : position + length].partition(b"\0")
        assert (kind, owner, virtual, index, len(code)) == (0, process, address, len(found), code_size)
        assert when >= before
        found[name] = address, code
        position, before = position + length, when
    assert position == len(data)
    return found


def test_files_name_all_machine_code(processes: list[int]) -> None:
    for process in processes:
        functions, code = read_map(process), read_dump(process)
        assert functions.keys() >= {b"jitree.loop.run", b"jitree.calls.function_method"}
        assert {name: (address, len(data)) for name, (address, data) in code.items()} == functions
        for executable in (b"_linked.", b"linked_module."):  # after the name of the source, or _stdin_
            assert [name for name in functions if b"_dispatch_" in name and executable in name]
        spans = sorted(functions.values())
        assert all(size > 0 for _, size in spans)
        assert all(first + size <= second for (first, size), (second, _) in pairwise(spans))


def test_other_kinds_are_refused() -> None:
    result = run("map,flamegraph")
    assert "JITREE_PERF='map,flamegraph' asks for 'flamegraph'; give map, jitdump or both" in result.stderr
