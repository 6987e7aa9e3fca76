"""Memory that was imported read-only stays as it is, whatever programs do with the arrays over it."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import jitree
from jitree import Array, Module, Session
from jitree.api.function import Function
from jitree.errors import InvalidArgumentError, PermissionDeniedError
from tests.api.programs import ALIASES

COUNT = 16384
X = np.arange(COUNT, dtype=np.float32)
Y = np.full(4, -1, np.float32)
REPLACED = np.concatenate([Y, X[4:]])
CALLS = range(4)
"""The slow path, and machine code from the third call on."""


def mapped(folder: Path) -> npt.NDArray[np.float32]:
    """Pages on which a write is a fault."""
    path = folder / "x.bin"
    X.tofile(path)
    return np.memmap(path, np.float32, "r")


def immutable(folder: Path) -> npt.NDArray[np.float32]:
    """Bytes that nothing protects."""
    memory = mmap.mmap(-1, X.nbytes)
    memory[:] = X.tobytes()
    return np.frombuffer(memoryview(memory).toreadonly(), np.float32)


@pytest.fixture(params=[mapped, immutable])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[npt.NDArray[np.float32]]:
    array = request.param(tmp_path)
    yield array
    assert np.array_equal(array, X), "read-only memory was written to"


@pytest.fixture
def module(session: Session) -> Module:
    return session.load(ALIASES)


def address(array: Any) -> int:
    return int(np.asarray(array).__array_interface__["data"][0])


Kept = npt.NDArray[np.float32]
Target = Callable[[Session, Module, Kept], Array]
TARGETS: dict[str, Target] = {
    "an array over it": lambda session, module, kept: session.to_device(kept),
    "a result that is it": lambda session, module, kept: module.same(session.to_device(kept)),
}


@pytest.mark.parametrize("name", TARGETS)
def test_results_are_not_put_there(session: Session, module: Module, kept: Kept, name: str) -> None:
    target = TARGETS[name](session, module, kept)
    assert address(target) == address(kept), "it is used in place"
    for _ in CALLS:
        ways: tuple[Callable[[], object], ...] = (
            lambda: module.into(X, out=target), lambda: module.into(X, target),
        )  # fmt: skip
        for call in ways:
            with pytest.raises(PermissionDeniedError, match=r"input1 .*read-only.*session\.empty"):
                call()
    assert np.array_equal(module.into(X, out=session.empty(COUNT)), 2 * X)


def test_an_array_that_fits_another_parameter(session: Session, module: Module, kept: Kept) -> None:
    """Arrays remember parameters that they fit: of the same type, one is written to and one is not."""
    target, other = session.to_device(kept), session.empty(COUNT)
    for _ in CALLS:
        assert np.array_equal(module.into(target, out=other), 2 * X)
        assert np.array_equal(module.double(target), 2 * X)
        with pytest.raises(PermissionDeniedError):
            module.into(other, out=target)
        assert np.array_equal(module.into(other, other), 4 * X)


def test_host_arrays_are_no_storage(module: Module, kept: Kept) -> None:
    for _ in CALLS:
        with pytest.raises(InvalidArgumentError, match="cannot be written in place"):
            module.into(X, out=kept)
        result = module.into(X, kept)  # by position it is an argument like others: a copy
        assert np.array_equal(result, 2 * X) and np.asarray(result).flags.writeable


def test_programs_overwrite_copies(session: Session, module: Module, kept: Kept) -> None:
    for _ in CALLS:
        array = session.to_device(kept)
        for argument in (kept, array, array.view, jitree.donate(array)):
            assert np.array_equal(module.replace(argument, Y), REPLACED)
        assert array.is_donated


@pytest.mark.parametrize("name", ["put_into", "into_view$async"])
def test_undeclared_writes_go_to_a_copy(session: Session, module: Module, kept: Kept, name: str) -> None:
    """A program that takes views may write to them: the array has memory of its own then."""
    function: Function = module[name]
    for _ in CALLS:
        array = session.to_device(kept)
        reading, shown = session.to_device(kept), array.to_host()
        assert address(array) == address(kept) and not shown.flags.writeable
        result = function(reading, array)
        assert np.array_equal(result, 2 * X) and np.array_equal(array, 2 * X)
        assert address(result) == address(array) != address(kept)
        assert array.to_host().flags.writeable and np.array_equal(shown, X)
        assert np.array_equal(function(array, array), 4 * X), "nothing is copied again"
        assert np.array_equal(reading, X)
        assert np.array_equal(function(X, kept), 2 * X)


def test_elements_that_are_set(session: Session, module: Module, kept: Kept) -> None:
    for _ in CALLS:
        array = session.to_device(kept)
        assert module.set_first(array, 7.0)[0] == 7 == array[0]
        assert module.set_first(kept, 7.0)[0] == 7


def test_objects_of_the_hal_are_refused(session: Session, module: Module, kept: Kept) -> None:
    """They are passed as they are, and there is no object to give a copy to."""
    view = session.to_device(kept).view
    with pytest.raises(PermissionDeniedError, match="input1"):
        module.put_into(X, view)
    with pytest.raises(PermissionDeniedError, match="input1"):
        module.into(X, view)
    assert np.array_equal(module.double(view), 2 * X)


def test_awaited_calls(session: Session, module: Module, kept: Kept) -> None:
    array = session.to_device(kept)
    assert np.array_equal(asyncio.run(module["into_view$async"].async_(X, array)), 2 * X)
    with pytest.raises(PermissionDeniedError):
        asyncio.run(module.into.async_(X, session.to_device(kept)))


def test_what_the_host_sees_is_read_only(session: Session, module: Module, kept: Kept) -> None:
    arrays: list[Any] = [session.to_device(kept), module.same(session.to_device(kept))]
    for array in arrays:
        for _ in CALLS:
            host = np.asarray(array)
            assert address(host) == address(kept) and not host.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                np.negative(X, out=array)
            assert host.data.readonly
            assert not np.from_dlpack(array).flags.writeable
    results = [module.same(kept) for _ in CALLS]  # lent for the call only
    assert all(np.asarray(result).flags.writeable for result in results)
