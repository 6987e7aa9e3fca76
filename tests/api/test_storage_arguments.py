"""Memory of the caller that programs write to: results put into it, tensors that may be overwritten."""

from __future__ import annotations

import gc
import re
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import jitree
from jitree import Module, Session
from jitree.api.calls import storage_arguments
from jitree.errors import FailedPreconditionError, InvalidArgumentError
from tests.api.direct import CALLS, direct, live, needs_machine_code
from tests.api.producers import Tensor
from tests.api.programs import ARITHMETIC, STORAGE

X = np.arange(16, dtype=np.float32)
Y = np.full(4, -1, np.float32)
REPLACED = np.concatenate([X[:4], Y, X[8:]])


@pytest.fixture
def module(session: Session) -> Module:
    return session.load(STORAGE)


def aligned(offset: int = 0) -> npt.NDArray[np.float32]:
    """16 floats so many bytes after a multiple of 64."""
    block = np.zeros(256, np.uint8)
    start = -block.__array_interface__["data"][0] % 64 + offset
    return block[start : start + 64].view(np.float32)


def address(array: Any) -> int:
    return int(np.asarray(array).__array_interface__["data"][0])


def test_results_are_put_where_the_caller_says(module: Module, session: Session) -> None:
    for _ in range(3):  # the first call, and those that follow it
        target = session.empty(16)
        result = module.into(X, out=target)
        assert np.array_equal(target, X + X) and address(result) == address(target)
    host = aligned()
    assert address(module.into(session.to_device(X), out=host)) == address(host)
    assert np.array_equal(host, X + X)
    assert np.array_equal(module.into(X, target), X + X), "by position as well"
    seven, result = module.second(X, out=(target,))
    assert seven == 7 and address(result) == address(target)
    assert np.array_equal(module.second(input0=X, out=target)[1], X + X)


@pytest.mark.parametrize(
    ("out", "text"),
    [
        (np.zeros((16, 2), np.float32)[:, 0], "do not lie one after the other"),
        (np.ma.masked_array(np.zeros(16, np.float32)), "masked array cannot be written in place"),
        (aligned(4), r"input1: .* begins 4 bytes after a multiple of 64; .*session\.empty"),
        ([aligned(), aligned()], "expected 1 arrays but got 2"),
        ((None,), "out: input1: None of type NoneType cannot"), (aligned()[:8], "dimension 0 mismatch"),
        (aligned().view(np.int8), "element type mismatch"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("calls", [0, CALLS])
def test_what_cannot_be_storage(module: Module, out: Any, text: str, calls: int) -> None:
    for _ in range(calls):
        module.into(X, out=aligned())
    with pytest.raises(InvalidArgumentError, match=text):
        module.into(X, out=out)


@pytest.mark.parametrize("calls", [0, CALLS])
def test_the_array_that_a_refusal_speaks_of_is_taken(module: Module, session: Session, calls: int) -> None:
    refused = aligned(4)
    for _ in range(calls):
        module.into(X, out=aligned())
    with pytest.raises(InvalidArgumentError, match="begins 4 bytes after") as raised:
        module.into(X, out=refused)
    named = re.search(r"aligned to 64 bytes \(as (.*) is\)", str(raised.value))
    assert named is not None
    names = {"session": session, "shape": refused.shape, "dtype": refused.dtype}
    taken = eval(named[1], names)
    result = module.into(X, out=taken)
    assert type(taken) is np.ndarray and address(result) == address(taken) and np.array_equal(taken, X + X)


@pytest.mark.parametrize("calls", [0, CALLS])
def test_no_array_is_as_without(module: Module, session: Session, calls: int) -> None:
    add, target = session.load(ARITHMETIC).add, session.empty(16)
    for _ in range(calls):
        module.into(X, out=target)
        add(X[:4], X[:4])
    assert np.array_equal(add(X[:4], X[:4], out=None), X[:4] + X[:4])
    assert address(module.into(X, target, out=None)) == address(target)
    with pytest.raises(InvalidArgumentError, match="expected 2 arguments but passed 1; missing: input1"):
        module.into(X, out=None)


def test_results_are_put_into_arrays_of_other_libraries(module: Module, session: Session) -> None:
    for _ in range(CALLS + 1):
        host = aligned()
        result = module.into(X, out=Tensor(host))
        assert np.array_equal(host, X + X) and address(result) == address(host)
    with pytest.raises(InvalidArgumentError, match="aligned to 64 bytes"):
        module.into(X, out=Tensor(aligned(4)))


@needs_machine_code
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_machine_code_writes_to_numpy_arrays(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(device, tier="fast")
    module = session.load(STORAGE)
    into, second, x = module.into, module.second, session.to_device(X)
    for function in (into, second):
        direct(function, x, session.empty(16))
    monkeypatch.setattr(storage_arguments, "storage_of", lambda *_: pytest.fail("Python was asked"))
    lives = []
    for out in (aligned(), aligned(), aligned()):
        target: npt.NDArray[np.float32] = out
        target[:] = -1
        assert address(into(x, out=target)) == address(target) and np.array_equal(target, X + X)
        target[:] = -1
        seven, result = second(x, out=(target,))
        assert seven == 7 and np.array_equal(result, X + X) and address(result) == address(target)
        assert address(result.buffer_view.buffer.host_array()) == address(target), (
            "the object that Python makes"
        )
        assert np.array_equal(into(result, out=session.empty(16)), X * 4)
        target[:] = X
        assert np.array_equal(into(target, out=target), X + X), "read before it is written"
        del seven, result
        lives.append(live(session))
    assert lives[0] == lives[1] == lives[2], "nothing is kept"


@needs_machine_code
def test_results_keep_the_memory_that_they_are_in() -> None:
    session = Session("local-sync", tier="fast")
    module = session.load(STORAGE)
    x = session.to_device(X)
    into = direct(module.into, x, session.empty(16))
    target = aligned()
    block = weakref.ref(target.base)  # the array whose memory it is
    result = into(x, out=target)
    del target
    gc.collect()
    assert block() is not None and np.array_equal(result, X + X)
    shown = np.asarray(result)
    del result
    into(x, out=aligned())
    assert block() is not None and np.array_equal(shown, X + X)
    del shown
    into(x, out=aligned())
    gc.collect()
    assert block() is None


@pytest.mark.parametrize("direct", [False, True])
def test_an_argument_is_given_once(module: Module, session: Session, direct: bool) -> None:
    target = session.empty(16)
    for _ in range(4 if direct else 0):
        module.into(X, out=target)
    for arguments, named, text in (
        ((X,), {"input0": X}, "argument 'input0' is given twice"),
        ((X,), {"input1": target}, "argument 'input1' is given twice"),
        ((X, target), {}, "expected 1 arguments and out but passed 2"),
        ((), {}, "missing: input0"),
    ):
        with pytest.raises(InvalidArgumentError, match=text):
            module.into(*arguments, out=target, **named)


def test_memory_that_may_not_be_written(module: Module) -> None:
    target = aligned()
    target.flags.writeable = False
    with pytest.raises(InvalidArgumentError, match="cannot be written in place"):
        module.into(X, out=target)


def test_programs_without_storage_say_so(session: Session) -> None:
    arithmetic = session.load(ARITHMETIC)
    with pytest.raises(InvalidArgumentError, match=r"`iree\.abi\.output`") as failure:
        arithmetic.add(X[:4], X[:4], out=session.empty(4))
    assert "invoking function 'add'" in str(failure.value)


def test_what_the_program_may_overwrite_is_copied(module: Module, session: Session) -> None:
    device, host = session.to_device(X), aligned()
    host[:] = X
    for argument in (X.copy(), device, device.buffer_view, host, list(X)):
        for _ in range(2):
            assert np.array_equal(module.replace(argument, Y), REPLACED)
    assert np.array_equal(device, X) and np.array_equal(host, X)


def test_donated_arrays_are_the_programs(module: Module, session: Session) -> None:
    given = session.to_device(X)
    before = address(given)
    result = module.replace(jitree.donate(given), Y)
    assert np.array_equal(result, REPLACED) and address(result) == before
    for use in (np.asarray, len, lambda array: array.shape, lambda array: module.replace(array, Y)):
        with pytest.raises(FailedPreconditionError, match="donated to a call"):
            use(given)
    assert repr(given) == "jitree.Array(donated to a call)"
    for _ in range(5):  # the result of one call is given to the next
        result = module.replace(jitree.donate(result), Y)
    assert np.array_equal(result, REPLACED) and address(result) == before


def test_refused_donations_stay_with_their_owner(module: Module, session: Session) -> None:
    given = session.to_device(X[:8])
    with pytest.raises(InvalidArgumentError, match="dimension 0 mismatch"):
        module.replace(jitree.donate(given), Y)
    assert np.array_equal(given, X[:8])
    with pytest.raises(InvalidArgumentError, match=r"donate: expected a jitree\.Array"):
        jitree.donate(X)  # type: ignore[arg-type]


def test_any_array_can_be_donated(session: Session) -> None:
    """A program that was not compiled to use it leaves it alone."""
    add = session.load(ARITHMETIC).add
    for _ in range(3):
        given = session.to_device(X[:4])
        assert np.array_equal(add(jitree.donate(given), X[:4]), 2 * X[:4])
        assert repr(given) == "jitree.Array(donated to a call)"


def test_empty_arrays(session: Session) -> None:
    array = session.empty((2, 3), np.int16)
    assert array.shape == (2, 3) and array.dtype == np.int16 and array.to_host().shape == (2, 3)
    with pytest.raises(InvalidArgumentError, match="empty: no device array can have dtype"):
        session.empty(3, "U5")


def test_storage_that_says_other_things_of_itself(module: Module) -> None:
    """A subclass of numpy's arrays may raise anything where it is asked; the memory is what counts."""

    class Lying(np.ndarray[Any, Any]):
        def __getattribute__(self, name: str) -> Any:
            if name in ("flags", "dtype", "shape", "__array_interface__"):
                raise AttributeError(name)
            return super().__getattribute__(name)

    target = aligned()
    module.into(X, out=target.view(Lying))
    assert np.array_equal(target, X + X)
    with pytest.raises(InvalidArgumentError, match="a 16xf32 array cannot be written in place"):
        module.into(X, out=aligned(4).view(Lying))
