"""``device.memory()``: totals, and who has allocated what is still used."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from jitree import Limits, Session
from jitree.errors import FailedPreconditionError, ResourceExhaustedError
from jitree.hal.allocator import HostMemory
from tests.api.programs import PROGRAMS

SEEN = PROGRAMS / "seen.vmfb"
ARGUMENTS = np.ones((4, 64), np.float32), np.ones((64, 71), np.float32), np.zeros(71, np.float32)
NAME = "module.normalized"


@pytest.fixture(params=["local-sync", "local-task"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(device=request.param, tier="fast") as session:
        session.load(SEEN)
        yield session


def test_totals(session: Session) -> None:
    before = session.device.memory()
    kept = [session.to_device(np.ones(1000, np.float32)) for _ in range(3)]
    after = session.device.memory()
    assert after.live - before.live == 12000 and after.allocated - before.allocated == 12000
    assert after.peak >= after.live and after.reserved >= before.reserved and not after.rows
    del kept
    assert session.device.memory().live == before.live and session.device.uri in str(after)


def test_totals_are_those_of_the_end_of_the_block(session: Session) -> None:
    with session.device.memory() as memory:
        before = memory.live
        kept = session.to_device(np.ones(1000, np.float32))
    assert kept.shape == (1000,)
    assert memory.live == before + 4000 == sum(row.live for row in memory.rows) + before
    assert str(memory).startswith(f"{session.device.uri}: {memory.live} bytes live")


def test_results_that_are_kept_have_function_and_line(session: Session) -> None:
    function = session[NAME]
    for _ in range(6):
        function(*ARGUMENTS)
    with session.device.memory() as memory:
        kept = function(*ARGUMENTS)
        function(*ARGUMENTS)
        mine = session.to_device(np.ones(10, np.float32))
    by_function = {row.function.partition("+")[0]: row for row in memory.rows if row.live}
    results = by_function["module.normalized"]
    assert results.live >= 4 * 71 * 4 + 4 * 8 and __file__ in results.call_site
    asked = [row for row in memory.rows if row.function.startswith("module.normalized")]
    assert (
        sum(row.allocated for row in asked) >= 2 * results.live and len({row.call_site for row in asked}) == 2
    )
    assert by_function["(Python)"].live >= 40 and memory.tracked_peak >= sum(row.live for row in memory.rows)
    assert "module.normalized+" in str(memory) and "called from" in str(memory)
    del kept, mine
    gc.collect()
    assert sum(row.live for row in memory.rows if row.function.startswith("module.normalized")) == 0


def test_what_a_thread_of_its_own_allocates_has_no_line(session: Session) -> None:
    """Its stack has none but Python's own: threading.py."""
    with session.device.memory() as memory:
        thread = threading.Thread(target=session[NAME], args=ARGUMENTS)
        thread.start()
        thread.join()
    assert {row.call_site for row in memory.rows} == {"(no line)"}


def test_calls_are_as_before_when_it_has_ended(session: Session) -> None:
    function, device = session[NAME], session.device
    expected = [np.array(result).tobytes() for result in function(*ARGUMENTS)]
    allocator = device.device_allocator
    for _ in range(3):
        with device.memory() as memory:
            assert [np.array(result).tobytes() for result in function(*ARGUMENTS)] == expected
        assert memory.rows and device.device_allocator is allocator
    for _ in range(6):
        assert [np.array(result).tobytes() for result in function(*ARGUMENTS)] == expected
    pool = session.context.invoker.table
    with session.profile() as profile:
        function(*ARGUMENTS)
    assert not profile.imports, "machine code allocates again"
    assert pool is session.context.invoker.table


def test_it_is_tracked_once_at_a_time(session: Session) -> None:
    with session.device.memory():
        with pytest.raises(FailedPreconditionError, match="tracked already"), session.device.memory():
            pass
        assert session.device.memory().live >= 0


def test_limits_go_on_counting_what_a_program_has_elsewhere() -> None:
    """Memory of the host that is no buffer's: lists, command buffers."""
    limits = Limits(memory=1 << 16)
    with Session("local-sync", sandbox=True, limits=limits) as session, session.device.memory():
        memory = HostMemory(session.device.device_allocator.limited_charge)
        with pytest.raises(ResourceExhaustedError, match="limit on memory"):
            memory.reach(1 << 17)
