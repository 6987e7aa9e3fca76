"""Counts what runtimes do with modules that are damaged on purpose.

    python perf/hostile.py [--mutants 10000] [--releases 3.0.0,3.13.0] [--runtimes FOLDER] [--workers 2]

Two small modules, one with every plain instruction, one with branches, calls and lists, get one wrong field
each: a register, a branch, a type, a size, or a word of the tables. A child process for each runtime loads
them; the script starts another child when a module ends it. The rows are releases of ``iree-base-runtime``,
which `pip` installs into ``--runtimes``, and jitree, which loads modules of each bytecode version. The last
columns count what a runtime loads although jitree refuses it: numbers out of range for the most part.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import selectors
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from jitree.modules.releases import releases  # noqa: E402
from jitree.vmfb.instructions import CORE  # noqa: E402
from tests.fuzz.fields import KINDS, Layout, Place  # noqa: E402
from tests.fuzz.mutations import INTERESTING  # noqa: E402
from tests.fuzz.seeds import control, instructions  # noqa: E402

FIRST = "3.0.0"
PACKAGE = "iree-base-runtime"
ACCEPTED, REFUSED, ENDED, HUNG = "accepted", "refused", "process ended", "no answer"
LIMIT = 1.0
"""Seconds that a runtime has for a module; a module takes it less than a thousandth of that."""
START_LIMIT = 60.0

_LENGTH = struct.Struct("<I")
_LOOP = """
import struct, sys
def serve(load):
    source, answers = sys.stdin.buffer, sys.stdout.buffer
    answers.write(b"s")
    answers.flush()
    while header := source.read(4):
        data = source.read(struct.unpack("<I", header)[0])
        try:
            load(data)
        except Exception:
            answers.write(b"r")
        else:
            answers.write(b"a")
        answers.flush()
"""
PEER = f"""{_LOOP}
import iree.runtime as rt
instance = rt.VmInstance()
serve(lambda data: rt.VmModule.copy_buffer(instance, data))
"""
OWN = f"""{_LOOP}
from jitree.vmfb.decode import BytecodeModule
serve(BytecodeModule.load)
"""


class Mutant(NamedTuple):
    """A module with one wrong field."""

    kind: str
    data: bytes


def seeds(bytecode: int) -> list[bytes]:
    """Undamaged modules of a bytecode version. Releases of one version differ in what they have of floats."""
    return [control(bytecode).build(), instructions(bytecode, (CORE,)).build()]


def mutants(bytecode: int, count: int) -> list[Mutant]:
    """As many of each kind, the same in each run."""
    found: list[Mutant] = []
    modules = [(data, Layout(data).fields) for data in seeds(bytecode)]
    for number in range(count):
        source = random.Random(f"{bytecode} {number}")
        kind = KINDS[number % len(KINDS)]
        data, fields = source.choice([each for each in modules if each[1][kind]])
        place = source.choice(fields[kind])
        found.append(Mutant(kind, _damaged(data, place, source)))
    return found


def _damaged(data: bytes, place: Place, source: random.Random) -> bytes:
    damaged = bytearray(data)
    field = slice(place.position, place.position + place.width)
    present = int.from_bytes(data[field], "little")
    while damaged[field] == data[field]:
        value = source.choice(
            (source.choice(INTERESTING[place.width]), present + source.choice((-4, -2, -1, 1, 2, 4, 64)))
        )
        damaged[field] = (value % (1 << 8 * place.width)).to_bytes(place.width, "little")
    return bytes(damaged)


class Runtime:
    """A process that loads modules, made anew where one ends it."""

    def __init__(self, program: str, path: str) -> None:
        self._program = program
        self._environment = {**os.environ, "PYTHONPATH": path}
        self._process: subprocess.Popen[bytes] | None = None

    def answer(self, data: bytes) -> str:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(_LENGTH.pack(len(data)) + data)
            process.stdin.flush()
            reply = _reply(process, LIMIT)
        except BrokenPipeError:
            reply = b""
        if not reply:
            self.close()
            return HUNG if reply is None else ENDED
        return ACCEPTED if reply == b"a" else REFUSED

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", self._program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self._environment,
        )  # fmt: skip
        if _reply(process, START_LIMIT) != b"s":
            process.kill()
            raise RuntimeError(f"a process with PYTHONPATH={self._environment['PYTHONPATH']} does not start")
        return process

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _reply(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """A byte; empty if the process has ended, None if it does not come in time."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return os.read(process.stdout.fileno(), 1) if selector.select(seconds) else None


def answers(program: str, path: str, modules: list[Mutant], sound: list[bytes]) -> list[str]:
    """What a runtime does with each; an error if it refuses what is not damaged."""
    runtime = Runtime(program, path)
    try:
        for data in sound:
            if runtime.answer(data) != ACCEPTED:
                raise RuntimeError(f"{path} does not load the undamaged modules")
        return [runtime.answer(mutant.data) for mutant in modules]
    finally:
        runtime.close()


def installed(folder: Path, release: str) -> str | None:
    """Where a release lies, installed if it is not there yet; None where the index does not have it."""
    place = folder / release
    if not (place / "iree").is_dir():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(place)]
        if subprocess.run([*command, f"{PACKAGE}=={release}"]).returncode:
            print(f"{release} is left out: pip does not install it", file=sys.stderr)
            return None
    return str(place)


def row(name: str, found: list[str], own: list[str], modules: list[Mutant]) -> str:
    """A row of the table: all answers, then what is loaded of that which jitree refuses, by kind."""
    counts = collections.Counter(found)
    missed = collections.Counter(
        mutant.kind
        for mutant, answer, ours in zip(modules, found, own, strict=True)
        if ours == REFUSED and answer == ACCEPTED
    )
    cells = [counts[REFUSED], counts[ACCEPTED], counts[ENDED], counts[HUNG], missed.total()]
    cells += [missed[kind] for kind in KINDS]
    return f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--releases", help="separated by commas; all since 3.0.0 by default")
    parser.add_argument("--runtimes", type=Path, help="a folder for the releases; a temporary one by default")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    bytecode = {release.name: release.bytecode for release in releases() if release.packaged}
    names = list(bytecode)
    wanted = arguments.releases.split(",") if arguments.releases else names[names.index(FIRST) :]
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(arguments.workers) as pool:
        places = {name: installed(arguments.runtimes or Path(temporary), name) for name in wanted}
        paths = {name: path for name, path in places.items() if path is not None}
        versions = sorted({bytecode[name] for name in paths})
        modules = {version: mutants(version, arguments.mutants) for version in versions}
        sound = {version: seeds(version) for version in versions}
        own = {v: pool.submit(answers, OWN, str(ROOT), modules[v], sound[v]) for v in versions}
        others = {
            name: pool.submit(answers, PEER, path, modules[bytecode[name]], sound[bytecode[name]])
            for name, path in paths.items()
        }
        print("| Runtime | refused | loaded | process ended | no end | loaded what jitree refuses | ", end="")
        print(" | ".join(f"of it: {kind}" for kind in KINDS) + " |")
        print("|" + " --- |" * (6 + len(KINDS)))
        for name, future in others.items():
            version = bytecode[name]
            print(row(name, future.result(), own[version].result(), modules[version]), flush=True)
        for version, ours in own.items():
            print(row(f"jitree, bytecode {version}", ours.result(), ours.result(), modules[version]))


if __name__ == "__main__":
    main()
