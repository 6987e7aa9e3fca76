"""Debuggers may call the session, or end what it does, at any line of what counts references."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import pytest

import jitree
from jitree.modules.hal.native import handle_pool
from jitree.regs import handles, memory
from tests.api.programs import ARITHMETIC, REFERENCES

FILES: Final = {module.__file__ for module in (handle_pool, handles, memory)}
MANY: Final = 12
"""References that are dropped together."""
EVERY_LINE: Final = 20_000
"""Lines that two calls come to are fewer, with those of what waits."""


class Debugged(BaseException):
    """What a function that traces raises."""


class AtLine:
    """Does something once, where a line of the files comes for the nth time."""

    def __init__(self, line: tuple[str, int], nth: int, act: Callable[[], object]) -> None:
        self._line = line
        self._left = nth
        self._act = act

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None if event == "call" and "jitree" not in frame.f_code.co_filename else self.trace
        if event == "line" and (frame.f_code.co_filename, frame.f_lineno) == self._line:
            self._left -= 1
            if self._left == 0:
                sys.settrace(None)
                self._act()
        return self.trace


def traced(trace: Any, action: Callable[[], object]) -> None:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)


def lines_of(action: Callable[[], object]) -> Iterator[tuple[tuple[str, int], int]]:
    """The lines of the files that an action comes to: the first, a later and the last time."""
    seen: dict[tuple[str, int], int] = {}

    def note(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and frame.f_code.co_filename in FILES:
            key = frame.f_code.co_filename, frame.f_lineno
            seen[key] = seen.get(key, 0) + 1
        return note

    traced(note, action)
    for line, count in sorted(seen.items()):
        yield from ((line, nth) for nth in sorted({1, count // 2 + 1, count}))


@pytest.fixture
def calls() -> Iterator[Callable[[], None]]:
    """Calls that make references of each kind and drop them, one by one and together."""
    session = jitree.Session("local-sync")
    arithmetic, references = session.load(ARITHMETIC), session.link(REFERENCES)[0]
    ones = np.ones(4, np.float32)

    def call() -> None:
        assert arithmetic.add(ones, ones).tolist() == [2.0] * 4
        pair = references.pair(3, ones[:2])
        assert references.list_size(pair) == 2 and next(iter(pair)) == 3
        kept = [arithmetic.add(ones, ones) for _ in range(MANY)]
        assert [array.buffer_view.shape for array in kept] == [(4,)] * MANY
        del pair, kept
        assert arithmetic.add(ones, ones).tolist() == [2.0] * 4

    for _ in range(40):
        call()
    yield call
    session.close()


def test_a_debugger_calls_the_session(calls: Callable[[], None]) -> None:
    for line, nth in lines_of(calls):
        traced(AtLine(line, nth, calls).trace, calls)
        for _ in range(3):
            calls()


def test_a_debugger_calls_the_session_at_every_line(calls: Callable[[], None]) -> None:
    """What it owes comes faster than one call drops it; the next calls drop the rest."""
    left = EVERY_LINE

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in FILES:
            return None if event == "call" and "jitree" not in frame.f_code.co_filename else trace
        if event == "line":
            left -= 1
            assert left > 0, "the call does not end"
            calls()
        return trace

    for _ in range(2):
        traced(trace, calls)
        for _ in range(3):
            calls()


def test_a_debugger_ends_the_call(calls: Callable[[], None]) -> None:
    def end() -> None:
        raise Debugged(Path(line[0]).name, line[1])

    for line, nth in lines_of(calls):
        with suppress(Debugged):
            traced(AtLine(line, nth, end).trace, calls)
        for _ in range(3):
            calls()
