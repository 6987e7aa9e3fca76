"""Fills write their bytes and no others, by either kind of store, in Python and as machine code."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest

from jitree.codegen import functions, primitives
from jitree.codegen.image.compile import compile_object, host_target
from jitree.codegen.image.flat import Image, map_image
from jitree.codegen.image.link import link
from jitree.codegen.record import place_of, size_of
from jitree.hal.command_layout import Functions, Job
from jitree.hal.local.executor import fills
from jitree.hal.local.executor.calling import FUNCTION_TABLE_ADDRESS
from jitree.hal.local.executor.fills import TRIED, fill, fill_past
from jitree.regs.memory import address_of, zeroed

_ROOM = 8 * TRIED


@cache
def _image() -> Image:
    names = ["fill", "fill_past"]
    return map_image(link([compile_object(functions.texts([fill, fill_past]), names, host_target())], names))


def _compiled_fill(job: Job, pattern: int, target: int, count: int) -> None:
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(_image().addresses["fill"])(
        place_of(job), pattern, target, count
    )


def _compiled_past(place: int, byte: int, size: int) -> None:
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(_image().addresses["fill_past"])(place, byte, size)


@pytest.fixture
def job() -> Iterator[Job]:
    record = zeroed(size_of(Job), 64)
    job = Job(address_of(record))
    job.functions = Functions(FUNCTION_TABLE_ADDRESS)
    yield job
    del record


def _let_clock_say(monkeypatch: pytest.MonkeyPatch, *spans: int) -> list[int]:
    """What each pair of looks at the clock has between them. Bytes that go past the caches are noted."""
    now = [0, *spans] if spans else []
    looks = iter([moment for span in now[1:] for moment in (0, span)])
    monkeypatch.setattr(fills, "ticks", lambda: next(looks))
    passed: list[int] = []

    def watched(place: int, byte: int, size: int) -> None:
        assert place % 64 == size % 64 == 0
        passed.append(size)
        fill_past(place, byte, size)

    monkeypatch.setattr(fills, "fill_past", watched)
    return passed


def _check(
    fill: Callable[[Job, int, int, int], None], job: Job, offset: int, count: int, pattern: int
) -> None:
    memory = zeroed(_ROOM + 256, 64)
    memory[:] = 7
    expected = memory.copy()
    expected[offset : offset + count] = np.resize(np.array([pattern], "<u4").view(np.uint8), count)
    fill(job, pattern, address_of(memory) + offset, count)
    np.testing.assert_array_equal(memory, expected)


_SIZES = [
    (0, 4 * TRIED),
    (64, 5 * TRIED + 12),
    (4, 4 * TRIED + 4),
    (60, _ROOM),
    (1, 4 * TRIED + 63),
    (0, 100),
]


@pytest.mark.parametrize(("offset", "count"), _SIZES)
@pytest.mark.parametrize("byte", [0, 0xFF, 0x7E])
@pytest.mark.parametrize(("usual", "passed"), [(100, 0), (5000, 3400), (5000, 3000)])
def test_each_kind_of_store_writes_what_is_asked_for(
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    offset: int,
    count: int,
    byte: int,
    usual: int,
    passed: int,
) -> None:
    """One is faster, or memory is near, and nothing else is tried."""
    kinds = _let_clock_say(monkeypatch, usual, passed)
    _check(fill, job, offset, count, byte * 0x01010101)
    if count >= 4 * TRIED:
        assert len(kinds) == (usual > 1000) + (passed == 3000)
        assert sum(kinds[1:]) > count - 3 * TRIED or passed != 3000


@pytest.mark.parametrize(("offset", "count"), _SIZES)
@pytest.mark.parametrize("pattern", [0, 0xFFFFFFFF, 0x81818181, 0x04030201])
def test_machine_code_fills(job: Job, offset: int, count: int, pattern: int) -> None:
    _check(_compiled_fill, job, offset, count, pattern)


@pytest.mark.parametrize("fill_lines", [fill_past, _compiled_past])
@pytest.mark.parametrize("byte", [0, 0x81, 0xFF])
def test_lines_go_past_the_caches(fill_lines: Callable[[int, int, int], None], byte: int) -> None:
    memory = zeroed(1024, 64)
    fill_lines(address_of(memory) + 128, byte, 512)
    assert bytes(memory) == bytes(128) + bytes([byte]) * 512 + bytes(384)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64", "riscv64"])
def test_each_processor_has_a_way_to_settle_stores(machine: str) -> None:
    """On x86-64 what goes past the caches is in no order until then."""
    texts = functions.texts([fill_past])
    from jitree.codegen.processor_texts import needed

    (found,) = needed(texts, f"{machine}-unknown-linux")
    assert ("nontemporal" in found) == ("sfence" in found) == (machine == "x86_64")


def test_numbers_with_all_bits_go_past_the_caches() -> None:
    block = array("q", [0] * 16)
    place = (block.buffer_info()[0] + 63) & -64
    primitives.store_past(place, -1)
    assert ctypes.string_at(place, 64) == b"\xff" * 64
