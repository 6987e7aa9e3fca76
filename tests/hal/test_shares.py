"""Each thread of a team begins with its own share of a group's chunks, and goes on with what others leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

import pytest

from jitree.codegen.record import Atomic, atomic_load, atomic_replace, atomic_store, place_of, size_of
from jitree.hal.command_layout import Command, Helper, Job, Share, ThreadTeam
from jitree.hal.local.executor import helper_threads
from jitree.hal.local.executor.helper_threads import claim_chunks, first_of, share_of, take
from jitree.hal.local.executor.rows import helper_at, next_share
from jitree.regs.memory import address_of, zeroed

_MOST = 16
_ROWS = 3
Run = Callable[[int, int], None]


@pytest.fixture
def team() -> Iterator[ThreadTeam]:
    sizes = ThreadTeam, Job
    memory = [zeroed(size_of(kind), 128) for kind in sizes]
    tables = [zeroed(size_of(kind) * (_MOST + 1), 128) for kind in (Helper, Command, Share)]
    team, job = ThreadTeam(address_of(memory[0])), Job(address_of(memory[1]))
    team.helpers, team.begin = address_of(tables[0]), Command(address_of(tables[1]))
    team.job, job.shares, job.team = job, Share(address_of(tables[2])), team
    yield team
    del memory, tables


def _open(team: ThreadTeam, threads: int, counts: list[int], generation: int = 1) -> None:
    """Rows of so many chunks of one unit each, as `post` does it."""
    share, chunk = team.job.shares, 0
    for count in [*counts, 0]:
        share.chunk, share.chunk_size, share.begin, share.end = chunk, 1, chunk, chunk + count
        chunk += count
        share = next_share(share)
    team.threads, team.chunks = threads, chunk
    atomic_store(team.finished, 0)
    for thread in range(threads):
        atomic_store(helper_at(team, thread).left, generation << 32 | share_of(team, thread))


def _watch(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    def span(job: Job, row: Command, share: Share, worker: int, first: int, last: int) -> None:
        assert share.begin <= first < last <= share.end
        for unit in range(first, last):
            run(worker, unit)

    monkeypatch.setattr(helper_threads, "run_span", span)


@pytest.mark.parametrize("threads", [1, 2, 3, _MOST])
@pytest.mark.parametrize("counts", [[2], [7, 1, 5], [16], [40, 0, 3], [1, 1, 1]])
def test_each_chunk_runs_once_on_any_threads_in_any_order(
    team: ThreadTeam, monkeypatch: pytest.MonkeyPatch, threads: int, counts: list[int]
) -> None:
    """Any of the others may come while one runs a chunk, and one that was invited to a larger group."""
    for seed in range(20):
        generator, done = Random(seed), Counter[int]()
        late = [*range(threads), _MOST - 1]
        generator.shuffle(late)

        def run(
            worker: int,
            unit: int,
            done: Counter[int] = done,
            late: list[int] = late,
            generator: Random = generator,
        ) -> None:
            done[unit] += 1
            if late and generator.random() < 0.4:
                claim_chunks(team, late.pop())

        _watch(monkeypatch, run)
        _open(team, threads, counts, seed)
        while late:
            claim_chunks(team, late.pop())
        assert done == Counter(range(sum(counts)))
        assert atomic_load(team.finished) == sum(counts)


@pytest.mark.parametrize("threads", [2, 3, _MOST])
def test_threads_that_are_as_fast_have_the_same_part_each_time(
    team: ThreadTeam, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Of each row of the same number of chunks, whoever comes first."""
    for order in (range(threads), reversed(range(threads))):
        begun, ran = list(order), dict[int, int]()

        def run(worker: int, unit: int, begun: list[int] = begun, ran: dict[int, int] = ran) -> None:
            if begun:
                claim_chunks(team, begun.pop(0))
            ran.setdefault(worker, unit)

        _watch(monkeypatch, run)
        _open(team, threads, [4 * threads])
        claim_chunks(team, begun.pop(0))
        assert ran == {thread: 4 * thread for thread in range(threads)}


def test_shares_are_even(team: ThreadTeam) -> None:
    for team.threads in range(1, _MOST + 1):
        for team.chunks in range(2, 140):
            shares = [share_of(team, thread) for thread in range(team.threads)]
            assert sum(shares) == team.chunks and max(shares) - min(shares) <= 1
            assert first_of(team, 0) == 0 and first_of(team, team.threads) == team.chunks


def test_helpers_that_come_late_take_nothing(team: ThreadTeam) -> None:
    _open(team, 2, [0])
    assert claim_chunks(team, 1) == 0
    assert atomic_load(team.finished) == 0


def test_a_chunk_of_a_group_that_is_over_is_not_taken(
    team: ThreadTeam, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its word is set for the next group between a look and the replacement."""
    _open(team, 2, [8], 1)
    word = helper_at(team, 1).left
    seen: list[int] = []

    def replace(found: Atomic, expected: int, value: int) -> bool:
        if not seen:
            _open(team, 2, [6], 2)
        seen.append(expected >> 32)
        assert place_of(found) == place_of(word)
        return atomic_replace(found, expected, value)

    monkeypatch.setattr(helper_threads, "atomic_replace", replace)
    assert take(helper_at(team, 1)) == 3 and seen == [1, 2]
    assert atomic_load(word) == 2 << 32 | 2
