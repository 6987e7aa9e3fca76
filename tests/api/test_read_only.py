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
from jitree import Array, CustomModule, Module, Session
from jitree.api.calls.transfers import BUFFER_USAGE, DEVICE_LOCAL
from jitree.api.function import Function
from jitree.errors import InvalidArgumentError, PermissionDeniedError
from jitree.hal.buffer import BufferView
from jitree.types import BY_NAME
from tests.api.direct import CALLS as MACHINE_CALLS
from tests.api.direct import prepare_calls
from tests.api.programs import ALIASES
from tests.assembler import Assembler

COUNT = 16384
X = np.arange(COUNT, dtype=np.float32)
Y = np.full(4, -1, np.float32)
REPLACED = np.concatenate([Y, X[4:]])
Kept = npt.NDArray[np.float32]
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


def over(session: Session, array: Kept) -> Array:
    """An array of the device over that memory."""
    buffer = session.device_allocator.import_host(array.view(np.uint8).data, DEVICE_LOCAL, BUFFER_USAGE)
    assert buffer is not None
    return Array(BufferView(buffer, array.shape, BY_NAME["f32"].code), session.device)


def test_results_are_not_put_there(session: Session, module: Module, kept: Kept) -> None:
    target = over(session, kept)
    assert address(target) == address(kept), "it is used in place"
    for _ in CALLS:
        ways: tuple[Callable[[], object], ...] = (
            lambda: module.into(X, out=target), lambda: module.into(X, target),
        )  # fmt: skip
        for call in ways:
            with pytest.raises(PermissionDeniedError, match=r"input1 .*read-only.*session\.empty"):
                call()
    assert np.array_equal(module.into(X, out=session.empty(COUNT)), 2 * X)


@pytest.mark.parametrize("name", ["double", "same", "into"])
def test_an_array_that_is_passed_has_memory_of_its_own(
    session: Session, module: Module, kept: Kept, name: str
) -> None:
    """Programs may update any argument where it lies."""
    function: Function = module[name]
    further = (session.empty(COUNT),) if name == "into" else ()
    for _ in CALLS:
        array = over(session, kept)
        assert np.array_equal(function(array, *further), X if name == "same" else 2 * X)
        own = address(array)
        assert own != address(kept)
        assert np.array_equal(module.update(array, Y), REPLACED)
        assert address(array) == own, "nothing is copied again"


def test_host_arrays_are_no_storage(module: Module, kept: Kept) -> None:
    for _ in CALLS:
        with pytest.raises(InvalidArgumentError, match="cannot be written in place"):
            module.into(X, out=kept)
        result = module.into(X, kept)  # by position it is an argument like others: a copy
        assert np.array_equal(result, 2 * X) and np.asarray(result).flags.writeable


def test_programs_overwrite_copies(session: Session, module: Module, kept: Kept) -> None:
    for _ in CALLS:
        array = over(session, kept)
        for argument in (kept, array, array.buffer_view, jitree.donate(array)):
            assert np.array_equal(module.replace(argument, Y), REPLACED)
        assert array.is_donated


@pytest.mark.parametrize("name", ["put_into", "into_view$async"])
def test_undeclared_writes_go_to_a_copy(session: Session, module: Module, kept: Kept, name: str) -> None:
    """A program that takes views may write to them: the array has memory of its own then."""
    function: Function = module[name]
    for _ in CALLS:
        array = over(session, kept)
        shown = array.to_host()
        assert address(array) == address(kept) and not shown.flags.writeable
        result = function(over(session, kept), array)
        assert np.array_equal(result, 2 * X) and np.array_equal(array, 2 * X)
        assert address(result) == address(array) != address(kept)
        assert array.to_host().flags.writeable and np.array_equal(shown, X)
        assert np.array_equal(function(array, array), 4 * X), "nothing is copied again"
        assert np.array_equal(function(X, kept), 2 * X)


def test_elements_that_are_set(session: Session, module: Module, kept: Kept) -> None:
    for _ in CALLS:
        array = over(session, kept)
        assert module.set_first(array, 7.0)[0] == 7 == array[0]
        assert module.set_first(kept, 7.0)[0] == 7


def test_objects_of_the_hal_are_refused(session: Session, module: Module, kept: Kept) -> None:
    """What a result is put into has to be there; of others the program gets a copy."""
    view = over(session, kept).buffer_view
    with pytest.raises(PermissionDeniedError, match="input1"):
        module.put_into(X, view)
    with pytest.raises(PermissionDeniedError, match="input1"):
        module.into(X, view)
    assert np.array_equal(module.double(view), 2 * X) and np.array_equal(module.update(view, Y), REPLACED)


def test_awaited_calls(session: Session, module: Module, kept: Kept) -> None:
    array = over(session, kept)
    assert np.array_equal(asyncio.run(module["into_view$async"].async_(X, array)), 2 * X)
    with pytest.raises(PermissionDeniedError):
        asyncio.run(module.into.async_(X, over(session, kept)))


def test_what_the_host_sees_is_read_only(session: Session, kept: Kept) -> None:
    array: Any = over(session, kept)
    for _ in CALLS:
        host = np.asarray(array)
        assert address(host) == address(kept) and not host.flags.writeable
        with pytest.raises(PermissionDeniedError, match="read-only"):
            np.negative(X, out=array)
        assert host.data.readonly
        assert not np.from_dlpack(array).flags.writeable


def test_arrays_put_on_the_device_are_copies(session: Session, module: Module, kept: Kept) -> None:
    for _ in CALLS:
        array = session.to_device(kept)
        assert address(array) != address(kept) and np.asarray(array).flags.writeable
        assert np.array_equal(module.update(array, Y), REPLACED)


def test_results_over_it_are_copied_when_they_are_passed(
    session: Session, module: Module, kept: Kept
) -> None:
    """Such results come from modules in Python. Nobody has looked at the array when machine code gets it."""
    prepare_calls()
    custom = CustomModule("host")
    view = over(session, kept).buffer_view

    @custom.export
    def g() -> object:
        return view

    attrs = {"iree.abi.declaration": "sync func @f() -> (%y: tensor<16384xf32>)"}
    program = Assembler("m").import_function("host.g", "0v_r")
    session.load(
        program.function("f", "0v_r", "[%r0] = call @host.g []\nreturn [%R0]", attrs=attrs).build(), custom
    )
    for _ in range(MACHINE_CALLS):
        for argument in (session["m.f"](), jitree.donate(session["m.f"]())):
            assert np.array_equal(module.update(argument, Y), REPLACED)
