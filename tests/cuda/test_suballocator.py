"""Pieces of memory that are cut from regions: they never overlap, and go back with their regions."""

from __future__ import annotations

import itertools
from collections import deque
from itertools import filterfalse
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.cuda.suballocator import ALIGNMENT, Piece, Region, Suballocator
from jitree.errors import ResourceExhaustedError

REGION = 1 << 20


class Source:
    """Regions at made-up addresses, up to a limit of bytes."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.regions: dict[int, int] = {}
        self.limit = limit
        self._next = 1 << 32

    def allocate(self, size: int) -> Region:
        if sum(self.regions.values()) + size > self.limit:
            raise ResourceExhaustedError("full")
        address, self._next = self._next, self._next + size + (1 << 20)
        self.regions[address] = size
        return Region(address, None, size)

    def free(self, region: Region) -> None:
        assert self.regions.pop(region.address) == region.size


def take(pieces: Suballocator, size: int) -> Piece:
    return pieces.take(size, [])


def give_back(pieces: Suballocator, piece: Piece) -> None:
    pieces.take_back(deque([(piece, 0)]))


@given(st.data())
def test_pieces_never_overlap_and_lie_in_regions(data: st.DataObject) -> None:
    source = Source()
    pieces = Suballocator(source, REGION)
    live: list[tuple[Piece, int]] = []
    for _ in range(data.draw(st.integers(1, 40))):
        gives_back: bool = data.draw(st.booleans())
        if live and gives_back:
            give_back(pieces, live.pop(data.draw(st.integers(0, len(live) - 1)))[0])
        else:
            size = data.draw(st.one_of(st.integers(0, 5000), st.integers(0, 3 * REGION)))
            live.append((take(pieces, size), size))
        if data.draw(st.integers(0, 9)) == 0:
            pieces.trim()
        spans = sorted((piece.address, piece.capacity, size) for piece, size in live)
        for (address, capacity, size), (following, _, _) in itertools.pairwise(spans):
            assert address + capacity <= following
            assert size <= capacity and address % ALIGNMENT == 0
        for address, capacity, _ in spans:
            assert any(
                start <= address and address + capacity <= start + length
                for start, length in source.regions.items()
            )
    for piece, _ in live:
        give_back(pieces, piece)
    pieces.trim()
    assert not source.regions and pieces.kept_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 3 << 20), st.integers(0, 7)), max_size=30))
def test_the_same_again_gets_the_same_addresses(steps: list[tuple[int, int]]) -> None:
    """From the second time on: what a program does in every call."""
    pieces = Suballocator(Source(), REGION)

    def run() -> list[int]:
        live: list[Piece] = []
        addresses = []
        for size, drop in steps:
            live.append(take(pieces, size))
            addresses.append(live[-1].address)
            if drop < len(live):
                give_back(pieces, live.pop(drop))
        for piece in reversed(live):
            give_back(pieces, piece)
        return addresses

    run()
    pieces_then = pieces.kept_bytes
    second = [run() for _ in range(4)]
    assert pieces.kept_bytes == pieces_then, "nothing grows"
    assert len({tuple(sorted(set(addresses))) for addresses in second}) <= 2


def test_large_pieces_are_reused_unless_that_wastes_much() -> None:
    pieces = Suballocator(Source(), REGION)
    large = take(pieces, 100 << 20)
    give_back(pieces, large)
    assert not pieces.has_free(50 << 20) and pieces.has_free(90 << 20)
    small = take(pieces, 50 << 20)
    assert small.address != large.address
    assert take(pieces, 90 << 20) is large


def test_has_free_is_what_take_needs() -> None:
    source = Source()
    pieces = Suballocator(source, REGION)
    for size in (1, 5000, REGION // 4, REGION // 4 + 1, 2 * REGION) * 5:
        before, promised = len(source.regions), pieces.has_free(size)
        take(pieces, size)
        assert (len(source.regions) == before) == promised


@pytest.mark.parametrize("keeps", [False, True])
def test_a_handler_takes_pieces_as_regions_leave(keeps: bool) -> None:
    """A signal's handler, or a finalizer, that runs as `trim` looks at the free pieces of each size."""
    source = Source()
    pieces = Suballocator(source, REGION)
    kept: list[Piece] = []

    class Handled(list[Piece]):
        def __setitem__(self, place: Any, value: Any) -> None:
            super().__setitem__(place, value)
            if type(value) in (filter, filterfalse):
                kept.append(take(pieces, 100))
                if not keeps:
                    give_back(pieces, kept.pop())

    for piece in [take(pieces, size) for size in (100, 5000)]:
        give_back(pieces, piece)
    pieces._free = {size: Handled(free) for size, free in pieces._free.items()}
    pieces.trim()
    for piece in [*kept, *(take(pieces, size) for size in (100, 5000, 100))]:
        assert any(start <= piece.address < start + length for start, length in source.regions.items())
        give_back(pieces, piece)
    pieces._free = {size: [*free] for size, free in pieces._free.items()}
    pieces.trim()
    assert not source.regions and not pieces.kept_bytes


def test_trim_keeps_regions_in_use() -> None:
    source = Source()
    pieces = Suballocator(source, REGION)
    first, second = take(pieces, 100), take(pieces, 100)
    give_back(pieces, first)
    pieces.trim()
    assert len(source.regions) == 1
    assert take(pieces, 100) is not second
    give_back(pieces, second)
