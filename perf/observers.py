"""What looking costs: calls under a tap, a profile or explain, over iree.runtime's plain call.

    python perf/observers.py [--device local-sync] [--suite LIST.json] [--seconds 1] [--only REGEX]

All are measured in turn in one process, from arrays of the device; results are read back. `tap` looks at each
dispatch with a function that does nothing, `statistics` keeps those of outputs, `finite` is a session with
check_finite. `silent` is a reader of all events that does nothing: what the way to a reader costs. `debugger`
is a call under the debugger, `breakpoint` one with a breakpoint in its function that is never hit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from io import StringIO
from pathlib import Path

from cases import Call, Case, own_call, peer_call, read_cases
from comparison import alternate

import jitree
from jitree.base.events import EventReader, listen
from jitree.debug.debugger import Debugger
from jitree.debug.shell import Shell
from jitree.debug.stepper import CONTINUE, Way
from jitree.observe.tensors import ObservedDispatch

SUITE = Path(__file__).parent / "programs" / "call.json"
_WARM = 40
"""Calls after which machine code makes them."""


class Silent(EventReader):
    """Reads all and does nothing."""

    needs_python = False
    reads_calls = True

    def submitted(self, work: object) -> EventReader:
        return self


def looked(dispatch: ObservedDispatch) -> None:
    """What is looked at: nothing."""


@contextmanager
def observed(case: Case, device: str, tier: str, way: str) -> Iterator[Call]:
    """Calls a program in its own session while a reader looks."""
    with jitree.Session(device=device, tier=tier, check_finite=way == "finite") as session:
        call = own_call(case, session)
        for _ in range(_WARM):
            call()
        begin: dict[str, Callable[[], object]] = {
            "tap": lambda: session.tap(keep=looked),
            "statistics": session.tap,
            "profile": session.profile,
            "explain": lambda: session.explain(f"{case.module.stem}.{case.function}"),
        }
        looking = begin[way]() if way in begin else None
        for source in (session.device, session.context.table) if way == "silent" else ():
            listen(source, Silent())
        with debugged(session, case, way) if way in ("debugger", "breakpoint") else nullcontext():
            yield call
        if way in ("tap", "statistics", "profile"):
            looking.stop()  # type: ignore[union-attr]


@contextmanager
def debugged(session: jitree.Session, case: Case, way: str) -> Iterator[None]:
    """Has calls made under the debugger."""
    debugger = Debugger(session, Shell(StringIO(), StringIO()))
    debugger.stepper.way = Way(CONTINUE)
    if way == "breakpoint":
        debugger.breakpoints.add(f"{case.function} if False")
    with debugger.attached():
        yield


def measure(case: Case, device: str, tier: str, seconds: float, ways: list[str]) -> dict[str, float]:
    """Microseconds by way."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        calls = [peer_call(case, device)]
        calls += [stack.enter_context(observed(case, device, tier, way)) for way in ways]
        times = alternate(calls, seconds)
    return dict(zip(["iree.runtime", *ways], (1e6 * time for time in times), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description="what looking costs")
    parser.add_argument("--device", default="local-sync")
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--tier", default="fast")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", default="^add$")
    parser.add_argument("--ways", default="plain,silent,profile,explain,tap,statistics,finite")
    options = parser.parse_args()
    for case in read_cases(options.suite, options.only):
        found = measure(case, options.device, options.tier, options.seconds, options.ways.split(","))
        peer = found["iree.runtime"]
        print(f"{case.name}: iree.runtime {peer:.1f} us", flush=True)
        for way, time in list(found.items())[1:]:
            print(f"  {way:12s} {time:8.1f} us  {time / peer:6.2f}x", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
