"""How late a deadline ends programs that never end: each function of the lists, called by bytecode in a loop.

    python perf/stopping.py [--suite FILE.json …] [--tier plain fast native auto] [--seconds 0.03]
        [--device local-sync local-task] [--repeat 3] [--only REGEX] [--worst 3]

For each tier and device: milliseconds from the deadline to the error, from the first call of a new session
on, and milliseconds of processors that the process has used in that time, whatever else the machine does.
After each program comes the control: how late a loop in Python ends on the same machine, by a thread that
sleeps for as long and tells it. Needs no extra.
"""

from __future__ import annotations

import argparse
import re
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cases import Case, read_cases

import jitree

ROOT = Path(__file__).parent.parent
SUITES = [ROOT / "perf" / "programs" / f"{name}.json" for name in ("call", "first_second", "models")]
LONG = 0.010
"""Seconds: the aim for bytecode."""


@dataclass(frozen=True)
class Stop:
    late: float
    used: float
    """Processor time from the deadline on."""
    name: str


def looped(function: jitree.Function) -> bytes:
    """A module whose function ``loop`` calls another for ever."""
    sys.path.insert(0, str(ROOT))
    from tests.assembler import Assembler

    version, arguments, results = re.fullmatch(r"(\d)(\w*)_(\w*)", function.cconv).groups()
    registers = _registers(arguments + results)
    count = len(arguments)
    given, made = (", ".join(filter(None, part)) for part in (registers[:count], registers[count:]))
    call = f"[{made}] = call @{function.full_name} [{given}]"
    program = Assembler("looped").import_function(function.full_name, function.cconv)
    program.function("loop", f"{version}{arguments}_v", f"br ^again\n^again:\n{call}\nbr ^again")
    return program.build()


def _registers(kinds: str) -> list[str]:
    """The register of each value; of those of 64 bits both; none for ``v``, nothing."""
    names, values, references = [], 0, 0
    for kind in kinds:
        if kind == "r":
            names.append(f"%r{references}")
            references += 1
        elif kind in "IF":
            values += values & 1
            names.append(f"%i{values}:{values + 1}")
            values += 2
        else:
            names.append("" if kind == "v" else f"%i{values}")
            values += kind != "v"
    return names


def stop(case: Case, loop: jitree.Function, arguments: Sequence[object], seconds: float) -> Stop:
    used: list[float] = []
    limit = loop.session.deadline(seconds)
    begun = time.monotonic()
    try:
        with limit:
            limit.watch(lambda _: used.append(time.process_time()))
            loop(*arguments)
    except jitree.errors.DeadlineExceededError:
        ended = time.monotonic()
        return Stop(ended - begun - seconds, time.process_time() - used[0], case.name)
    raise AssertionError(f"{case.name} has ended by itself")


def control(seconds: float) -> float:
    """As :func:`stop`, of a loop in Python."""
    is_over = threading.Event()

    def tell() -> None:
        time.sleep(seconds)
        is_over.set()

    thread = threading.Thread(target=tell)
    begun = time.monotonic()
    thread.start()
    while not is_over.is_set():
        pass
    late = time.monotonic() - begun - seconds
    thread.join()
    return late


def measure(tier: str, device: str, options: argparse.Namespace) -> None:
    stops, controls = list[Stop](), list[float]()
    for case in (case for suite in options.suite for case in read_cases(suite, options.only)):
        with jitree.Session(device, tier=tier) as session:
            function = session.load(case.module)[case.function]
            loop = session.load(looped(function)).loop
            arguments = [
                session.to_device(item) if isinstance(item, np.ndarray) else item for item in case.arguments
            ]
            stops += [stop(case, loop, arguments, options.seconds) for _ in range(options.repeat)]
        controls.append(control(options.seconds))
    print(f"{tier:6s} {device}: {len(stops)} stops")
    print("  late         ", distribution([one.late for one in stops]))
    print("  of processors", distribution([one.used for one in stops]))
    print("  control late ", distribution(controls))
    for one in sorted(stops, key=lambda one: -one.late)[: options.worst]:
        print(f"  {one.name}: {one.late * 1e3:.1f} ms late, {one.used * 1e3:.1f} ms of processors")
    sys.stdout.flush()


def distribution(times: Sequence[float]) -> str:
    median, most, worst = np.percentile(times, [50, 99, 100]) * 1e3
    share = sum(late > LONG for late in times) / len(times)
    return f"median {median:6.2f}  99 % {most:6.2f}  worst {worst:6.2f} ms  over 10 ms {share:6.1%}"


def main() -> int:
    parser = argparse.ArgumentParser(description="how late a deadline ends programs that never end")
    parser.add_argument("--suite", nargs="+", type=Path, default=SUITES)
    parser.add_argument("--tier", nargs="+", default=["plain", "fast", "native", "auto"])
    parser.add_argument("--device", nargs="+", default=["local-sync", "local-task"])
    parser.add_argument("--seconds", type=float, default=0.03)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--worst", type=int, default=3)
    options = parser.parse_args()
    for tier in options.tier:
        for device in options.device:
            measure(tier, device, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
