"""Into how many parts the executor cuts workgroups before it shares them."""

from __future__ import annotations

from array import array

import pytest

from jitree.codegen.record import atomic_store, size_of
from jitree.hal.command_layout import CHUNKS_PER_THREAD, Command, KernelEntry, Share, ThreadTeam
from jitree.hal.local.executor.command_lists import chunk_size, cut, even_parts, even_size

THREADS = 4
PIECES = THREADS * CHUNKS_PER_THREAD
LEAST = 500
"""Ticks of a chunk."""


@pytest.mark.parametrize(("begin", "end", "ticks", "most", "parts"), [
    (0, 1, 1_000_000, 255, PIECES),  # as many as there are chunks
    (0, 1, 1_000_000, 7, 7),  # but no more than the kernel has
    (0, 1, 4 * LEAST + 10, 255, 4),  # and none too short
    (0, 1, LEAST, 255, 1),
    (0, 5, 1_000_000, 255, 4),  # twenty parts are five turns of four
    (1, 3, 1_000_000, 255, PIECES // 2),  # the first one has been run to be measured
    (0, PIECES, 1_000_000, 255, 1),
    (0, 0, 1_000_000, 255, 1),
    (0, 1, 0, 255, 1),  # never run
])  # fmt: skip
def test_parts(begin: int, end: int, ticks: int, most: int, parts: int) -> None:
    memory = [
        array("q", bytes(size))
        for size in (size_of(ThreadTeam), size_of(Command), size_of(KernelEntry), size_of(Share))
    ]
    places = [record.buffer_info()[0] for record in memory]
    team, row, entry, share = (
        ThreadTeam(places[0]),
        Command(places[1]),
        KernelEntry(places[2]),
        Share(places[3]),
    )
    team.workers, team.spinning_ticks = THREADS - 1, 3 * LEAST
    row.entry, entry.parts = entry, most
    row.kind = 4
    atomic_store(entry.cost, ticks << 10)
    share.begin, share.end, share.parts = begin, end, 1
    cut(team, row, share, THREADS)
    assert (share.parts, share.begin, share.end) == (parts, begin * parts, end * parts)
    units = share.end - share.begin
    if ticks and units:
        size = chunk_size(team, row, share, units, THREADS)
        assert size * ticks >= parts * LEAST, "chunks of parts take as long as chunks of workgroups"


@pytest.mark.parametrize(("units", "steps", "threads", "most", "parts"), [
    (1, 40, 16, 255, 40),  # of one step; 32 parts would be of two
    (1, 100, 16, 20, 16),  # 20 would be two turns
    (2, 255, 4, 255, 16),  # workgroups may be of different size
    (8, 255, 4, 1, 1),
    (2, 2, 16, 255, 2),
    (1, 1, 16, 255, 1),
])  # fmt: skip
def test_parts_let_the_last_thread_end_soonest(
    units: int, steps: int, threads: int, most: int, parts: int
) -> None:
    assert even_parts(units, steps, threads, most) == parts


@pytest.mark.parametrize(("units", "threads", "least", "size"), [
    (600, 4, 1, 19),
    (64, 16, 1, 1),
    (129, 4, 1, 5),
    (64, 16, 4, 4),  # one turn
    (64, 16, 3, 4),  # 22 chunks of three would be two turns
    (5, 4, 1, 1),
    (3, 4, 100, 3),
    (0, 4, 1, 1),
])  # fmt: skip
def test_chunks_let_the_last_thread_end_soonest(units: int, threads: int, least: int, size: int) -> None:
    assert even_size(units, threads, least) == size
