"""Large arrays of the host, which machine code lends to calls where they are."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jitree import CustomModule, Function, Session
from jitree.errors import InvalidArgumentError
from tests.api import producers
from tests.api.direct import direct, live, needs_machine_code, through
from tests.api.producers import Tensor
from tests.api.programs import ALIASES, ASYNCHRONOUS
from tests.api.test_awaited_calls import Slow
from tests.assembler import Assembler

pytestmark = needs_machine_code
COUNT = 16384
"""Elements of the smallest array that is lent."""
X = np.arange(COUNT, dtype=np.float32)
MAKERS: tuple[Callable[[Host], Any], ...] = (
    np.asarray, producers.new_type(), type("Capsules", (Tensor,), {}),
)  # fmt: skip
"""What makes arrays of numpy, and of libraries with functions in C and without."""
DECLARED = {"iree.abi.declaration": "sync func @f(%x: tensor<?xf32>) -> (%y: tensor<?xf32>)"}
Host = npt.NDArray[np.float32]


class Memory(np.ndarray[Any, Any]):
    """Whose end can be seen."""


@pytest.fixture(params=["local-sync", "local-task"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(request.param, tier="fast") as session:
        yield session


def aligned(offset: int = 0) -> Host:
    block = np.zeros(X.nbytes + 128, np.uint8).view(Memory)
    start = -block.ctypes.data % 64 + offset
    made = np.asarray(block[start : start + X.nbytes]).view(np.float32)
    made[:] = X
    return made


def block_of(array: Host) -> weakref.ref[Any]:
    base: Any = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    return weakref.ref(base)


def python_calls(function: Function, *arguments: Any) -> list[str]:
    """Functions of jitree's that Python runs in a call."""
    seen: list[str] = []

    def note(frame: FrameType, event: str, value: object) -> None:
        if event == "call" and "/jitree/api/" in frame.f_code.co_filename:
            seen.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return seen


def keeping(session: Session) -> tuple[Function, Function]:
    """Functions that keep an array in a variable, and give it."""
    program = Assembler("keeping", ref_global_count=1)
    text = "global.store.ref 0, !hal.buffer_view, %r0\nreturn [%R0]"
    program.function("keep", "0r_r", text, attrs=DECLARED)
    program.function("give", "0v_r", "%r0 = global.load.ref 0, !hal.buffer_view\nreturn [%R0]")
    module = session.load(program.build())
    return module.keep, module.give


def test_no_python_runs_and_nothing_is_copied(session: Session) -> None:
    double = direct(session.load(ALIASES).double, X)
    array = aligned()
    for make in MAKERS:
        value = make(array)
        double(value)
        assert not python_calls(double, value)
        before = session.device_allocator.statistics.device.allocated
        assert np.array_equal(double(value), 2 * X)
        assert session.device_allocator.statistics.device.allocated - before == X.nbytes, "the result"


def test_what_is_lent_goes_back(session: Session) -> None:
    double = direct(session.load(ALIASES).double, X)
    before = live(session)
    for number in range(20):
        array = aligned()
        array += number
        result = double(array)
        block = block_of(array)
        array[:] = -1
        assert np.array_equal(result, 2 * (X + number))
        del array
        gc.collect(0)
        assert block() is None, "the result does not keep it"
        with pytest.raises(InvalidArgumentError, match="shape dimension 0 mismatch"):
            double(aligned()[: COUNT - 16])
    del result
    assert live(session) == before


@pytest.mark.parametrize("writeable", [True, False])
def test_results_are_no_arrays_that_were_passed(session: Session, writeable: bool) -> None:
    same = direct(session.load(ALIASES).same, X)
    for make in MAKERS:
        array = aligned()
        seen = array.view()
        seen.flags.writeable = writeable
        value = make(seen)
        same(value)
        result = same(value)
        array[:] = -1
        assert np.array_equal(result, X) and np.asarray(result).flags.writeable


def test_what_the_program_keeps(session: Session) -> None:
    """The memory lives as long as the program has it."""
    keep, give = keeping(session)
    direct(keep, X)
    array = aligned()
    block = block_of(array)
    keep(array)
    del array
    gc.collect()
    assert block() is not None
    assert np.array_equal(give(), X) and np.array_equal(give(), X)
    keep(X[:4])
    keep(X[:4])
    gc.collect()
    assert block() is None


def test_what_python_looks_at(session: Session) -> None:
    """A host function gets an array over the memory, which it may keep."""
    custom, kept = CustomModule("host"), []

    @custom.export
    def g(value: Any) -> Any:
        kept.append(value.buffer.host_array().view(np.float32))
        return value

    session.load(ALIASES)  # which uses the device
    echo = direct(through(session, custom, "0r_r", DECLARED), X)
    kept.clear()
    for writeable in (True, False):
        array = aligned()
        array.flags.writeable = writeable
        result, block = echo(array), block_of(array)
        assert np.shares_memory(kept[0], array) and kept[0].flags.writeable == writeable
        assert not np.shares_memory(np.asarray(result), array) and np.array_equal(result, X)
        del array
        gc.collect()
        assert block() is not None and np.array_equal(kept[0], X)
        kept.clear()
        echo(X[:4])
        kept.clear()
        echo(X[:4])
        kept.clear()
        gc.collect()
        assert block() is None


def test_where_a_result_is_put(session: Session) -> None:
    into = direct(session.load(ALIASES).into, X, session.empty(COUNT))
    for out in (aligned(), session.empty(COUNT)):
        array = np.asarray(out)
        array[:] = X
        assert np.array_equal(into(array, out=out), 2 * X), "read before it is written"
        assert np.array_equal(into(array, out=out), 4 * X)


def test_a_call_that_may_be_submitted_gets_a_copy(session: Session) -> None:
    """Its caller may change the array when it goes on."""
    ones = np.ones((256, 256), np.float32)
    block = np.zeros(ones.size + 16, np.float32)
    array = block[-block.ctypes.data // 4 % 16 :][: ones.size].reshape(ones.shape)
    product = direct(session.load(ASYNCHRONOUS).product, ones)
    for call in (product, product.submit):
        array[:] = 1
        before = session.device_allocator.statistics.device.allocated
        result = call(array)
        assert session.device_allocator.statistics.device.allocated - before >= array.nbytes + ones.nbytes
        array[:] = -1
        assert (np.asarray(result) == 256).all()


def test_arrays_that_are_not_aligned_are_copied(session: Session) -> None:
    double = direct(session.load(ALIASES).double, X)
    array = aligned(4)
    before = session.device_allocator.statistics.device.allocated
    result = double(array)
    assert session.device_allocator.statistics.device.allocated - before == 2 * X.nbytes
    assert np.array_equal(result, 2 * X)


def test_an_awaited_call_keeps_what_was_lent_until_it_ends(session: Session) -> None:
    """Others may run meanwhile, and the caller may have dropped the array."""
    slow = Slow()
    session.append_module(slow)
    program = Assembler("program").import_function("slow.answer", "0i_i")
    text = "%i0 = const.i32 1\n%i1 = call @slow.answer [%i0]\nreturn [%R0]"
    session.load(ALIASES, program.function("f", "0r_r", text, attrs=DECLARED).build())
    function = direct(session["program.f"], X)
    slow.waits = True
    blocks: list[weakref.ref[Any]] = []

    async def call() -> Any:
        array = aligned()
        blocks.append(block_of(array))
        awaited = asyncio.ensure_future(function.async_(array))
        del array
        await slow.reached(1)
        gc.collect()
        assert blocks[0]() is not None
        slow.open()
        return await awaited

    assert np.array_equal(asyncio.run(call()), X)
    slow.waits = False
    function(X[:4])
    gc.collect()
    assert blocks[0]() is None
