"""Ctrl-C while Python takes over what machine code has recorded."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from types import FrameType

import pytest

from jitree import Session
from jitree.codegen import image
from jitree.hal.local import executor
from jitree.modules.hal.native import RECIPE
from tests.hal.native_kernels import MULTIPLY
from tests.modules.hal_programs import (
    BUFFERS,
    COMMANDS,
    DEVICE,
    FENCES,
    FIRST,
    NULL,
    PUSHED_ROWS,
    ROWS,
    SECOND,
    TEXT,
    Program,
)
from tests.modules.test_hal_native import outcome


@pytest.fixture(scope="module", autouse=True)
def machine_code() -> None:
    image.wait(RECIPE)
    executor.require_native_executor()


@pytest.mark.parametrize("rows", [ROWS, PUSHED_ROWS], ids=["0.7", "0.2"])
@pytest.mark.parametrize("event", ["call", "return"])
@pytest.mark.parametrize(
    "place", ["make", "_make_command_buffer", "restore", "adopt", "_hand_over", "give_back", "release_all"]
)
def test_an_interrupt_where_python_takes_a_recording_over(
    place: str, event: str, rows: dict[str, str]
) -> None:
    """What the recording keeps is dropped once."""
    program = Program(rows)
    program.call("command_buffer.create", DEVICE, 1, 3, -1, 0, to=COMMANDS[0])
    program.call("buffer_view.buffer", FIRST, to=BUFFERS[0])
    program.call("buffer_view.buffer", SECOND, to=BUFFERS[1])
    bindings: list[list[int | str]] = [[0, 0, BUFFERS[index], 0, 64] for index in (0, 1, 1)]
    program.dispatch(COMMANDS[0], MULTIPLY, (16, 1, 1), [], bindings)
    program.call("command_buffer.begin_debug_group", COMMANDS[0], TEXT)  # is Python's
    program.call("command_buffer.end_debug_group", COMMANDS[0])
    program.dispatch(COMMANDS[0], MULTIPLY, (16, 1, 1), [], bindings)
    program.call("command_buffer.finalize", COMMANDS[0])
    program.call("fence.create", DEVICE, 0, to=FENCES[0])
    program.call("device.queue.execute.indirect", DEVICE, -1, NULL, FENCES[0], COMMANDS[0], 0, [])
    program.call("fence.await", -1, 0, [[FENCES[0]]])
    with Session("local-sync", tier="fast") as session:
        session.load(program.module("m"))
        for _ in range(4):
            expected = outcome(session, "m")

        def interrupt(frame: FrameType, happens: str, _: object) -> None:
            if happens == event and frame.f_code.co_name == place:
                sys.setprofile(None)
                raise KeyboardInterrupt

        for _ in range(3):
            sys.setprofile(interrupt)
            with suppress(KeyboardInterrupt):
                outcome(session, "m")
            sys.setprofile(None)
            gc.collect()
            assert [outcome(session, "m") for _ in range(3)] == [expected] * 3
