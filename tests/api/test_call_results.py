"""What calls of every kind give, and what callers may do with it: storage, state, lifetimes, threads.

Only the public API is used. Every call is made several times: the first takes another way than later ones.
"""

from __future__ import annotations

import copy
import gc
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import Array, CustomModule, Function, Session, i32
from jitree.errors import DataLossError, FailedPreconditionError, InvalidArgumentError, StatusError
from tests.api.exact import ROUNDS, X, same
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, CALLS, ECHO, STATE
from tests.assembler import Assembler

I = np.arange(4, dtype=np.int32)  # noqa: E741
KINDS_OF_SESSIONS = [("fast", "local-sync"), ("fast", "local-task"), ("plain", "local-sync")]
RELEASES = sorted((Path(__file__).parent.parent / "data" / "releases").glob("families-*.vmfb"))


# -- functions -------------------------------------------------------------------------------------------


def test_all_names_give_one_function(programs: Session) -> None:
    module = programs.modules["arithmetic"]
    function: Function = module.add
    assert function is module["add"] is programs["arithmetic.add"] is programs.prepare("arithmetic.add")
    for _ in range(ROUNDS):
        same(function(X, X), 2 * X)
        same(programs.call("arithmetic.add", X, X), 2 * X)
        same(function.submit(X, X), 2 * X)
    assert isinstance(function, Function) and function.full_name == "arithmetic.add"
    assert len(function.arguments) == 2 and "jitree.Function arithmetic.add" in repr(function)


@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.stem.removeprefix("families-"))
@pytest.mark.parametrize(("tier", "device"), KINDS_OF_SESSIONS)
def test_functions_of_every_release(path: Path, tier: str, device: str) -> None:
    with Session(device, tier=tier) as session:
        families = session.load(path)
        total = np.zeros(4, np.int32)
        matrix = np.arange(32, dtype=np.float32).reshape(4, 8)
        weights = np.array(
            [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 0, 1], [0, 1, 0], [2, 2, 2], [3, 1, 4], [1, 5, 9]],
            np.float32,
        )
        for step in range(2 * ROUNDS):
            give = session.to_device if step % 2 else np.copy
            x = np.full(5 + step, step, np.float32)
            same(families.scale_add(give(x), give(x), 0.5), x * np.float32(1.5))
            same(families.layers(give(matrix)), (matrix @ weights).sum(1))
            same(families.patch(give(I[:2])), np.array([7, 7, 7, 0, 1, 7, 7, 7], np.int32))
            total += I
            same(families.add_to_total(give(I)), total)
            same(families.choose(give(I)), np.array(3, np.int32))
            same(families.choose(give(10 * I)), np.array(130, np.int32))
            with pytest.raises(InvalidArgumentError, match="input1"):
                families.scale_add(x, None, 0.5)


def test_asynchronous_functions(programs: Session) -> None:
    with Session(programs.device, tier=programs.tier) as other:
        module = other.load(ASYNCHRONOUS)
        x = np.arange(64, dtype=np.float32)
        for _ in range(ROUNDS):
            same(module.add(x, other.to_device(x)), 2 * x)
            same(module.two(X), (2 * X, X * X))
            chained = module.add.submit(module.add.submit(x, x), module.add(x, x))
            same(chained.wait(), 4 * x)
            same(module.synchronous(module.two.submit(X)[1]), 2 * X * X)
            with pytest.raises(InvalidArgumentError, match="input1 shape dimension 0 mismatch"):
                module.add(x, x[1:])


def test_state_is_the_sessions_own(programs: Session) -> None:
    with Session(programs.device, tier=programs.tier) as other:
        one, two = other.load(STATE), Session(programs.device, tier=programs.tier).load(STATE)
        for step in range(1, 2 * ROUNDS):
            same(one.accumulate(X if step % 2 else other.to_device(X)), step * X)
            assert (one.increment(), two.increment()) == (10 + step, 10 + step)
            same(one.double_until(np.float32(1), 100.0), (np.array(128, np.float32), 7))
            with pytest.raises(StatusError, match="value must be positive"):
                one.positive(-step)
            assert one.positive(step) == step
        two.session.close()


# -- storage of the caller ----------------------------------------------------------------------------------


def shares(one: Any, other: Any) -> bool:
    return np.shares_memory(np.asarray(one), np.asarray(other))


def test_several_results_in_storage(programs: Session) -> None:
    module = programs.modules["outputs"]
    for size in (1, 4, 1000, 30000):
        x = np.arange(2, size + 2, dtype=np.float32)
        for _ in range(ROUNDS):
            first, second = programs.empty(size), programs.empty(size)
            results = module.split(x, out=(first, second))
            same(results, (x + x, x * x))
            same((first, second), (x + x, x * x))
            assert shares(results[0], first) and shares(results[1], second) and not shares(first, second)
            for out, text in (
                (programs.empty(size), "expected 2 arrays but got 1"), ((first,) * 3, "2 arrays but got 3"),
                ((first, programs.empty(size, np.int32)), "element type mismatch"),
                ((first, None), "cannot be written in place"),
                ((programs.empty(0), programs.empty(0)), "byte length too small"),
            ):  # fmt: skip
                with pytest.raises(InvalidArgumentError, match=text):
                    module.split(x, out=out)


def test_storage_beside_other_arguments(programs: Session) -> None:
    module = programs.modules["outputs"]
    for _ in range(ROUNDS):
        first, second = programs.empty(4, np.int32), programs.empty(4, np.int32)
        same(module.swapped(I, out=(first, second)), (2 * I, I * I))
        same((first, second), (2 * I, I * I))
        same(module.one_of_two(I, out=second), (2 * I, I * I))
        same(second, I * I)
        same(module.one_of_two(I, first), (2 * I, I * I))
        same(first, I * I)
        here = programs.to_device(I)
        assert shares(module.in_place(out=here), here)
        same(here, 2 * I)
        same(module.asynchronous(I, out=second), 2 * I)
        same(module.asynchronous.submit(I + 1, out=second).wait(), 2 * I + 2)
        same(second, 2 * I + 2)


def test_donated_arguments(programs: Session) -> None:
    function = programs["outputs.double"]
    for size in (1, 4, 30000):
        x = np.arange(1, size + 1, dtype=np.int32)
        for _ in range(ROUNDS):
            kept, given = programs.to_device(x), programs.to_device(x)
            same(function(kept), 2 * x)
            same(kept, x)
            same(function(x), 2 * x)
            same(function(jitree.donate(given)), 2 * x)
            with pytest.raises(StatusError, match="donated"):
                function(given)


# -- what callers do with results ----------------------------------------------------------------------------

KEPT: dict[str, Callable[[Array], Any]] = {
    "the array": lambda result: result,
    "numpy": np.asarray,
    "both": lambda result: (result, np.asarray(result)),
    "a slice": lambda result: np.asarray(result)[2:],
    "an item": lambda result: result[1:],
    "a reshaped view": lambda result: np.asarray(result).reshape(-1, 1).T,
    "a memoryview": lambda result: np.asarray(result).data,
    "DLPack": np.from_dlpack,
    "a copy": lambda result: np.array(result),
    "a deep copy": copy.deepcopy,
    "a pickle": lambda result: pickle.loads(pickle.dumps(result)),
    "an iterator": lambda result: iter(result),
    "nothing": lambda result: None,
}


def elements(kept: Any) -> Any:
    """One by one where they are few, or there is no other way."""
    parts = kept if isinstance(kept, tuple) else [] if kept is None else [kept]
    few = [list(part) if isinstance(part, Iterator) or len(part) < 5 else np.asarray(part) for part in parts]
    return np.concatenate([np.empty(0), *map(np.ravel, few)])


@pytest.mark.parametrize("size", [4, 100000])
@pytest.mark.parametrize(("tier", "device"), KINDS_OF_SESSIONS)
def test_results_keep_their_elements(size: int, tier: str, device: str) -> None:
    """Whatever is kept of a result, in whatever order it goes, after the session too."""
    choose = random.Random(size)
    kept: list[tuple[float, str, Any]] = []
    ways = [*KEPT]
    with Session(device, tier=tier) as session:
        mixed = session.load(CALLS).mixed
        ones = np.ones(size, np.float32)
        for number in range(200 if size == 4 else 60):
            way = ways[number % len(ways)]
            first, *_, last = mixed(ones * number, 0, ones, 0, 0.0, 0.0, False, 0)
            kept.append((number + 1, way, KEPT[way](first)))
            kept.append((number, way, KEPT[way](last)))
            del first, last
            while len(kept) > 30:
                value, way, thing = kept.pop(choose.randrange(len(kept)))
                assert (elements(thing) == value).all(), way
            if number % 40 == 39:
                gc.collect()
                session.trim()
    del session, mixed
    gc.collect()
    for value, way, thing in kept:
        assert (elements(thing) == value).all(), way


def test_results_that_are_changed_and_passed_again(programs: Session) -> None:
    for name, size in (("calls.both", 4), ("arithmetic.large", 65536)):
        x = np.ones(size, np.float32)
        for step in range(2 * ROUNDS):
            result = programs.call(name, x)
            result = result[1] if isinstance(result, tuple) else result
            np.asarray(result)[:] = step
            again = programs.call(name, result)
            assert np.all(np.asarray(again[1] if isinstance(again, tuple) else again) == 2 * step)
            assert np.all(np.asarray(result) == step)


def test_arguments_may_change_after_the_call(programs: Session) -> None:
    """Small and large ones, also those that come back as results."""
    block = np.zeros(65536 * 4 + 64, np.uint8)
    start = -block.__array_interface__["data"][0] % 64
    large = block[start : start + 65536 * 4].view(np.float32)
    for value in (X.copy(), large):
        for step in range(2 * ROUNDS):
            value[:] = step
            result = programs.call("module.e1_f32", value)
            both = programs.call("calls.both", value[:4])
            value[:] = -1
            assert np.all(np.asarray(result) == step)
            assert [np.asarray(one)[0] for one in both] == [step, 2 * step, 2 * step]


def test_constants_and_state_are_not_the_callers(programs: Session) -> None:
    module = programs.modules["calls"]
    for step in range(2 * ROUNDS):
        for function in (module.constant, module.literal):
            np.asarray(function())[:] = -1
            same(function(), np.arange(1, 5, dtype=np.float32))
        given = programs.to_device(X + step) if step % 2 else X + step
        module.set_state(given)
        np.asarray(given)[:] = -1
        np.asarray(module.get_state())[:] = -2
        same(module.get_state(), X + step)


@pytest.mark.parametrize("other_device", ["local-sync", "local-task://?threads=2", "null"])
def test_arrays_of_other_sessions(programs: Session, other_device: str) -> None:
    """Taken as they are, also when their session is gone."""
    with Session(other_device, tier="plain") as other:
        foreign = other.to_device(X)
        result = other.load(ECHO).e1_f32(foreign)
        for _ in range(ROUNDS):
            same(programs.call("arithmetic.add", foreign, result), 2 * X)
            same(programs.call("module.e1_f32", result), X)
        back = programs.call("module.e1_f32", result)
        for _ in range(ROUNDS):
            same(other["module.e1_f32"](back), X)
    del other
    gc.collect()
    same(programs.call("arithmetic.add", foreign, back), 2 * X)
    same(back, X)


# -- functions written in Python ---------------------------------------------------------------------------


@pytest.mark.parametrize(("tier", "device"), KINDS_OF_SESSIONS)
def test_calls_inside_of_calls(tier: str, device: str) -> None:
    with Session(device, tier=tier) as session:
        session.load(ARITHMETIC)
        custom = CustomModule("host")

        @custom.export
        def nested(number: i32) -> i32:
            if number < 0:
                raise DataLossError("there are no negative numbers")
            if number == 0:
                return 0
            same(session.call("arithmetic.add", X, X), 2 * X)
            return int(session["m.f"](number - 1)) + 1

        text = "[%i1] = call @host.nested [%i0]\nreturn [%i1]"
        program = Assembler("m").import_function("host.nested", "0i_i").function("f", "0i_i", text)
        session.load(program.build(), custom)
        function = session["m.f"]
        for _ in range(ROUNDS):
            assert [function(depth) for depth in (0, 1, 5, 0)] == [0, 1, 5, 0]
            with pytest.raises(DataLossError, match="there are no negative numbers"):
                function(-1)
            same(session.call("arithmetic.add", X, X), 2 * X)


# -- threads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tier", "device"), KINDS_OF_SESSIONS)
def test_prepared_functions_from_many_threads(tier: str, device: str) -> None:
    """Each thread gets its own results, while others collect garbage and trim."""
    with Session(device, tier=tier) as session:
        session.load(ARITHMETIC, CALLS, ECHO)
        mixed, echo = session.prepare("calls.mixed"), session.prepare("module.e1_f32")
        stop = threading.Event()

        def disturb() -> None:
            while not stop.wait(0.001):
                gc.collect()
                session.trim()

        def work(number: int) -> None:
            kept = []
            for step in range(100):
                x = np.full(number * 7 + step % 13, number * 1000 + step, np.float32)
                first, *numbers, last = mixed(x, number, x, step, 0.5, 0.25, True, 1)
                assert numbers == [number, step, 0.5, 0.25, True, 1]
                kept.append((x, first, last, np.asarray(echo(session.to_device(x)))))
            for x, first, last, view in kept:
                assert (
                    np.array_equal(first, x + x) and np.array_equal(last, x * x) and np.array_equal(view, x)
                )

        with ThreadPoolExecutor(7) as pool:
            disturbing = pool.submit(disturb)
            for future in [pool.submit(work, number) for number in range(6)]:
                future.result(120)
            stop.set()
            disturbing.result(20)


@pytest.mark.parametrize(("tier", "device"), KINDS_OF_SESSIONS)
def test_closing_while_others_call(tier: str, device: str) -> None:
    """A call gives the right result or says that the session is closed; results stay."""
    for round_ in range(5):
        close_while_others_call(Session(device, tier=tier), 0.004 * round_)


def close_while_others_call(session: Session, after: float) -> None:
    module, library = session.load(ARITHMETIC), session.load(CALLS)
    begun = threading.Barrier(4, timeout=20)

    def work(number: int) -> list[Array]:
        results: list[Array] = []
        begun.wait()
        try:
            while True:
                results.append(module.add(X, X * number))
                library.both(results[-1])
                del results[:-20]
        except FailedPreconditionError as error:
            assert "closed" in str(error)
        return results

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(work, number) for number in range(3)]
        begun.wait()
        time.sleep(after)
        session.close()
        for number, future in enumerate(running):
            for result in future.result(60):
                assert np.array_equal(result, X + X * number)
