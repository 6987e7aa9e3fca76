"""Calls by machine code: the same results and errors as the slow path, and nothing kept or shared."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from operator import length_hint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jitree import Array, Session
from jitree.api.calls import preparation
from jitree.api.calls.native import direct as direct_calls
from jitree.api.calls.native.cpython_layout import METH_KEYWORDS, METH_NOARGS, method_code
from jitree.codegen.record import words_of
from jitree.errors import FailedPreconditionError, InvalidArgumentError, StatusError
from jitree.modules.hal.native.handle_pool import HandlePool
from jitree.modules.hal.native.layout import MOST_SPENT, MOST_UNMEASURED, HandlePoolRecord
from tests.api.direct import X, direct, live, needs_machine_code
from tests.api.programs import ARITHMETIC, ECHO, STATE

pytestmark = needs_machine_code
DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.vmvx.vmfb"


@pytest.fixture(params=["local-sync", "local-task"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(request.param, tier="fast") as session:
        yield session


def test_locks_whose_methods_are_called_in_another_way(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_calls, "method_code", lambda method, convention: 0)
    add = direct(session.load(ARITHMETIC).add, X, X)
    np.testing.assert_array_equal(add(X, X), X + X)


def test_the_c_function_of_a_method() -> None:
    lock = threading.RLock()
    assert method_code(lock.release, METH_NOARGS) != 0
    assert method_code(lock.release, METH_KEYWORDS) == 0
    assert method_code(pytest.approx, METH_KEYWORDS) == 0


def test_python_executes_a_list_now_and_then(session: Session) -> None:
    """It looks after signals then."""
    x = session.to_device(X)
    add = direct(session.load(ARITHMETIC).add, x, x)
    handle_pool = session.context.table.handle_pool
    assert isinstance(handle_pool, HandlePool)
    words, pool, left = handle_pool._words, words_of(HandlePoolRecord), set()
    for _ in range(200):
        add(x, x)
        left.add(words[pool.unmeasured])
    assert left <= set(range(MOST_UNMEASURED + 1)) and len(left) > 2
    assert words[pool.spent] > 0 and words[pool.most_spent] == MOST_SPENT, "of the machine that runs it"
    words[pool.most_spent], words[pool.spent], words[pool.unmeasured] = 1 << 10, (1 << 10) + 1, 1
    add(x, x)
    assert words[pool.spent] == (1 << 10) + 1 and words[pool.unmeasured] == 0
    np.testing.assert_array_equal(add(x, x), X + X)
    assert words[pool.spent] == 0


# -- arguments -------------------------------------------------------------------------------------------


def test_numbers(session: Session) -> None:
    numbers = direct(session.load(ARITHMETIC).numbers, 1, 2, 3.0, 4.0, True, 6)
    for values in (
        (-(1 << 31), -(1 << 63), 0.5, 0.1, 0, -128),
        ((1 << 31) - 1, (1 << 63) - 1, -1.5, 1e300, 1, 127),
    ):
        assert numbers(*values) == values
    largest = np.uint32((1 << 32) - 1), np.uint64((1 << 64) - 1)
    assert numbers(*largest, 1, 2, True, np.uint8(255)) == (-1, -1, 1.0, 2.0, True, -1)
    assert numbers(np.int8(1), np.int64(2), np.float32(3), np.float64(4), np.True_, 5) == (
        1,
        2,
        3.0,
        4.0,
        True,
        5,
    )
    assert [type(value) for value in numbers(1, 2, 3.0, 4.0, 1, 6)] == [int, int, float, float, bool, int]
    assert np.isnan(numbers(1, 2, float("nan"), float("nan"), 1, 6)[2:4]).all()


def test_arguments_of_any_kind(session: Session) -> None:
    add = direct(session.load(ARITHMETIC).add, X, X)
    device, list_ = session.to_device(X), [0.0, 1.0, 2.0, 3.0]
    backwards = X[::-1].copy()[::-1]
    for left in (X, device, list_, backwards, X.astype(">f4"), add(X, np.zeros(4, np.float32))):
        for right in (X, device, list_):
            for _ in range(2):  # a device array is known the second time
                assert np.array_equal(add(left, right), X + X)
    assert np.array_equal(add(input1=device, input0=X), X + X)
    assert np.array_equal(add(X, input1=list_), X + X)


def test_shapes_that_are_found_at_run_time(session: Session) -> None:
    twice = direct(session.load(ARITHMETIC).twice, np.zeros((1, 3), np.float32))
    for rows in [*range(12), *range(11, -1, -1), 700, 9000]:
        x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        result = twice(x)
        assert result.shape == (rows, 3) and np.array_equal(result, 2 * x)
        assert np.array_equal(twice(result), 4 * x)
    with pytest.raises(InvalidArgumentError, match="dimension 1 mismatch; expected 3 but have 4"):
        twice(np.zeros((2, 4), np.float32))


def test_small_arrays_are_copied(session: Session) -> None:
    """An argument that comes back is the copy; copies whose memory is in use are not used again."""
    echo = direct(session.load(ECHO).e1_f32, X)
    argument = X.copy()
    results = []
    for number in range(50):
        argument[:] = number
        results.append(echo(argument))
    views = [np.asarray(result) for result in results[::2]]
    del results[::2]
    gc.collect()
    for number in range(50, 100):
        argument[:] = number
        echo(argument)
    assert [list(view) for view in views] == [[number] * 4 for number in range(0, 50, 2)]
    assert [list(result) for result in results] == [[number] * 4 for number in range(1, 50, 2)]


def test_large_arrays(session: Session) -> None:
    large = direct(session.load(ARITHMETIC).large, np.zeros(65536, np.float32))
    x = np.arange(65536, dtype=np.float32)
    assert np.array_equal(large(x), large(x.copy())) and np.array_equal(
        np.asarray(large(x))[:4], np.asarray(large(x))[:4]
    )


@pytest.mark.parametrize("count", [70_000, 300_000, 1_100_000])
@pytest.mark.parametrize("offset", [0, 16])
@pytest.mark.parametrize("step", [1, 2])
def test_large_arrays_may_be_changed_after_the_call(
    session: Session, count: int, offset: int, step: int
) -> None:
    """Whether they lie where machine code can use them in place, and whatever their strides are."""
    echo = direct(session.load(ECHO).e1_f32, X)
    memory = np.zeros(4 * count * step + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    argument = memory[start : start + 4 * count * step].view(np.float32)[::step]
    argument[:] = np.arange(count)
    result = echo(argument)
    argument[:] = -1
    assert np.array_equal(result, np.arange(count, dtype=np.float32))


def test_shapes_that_never_come_back_leave_nothing(session: Session) -> None:
    echo = direct(session.load(ECHO).e1_f32, X)
    for size in range(1000):
        result = echo(np.full(size, size, np.float32))
        assert np.array_equal(result, [size] * size)
    gc.collect()
    echo(X)
    assert session.context.table.live_count < 100
    assert np.array_equal(echo(np.ones(3, np.float32)), [1, 1, 1])


def test_a_result_is_no_array_that_was_passed(session: Session) -> None:
    """Arrays of the host are copied; those of the device are what they are."""
    echo = session.load(ECHO).e1_f32
    memory = np.zeros(4 * 65536 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    argument = memory[start : start + 4 * 65536].view(np.float32)
    result = echo(argument)
    assert not np.shares_memory(np.asarray(result), argument)
    argument[:] = 1
    assert not np.asarray(result).any()
    on_device = session.to_device(argument)
    assert np.shares_memory(np.asarray(echo(on_device)), np.asarray(on_device))


def test_arrays_of_another_session(session: Session) -> None:
    add = direct(session.load(ARITHMETIC).add, X, X)
    with Session("local-sync", tier="fast") as other:
        foreign = direct(other.load(ARITHMETIC).add, X, X)(X, X)
        for _ in range(3):
            assert np.array_equal(add(foreign, X), 3 * X)
    assert np.array_equal(add(foreign, X), 3 * X)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (X,),
        (X, X, X),
        (X, None),
        (X, 1),
        (X, "x"),
        (X, X.astype(np.int32)),
        (X, X[:3]),
        (X, X.reshape(2, 2)),
    ],
)
def test_errors_are_those_of_the_slow_path(session: Session, arguments: tuple[Any, ...]) -> None:
    add = session.load(ARITHMETIC).add
    texts = []
    for function in (add, direct(add, X, X)):
        with pytest.raises(StatusError) as failure:
            function(*arguments)
        texts.append(str(failure.value))
    assert texts[0] == texts[1] and "`sync func @add(" in texts[0]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((X,), {}),
        ((X,), {"input0": X}),
        ((X,), {"other": X}),
        ((), {"input1": X}),
        ((), {"input0": X, "input1": [1.0, "x"]}),
        ((), {"out": X, "input0": X}),
        ((), {"self": X}),
    ],
)
def test_errors_of_names_are_those_of_the_slow_path(
    session: Session, arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    add = session.load(ARITHMETIC).add
    texts = []
    for function in (add, direct(add, X, X)):
        with pytest.raises(StatusError) as failure:
            function(*arguments, **named)
        texts.append(str(failure.value))
    assert texts[0] == texts[1]


def test_references_of_other_kinds(session: Session) -> None:
    """Lists, buffers and views go through the packers of Python, and calls stay direct."""
    echo = session.load(ECHO)
    lists, views = direct(echo.r_list, [1, 2.5]), direct(echo.r_view, X)
    before = live(session)
    for _ in range(5):
        assert lists([3, [4, 0.5], None]) == [3, [4, 0.5], None]
        assert np.array_equal(views(session.to_device(X)), X)
    assert live(session) == before
    with pytest.raises(InvalidArgumentError, match="input0"):
        lists(3)


# -- results ---------------------------------------------------------------------------------------------


FORMS: tuple[Callable[[Array, Any], Any], ...] = (
    lambda result, view: result, lambda result, view: view, lambda result, view: view[2:4],
    lambda result, view: memoryview(view), lambda result, view: view.reshape(2, 4).T,
    lambda result, view: np.from_dlpack(result), lambda result, view: None,
)  # fmt: skip
"""What a caller may keep of a result."""


def test_what_numpy_sees_of_results_stays(session: Session) -> None:
    """Memory is used again only when no array and nothing made from it is left."""
    scale = direct(session.load(ARITHMETIC).scale, np.ones(8, np.float32), 1.0)
    one = session.to_device(np.ones(8, np.float32))
    kept: list[tuple[int, Any]] = []
    for number in range(300):
        result = scale(one, float(number))
        view = np.asarray(result)
        assert view.dtype == np.float32 and view.shape == (8,)
        kept.append((number, FORMS[number % len(FORMS)](result, view)))
        del result, view
        if number % 50 == 49:
            kept = kept[::3]
            session.trim()
    assert len(kept) > 20
    for number, value in kept:
        assert value is None or np.all(np.asarray(value) == number)


def test_headers_of_results_are_their_own(session: Session) -> None:
    scale = direct(session.load(ARITHMETIC).scale, np.ones(8, np.float32), 1.0)
    for _ in range(3):
        view = np.asarray(scale(np.ones(8, np.float32), 2.0))
        assert view.shape == (8,) and view.flags.writeable
        view.shape = (2, 4)
        view.flags.writeable = False


def test_results_outlive_the_session() -> None:
    with Session("local-sync", tier="fast") as session:
        add = direct(session.load(ARITHMETIC).add, X, X)
        first, second, third = add(X, X), add(X, X), add(X, X)
        view = np.asarray(second)
    del session, second
    gc.collect()
    assert first.shape == (4,) and first.dtype == np.float32 and third.buffer_view.shape == (4,)
    for result in (first, view, third):
        assert np.array_equal(result, X + X)
    with pytest.raises(FailedPreconditionError, match="closed"):
        add(X, X)


def test_several_results_and_none(session: Session) -> None:
    module = session.load(ARITHMETIC)
    sums = direct(module.sums, np.arange(4), 2)
    array, total, mean = sums(np.arange(4), 2)
    assert (
        np.array_equal(array, np.arange(4) + 2)
        and type(array) is Array
        and (type(total), type(mean)) == (int, float)
    )
    assert direct(module.nothing)() is None and direct(module.consume, X)(X) is None


def test_the_result_of_one_call_is_the_argument_of_the_next(session: Session) -> None:
    add = direct(session.load(ARITHMETIC).add, X, X)
    state = session.to_device(np.zeros(4, np.float32))
    for _ in range(100):
        state = add(state, X)
    assert np.array_equal(state, 100 * X)


def test_objects_of_results_are_made_while_nothing_runs(session: Session) -> None:
    """Machine code counts references of the same entries, without the interpreter's lock."""
    result = direct(session.load(ECHO).e1_f32, X)(X)
    shapes: list[tuple[int, ...]] = []
    thread = threading.Thread(target=lambda: shapes.append(result.buffer_view.shape))
    with session.context.invoker.lock:
        thread.start()
        thread.join(0.1)
        assert not shapes
    thread.join()
    assert shapes == [X.shape] == [result.shape]


def test_an_array_that_is_donated_while_a_call_waits_for_its_turn(session: Session) -> None:
    echo = direct(session.load(ECHO).e1_f32, X)
    before = live(session)
    array = session.to_device(X)
    echo(array)
    errors: list[StatusError] = []

    def call() -> None:
        try:
            echo(array)
        except StatusError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    with session.context.invoker.lock:
        thread.start()
        thread.join(0.1)
        array._give_up()
    thread.join()
    assert "was donated" in str(errors[0])
    assert live(session) == before


def test_arguments_that_a_program_keeps(session: Session) -> None:
    accumulate = direct(session.load(STATE).accumulate, np.zeros(4, np.float32))
    total = np.zeros(4, np.float32)
    for number in range(40):
        total += number
        assert np.array_equal(accumulate(np.full(4, number, np.float32)), total)


def test_nothing_is_kept(session: Session) -> None:
    module = session.load(ARITHMETIC)
    add, sums = direct(module.add, X, X), direct(module.sums, np.arange(4), 2)
    before = live(session)
    for _ in range(500):
        result = add(add(X, X), X)
        np.asarray(result)
        sums(np.arange(4), 2)
    device = [session.to_device(X) for _ in range(10)]
    for array in device:
        add(array, array)
    del result, array
    assert live(session) == before + 2 * len(device)  # views and their buffers
    del device
    assert live(session) == before


def output_of(program: str) -> list[str]:
    """The lines that a new process prints."""
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def test_each_call_prepares_a_bit() -> None:
    """None of the first calls of a process takes several times as long as the others."""
    imported, following, *lines = output_of(f"""
import itertools, sys, types
import numpy as np
from jitree import Session
from jitree.api import function
from jitree.api.calls import preparation
preparation.time = types.SimpleNamespace(thread_time=itertools.count().__next__)
function._PREPARING_SECONDS, function._PREPARING_SHARE = 1.0, 0.0  # one step
digits = Session("local-sync", tier="fast").load({str(DIGITS)!r})
loaded = set(sys.modules)
digits.classify(np.zeros((8, 8), np.float32))
print(*set(sys.modules) - loaded)
session = Session("local-sync", tier="fast")
module, x = session.load({str(ARITHMETIC)!r}), np.zeros(4, np.float32)
before, rows = set(), []
def count(frame, event, argument):
    rows[-1][1] += event == "call" and frame.f_code.co_filename[0] != "<"  # not Python's importer
while not module.add.is_direct:
    rows.append([0, 0])
    sys.setprofile(count)
    module.add(x, x)
    sys.setprofile(None)
    before, new = {{name for name in sys.modules if name.startswith("jitree.")}}, before
    rows[-1][0] = len(before - new) if new else 0
assert not module.sums.is_direct
for _ in range(function.PREPARED_AFTER):
    module.sums(np.arange(4), 2)
print(module.sums.is_direct)
for row in rows:
    print(*row)
""")
    assert not imported, "the first call of kernels imports modules"
    assert following == "True", "the next functions find everything there"
    counts, steps = zip(*(map(int, line.split()) for line in lines), strict=True)
    assert sum(counts) > 10 and max(counts) <= 3, counts
    assert not any(counts[2:6]), "programs that make a few calls end before it pays"
    assert max(steps) < 500, steps  # calls of Python functions, of some 0.5 us each


def test_preparing_takes_the_time_that_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter(preparation._STEPS[:6])
    monkeypatch.setattr(preparation._Left, "steps", left)
    monkeypatch.setattr(preparation._Left, "seconds", 0.0)
    monkeypatch.setattr(preparation._Left, "spared", 1)
    monkeypatch.setattr(preparation, "time", SimpleNamespace(thread_time=count().__next__))
    assert not preparation.is_prepared(math.inf) and length_hint(left) == 6, "one of the first calls"
    for seconds, steps in ((0.25, 5), (0.5, 5), (0.25, 5), (2.5, 2)):
        assert not preparation.is_prepared(seconds)
        assert length_hint(left) == steps, "each takes 1"
    assert not preparation.is_prepared(math.inf), "the next call makes the function's record"
    assert preparation.is_prepared(0.0)


def test_what_is_prepared_is_not_looked_at_by_the_collector() -> None:
    """It stays: to look at it took a millisecond of some call."""
    results = output_of(f"""
import gc
import numpy as np
from jitree import Session
x, add = np.ones(4, np.float32), Session("local-sync", tier="fast").load({str(ARITHMETIC)!r}).add
gc.collect()
before = gc.get_stats()[0]["collections"]
while not add.is_direct:
    add(x, x)
print(gc.get_stats()[0]["collections"] - before)
""")
    assert results == ["0"]


def test_threads_that_prepare_at_once() -> None:
    """The machine code of calls takes the place of Python's methods once."""
    results = output_of(f"""
import itertools, threading, time
import numpy as np
from jitree import Session
from jitree.api.calls.native import cpython_layout
start, results, x = threading.Barrier(4), [], np.ones(4, np.float32)
pauses = itertools.count(1)
class Slow(cpython_layout.Interface):
    def __init__(self, *arguments):
        time.sleep(0.1 * next(pauses))
        super().__init__(*arguments)
cpython_layout.Interface = Slow
def call():
    add = Session("local-sync", tier="fast").load({str(ARITHMETIC)!r}).add
    start.wait()
    while not add.is_direct:
        add(x, x)
    results.append(add(x, x)[0])
threads = [threading.Thread(target=call) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(*results, next(pauses))
""")
    assert results == ["2.0 2.0 2.0 2.0 2"], "each gets its result, and one has loaded it"
