"""``python -m tests.vmfb.branches``: which branches of the verifier no test takes.

The functions of `jitree/vmfb/native` run in Python, under a trace, on what the tests' tables of hostile
modules have, and with ``--cases 2000`` on seeds of the campaigns, modules of the test data and damaged ones.
A branch is a side of an ``if`` or a ``while``; each that is not taken is a line. There is none, as
`test_native.py` asserts.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any, Final
from unittest.mock import patch

from jitree.errors import StatusError
from jitree.vmfb import decode, flatbuffer
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.native import bodies, checking, joining, operands
from tests.fuzz.fields import Layout
from tests.fuzz.mutations import mutate
from tests.fuzz.seeds import control, seeds
from tests.vmfb.test_columns import CHANGES, read_again
from tests.vmfb.test_flatbuffer import MODULE, damaged
from tests.vmfb.test_verify import hostile

FILES: Final = tuple(str(module.__file__) for module in (bodies, checking, joining, operands))
LEFT: Final = -1
"""In place of a line: the function ends."""
DATA: Final = Path(__file__).parents[1] / "data"
_LARGEST: Final = 20_000
"""Bytes of modules that are read: the trace takes a while."""

Steps = set[tuple[int, int]]
"""From a line to the next one of the same call."""


@contextmanager
def traced() -> Iterator[dict[str, Steps]]:
    """The steps that are taken in each file while the block runs."""
    taken: dict[str, Steps] = {file: set() for file in FILES}

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        steps = taken.get(frame.f_code.co_filename)
        if steps is None:
            return None
        last = LEFT

        def step(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            place = LEFT if event == "return" else frame.f_lineno
            steps.add((last, place))
            last = place
            return step

        return step

    earlier = sys.gettrace()
    sys.settrace(enter)
    try:
        yield taken
    finally:
        sys.settrace(earlier)


def missing(file: str, steps: Steps) -> list[str]:
    """The branches of a file that no step takes."""
    source = Path(file).read_text()
    lines = source.splitlines()
    found = []
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    for node in (node for function in functions for node in ast.walk(function)):
        if not isinstance(node, (ast.If, ast.While)):
            continue
        test = range(node.lineno, (node.test.end_lineno or node.lineno) + 1)
        first = node.body[0].lineno
        inside = range(first, (node.body[-1].end_lineno or first) + 1)
        sides = {"taken": False, "passed": False}
        for source_line, place in steps:
            if source_line in test and place not in test:
                sides["taken" if place in inside else "passed"] = True
        always = isinstance(node.test, ast.Constant)  # of which one side cannot be
        for side, is_there in sides.items():
            if not is_there and not (always and side == "passed"):
                found.append(
                    (
                        node.lineno,
                        f"{Path(file).name}:{node.lineno}: never {side}: {lines[node.lineno - 1].strip()}",
                    )
                )
    return [text for _, text in sorted(found)]


def modules(cases: int) -> Iterator[bytes]:
    """Whole modules, then damaged ones."""
    whole = {name: seed.data for name, seed in seeds().items() if name != "digits"}
    whole["control15"] = control(15).build()
    yield from whole.values()
    for path in sorted(DATA.rglob("*.vmfb")):
        if path.stat().st_size < _LARGEST:
            yield path.read_bytes()
    small = [name for name in whole if len(whole[name]) < _LARGEST]
    layouts = {name: Layout(whole[name]) for name in small}
    for number in range(cases):
        name = small[number % len(small)]
        yield mutate(whole[name], layouts[name], random.Random(f"{name}:{number}"))


def rows() -> Iterator[Callable[[], object]]:
    """What the tests' tables have: modules, most of them hostile."""
    yield from (partial(BytecodeModule.load, module.build("plain")) for module in hostile())
    yield from (partial(flatbuffer.require_whole, memoryview(data)) for data in damaged())
    yield from (partial(read_again, name) for name in CHANGES)
    for data in (MODULE, control(15).build(), control().build()):
        yield partial(BytecodeModule.load, data)


def untaken(runs: Iterable[Callable[[], object]]) -> list[str]:
    """The branches that some cases do not take. All are made before the trace, which makes Python slow."""
    made = list(runs)
    with (
        patch.object(decode, "compiled", lambda: None),
        patch.object(flatbuffer, "compiled", lambda: None),
        traced() as taken,
    ):
        for run in made:
            with suppress(StatusError):
                run()
    return [text for file in FILES for text in missing(file, taken[file])]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=0, help="damaged modules, after those of tests")
    cases = parser.parse_args().cases
    others = (partial(BytecodeModule.load, data) for data in modules(cases)) if cases else ()
    found = untaken(chain(rows(), others))
    print(*found, f"{len(found)} branches are not taken", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
