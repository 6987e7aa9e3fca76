"""Command lists that machine code launches one by one: where most of a graph would have to be changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jitree.errors import InternalError
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

SINGLY, CHANGE, GRAPH = "cuLaunchKernelEx", "cuGraphExecKernelNodeSetParams", "cuGraphLaunch"


def powers(empty: bool = False) -> Program:
    """The fourth power of an argument of sixteen elements: a fill and two dispatches, one after the other.
    ``empty``: the last one has no workgroups, so the result is what was filled in, zeros."""
    program = Program(ROWS)
    source, square, result, _ = BUFFERS
    done, commands = FENCES[0], COMMANDS[0]
    program.call("buffer_view.buffer", FIRST, to=source)
    for buffer in (square, result):
        program.call("device.queue.alloca", DEVICE, -1, NULL, NULL, 0, DEVICE_LOCAL, USAGE, 64, 0, to=buffer)
    program.call("command_buffer.create", DEVICE, 1, 3, -1, 0, to=commands)
    program.call("command_buffer.fill_buffer", commands, result, 0, 64, 0, 0, 4, 0)
    for read, written, count in ((source, square, 16), (square, result, 0 if empty else 16)):
        program.call("command_buffer.execution_barrier", commands, 4, 8, 0)
        bindings: list[list[int | str]] = [[0, 0, each, 0, 64] for each in (read, read, written)]
        program.call("command_buffer.dispatch", commands, EXECUTABLE, MULTIPLY, count, 1, 1, 0, [], bindings)
    program.call("command_buffer.finalize", commands)
    program.call("fence.create", DEVICE, 0, to=done)
    program.call("device.queue.execute", DEVICE, -1, NULL, done, commands, 0)
    program.call("fence.await", -1, 0, [[done]])
    program.call("buffer_view.create", result, 0, 64, F32, 1, [[16]], to=VIEWS[0])
    return program


LAUNCHES = 3


class Calls:
    """Of :func:`powers`, on a device of their own."""

    def __init__(self, has_launches: bool = True, empty: bool = False) -> None:
        self.side = Side("fast", lacks="" if has_launches else SINGLY)
        self.driver = self.side.fake
        self.side.session.load(powers(empty).module("m"))
        self._is_empty = empty
        self._kept: list[Any] = []
        """So that the next ones have other addresses."""
        self._number = 0.0

    def with_new_memory(self) -> None:
        self._number += 1 / 64
        view = self.view(self._number)
        self._kept += (view, self.check(view))

    def view(self, number: float) -> BufferView:
        return self.side.session.to_device(
            np.arange(16, dtype=np.float32) / 16 + np.float32(number)
        ).buffer_view

    def check(self, view: BufferView) -> BufferView:
        (result,) = (each for each in self.side.call("m", view, view) if isinstance(each, BufferView))
        given, found = (self.side.device.read_buffer(each.buffer).view("<f4") for each in (view, result))
        square = given * given
        assert np.array_equal(found, np.zeros(16, np.float32) if self._is_empty else square * square)
        return result


@pytest.fixture
def calls() -> Iterator[Calls]:
    calls = Calls()
    for _ in range(24):
        calls.with_new_memory()
    calls.driver.calls.clear()
    yield calls
    calls.side.close()


def test_words_that_come_once(calls: Calls) -> None:
    for _ in range(20):
        calls.with_new_memory()
    assert calls.driver.count(SINGLY) >= 20 * LAUNCHES
    assert not calls.driver.count(CHANGE) and not calls.driver.count(GRAPH)


def test_words_that_take_turns_have_graphs(calls: Calls) -> None:
    views = [calls.view(number) for number in (7, 8)]
    for _ in range(8):
        for view in views:
            calls.check(view)  # results that are dropped take turns, too
    calls.driver.calls.clear()
    for view in views:
        calls.check(view)
    assert calls.driver.count(GRAPH) == 2 and not calls.driver.count(CHANGE)


def test_few_words_that_change_are_those_of_a_graph(calls: Calls) -> None:
    """As the position of a decoder is; unless it has been quicker to launch one by one."""
    views = [calls.view(number) for number in range(20)]
    for view in views[:8]:
        calls.check(view)  # memory of results is the same in each call
    found = []
    for view in views[8:]:
        calls.driver.calls.clear()
        calls.check(view)
        found.append(tuple(map(calls.driver.count, (GRAPH, CHANGE, SINGLY))))
    assert (1, 1, 0) in found and set(found) <= {(1, 1, 0), (0, 0, LAUNCHES), (1, 2, 0)}


def test_a_refused_first_launch_is_pythons(calls: Calls) -> None:
    calls.driver.fail_next(SINGLY, CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    calls.with_new_memory()
    assert calls.driver.count("cuLaunchKernel") or calls.driver.count(GRAPH)
    calls.driver.calls.clear()
    calls.with_new_memory()
    assert calls.driver.count(SINGLY) >= LAUNCHES


def test_what_has_been_launched_in_part_is_not_launched_again(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = calls.view(3)
    launch, launched = calls.driver.cuLaunchKernelEx, list[Any]()

    def refuse_second(*arguments: Any) -> Any:
        launched.append(arguments)
        return (CUresult.CUDA_ERROR_OUT_OF_MEMORY,) if len(launched) == 2 else launch(*arguments)

    monkeypatch.setattr(calls.driver, SINGLY, refuse_second)
    with pytest.raises(InternalError, match="refused a launch in the middle of a command list"):
        calls.check(view)
    assert len(launched) == 2
    for _ in range(3):
        calls.with_new_memory()


def test_no_workgroups_are_no_launch() -> None:
    calls = Calls(empty=True)
    for _ in range(24):
        calls.with_new_memory()
    calls.driver.calls.clear()
    calls.with_new_memory()
    assert calls.driver.count(SINGLY) == LAUNCHES - 1
    calls.side.close()


def test_drivers_without_such_launches_have_graphs() -> None:
    calls = Calls(has_launches=False)
    for _ in range(24):
        calls.with_new_memory()
    assert calls.driver.count(CHANGE) and not calls.driver.count(SINGLY)
    calls.side.close()
