"""Calls that use the memory of submitted ones: in turn, by whatever array they have the memory."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import jitree
from jitree import Array, Module, Session
from jitree.errors import DataLossError
from jitree.hal.buffer import PENDING
from jitree.hal.fence import Fence
from jitree.hal.memory_order import settle
from tests.api.conftest import TIERS_AND_DEVICES
from tests.api.programs import TURNS
from tests.hal.test_memory_order import steps_of

OLD = np.arange(64, dtype=np.float32)
SEVEN = np.full(64, 7, np.float32)
NINE = np.full(64, 9, np.float32)
SECONDS = 0.02

Floats = npt.NDArray[np.float32]
Elements = Array | Floats


@pytest.fixture(autouse=True)
def nothing_pending() -> None:
    """What other tests have left is no matter here."""
    gc.collect()
    settle()
    assert PENDING[0] == 0


@pytest.fixture(scope="module", params=TIERS_AND_DEVICES, ids="-".join)
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """One of each kind for all tests: each has memory of its own, and all have ended before the next one."""
    tier, device = request.param
    with Session(device, tier=tier) as session:
        yield session


@pytest.fixture(scope="module")
def module(session: Session) -> Module:
    """On the fast tier machine code makes the usual calls."""
    module = session.load(TURNS)
    for _ in range(3):
        module.sum(OLD, OLD), module.sum.submit(OLD, OLD), module.plain_sum(OLD, OLD)
        module.over(OLD, out=session.empty(64)), module.plain_over(OLD, out=session.empty(64))
        module.mutate(session.to_device(OLD), OLD)
        for name in ("spoil", "plain_spoil"):
            module[name](jitree.donate(session.to_device(OLD)), OLD)
    assert all(module[name].is_direct == (session.tier == "fast") for name in ("sum", "plain_over"))
    return module


def late(session: Session, values: Floats) -> tuple[Array, Fence]:
    """An array whose elements are there when the fence is signalled."""
    fence = Fence.create(session.device)
    return Array(session.to_device(values).buffer_view, session.device, fence), fence


def in_place() -> Floats:
    """A numpy array that programs write to where it is."""
    block = np.zeros(64 * 4 + 64, np.uint8)
    start = -block.__array_interface__["data"][0] % 64
    made = block[start : start + 256].view(np.float32)
    made[:] = OLD
    return made


def _itself(session: Session, module: Module) -> tuple[Array, Elements]:
    array = session.to_device(OLD)
    return array, array


def _alias(session: Session, module: Module) -> tuple[Array, Elements]:
    array = session.to_device(OLD)
    return module.plain_over(OLD / 2, out=array), array


def _view(session: Session, module: Module) -> tuple[Array, Elements]:
    array = session.to_device(OLD)
    return Array(array.buffer_view, session.device), array


def _numpy(session: Session, module: Module) -> tuple[Array, Elements]:
    memory = in_place()
    return module.plain_over(OLD / 2, out=memory), memory


MEMORIES = {"itself": _itself, "alias": _alias, "view": _view, "numpy in place": _numpy}
"""Two ways to have the same memory, with OLD in it."""

WRITERS: dict[str, Callable[[Module, Elements, Floats, str], Any]] = {
    "out": lambda module, memory, x, how: _call(module.over, how, x, out=memory),
    "plain function": lambda module, memory, x, how: _call(module.plain_over, how, x, out=memory),
    "donation": lambda module, memory, x, how: _call(module.spoil, how, _given(memory), x),
    "plain donation": lambda module, memory, x, how: _call(module.plain_spoil, how, _given(memory), x),
    "mutated": lambda module, memory, x, how: _call(module.mutate, how, memory, x),
}


def _given(memory: Elements) -> Any:
    return jitree.donate(memory) if isinstance(memory, Array) else memory


def _call(function: Any, how: str, *arguments: Any, **named: Any) -> Any:
    if how == "async_":

        async def call() -> Any:
            return await function.async_(*arguments, **named)

        return asyncio.run(call())
    return (function.submit if how == "submit" else function)(*arguments, **named)


@pytest.fixture(params=MEMORIES)
def memories(request: pytest.FixtureRequest, session: Session, module: Module) -> tuple[Array, Elements]:
    return MEMORIES[request.param](session, module)


def soon(fence: Fence) -> threading.Timer:
    timer = threading.Timer(SECONDS, fence.signal)
    timer.start()
    return timer


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("how", ["submit", "async_", "plain"])
def test_what_is_still_read_is_written_later(
    module: Module, session: Session, memories: tuple[Array, Elements], writer: str, how: str
) -> None:
    if not isinstance(memories[1], Array) and writer in ("donation", "plain donation", "mutated"):
        pytest.skip("a numpy array is copied")
    for _ in range(2):
        one, other = memories
        gate, fence = late(session, SEVEN)
        read = module.sum.submit(one, gate)
        timer = soon(fence)
        written = WRITERS[writer](module, other, NINE, how)
        assert np.array_equal(read, OLD + SEVEN)
        assert np.asarray(written)[8] in (9, 17, 18)
        timer.join()
        assert PENDING[0] == 0
        memories = _itself(session, module)


READERS: dict[str, Callable[[Module, Elements], Any]] = {
    "plain": lambda module, memory: module.sum(memory, OLD)[3] - 3,
    "plain function": lambda module, memory: module.plain_sum(memory, OLD)[3] - 3,
    "submit": lambda module, memory: np.asarray(module.sum.submit(memory, OLD))[3] - 3,
    "async_": lambda module, memory: np.asarray(_call(module.plain_sum, "async_", memory, OLD))[3] - 3,
    "update": lambda module, memory: (
        np.asarray(module.over.submit(memory, out=module.session.empty(64)))[3] / 2
    ),
}
HOST_READERS: dict[str, Callable[[Array], Any]] = {
    "numpy": lambda array: np.asarray(array)[3],
    "item": lambda array: array.item(3),
    "slice": lambda array: array[2:4][1],
    "list": lambda array: array.tolist()[3],
    "dlpack": lambda array: np.from_dlpack(array)[3],
    "wait": lambda array: array.wait().to_host()[3],
    "await": lambda array: asyncio.run(_awaited(array)).to_host()[3],
    "repr": lambda array: (array.wait(), float(repr(array).split(",")[3]))[1],
    "copy": lambda array: np.array(array)[3],
}


async def _awaited(array: Array) -> Array:
    return await array


@pytest.mark.parametrize("reader", READERS)
def test_what_is_still_written_is_read_later(
    module: Module, session: Session, memories: tuple[Array, Elements], reader: str
) -> None:
    one, other = memories
    gate, fence = late(session, SEVEN)
    result = module.over.submit(gate, out=one)
    timer = soon(fence)
    assert READERS[reader](module, other) == 14
    assert np.array_equal(result, 2 * SEVEN) and np.array_equal(one, 2 * SEVEN)
    timer.join()


@pytest.mark.parametrize("reader", HOST_READERS)
@pytest.mark.parametrize("memory", ["itself", "alias", "view"])
def test_the_host_reads_what_has_been_written(
    module: Module, session: Session, memory: str, reader: str
) -> None:
    one, other = MEMORIES[memory](session, module)
    assert isinstance(other, Array)
    np.asarray(other)  # what the host has seen is no answer any more
    gate, fence = late(session, SEVEN)
    module.over.submit(gate, out=one)
    was_ready = other.ready
    timer = soon(fence)
    assert HOST_READERS[reader](other) == 14
    assert other.ready and not was_ready
    timer.join()


@pytest.mark.parametrize("writer", WRITERS)
def test_writes_come_one_after_the_other(
    module: Module, session: Session, memories: tuple[Array, Elements], writer: str
) -> None:
    one, other = memories
    if not isinstance(other, Array) and "out" not in writer:
        pytest.skip("a numpy array is copied")
    gate, fence = late(session, SEVEN)
    module.over.submit(gate, out=one)
    timer = soon(fence)
    result = np.asarray(WRITERS[writer](module, other, NINE, "submit"))
    timer.join()
    expected = {"out": 18, "plain function": 18, "mutated": 14 + 9}
    assert result[0] == expected.get(writer, 14) and result[8] == expected.get(writer, 9)


def test_reads_are_made_side_by_side(module: Module, session: Session) -> None:
    array = session.to_device(OLD)
    gate, fence = late(session, SEVEN)
    held = module.sum.submit(array, gate)
    assert np.array_equal(module.sum(array, OLD), 2 * OLD)
    assert np.array_equal(module.plain_sum(array, OLD), 2 * OLD)
    assert np.array_equal(module.sum.submit(array, OLD), 2 * OLD)
    assert np.array_equal(array, OLD) and array.ready and not held.ready
    elsewhere = session.to_device(SEVEN)
    module.plain_over(NINE, out=elsewhere)
    assert np.array_equal(elsewhere, 2 * NINE) and not held.ready
    fence.signal()
    assert np.array_equal(held, OLD + SEVEN)


def test_sessions_of_a_device_take_turns(module: Module, session: Session) -> None:
    with Session(session.device, tier=session.tier) as second:
        other = second.load(TURNS)
        array = session.to_device(OLD)
        gate, fence = late(session, SEVEN)
        held = module.sum.submit(array, gate)
        timer = soon(fence)
        other.plain_over(NINE, out=array)
        assert np.array_equal(held, OLD + SEVEN) and np.array_equal(array, 2 * NINE)
        timer.join()


@pytest.mark.parametrize("is_known", [True, False], ids=["failed", "fails"])
def test_failures_belong_to_results(
    module: Module, session: Session, memories: tuple[Array, Elements], is_known: bool
) -> None:
    one, other = memories
    gate, fence = late(session, SEVEN)
    failure = DataLossError("the link is gone")
    if is_known:
        fence.fail(failure)
    result = module.over.submit(gate, out=one)
    timer = threading.Timer(SECONDS, fence.fail, (failure,))
    timer.start()
    after = module.sum.submit(other, OLD)
    assert np.array_equal(after, 2 * OLD) and np.array_equal(one, OLD)
    for _ in range(2):
        with pytest.raises(DataLossError, match="the link is gone"):
            np.asarray(result)
        with pytest.raises(DataLossError, match="the link is gone"):
            module.plain_sum(result, OLD)
    one[0] = 5
    assert one.item(0) == 5 and one.ready
    assert np.asarray(module.over.submit(NINE, out=one))[3] == np.asarray(one)[3] == 18
    assert np.asarray(module.plain_over(SEVEN, out=other))[3] == np.asarray(one)[3] == 14
    timer.join()


def test_what_a_failed_call_reads_may_be_written(module: Module, session: Session) -> None:
    array = session.to_device(OLD)
    gate, fence = late(session, SEVEN)
    module.sum.submit(array, gate)
    update = module.over.submit(NINE, out=array)
    assert not update.ready
    fence.fail(DataLossError("the link is gone"))
    assert np.array_equal(update, 2 * NINE) and np.array_equal(array, 2 * NINE)


def test_awaited_calls_take_turns(module: Module, session: Session) -> None:
    array = session.to_device(OLD)

    async def main() -> tuple[Any, ...]:
        gate, fence = late(session, SEVEN)
        asyncio.get_running_loop().call_later(SECONDS, fence.signal)
        return await asyncio.gather(
            module.sum.async_(array, gate),
            module.over.async_(NINE, out=array),
            module.plain_sum.async_(array, OLD),
            module.sum.async_(array, array),
        )

    first, second, third, fourth = asyncio.run(main())
    assert np.array_equal(first, OLD + SEVEN) and np.array_equal(second, 2 * NINE)
    assert np.array_equal(third, 2 * NINE + OLD) and np.array_equal(fourth, 4 * NINE)


def test_a_call_that_nothing_can_end_any_more_is_in_nobody_s_way(plain_session: Session) -> None:
    lost = Session("local-sync", tier="plain")
    gate, fence = late(lost, SEVEN)
    held = lost.load(TURNS).sum.submit(lost.to_device(OLD), gate)
    assert PENDING[0] and not held.ready
    del lost, gate, fence, held
    gc.collect()
    module = plain_session.load(TURNS)
    module.plain_sum(OLD, OLD)
    assert PENDING[0] == 0


def test_a_wait_for_a_turn_has_the_deadline_of_the_call(module: Module, session: Session) -> None:
    array = session.to_device(OLD)
    gate, fence = late(session, SEVEN)
    held = module.sum.submit(array, gate)
    with pytest.raises(jitree.errors.DeadlineExceededError):
        module.plain_over(NINE, out=array, timeout=SECONDS)
    fence.signal()
    assert np.array_equal(held, OLD + SEVEN) and np.array_equal(array, OLD)


def unaligned(array: Floats) -> Floats:
    """A copy where no program can use it in place: ``to_device`` makes others of it."""
    block = np.empty(array.nbytes + 128, np.uint8)
    start = 4 - block.ctypes.data % 64 + 64
    copy = block[start : start + array.nbytes].view(np.float32).reshape(array.shape)
    copy[:] = array
    return copy


SQUARE = unaligned(np.random.default_rng(0).integers(-3, 4, (384, 384)).astype(np.float32))
CUBE = SQUARE @ SQUARE @ SQUARE


@pytest.mark.parametrize("tier", ["fast", "plain"])
def test_work_that_goes_on_when_the_call_has_returned(tier: str) -> None:
    """On the fast tier machine code makes the submitted calls, too."""
    with Session("local-task", tier=tier) as session:
        module = session.load(TURNS)
        given = session.to_device(SQUARE)
        for _ in range(3):
            module.cube.submit(given), module.cube_into.submit(given, session.to_device(SQUARE))
            module.twice(given), module.twice_into(given, out=session.to_device(SQUARE))
        assert all(module[name].is_direct == (tier == "fast") for name in ("cube", "cube_into", "twice"))
        for turn in range(10):
            memory = session.to_device(SQUARE)
            alias = module.twice_into(given / 2, out=memory)
            read = module.cube.submit(memory)
            if turn % 2:
                module.twice_into(given, out=alias)
            else:
                module.cube_into.submit(given, alias)
            assert np.array_equal(read, CUBE)
            written = module.cube_into.submit(given, memory)
            assert np.array_equal(module.twice(alias), 2 * CUBE) and np.array_equal(written, CUBE)
            module.cube_into.submit(memory, session.to_device(SQUARE))
            module.cube_into.submit(given, memory)
            assert alias[7, 9] == CUBE[7, 9]


@pytest.mark.parametrize("tier", ["fast", "plain"])
@pytest.mark.parametrize("kind", ["plain_", ""])
def test_calls_that_an_event_loop_makes_side_by_side(tier: str, kind: str) -> None:
    """Also of functions that wait for their work themselves: others begin meanwhile."""
    with Session("local-task", tier=tier) as session:
        module = session.load(TURNS)
        given = session.to_device(SQUARE)
        cube, cube_into = module[kind + "cube"], module[kind + "cube_into"]
        for _ in range(3):
            cube(given), cube_into(given, session.to_device(SQUARE))
            module.twice(given), module.twice_into(given, out=session.to_device(SQUARE))

        async def main() -> None:
            for _ in range(5):
                memory = session.to_device(SQUARE)
                alias = module.twice_into(given / 2, out=memory)
                found = await asyncio.gather(
                    cube.async_(memory),
                    module.twice.async_(alias),
                    module.twice_into.async_(given, out=alias),
                    module.twice.async_(memory),
                    cube_into.async_(given, memory),
                    module.twice.async_(alias),
                    _awaited(alias),
                )
                expected: list[Any] = [CUBE, 2 * SQUARE, CUBE, 4 * SQUARE, CUBE, 2 * CUBE, CUBE]
                for number, values in enumerate(expected):
                    assert np.array_equal(found[number], values), number

        asyncio.run(main())
        assert PENDING[0] == 0


def test_an_awaited_call_that_is_given_up_is_in_nobody_s_way() -> None:
    with Session("local-task", tier="fast") as session:
        module = session.load(TURNS)
        memory = session.to_device(SQUARE)
        for _ in range(3):
            module.plain_cube(memory), module.twice_into(memory, out=session.to_device(SQUARE))

        async def main() -> None:
            task = asyncio.ensure_future(module.plain_cube.async_(memory))
            await asyncio.sleep(0)
            task.cancel()
            await module.twice_into.async_(SQUARE, out=memory)
            with pytest.raises(asyncio.CancelledError):
                await task
            task = asyncio.ensure_future(module.plain_cube.async_(memory))
            await asyncio.sleep(0)
            module.twice_into(SQUARE, out=memory)  # does not wait for what only this thread can go on with
            await task

        asyncio.run(main())
        assert np.array_equal(memory, 2 * SQUARE) and PENDING[0] == 0


def submit_to_one(module: Module, session: Session, count: int) -> None:
    """Submits calls that all write the same memory, and lets them run."""
    memory = session.to_device(OLD)
    given, gate = late(session, SEVEN)
    for number in range(count):
        module.over.submit(given if number == 0 else np.full(64, number, np.float32), out=memory)
    gate.signal()
    assert np.array_equal(memory, np.full(64, 2 * (count - 1), np.float32))


def test_a_submitted_call_costs_the_same_however_many_write_its_memory(
    module: Module, session: Session
) -> None:
    submit_to_one(module, session, 4)
    few, many = (steps_of(partial(submit_to_one, module, session, count)) for count in (25, 100))
    assert many < 1.5 * 4 * few


@pytest.mark.parametrize("seed", range(6))
def test_random_calls_as_numpy_does_them(module: Module, session: Session, seed: int) -> None:
    """Calls of all kinds on a few pieces of memory, by several arrays each, with gates that open later."""
    random = np.random.default_rng(seed)
    arrays: list[list[Array]] = []
    expected: list[Floats] = []
    for number in range(3):
        array = session.to_device(OLD + number)
        arrays.append([array, Array(array.buffer_view, session.device)])
        expected.append(OLD + number)
    results: list[tuple[Array, Floats]] = []
    fences: list[threading.Timer] = []

    def some(number: int) -> Array:
        return arrays[number][random.integers(len(arrays[number]))]

    for step in range(60):
        source, target = map(int, random.choice(3, 2, replace=False))
        gate, opened = session.to_device(np.full(64, step, np.float32)), np.full(64, step, np.float32)
        if random.random() < 0.4:
            gate, fence = late(session, opened)
            fences.append(threading.Timer(float(random.random()) / 200, fence.signal))
            fences[-1].start()
        how = str(random.choice(["submit", "plain", "async_"]))
        match random.integers(6):
            case 0:
                results.append((_call(module.sum, how, some(source), gate), expected[source] + opened))
            case 1:
                arrays[target].append(_call(module.over, how, gate, out=some(target)))
                expected[target] = 2 * opened
            case 2:
                arrays[target].append(_call(module.plain_over, how, some(source), out=some(target)))
                expected[target] = 2 * expected[source]
            case 3:
                _call(module.mutate, how, some(target), gate)
                expected[target] = expected[target] + opened
            case 4:
                assert np.array_equal(some(source), expected[source]), step
            case 5:
                some(target)[3:5] = float(step)
                expected[target] = expected[target].copy()
                expected[target][3:5] = step
        expected = [np.clip(values, -1e30, 1e30) for values in expected]
    for result, values in results:
        assert np.array_equal(result, values)
    for number, values in enumerate(expected):
        assert all(np.array_equal(array, values) for array in arrays[number])
    for timer in fences:
        timer.join()
