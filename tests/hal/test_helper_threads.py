"""How many workers take part, by what a team's record says; and that no list needs them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from jitree.codegen.primitives import ticks
from jitree.codegen.record import atomic_load, atomic_store, size_of
from jitree.hal.command_layout import POSTED_STOP, POSTING, Helper, ThreadTeam
from jitree.hal.command_list import CommandList
from jitree.hal.local import executor, thread_team
from jitree.hal.local.executor import helper_threads
from jitree.hal.local.executor.helper_threads import helpers_for, invite, is_dismissed, is_invited
from jitree.hal.local.executor.rows import helper_at
from jitree.hal.local.thread_team import Team
from jitree.hal.local.topology import unpinned
from jitree.regs.memory import address_of, zeroed
from tests.hal.native_kernels import BUSY, aligned, dispatch, forget_costs

WORKERS = 15
SPINNING, PARKED = 600, 6000
"""Ticks."""


@pytest.fixture
def record() -> Iterator[ThreadTeam]:
    """A team's record, all of whose workers are awake."""
    memory, helpers = zeroed(size_of(ThreadTeam), 128), zeroed(size_of(Helper) * (WORKERS + 1), 128)
    team = ThreadTeam(address_of(memory))
    team.helpers, team.workers, team.most = address_of(helpers), WORKERS, WORKERS
    team.spinning_ticks, team.parked_ticks = SPINNING, PARKED
    yield team
    del memory, helpers


def _let_sleep(team: ThreadTeam, *workers: int) -> None:
    for worker in workers:
        atomic_store(helper_at(team, worker).asleep, 1)


@pytest.mark.parametrize(("total", "helpers"), [
    (SPINNING - 1, 0),  # too little for two
    (SPINNING, 2),
    (SPINNING * 2, 5),
    (SPINNING * 5, 14),
    (SPINNING * 100, WORKERS),
])  # fmt: skip
def test_helpers_by_work(record: ThreadTeam, total: int, helpers: int) -> None:
    assert helpers_for(record, total) == helpers
    record.most = 2
    assert helpers_for(record, total) == min(helpers, 2), "there are processors for two"
    record.most = 0
    assert helpers_for(record, total) == 0


def test_sleeping_workers_are_woken_for_enough_work(record: ThreadTeam) -> None:
    _let_sleep(record, *range(1, WORKERS + 1))
    assert helpers_for(record, PARKED - 1) == 0
    record.owed = 0
    assert helpers_for(record, PARKED) == 4
    record.owed = 0
    assert helpers_for(record, 100 * PARKED) == WORKERS


def test_workers_that_are_awake_help_without_the_others(
    record: ThreadTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until those have been missed for some time, by a clock that does not go on: a slow machine forgets."""
    now = ticks()
    monkeypatch.setattr(helper_threads, "ticks", lambda: now)
    _let_sleep(record, *range(3, WORKERS + 1))
    found = [helpers_for(record, PARKED // 2) for _ in range(12)]
    assert found[0] == 2 and max(found) > 2
    record.owed_since = now - 100 * PARKED
    assert helpers_for(record, PARKED // 2) == 2, "it was long ago"


def test_postings_name_the_first_workers(record: ThreadTeam) -> None:
    seen = {0}
    for helpers in (3, 1, WORKERS, 1):
        invite(record, helpers)
        posted = atomic_load(record.posted)
        assert [is_invited(posted, worker) for worker in (1, helpers, helpers + 1)] == [True, True, False]
        assert posted not in seen and not is_dismissed(posted)
        seen.add(posted)
    atomic_store(record.posted, posted + POSTED_STOP)
    invite(record, 2)
    posted = atomic_load(record.posted)
    assert is_dismissed(posted) and posted & (POSTING - 1) == 2


def _list(groups: int, turns: int) -> tuple[CommandList, np.ndarray, np.ndarray]:
    visits, workers = aligned(np.zeros(groups, np.uint32)), aligned(np.zeros(groups, np.uint32))
    commands = CommandList()
    for _ in range(3):
        dispatch(commands, BUSY, (groups, 1, 1), [turns], visits, workers)
        commands.barrier()
    return commands, visits, workers  # the caller keeps the last two while the list runs


def test_lists_end_without_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are invited, awake and never come, as if others had their processors."""
    native = executor.require_native_executor()
    forget_costs()
    freed = threading.Event()

    def serve(team: int, worker: int) -> None:
        freed.wait()

    held = SimpleNamespace(
        serve=serve, dismiss=native.dismiss, ticks_per_microsecond=native.ticks_per_microsecond
    )
    monkeypatch.setattr(thread_team, "available_processors", lambda: 8)
    team = Team("test", unpinned(8), 20)
    start = thread_team._Helpers.start

    def without_workers(helpers: thread_team._Helpers) -> None:
        monkeypatch.setattr(helpers, "_native", held)
        start(helpers)

    monkeypatch.setattr(thread_team._Helpers, "start", without_workers)
    commands, visits, _workers = _list(40, 40_000)
    for _ in range(5):
        team.execute(commands, *commands.bind(()))
    helpers = team._helpers
    assert helpers is not None and atomic_load(helpers._team.posted) >> 8 > 3, "they were invited"
    assert (visits == 15).all()
    freed.set()
    team.close()


def test_no_more_take_part_than_there_are_processors() -> None:
    program = """
import os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
from tests.hal.test_helper_threads import *
from tests.hal.test_helper_threads import _list
executor.require_native_executor()
count = len(os.sched_getaffinity(0))
team = Team("test", unpinned(16), 20)
commands, visits, _workers = _list(64, 20_000)
for _ in range(50):
    team.execute(commands, *commands.bind(()))
    assert atomic_load(team._helpers._team.posted) & 0xFF < count
    asleep = [atomic_load(helper_at(team._helpers._team, worker).asleep) for worker in range(1, 16)]
assert (visits == 150).all()
assert "15 helpers" in team.report()[0]
team.close()
"""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60, env=environment)
