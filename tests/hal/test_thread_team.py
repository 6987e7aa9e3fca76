"""Teams: work is shared, exact, and no thread is left asleep or awake."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from jitree import Instance
from jitree.codegen.record import atomic_store
from jitree.errors import InternalError
from jitree.hal.command_layout import List
from jitree.hal.command_list import CommandList
from jitree.hal.local import executor, thread_team
from jitree.hal.local.executor.calling import _JOB
from jitree.hal.local.executor.measured_lists import key_of, measured_list
from jitree.hal.local.thread_team import UNKNOWN, Team
from jitree.hal.local.topology import Topology
from tests.hal.native_kernels import (
    BUSY,
    BUSY_SEQUENTIAL,
    COUNT,
    FAIL,
    aligned,
    dispatch,
    forget_costs,
    whole,
)

TURNS_PER_MILLISECOND = 400_000
"""Of the kernel ``busy``, roughly."""


@pytest.fixture(autouse=True)
def many_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all threads of a team help, however few this machine has."""
    monkeypatch.setattr(thread_team, "available_processors", lambda: 8)


@pytest.fixture(params=[2, 5])
def team(request: pytest.FixtureRequest) -> Iterator[Team]:
    executor.require_native_executor()
    team = Team("test", Topology((None,) * request.param), 20)
    yield team
    team.close()


def _run(team: Team, commands: CommandList) -> None:
    team.execute(commands, *commands.bind(()))


def _busy(function: int, groups: int, turns: int) -> tuple[CommandList, np.ndarray, np.ndarray]:
    visits, workers = aligned(np.zeros(groups, np.uint32)), aligned(np.zeros(groups, np.uint32))
    commands = CommandList()
    dispatch(commands, function, (groups, 1, 1), [turns], visits, workers)
    return commands, visits, workers


def test_large_dispatches_are_shared(team: Team) -> None:
    """Every workgroup runs once, on more than one thread, also when the helpers had gone to sleep."""
    commands, visits, workers = _busy(BUSY, 200, TURNS_PER_MILLISECOND // 4)
    seen: set[int] = set()
    deadline, turns = time.monotonic() + 20, 0
    while turns < 8 or (len(seen) < 2 and time.monotonic() < deadline):
        _run(team, commands)
        turns += 1
        assert (visits == turns).all()
        seen |= set(workers.tolist())
        time.sleep(0.01)
    assert len(seen) > 1 and seen <= set(range(1, team.topology.worker_count + 1))


def test_every_workgroup_of_every_row_runs_once(team: Team) -> None:
    """Rows of all sizes that may run together, whatever the numbers of chunks and of threads."""
    sizes = (1, 2, 3, 5, 16, 17, 40, 41, 97)
    blocks = [aligned(np.zeros(size, np.uint32)) for size in sizes for _ in range(2)]
    commands = CommandList()
    for visits, workers in zip(blocks[::2], blocks[1::2], strict=True):
        dispatch(commands, BUSY, (len(visits), 1, 1), [TURNS_PER_MILLISECOND // 20], visits, workers)
    for turn in range(1, 20):
        _run(team, commands)
        assert all((visits == turn).all() for visits in blocks[::2])


def test_sequential_functions_stay_on_one_thread(team: Team) -> None:
    commands, visits, workers = _busy(BUSY_SEQUENTIAL, 40, TURNS_PER_MILLISECOND // 4)
    for turn in range(1, 4):
        _run(team, commands)
        assert (visits == turn).all()
        assert len(set(workers.tolist()[1:])) == 1, "the first may have run ahead to learn the cost"


def test_groups_between_barriers(team: Team) -> None:
    """Dispatches of one group run together; the next group sees all they did."""
    blocks = [aligned(np.zeros(64, np.uint32)) for _ in range(20)]
    copies = [aligned(np.zeros(64, np.uint32)) for _ in range(20)]
    workers = aligned(np.zeros(64, np.uint32))
    commands = CommandList()
    for _ in range(5):
        for block in blocks:
            dispatch(commands, BUSY, (64, 1, 1), [500], block, workers)
        commands.barrier()
    for block, copy in zip(blocks, copies, strict=True):
        commands.copy(whole(block), whole(copy))
    commands.barrier()
    for block in blocks:
        commands.fill(whole(block), 0x01020304, 4)
    for _ in range(20):
        for block in blocks:
            block[:] = 0
        _run(team, commands)
        assert all((copy == 5).all() for copy in copies)
        assert all((block == 0x01020304).all() for block in blocks)


def test_large_copies_and_fills_are_divided(team: Team) -> None:
    source = aligned(np.random.default_rng(1).integers(0, 256, 5_000_001, np.uint8))
    target = aligned(np.zeros_like(source))
    commands = CommandList()
    commands.copy(whole(source), whole(target))
    _run(team, commands)
    np.testing.assert_array_equal(source, target)
    commands = CommandList()
    commands.fill(whole(target[:5_000_000]), 0x11223344, 4)
    _run(team, commands)
    assert (target[:5_000_000].view(np.uint32) == 0x11223344).all() and target[-1] == source[-1]


def test_first_failure_is_reported_once(team: Team) -> None:
    commands, visits, _ = _busy(BUSY, 100, TURNS_PER_MILLISECOND // 10)
    _run(team, commands)
    failing = aligned(np.zeros(2000, np.uint32))
    second = aligned(np.zeros(8, np.uint32))
    commands = CommandList()
    workers = aligned(np.zeros(100, np.uint32))
    dispatch(commands, BUSY, (100, 1, 1), [TURNS_PER_MILLISECOND // 10], visits, workers)
    dispatch(commands, FAIL, (2000, 1, 1), [1234, 99], failing)
    commands.barrier()
    dispatch(commands, COUNT, (8, 1, 1), [], second)
    for _ in range(10):
        with pytest.raises(InternalError, match=r"returned 99 in workgroup \(1234, 0, 0\) of command 1"):
            _run(team, commands)
    assert not second.any()


def test_sleeping_and_waking_at_random(team: Team) -> None:
    """Pauses around the time after which helpers park, so that all orders of posting and parking occur."""
    commands, visits, _ = _busy(BUSY, 64, 3000)
    _run(team, commands)
    generator = random.Random(5)
    end, turns = time.monotonic() + 2.0, 1
    while time.monotonic() < end:
        _run(team, commands)
        turns += 1
        pause = time.perf_counter_ns() + generator.randrange(60_000)
        while time.perf_counter_ns() < pause:
            pass
    assert (visits == turns).all()


def test_many_threads_submit_at_once(team: Team) -> None:
    failures: list[BaseException] = []

    def submit() -> None:
        try:
            commands, visits, _ = _busy(BUSY, 64, 2000)
            for turn in range(1, 101):
                _run(team, commands)
                assert (visits == turn).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads)


def test_estimate_is_learnt() -> None:
    executor.require_native_executor()
    forget_costs()
    team = Team("test", Topology((None, None)), 20)
    commands, *kept = _busy(BUSY, 20, TURNS_PER_MILLISECOND)
    lengths = commands.bind(())[1]
    assert team.estimate(commands, lengths) == UNKNOWN
    start = time.perf_counter_ns()
    _run(team, commands)
    elapsed = time.perf_counter_ns() - start
    assert elapsed / 20 < team.estimate(commands, lengths) < elapsed * 20
    team.close()
    del kept  # what the kernel writes to lasts until here


@pytest.mark.parametrize("function", [BUSY, BUSY_SEQUENTIAL])
def test_an_estimate_counts_the_threads_of_a_free_team(function: int, team: Team) -> None:
    """Calls submit what takes longer through Python, which takes them as long as much work of a team."""
    native = executor.require_native_executor()
    forget_costs()
    commands, *kept = _busy(function, 20, TURNS_PER_MILLISECOND // 10)
    addresses, lengths, accesses = commands.bind(())
    team.execute(commands, addresses, lengths, accesses)  # learns the costs
    alone = native.estimate(commands, lengths)
    helpers = team._helpers
    assert helpers is not None
    job = native._take_job()
    job.words[_JOB.list], job.words[_JOB.lengths] = commands.address(), lengths.buffer_info()[0]
    job.words[_JOB.team] = helpers.address
    threads = 1 if function == BUSY_SEQUENTIAL else helpers.thread_count
    assert native._estimate(job.address) == alone // threads
    atomic_store(helpers._team.busy, 1)
    assert native._estimate(job.address) == alone
    atomic_store(helpers._team.busy, 0)
    known = measured_list(helpers._team, key_of(List(commands.address())))
    known.shared, known.alone = 1235, 1234
    assert native._estimate(job.address) == 1234, "what one thread took, if that was less"
    del kept


def test_small_work_does_not_wake_helpers() -> None:
    executor.require_native_executor()
    forget_costs()
    team = Team("test", Topology((None,) * 4), 0)
    commands, visits, workers = _busy(BUSY, 64, 10)
    _run(team, commands)
    time.sleep(0.05)
    alone = 0
    for _ in range(100):
        _run(team, commands)
        alone += set(workers.tolist()) == {1}
    assert alone > 60, "a measurement that was interrupted may wake them for some turns"
    assert (visits == 101).all()
    team.close()


def test_a_burst_of_middling_dispatches_wakes_helpers() -> None:
    """Each of them alone (about 20 us) would not."""
    executor.require_native_executor()
    forget_costs()
    team = Team("test", Topology((None, None)), 50)
    commands, visits, workers = _busy(BUSY, 64, 1000)
    _run(team, commands)
    seen: set[int] = set()
    deadline, turns = time.monotonic() + 20, 1
    while len(seen) < 2 and time.monotonic() < deadline:
        _run(team, commands)
        turns += 1
        seen |= set(workers.tolist())
    assert len(seen) == 2 and (visits == turns).all()
    team.close()


def test_closed_team_goes_on_alone(team: Team) -> None:
    commands, visits, workers = _busy(BUSY, 64, 20_000)
    before = threading.active_count()
    _run(team, commands)
    team.close()
    team.close()
    assert threading.active_count() <= before
    _run(team, commands)
    assert (visits == 2).all() and set(workers.tolist()) == {1}


def test_dropped_teams_end_their_threads() -> None:
    executor.require_native_executor()
    before = threading.active_count()
    for _ in range(20):
        team = Team("test", Topology((None, None)), 20)
        commands, visits, _ = _busy(BUSY, 64, 10)
        _run(team, commands)
        assert (visits == 1).all()
        del team
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_forked_children_have_teams_of_their_own() -> None:
    program = """
import os, sys
from tests.hal.test_thread_team import *
from tests.hal.test_thread_team import _busy, _run
thread_team.available_processors = lambda: 8
executor.require_native_executor()
team = Team("test", Topology((None, None)), 20)
commands, visits, workers = _busy(BUSY, 200, 100_000)
_run(team, commands)
child = os.fork()
if child == 0:
    for turn in range(2, 1000):
        _run(team, commands)
        if (visits != turn).any():
            break
        if len(set(workers.tolist())) > 1:
            os._exit(0)
    os._exit(1)
_, status = os.waitpid(child, 0)
_run(team, commands)
sys.exit(os.waitstatus_to_exitcode(status) or int((visits != 2).any()))
"""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, timeout=60, env=environment)


def test_helpers_are_there_before_the_first_dispatch() -> None:
    with Instance().create_device("local-task://?threads=2") as device:
        before = set(threading.enumerate())
        device.create_executable_cache("kernels")
        assert [thread.name for thread in set(threading.enumerate()) - before] == ["jitree-worker-0.1"]
