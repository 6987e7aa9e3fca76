"""Results that the host reads when a call has ended: their elements are there before the call waits."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from jitree import Array, Session
from jitree.api.calls.last_wait import last_wait
from jitree.api.calls.native import handle_owners
from jitree.cuda.device import CudaDevice
from jitree.dispatch.function import BytecodeFunction
from tests.api.direct import live
from tests.cuda.fake import FakeDriver
from tests.cuda.programs import LENDING, LENDING_ASYNC, POSITIONS, STATELESS
from tests.cuda.test_exchange import Producer
from tests.cuda.test_known import exported
from tests.cuda.test_lending import warm

pytestmark = pytest.mark.usefixtures("machine_code")

X = np.arange(8, dtype=np.float32)
ROWS = np.arange(64, dtype=np.float32).reshape(8, 8)
LAUNCH, WAIT = "cuLaunchKernelEx", "cuStreamQuery"


@pytest.fixture(params=[LENDING, LENDING_ASYNC], ids=["synchronous", "asynchronous"])
def add(request: pytest.FixtureRequest, session: Session) -> Any:
    """A function whose results the host has read."""
    function = session.load(request.param).add
    x = session.to_device(X)
    warm(function, x, x)
    for _ in range(3):
        assert np.array_equal(np.asarray(function(x, x)), 2 * X)
    return function


def launches(fake: FakeDriver, action: Callable[[], Any]) -> int:
    fake.calls.clear()
    action()
    return fake.count(LAUNCH)


def read(array: Array, expected: Any) -> None:
    assert np.array_equal(np.asarray(array), expected)


def test_the_call_has_a_result_copied_that_is_read(fake: FakeDriver, session: Session, add: Any) -> None:
    x = session.to_device(X)
    fake.be_lazy()
    fake.calls.clear()
    result = add(x, x)
    names = [name for name in fake.names() if name != "cuCtxSetCurrent"]
    assert names[:3] == [LAUNCH, LAUNCH, WAIT], "the kernel, the copy, and one wait for both"
    fake.calls.clear()
    read(result, 2 * X)
    read(result, 2 * X)
    assert not fake.names()


def test_a_result_that_is_not_read_is_not_copied_again(fake: FakeDriver, session: Session, add: Any) -> None:
    x = session.to_device(X)
    assert [launches(fake, partial(add, x, x)) for _ in range(4)] == [2, 1, 1, 1]
    result = add(x, x)
    assert launches(fake, partial(read, result, 2 * X)) == 1
    assert [launches(fake, partial(add, x, x)) for _ in range(3)] == [2, 1, 1]


def test_copies_go_back(session: Session, add: Any) -> None:
    """Read or not, whether the array is there or not."""
    x, table = session.to_device(X), session.context.table
    add(x, x)
    add(x, x)
    entries = table.live_count
    for turn in range(60):
        result = add(x, x)
        if turn % 3:
            read(result, 2 * X)
        if turn % 2:
            del result
    result = None
    add(x, x)
    add(x, x)
    assert table.live_count <= entries


def test_trim_drops_copies(device: CudaDevice, session: Session, add: Any) -> None:
    """That are not read, and the results that they are of."""
    x = session.to_device(X)
    entries = live(session)
    warm(add, x, x)
    read(add(x, x), 2 * X)
    add(x, x)
    assert live(session) == entries
    warm(add, x, x)
    read(add(x, x), 2 * X)
    result = add(x, x)
    session.trim()
    read(result, 2 * X)


def test_what_comes_between_the_call_and_the_reading(
    fake: FakeDriver, device: CudaDevice, session: Session, add: Any
) -> None:
    x = session.to_device(X)

    def write_by_another_library(result: Array) -> None:
        tensor, kept = exported(result, None)
        device.stream.synchronize()
        fake.bytes_at(tensor.data, 32).view("<f4")[:] = 7
        del kept

    def write(result: Array) -> None:
        result[2:4] = [5, 6]

    def written(value: Any) -> Any:
        expected = 2 * X
        expected[2:4] = value
        return expected

    square = session["lending.multiply_into"]
    warm(square, x, out=session.to_device(X))
    read(add(x, x), 2 * X)
    result = add(x, x)
    session.to_device(X)
    assert launches(fake, partial(read, result, 2 * X)) == 0, "an upload writes to new memory"
    for between, expected in (
        (write, written([5, 6])),
        (lambda result: add(result, x), 2 * X),
        (lambda result: square(x, out=result), X * X),
        (write_by_another_library, np.full(8, 7)),
    ):
        read(add(x, x), 2 * X)
        result = add(x, x)
        between(result)
        read(result, expected)


def test_an_array_that_gets_the_place_of_a_result(session: Session, add: Any) -> None:
    """Its handle and its memory, with nothing submitted since that counts."""
    x = session.to_device(X)
    for turn in range(20):
        read(add(x, x), 2 * X)
        add(x, x)  # which is gone at once
        read(session.to_device(X + turn), X + turn)


def test_functions_that_share_a_record(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with more results than there are records for, of which machine code looks at all."""
    monkeypatch.setattr(handle_owners.Keeper, "ahead", lambda keeper: keeper._ahead.buffer_info()[0])
    x = session.to_device(X)
    add, shift = session.load(LENDING).add, session.load(STATELESS).shift
    pairs = ((partial(add, x, x), 2 * X), (partial(shift, x), 2 * X + 1))
    warm(add, x, x)
    warm(shift, x)
    results = []
    for turn in range(60):
        call, expected = pairs[turn % 3 % 2]
        results.append((call(), expected))
        if turn % 5:
            read(*results[-1])
        if turn % 7 == 0:
            read(*results[turn // 2])


@pytest.mark.parametrize(
    ("path", "name", "is_last"),
    [
        (LENDING, "add", True),
        (LENDING, "keep", False),  # waits for nothing
        (LENDING_ASYNC, "add", False),
        (POSITIONS, "get", True),  # after it has waited for a position, which it looks at
        (STATELESS, "scale", True),
        (STATELESS, "repeat", False),  # looks at what it has waited for
    ],
)
def test_the_last_wait_of_a_program(session: Session, path: Any, name: str, is_last: bool) -> None:
    function = session.load(path)[name]._vm_function
    assert isinstance(function, BytecodeFunction)
    found = last_wait(function)
    assert bool(found) == is_last
    if found:
        code = function.record.code_address
        sites = [
            function.record.module.program.site(number)
            for number in range(function.record.module.program.site_count)
        ]
        (site,) = [site for site in sites if code + 4 * (site.word + 6) == found]
        assert function.record.module.module.imports[site.import_ordinal].full_name == "hal.fence.await"


def test_a_program_waits_itself_for_what_it_looks_at(fake: FakeDriver, session: Session) -> None:
    """The host's wait is for the end alone."""
    get, rows = session.load(POSITIONS).get, session.to_device(ROWS)
    warm(get, rows, np.array(1, np.int32))
    fake.be_lazy()
    for number in range(8):
        place = session.to_device(np.array(number, np.int32))
        place[()] = np.array(7 - number, np.int32)  # which the host does not know
        read(get(rows, place), ROWS[7 - number][None])


@pytest.mark.parametrize("is_lazy", [False, True])
@pytest.mark.parametrize("path", [LENDING, LENDING_ASYNC])
@pytest.mark.parametrize("seed", range(5))
def test_random_reads(
    fake: FakeDriver, device: CudaDevice, session: Session, seed: int, path: Any, is_lazy: bool
) -> None:
    """Whatever the order, a result has the elements that were written last."""
    choose = random.Random(seed)
    functions: tuple[tuple[Any, Callable[..., Any]], ...] = (
        (session.load(path).add, lambda x, y: (x + y,)),
        (session.load(STATELESS).scale, lambda x, y: (x + x, x + x + y)),
    )
    for function, _ in functions:
        warm(function, session.to_device(X), session.to_device(X))
    if is_lazy:
        fake.be_lazy()
    arrays: list[tuple[Array, np.ndarray[Any, Any]]] = [(session.to_device(X), X)]
    kept: list[object] = []
    for turn in range(300):
        array, values = choose.choice(arrays)
        action = choose.randrange(9)
        if action == 0:
            new = X + turn
            arrays.append((session.to_device(new), new))
        elif action == 1:
            values = values.copy()
            values[3] = turn
            at = next(index for index, pair in enumerate(arrays) if pair[0] is array)
            array[3] = turn
            arrays[at] = array, values
        elif action == 2 and not is_lazy and turn > 200:
            tensor, owner = exported(array, None)
            kept.append(owner)
            device.stream.synchronize()
            new = X - turn
            fake.bytes_at(tensor.data, 32).view("<f4")[:] = new
            at = next(index for index, pair in enumerate(arrays) if pair[0] is array)
            arrays[at] = array, new
        elif action <= 5:
            function, model = choose.choice(functions)
            other, others = choose.choice(arrays)
            second = choose.choice((other, other, others, Producer(other)))
            made = function(array, second)
            results = made if isinstance(made, tuple) else (made,)
            if choose.random() < 0.8:
                arrays += zip(results, model(values, others), strict=True)
        else:
            array, values = arrays[-1] if action == 6 else (array, values)
            read(array, values)
        while len(arrays) > 6:
            del arrays[choose.randrange(len(arrays))]
    for array, values in arrays:
        read(array, values)


def test_promises_do_not_pile_up(device: CudaDevice, session: Session) -> None:
    """Of calls whose results are not waited for, on a device that has long done them."""
    add = session.load(LENDING_ASYNC).add
    x = session.to_device(X)
    warm(add, x, x)
    for _ in range(5000):
        add.submit(x, x)
    assert len(device.stream._promises) < 2048


def test_a_promise_that_is_kept_asks_nothing(fake: FakeDriver, device: CudaDevice, session: Session) -> None:
    warm(session.load(LENDING).add, session.to_device(X), session.to_device(X))
    fake.calls.clear()
    assert device.stream.promised(device.stream.tick).is_reached(1)
    assert not fake.calls
