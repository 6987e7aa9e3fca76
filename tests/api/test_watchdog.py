"""The watchdog sees calls that are stuck in bytecode, on every tier, and says in which function and where."""

from __future__ import annotations

import _thread
import asyncio
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from jitree import Session
from jitree.dispatch.context import TIERS
from jitree.hal import watchdog
from jitree.hal.command_list import CommandList
from jitree.hal.local.executor import require_native_executor
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from tests.assembler import Assembler
from tests.hal.native_kernels import aligned, whole
from tests.loaders.vmvx.programs import load

SECONDS = 0.5
ENDLESS = """
    %i1 = const.i32 1
    br ^head
    ^head:
    %i0 = add.i32 %i0, %i1
    br ^head
"""
PROGRAM = Assembler("m").function("g", "0i_v", ENDLESS).function("f", "0i_v", "[] = call @g [%i0]\nreturn []")

on_every_tier = pytest.mark.parametrize("tier", TIERS)


class Interrupter:
    """Keeps the first report, and ends the call in the main thread that it is about."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        if not self.text:
            self.text = text
            _thread.interrupt_main()

    def report_of(self, call: Callable[[], object]) -> str:
        """The report of a call without end."""
        with pytest.raises(KeyboardInterrupt):
            call()
        return self.text


@pytest.fixture
def report() -> Iterator[Interrupter]:
    interrupter = Interrupter()
    watchdog.start(SECONDS, interrupter.write)
    yield interrupter
    watchdog.stop()


@on_every_tier
def test_a_loop_without_end(tier: str, report: Interrupter) -> None:
    with Session("local-sync", tier=tier) as session:
        module = session.load(PROGRAM.build())
        text = report.report_of(lambda: module.f(3))
    assert re.search(
        r"MainThread: running for \d+\.\d s: function 'm\.f', last seen at m\.g\+000000\w\w, "
        r"called from m\.f\+00000001",
        text,
    )


def test_an_awaited_loop_without_end(report: Interrupter) -> None:
    with Session("local-sync", tier="fast") as session:
        module = session.load(PROGRAM.build())
        text = report.report_of(lambda: asyncio.run(module.f.async_(3)))
    assert "function 'm.f', last seen at m.g+" in text


@on_every_tier
def test_a_kernel_without_end(tier: str, report: Interrupter) -> None:
    executable = load(Assembler("kernels").function("spin", ENTRY_CONVENTION, ENDLESS), tier)
    commands = CommandList()
    commands.dispatch(executable, 0, (4, 1, 1), [], [whole(aligned(np.zeros(4, np.int32)))])
    text = report.report_of(lambda: require_native_executor().execute(commands, *commands.bind(())))
    assert "function 'kernels.spin', last seen at kernels.spin+" in text


def test_sessions_made_without_it_pay_nothing() -> None:
    with Session("local-sync") as session:
        assert not session.context.table.readers
