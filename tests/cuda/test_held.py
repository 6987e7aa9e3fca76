"""Lists that machine code holds back: launched as one graph, after the first ones and before any wait."""

from __future__ import annotations

import gc
import weakref
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jitree.codegen.record import layout_of, words_of
from jitree.cuda import launches, programs
from jitree.cuda.launches import BUCKETS, MOST_HELD, MOST_WANTED, ProgramTableRecord
from jitree.errors import StatusError
from jitree.hal.buffer import BufferView
from tests.cuda.fake_results import CUresult
from tests.cuda.test_native import MULTIPLY, Side
from tests.modules.hal_programs import (
    BUFFERS,
    COMMANDS,
    DEVICE,
    DEVICE_LOCAL,
    EXECUTABLE,
    F32,
    FENCES,
    FIRST,
    NULL,
    ROWS,
    USAGE,
    VIEWS,
    Program,
)

pytestmark = pytest.mark.usefixtures("machine_code")

LAUNCH, CHANGE, GRAPH = "cuLaunchKernelEx", "cuGraphExecKernelNodeSetParams", "cuGraphLaunch"
LISTS = 8


def squares(count: int, waits: int = 1) -> Program:
    """Squares an argument of sixteen elements so many times, each in a list of its own, and then waits."""
    program = Program(ROWS)
    source, first, second, _ = BUFFERS
    done, commands = FENCES[0], COMMANDS[0]
    program.call("buffer_view.buffer", FIRST, to=source)
    for buffer in (first, second):
        program.call("device.queue.alloca", DEVICE, -1, NULL, NULL, 0, DEVICE_LOCAL, USAGE, 64, 0, to=buffer)
    read, written, other = source, first, second
    for _ in range(count):
        program.call("command_buffer.create", DEVICE, 1, 3, -1, 0, to=commands)
        bindings: list[list[int | str]] = [[0, 0, each, 0, 64] for each in (read, read, written)]
        program.call("command_buffer.dispatch", commands, EXECUTABLE, MULTIPLY, 16, 1, 1, 0, [], bindings)
        program.call("command_buffer.finalize", commands)
        program.call("fence.create", DEVICE, 0, to=done)
        program.call("device.queue.execute", DEVICE, -1, NULL, done, commands, 0)
        read, written, other = written, other, written
    for _ in range(waits):
        program.call("fence.await", -1, 0, [[done]])
    program.call("buffer_view.create", read, 0, 64, F32, 1, [[16]], to=VIEWS[0])
    return program


class Calls:
    """Of :func:`squares`, on a device of their own."""

    def __init__(self, count: int = LISTS, waits: int = 1) -> None:
        self.side = Side("fast")
        self.driver = self.side.fake
        self.side.session.load(squares(count, waits).module("m"))
        self._exponent = 1 << count
        self.given = np.linspace(0.9, 1.0, 16, dtype=np.float64).astype(np.float32)
        self.view = self.side.session.to_device(self.given).buffer_view

    def check(self, view: BufferView | None = None) -> None:
        result = self.call(view)
        found = self.side.device.read_buffer(result.buffer).view("<f4")
        np.testing.assert_allclose(found, self.given.astype(np.float64) ** self._exponent, rtol=1e-3)

    def call(self, view: BufferView | None = None) -> BufferView:
        view = view or self.view
        (result,) = (each for each in self.side.call("m", view, view) if isinstance(each, BufferView))
        return result

    def counts(self) -> tuple[int, int, int]:
        self.driver.calls.clear()
        self.call()
        return self.driver.count(GRAPH), self.driver.count(CHANGE), self.driver.count(LAUNCH)


@pytest.fixture
def calls() -> Iterator[Calls]:
    calls = Calls()
    yield calls
    calls.side.close()


def warm(calls: Calls, count: int = 24) -> None:
    for _ in range(count):
        calls.check()


def test_the_first_list_is_launched_at_once_and_the_others_as_one(calls: Calls) -> None:
    warm(calls)
    assert calls.counts() == (1, 0, 1)
    calls.check()


def test_many_launches_become_several_graphs() -> None:
    """The first one soon, each of the next ones of twice as many."""
    calls = Calls(1 + 3 * launches._FEWEST_LAUNCHES)
    calls.given = np.ones(16, np.float32)
    calls.view = calls.side.session.to_device(calls.given).buffer_view
    warm(calls)
    assert calls.counts() == (2, 0, 1)
    calls.side.close()


def test_other_addresses_change_the_launches_that_use_them(calls: Calls) -> None:
    """The argument is read by the first list alone."""
    warm(calls)
    others = [calls.side.session.to_device(calls.given).buffer_view for _ in range(3)]
    calls.side.device.stream.finish()
    for view in others:
        calls.driver.calls.clear()
        calls.check(view)
        assert (calls.driver.count(GRAPH), calls.driver.count(CHANGE)) == (1, 0)


def test_until_there_is_a_graph_lists_are_launched_one_by_one(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a program has more sequences of lists than have graphs."""
    monkeypatch.setattr(programs, "_MOST_SEQUENCES", 0)
    warm(calls)
    assert calls.counts() == (0, 0, LISTS)


def test_what_python_submits_comes_after_what_is_held_back() -> None:
    calls = Calls(waits=0)
    warm(calls)
    calls.driver.calls.clear()
    result = calls.call()
    assert calls.driver.count(LAUNCH) == 1 and not calls.driver.count(GRAPH)
    target = calls.side.device.device_allocator.allocate(DEVICE_LOCAL, USAGE, 64)
    calls.side.device.queue_copy(-1, None, None, result.buffer, 0, target, 0, 64)
    assert calls.driver.count(GRAPH) == 1
    found = calls.side.device.read_buffer(target).view("<f4")
    np.testing.assert_allclose(found, calls.given.astype(np.float64) ** (1 << LISTS), rtol=1e-3)
    calls.side.close()


def test_a_closed_session_leaves_nothing_held_back() -> None:
    calls = Calls(waits=0)
    warm(calls)
    calls.driver.calls.clear()
    calls.call()
    calls.side.session.close()
    assert calls.driver.count(GRAPH) == 1
    calls.side.close()


def test_a_refused_graph_is_launched_list_by_list(calls: Calls) -> None:
    warm(calls)
    calls.driver.fail_next(GRAPH, CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    calls.driver.calls.clear()
    calls.check()
    assert calls.driver.count(LAUNCH) >= LISTS


@pytest.mark.parametrize("found", ["call", "trim", "close"])
def test_a_refused_list_that_was_counted_loses_the_device(
    found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller gets what it computes; its memory goes back to the driver when it has ended."""
    calls = Calls(waits=found == "call")
    warm(calls)
    pinned = calls.side.device.stream.pinned(64)
    launch, launched = calls.driver.cuLaunchKernelEx, list[Any]()

    def refuse_third(*arguments: Any) -> Any:
        launched.append(arguments)
        return (CUresult.CUDA_ERROR_OUT_OF_MEMORY,) if len(launched) == 3 else launch(*arguments)

    calls.driver.fail_next(GRAPH, CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    monkeypatch.setattr(calls.driver, LAUNCH, refuse_third)
    for _ in range(2 if found == "call" else 0):
        with pytest.raises(StatusError, match="refused a launch in the middle of a command list"):
            calls.call()
    if found != "call":
        calls.call()
    del calls.view, pinned
    if found == "trim":
        calls.side.device.device_allocator.trim()
    calls.side.close()
    driver, made = calls.driver, weakref.ref(calls.side.device)
    del calls
    gc.collect()
    assert len(launched) >= 3 and made() is None and not driver.allocations
    names = driver.names()
    after = names[len(names) - names[::-1].index(LAUNCH) : names.index("cuMemFreeHost")]
    assert "cuStreamSynchronize" in after and not driver.lost


def test_trim_forgets_sequences(calls: Calls) -> None:
    warm(calls)
    assert calls.driver.executables
    calls.side.session.trim()
    calls.side.device.trim()
    assert not calls.driver.executables
    warm(calls)
    assert calls.counts() == (1, 0, 1)


def test_sequences_whose_hashes_begin_alike_are_both_wanted() -> None:
    """They come in turn, as those of one call do: neither may forget the other."""
    missed, wanted, row = (
        array("q", bytes(8 * count)) for count in (BUCKETS, MOST_WANTED * (1 + MOST_HELD), 2)
    )
    words = array("q", bytes(layout_of(ProgramTableRecord).size))
    fields = words_of(ProgramTableRecord)
    words[fields.missed], words[fields.wanted] = missed.buffer_info()[0], wanted.buffer_info()[0]
    table = ProgramTableRecord(words.buffer_info()[0])
    for found in (0x10005, 0x20005, 0x30005 + BUCKETS, 0x10005, 0x20005):
        launches.note_missed(table, row.buffer_info()[0], 2, found)
    assert words[fields.wanted_count] == 2
