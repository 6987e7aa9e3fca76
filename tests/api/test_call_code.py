"""Machine code of calls against this interpreter: objects, owners, and what happens at their limits."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

from jitree import Array, Function, Session, donate
from jitree.api.array import Array as ArrayClass
from jitree.api.calls import packing
from jitree.api.calls.native import cpython_layout
from jitree.api.calls.native import direct as direct_calls
from jitree.api.calls.native.cpython_layout import is_supported
from jitree.api.calls.native.handle_owners import LARGE
from jitree.api.calls.native.layout import MAXIMUM_RETURNED, Ndarray
from jitree.codegen.record import layout_of, words_of
from jitree.errors import StatusCode, StatusError
from jitree.hal.fence import Fence
from jitree.regs.layout import GateRecord
from tests.api.direct import CALLS, X, direct, needs_machine_code
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, ECHO, OUTPUTS, STATE

_GATE: Final = words_of(GateRecord)

pytestmark = needs_machine_code


@pytest.fixture(params=["local-sync", "local-task"])
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(request.param, tier="fast") as session:
        yield session


# -- the interpreter -------------------------------------------------------------------------------------


def test_this_interpreter_is_supported() -> None:
    assert is_supported()


def test_slots_are_found() -> None:
    offsets = cpython_layout.slot_offsets(ArrayClass, ("_owner", "_device"))
    array = object.__new__(ArrayClass)
    marks = {name: object() for name in offsets}
    for name, mark in marks.items():
        setattr(array, name, mark)
    for name, offset in offsets.items():
        assert ctypes.c_int64.from_address(id(array) + offset).value == id(marks[name])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("object.__basicsize__", 32),
        ("sys.implementation.name", "pypy"),
    ],
)
def test_other_interpreters_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str, value: object) -> None:
    if name.startswith("object"):
        monkeypatch.setattr(cpython_layout, "_HEADER_SIZE", value)
    else:
        monkeypatch.setattr(sys, "implementation", type("Other", (), {"name": value}))
    assert not cpython_layout.is_known()


@pytest.mark.parametrize(
    ("flags", "said"), [("t", "free-threaded"), ("", "does not know the objects of cpython")]
)
def test_explanations_say_why_python_makes_calls(
    session: Session, monkeypatch: pytest.MonkeyPatch, flags: str, said: str
) -> None:
    assert "calls: " not in str(session.explain())
    monkeypatch.setattr(cpython_layout, "is_supported", lambda: False)
    monkeypatch.setattr(sys, "abiflags", flags)
    assert said in str(session.explain())


@pytest.mark.parametrize("field", ["data", "dtype", "dimensions", "flags"])
def test_arrays_that_lie_otherwise_are_noticed(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    offsets = dict(layout_of(Ndarray).offsets)
    offsets[field], offsets["base"] = offsets["base"], offsets[field]
    if field in ("data", "dimensions"):  # addresses that may be followed
        offsets[field] = layout_of(Ndarray)["dtype"]
    monkeypatch.setattr(layout_of(Ndarray), "offsets", offsets)
    assert not cpython_layout.is_known()


def test_methods_of_other_objects(session: Session) -> None:
    direct(session.load(ARITHMETIC).add, X, X)
    for method in (Function.__call__, ArrayClass.__array__, ArrayClass.__buffer__):
        for arguments in (
            (),
            (5,),
            (object(),),
            (object.__new__(ArrayClass), 0),
            (object.__new__(Function),),
        ):
            with pytest.raises((TypeError, AttributeError)):
                method(*arguments)
    with pytest.raises(TypeError):
        Function.__call__(input0=X)  # type: ignore[call-arg]


def test_functions_are_described(session: Session) -> None:
    add = session.load(ARITHMETIC).add
    for function in (add, direct(add, X, X)):
        assert "Calls the function" in (type(function).__call__.__doc__ or "")
        assert str(inspect.signature(function)) == (
            "(input0: 'tensor<4xf32>', input1: 'tensor<4xf32>') -> 'tensor<4xf32>'"
        )
    assert "vm_function" in str(inspect.signature(Function))


# -- owners ----------------------------------------------------------------------------------------------


def test_more_arrays_die_than_there_is_room_to_note(session: Session) -> None:
    echo = direct(session.load(ECHO).e1_f32, X)
    before = session.context.table.live_count
    kept = [echo(X) for _ in range(3 * MAXIMUM_RETURNED)]
    assert session.context.table.live_count > before + 2 * MAXIMUM_RETURNED
    del kept
    assert np.array_equal(echo(X), X)
    gc.collect()
    session.trim()
    assert session.context.table.live_count <= before + 2


def test_they_die_while_another_thread_is_in_a_call(session: Session) -> None:
    """Nothing of the table may be touched then."""
    echo = direct(session.load(ECHO).e1_f32, X)
    arrays = [echo(X) for _ in range(3 * MAXIMUM_RETURNED)]
    before = session.context.table.live_count

    def drop() -> None:
        arrays.clear()

    with session.context.invoker.lock:
        thread = threading.Thread(target=drop)
        thread.start()
        thread.join()
        assert session.context.table.live_count == before
    echo(X)
    session.trim()
    assert session.context.table.live_count < before - 2 * MAXIMUM_RETURNED


def test_an_exception_goes_by_a_dying_array(session: Session) -> None:
    """Finalisers that call Python do not lose the exception on its way."""
    echo = direct(session.load(ECHO).e1_f32, X)

    def fail(arrays: list[Array]) -> None:
        arrays = [echo(X) for _ in range(MAXIMUM_RETURNED + 10)]
        raise KeyError(len(arrays))

    with pytest.raises(KeyError):
        fail([])
    assert np.array_equal(echo(X), X)


def test_large_memory_is_given_back_at_once(session: Session) -> None:
    large = direct(session.load(ECHO).e1_f32, X)
    elements = np.zeros(LARGE // 4, np.float32)
    on_device = session.to_device(elements)
    large(on_device)
    result = large(on_device)
    live = session.context.table.live_count
    view = np.asarray(result)
    del result
    gc.collect()
    assert session.context.table.live_count == live
    del view, on_device
    assert session.context.table.live_count < live


def test_large_memory_is_given_back_after_the_session() -> None:
    with Session("local-sync", tier="fast") as session:
        echo = direct(session.load(ECHO).e1_f32, X)
        on_device = session.to_device(np.zeros(LARGE // 4, np.float32))
        results = [echo(on_device), echo(X)]
        del on_device
        table = session.context.table
    del session, echo
    live = table.live_count
    del results[0]
    gc.collect()
    assert table.live_count < live


def test_what_a_session_leaves_goes_with_its_last_array() -> None:
    """At once, not when the garbage collector looks for circles."""
    gc.collect()
    gc.disable()
    try:
        with Session("local-sync", tier="fast") as session:
            add = direct(session.load(ARITHMETIC).add, X, X)
            result = add(X, X)
            table = weakref.ref(session.context.table)
        del session, add
        view = np.asarray(result)
        del result
        assert table() is not None and np.array_equal(view, X + X)
        del view
        assert table() is None
    finally:
        gc.enable()


def test_an_object_is_passed_again_whose_handle_dies(session: Session) -> None:
    """The call that it is passed to is the one that drops the last reference to its old handle."""
    echo = direct(session.load(ECHO).e1_f32, X)
    array = session.to_device(X)
    echo(array)
    view = array.buffer_view
    del array
    again = Array(view, session.device)
    echo(again)
    others = [session.to_device(X + 100) for _ in range(10)]
    for other in others:
        echo(other)
    assert np.array_equal(echo(again), X)


def test_numpy_arrays_keep_the_memory(session: Session) -> None:
    echo = direct(session.load(ECHO).e1_f32, X)
    views = [np.asarray(echo(np.full(100, number, np.float32)))[10:20] for number in range(200)]
    for _ in range(200):
        echo(np.full(100, -1, np.float32))
    assert all(np.all(view == number) for number, view in enumerate(views))


def refused(call: Callable[[], object]) -> Callable[[], object]:
    def make() -> None:
        with pytest.raises(StatusError):
            call()

    return make


def every_way(session: Session) -> dict[str, Callable[[], object]]:
    """A call of each kind that machine code makes, or leaves to Python in the middle."""
    arithmetic, echo, outputs, asynchronous, state = session.load(
        ARITHMETIC, ECHO, OUTPUTS, ASYNCHRONOUS, STATE
    )
    x, square = session.to_device(X), np.eye(256, dtype=np.float32)
    add, numbers = arithmetic.add, arithmetic.numbers
    return {
        "arrays": lambda: add(x, x), "numpy": lambda: add(X, X), "strides": lambda: add(X[::-1], X),
        "list": lambda: add([1.0, 2.0, 3.0, 4.0], X), "names": lambda: add(input1=x, input0=X),
        "seen": lambda: np.asarray(add(x, x)), "copied": lambda: np.array(add(x, x)),
        "converted": lambda: np.asarray(add(x, x), np.float64), "buffer": lambda: add(x, x).__buffer__(0),
        "host": lambda: add(x, x).to_host(), "shape": lambda: add(x, x).shape,
        "view": lambda: add(x, x).buffer_view,
        "numbers": lambda: numbers(1, 2, 3.0, 4.0, True, 6),
        "converted numbers": lambda: numbers(np.int8(1), np.int64(2), np.float32(3), 4, np.True_, 5.0),
        "several": lambda: arithmetic.sums(np.arange(4), 2), "nothing": arithmetic.nothing,
        "references": lambda: echo.r_list([1, 2.5]), "views": lambda: echo.r_view(x), "bytes": echo.buffer,
        "overwritten": lambda: outputs.double(np.arange(4, dtype=np.int32)),
        "donated": lambda: outputs.double(donate(session.to_device(np.arange(4, dtype=np.int32)))),
        "storage": lambda: outputs.in_place(out=session.empty(4, np.int32)),
        "waiting": lambda: asynchronous.two(X),
        "submitted": lambda: np.asarray(asynchronous.two.submit(X)[1]),
        "pending": lambda: np.asarray(asynchronous.product.submit(square)),
        "shape refused": refused(lambda: add(X[:3], X)), "type refused": refused(lambda: add("x", X)),
        "name refused": refused(lambda: add(X, other=X)), "count refused": refused(lambda: add(X)),
        "number refused": refused(lambda: numbers(1 << 40, 2, 3.0, 4.0, True, 6)),
        "failing": refused(lambda: state.positive(-1)),
    }  # fmt: skip


def test_no_way_of_calling_leaves_references(session: Session) -> None:
    watched = [None, True, int, float, Array, np.ndarray, np.dtype(np.float32), X, session.device,
               session.context.table, session.context.invoker]  # fmt: skip
    left = {}
    for name, call in every_way(session).items():
        for _ in range(CALLS):
            call()
        gc.collect()
        session.trim()
        before = [sys.getrefcount(item) for item in watched]
        live = session.context.table.live_count
        for _ in range(200):
            call()
        gc.collect()
        session.trim()
        more = [sys.getrefcount(item) - count for item, count in zip(watched, before, strict=True)]
        if max(map(abs, more)) > 100 or session.context.table.live_count != live:
            left[name] = more, session.context.table.live_count - live
    assert not left


# -- failures --------------------------------------------------------------------------------------------


def test_a_converter_that_fails(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last of several results: those before it, and their memory, are dropped."""

    def refuse(value: object, device: object, fence: object) -> object:
        raise ArithmeticError("refused")

    unpack = packing.number_unpacker
    monkeypatch.setattr(
        direct_calls, "number_unpacker", lambda declared: refuse if declared == "f32" else unpack(declared)
    )
    sums = direct(session.load(ARITHMETIC).sums, np.arange(4), 2)
    table = session.context.table
    for _ in range(3):
        with pytest.raises(ArithmeticError, match="refused"):
            sums(np.arange(4), 2)
    gc.collect()
    session.trim()
    live = table.live_count
    with pytest.raises(ArithmeticError, match="refused"):
        sums(np.arange(4), 2)
    gc.collect()
    session.trim()
    assert table.live_count == live and session.context.invoker.gate[_GATE.nesting] == 0


def test_a_number_that_cannot_be_had(session: Session) -> None:
    class Odd:
        def __index__(self) -> int:
            raise LookupError("no value")

    sums = direct(session.load(ARITHMETIC).sums, np.arange(4), 2)
    with pytest.raises(LookupError, match="no value"):
        sums(np.arange(4), Odd())
    assert sums(np.arange(4), 2)[1] == 2


def test_an_argument_that_calls_the_session(session: Session) -> None:
    """While it is asked for its value the registers are those of the call that it is for."""
    module = session.load(ARITHMETIC)
    add, sums = direct(module.add, X, X), direct(module.sums, np.arange(4), 2)

    class Nested:
        def __index__(self) -> int:
            return int(np.asarray(add(X, X))[1])

    for _ in range(3):
        array, number, mean = sums(np.arange(4), Nested())
        assert np.array_equal(array, np.arange(4) + 2) and (number, mean) == (2, 2.0)
    assert session.context.invoker.gate[_GATE.nesting] == 0


def test_python_has_no_more_room_on_its_stack(session: Session) -> None:
    """Wherever in a call that happens it ends with an exception."""
    positive = session.load(STATE).positive
    direct(positive, 1)

    def descend() -> None:
        with contextlib.suppress(StatusError):
            positive(-1)
        descend()

    for _ in range(3):
        with pytest.raises(RecursionError):
            descend()
    assert positive(1) == 1
    assert session.context.invoker.gate[_GATE.nesting] == 0


def test_what_is_donated_is_not_lost_when_the_call_is_refused(session: Session) -> None:
    double = session.load(OUTPUTS).double_first
    small = np.arange(4, dtype=np.int32)
    array = session.to_device(small)
    for _ in range(CALLS):  # by the slow path first
        with pytest.raises(StatusError, match="input1"):
            double(donate(array), "x")
        assert not array.is_donated
        assert np.array_equal(double(donate(session.to_device(small)), small), 2 * small)
    assert double.is_direct and np.array_equal(array, small)


def test_what_is_donated_is_not_lost_by_another_try(session: Session) -> None:
    """Python makes the call when an argument is nothing for machine code."""
    outputs = session.load(OUTPUTS)
    small, large = np.arange(4, dtype=np.int32), np.zeros(1 << 17, np.int32)
    direct(outputs.double_first, small, small)
    for other in (large, small.astype(small.dtype.newbyteorder())):
        assert np.array_equal(outputs.double_first(donate(session.to_device(small)), other), 2 * small)
    direct(outputs.double_both, small, small)
    first, second = session.to_device(small), session.to_device(small)
    with pytest.raises(StatusError, match="input1"):
        outputs.double_both(donate(first), small.astype(np.float32))
    results = outputs.double_both(donate(session.to_device(small)), donate(second))
    assert all(np.array_equal(result, 2 * small) for result in results)


# -- several threads -------------------------------------------------------------------------------------


def test_no_session_waits_for_another_with_its_lock(session: Session) -> None:
    """Two that did so for each other's arrays would wait for ever."""
    held = []
    with Session("local-sync", tier="fast") as other:
        echo, take = direct(session.load(ECHO).e1_f32, X), other.load(ECHO)
        lock = other.context.invoker.lock

        class Spy:
            def __enter__(self) -> None:
                held.append(lock._is_owned())  # type: ignore[attr-defined]
                keeper_lock.__enter__()

            def __exit__(self, *exception: object) -> None:
                keeper_lock.__exit__(None, None, None)

        direct(take.e2_f32, X[None])
        keeper = echo(X)._keeper
        keeper_lock, keeper.lock = keeper.lock, Spy()
        try:
            for function in (direct(take.r_view, X), direct(take.e1_f32, X)):
                assert np.array_equal(function(echo(X)), X)
            with pytest.raises(StatusError):
                take.e2_f32(echo(X))
        finally:
            keeper.lock = keeper_lock
    assert held and not any(held)


def test_what_was_found_wrong_before_another_call(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a call which waits in the middle."""
    add = direct(session.load(ARITHMETIC).add, X, X)
    await_fence = session.load(ASYNCHRONOUS).await_fence
    fence = Fence.create(session.device)
    direct(await_fence, fence, 0)
    invoker, waited = session.context.invoker, []

    class Odd:
        def __index__(self) -> int:
            invoker.fail_at_end("something is wrong")
            return -1

    def call(*arguments: Any) -> StatusCode:
        waited.append(add(X, X))
        fence.signal()
        return StatusCode.OK

    monkeypatch.setattr("jitree.modules.hal.fence.wait_fences", call)
    with pytest.raises(StatusError, match="something is wrong"):
        await_fence(fence, Odd())
    assert waited


def test_a_waiting_call_without_room_for_its_end(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's stack is so full that not even the end of the call can be made: the next ones are as usual."""
    await_fence = session.load(ASYNCHRONOUS).await_fence
    fence = Fence.create(session.device)
    direct(await_fence, fence, 0)
    invoker = session.context.invoker

    def overflow(*_: object) -> None:
        raise RecursionError

    with monkeypatch.context() as patch:
        patch.setattr(invoker, "wait_unlocked", overflow)
        patch.setattr(invoker, "abandon", overflow)
        with pytest.raises(RecursionError):
            await_fence(fence, -1)
    fence.signal()
    assert [await_fence(fence, -1) for _ in range(2)] == [0, 0]
    assert invoker.ready is not None and invoker.ready.pending is None


def test_a_call_when_python_ends() -> None:
    """By an object that outlives the names of all modules."""
    program = f"""
import sys
import numpy as np
from jitree import Session
session = Session("local-sync", tier="fast")
add, x = session.load({str(ARITHMETIC)!r}).add, session.to_device(np.arange(4, dtype=np.float32))
while not add.is_direct:
    add(x, x)
class Late:
    def __init__(self, *parts):
        self.parts = parts
    def __del__(self):
        function, argument = self.parts
        function(argument, argument)
sys.late = Late(add, x)
del session, add, x
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
