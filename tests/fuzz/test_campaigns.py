"""A short run of each campaign; ``python -m tests.fuzz --all --minutes 60`` is a long one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jitree.base.platform import threads
from tests.dispatch.random_programs import program
from tests.fuzz import peers, table
from tests.fuzz.campaign import CASES, NAMES, campaign
from tests.fuzz.faults import PLACES, failing
from tests.fuzz.numbered import run_numbers
from tests.fuzz.scheduler import KNOWS_INSTRUCTIONS
from tests.loaders.samples import ON_X86_64

Counts = Counter[str]


def _always(counts: Counts) -> bool:
    return True


class Row(NamedTuple):
    """Cases of a campaign, and what their numbers show if they hit what they are for."""

    numbers: Iterable[int]
    holds: Callable[[Counts], Any] = _always


DIVIDED = 1476
"""A nest whose few iterations are divided by 2**31: it did not end where it was split by the divisor."""
IN_ITSELF = 73_912
"""A damaged module that puts a list into itself."""
WRAPPED = (938_382, 942_639)
"""Programs that copy and clone 2**64 - 3 and 2**64 - 1 bytes, which iree.runtime takes for a range inside."""
CUT = (22, 54, 218, 405)
"""Kernels that can be cut into parts. The last two read scratch memory that their loops may not fill."""
_EXECUTABLES = (*(("structure", "tables") if ON_X86_64 else ()), "cuda", "kernel")
"""What is damaged: libraries on the processor that the samples are for."""
MAY_HAVE_NONE = ("faults", "tensors")
"""Where the system is not asked, or no compiler is installed, there is no case."""
ROWS = {
    "modules": Row(
        chain(range(400), [IN_ITSELF]),
        lambda counts: counts["loaded"] > 40 and counts["refused with OUT_OF_RANGE"] > 40,
    ),
    "executables": Row(
        range(200),
        lambda counts: all(counts[f"{kind}: loaded"] for kind in _EXECUTABLES),
    ),
    "archives": Row(range(600), lambda counts: counts[".gguf: loaded"] and counts[".irpa: OUT_OF_RANGE"]),
    "programs": Row(
        chain(range(1, 49), WRAPPED),
        lambda counts: (
            counts["calls"] > counts["calls that end with a status"] > 0
            and (counts["calls of iree.runtime"] > 20 or peers.peer() is None)
        ),
    ),
    "nests": Row(
        chain(range(48), [DIVIDED]),
        lambda counts: (
            counts["calls"] > counts["calls that end with a status"] * 4 > 0
            and counts["calls on auto that go over to machine code"] * 10 > counts["calls"]
        ),
    ),
    "kernels": Row(
        chain(range(8), CUT),
        lambda counts: (
            counts["nests"] >= 8
            and counts["calls in parts"] > 0
            and counts["calls"] > counts["calls that end with a status"] * 2 > 0
        ),
    ),
    "sandboxes": Row(
        range(2, 8), lambda counts: counts["calls"] > counts["calls that end with a status"] > 0
    ),
    "interruptions": Row(range(3), lambda counts: counts["rounds"] == 3 * 34),
    "tensors": Row(range(1)),
    "machines": Row(range(3), lambda counts: counts["double"] and counts["threads"]),
    "faults": Row(
        range(63),
        lambda counts: (
            counts["mapping: RESOURCE_EXHAUSTED"] and counts["file, no permission: PERMISSION_DENIED"]
        ),
    ),
    "drivers": Row(range(30, 42), lambda counts: counts["cuEventCreate: RESOURCE_EXHAUSTED"] == 2),
    "turns": Row(range(8, 24), lambda counts: counts["turns"] > 200 and counts["accumulate"] > 5),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_short_campaign_finds_nothing(name: str) -> None:
    if name == "turns" and not KNOWS_INSTRUCTIONS:
        pytest.skip("the scheduler knows CPython 3.11's instructions")
    of, row = campaign(name), ROWS[name]
    numbers = list(row.numbers)
    found, counts = run_numbers(
        of.check, (range(number, number + 1) for number in numbers), 1, of.seconds, prepare=of.prepare
    )
    assert not found, "\n".join(map(str, found))
    assert counts[CASES] == len(numbers) or name in MAY_HAVE_NONE
    assert row.holds(counts), counts


@pytest.mark.skipif(peers.peer() is None, reason=f"iree-base-runtime {peers.RELEASE} is not installed")
def test_a_program_that_ends_iree_runtime_is_no_end_of_the_campaign() -> None:
    """Division by zero does: the processor ends the process."""
    ending = program("%i1 = const.i32 0\n%i0 = rem.i32.s %i0, %i1\nreturn [%i0, %i6:7, %r2]").build()
    sound = program("return [%i0, %i6:7, %r0]").build()
    asked = peers.Peer()
    calls = [(5, 1, 7)]
    end = ("done", 5, 0, bytes(peers.LENGTH))
    for _ in range(2):
        assert asked.ask(sound, calls) == [(end, bytes(peers.LENGTH), [0, 1, 2, 3])]
        assert asked.ask(ending, calls) is None
    refused = asked.ask(b"no module", calls)
    assert isinstance(refused, str) and "INVALID_ARGUMENT" in refused
    asked.close()


def test_no_descriptor_that_is_open_is_refused(tmp_path: Path) -> None:
    """The system is not asked where one becomes a file: refusing that left it open."""
    with failing(PLACES["file, too many"], 2) as asked:
        open(os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT), "wb").close()
    assert asked.times == 1


def test_waking_a_thread_takes_no_room_on_a_disk() -> None:
    """Helpers that wait are woken by a session's end: whether they do is a matter of time."""
    parking = threads.Parking()
    with failing(PLACES["disk, full"], 1) as asked:
        parking.wake()
    assert asked.times == 0


def test_each_campaign_has_a_short_run() -> None:
    assert set(ROWS) == set(NAMES)


def test_the_page_has_the_table() -> None:
    assert "\n".join(table.page()) in table.PAGE.read_text()


def test_rows_add_up(tmp_path: Path) -> None:
    file = tmp_path / "t.tsv"
    table.add(file, "nests", 8, 8, 2.4, 1, "2026-01-01")
    row = table.add(file, "nests", 12, 4, 1.6, 0, "2026-01-02")
    assert row == table.Row("nests", 12, 12, 4, 1, "2026-01-01", "2026-01-02")
    assert table.rows(file.read_text())["nests"] == row and row.rate == 3
