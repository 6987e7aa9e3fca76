"""What Python code of the caller raises in a call goes through as itself, of whatever class: functions of
modules, taps, methods of arguments. A program's stack that such code fills up is the program's failure."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from jitree import CustomModule, Session, i32
from jitree.errors import (
    DataLossError,
    DeadlineExceededError,
    InvalidArgumentError,
    ResourceExhaustedError,
    StatusError,
)
from tests.api.programs import ARITHMETIC, ASYNCHRONOUS, PROGRAMS
from tests.assembler import Assembler

X = np.linspace(1, 2, 4, dtype=np.float32)
N = np.arange(64, dtype=np.float32)
PROGRAM = Assembler("m").import_function("host.twice", "0i_i").function(
    "f", "0i_i", """
    [%i1] = call @host.twice [%i0]
    return [%i1]
    """,
)  # fmt: skip

Raise = Callable[..., Any]


class Own(Exception):
    pass


class Late(TimeoutError, ValueError):
    pass


CLASSES: list[type[BaseException]] = [
    Own, Late, StopIteration, StopAsyncIteration, GeneratorExit, KeyError, MemoryError, RuntimeError,
    AttributeError, SystemExit, RecursionError,
]  # fmt: skip


def listed(fail: Raise) -> Any:
    class Number:
        __float__ = __index__ = __array__ = fail

    return [1.0, Number(), 2.0, 3.0]


def with_method(name: str) -> Callable[[Raise], Any]:
    def made(fail: Raise) -> Any:
        methods: dict[str, Any] = {name: fail}
        if name == "__dlpack__":
            methods["__dlpack_device__"] = lambda self: (1, 0)
        if name == "__dlpack_device__":
            methods["__dlpack__"] = None
        return type("Producer", (), methods)()

    return made


ARGUMENTS: dict[str, Callable[[Raise], Any]] = {
    "__array__": with_method("__array__"),
    "__dlpack__": with_method("__dlpack__"),
    "__dlpack_device__": with_method("__dlpack_device__"),
    "__array__ in a list": listed,
}


def passed(session: Session, make: Callable[[Raise], Any], fail: Raise) -> None:
    value = make(fail)
    for _ in range(3):
        session["arithmetic.add"](value, X)


def through_a_module(session: Session, fail: Raise) -> None:
    custom = CustomModule("host")

    @custom.export
    def twice(number: i32) -> i32:
        return 2 * number if number < 3 else int(fail())

    session.load(PROGRAM.build(), custom)
    assert [session["m.f"](number) for number in (0, 1, 2)] == [0, 2, 4]
    session["m.f"](3)


def through_a_tap(session: Session, fail: Raise) -> None:
    session.load(PROGRAMS / "seen.vmfb")
    with session.tap(keep=fail):
        session["module.narrow"](N[:8])


def through_a_tap_of_what_is_submitted(session: Session, fail: Raise) -> None:
    with session.tap(keep=fail):
        np.asarray(session["asynchronous.add"].submit(N, N))


def through_a_file(session: Session, fail: Raise) -> None:
    session.load(type("File", (), {"read": fail})())


WAYS = [through_a_module, through_a_tap, through_a_tap_of_what_is_submitted, through_a_file]


def outcome(way: Callable[[], None]) -> BaseException | None:
    try:
        way()
    except BaseException as error:
        return error
    return None


def stands_for_it(way: str, raised: type[BaseException]) -> type[StatusError] | None:
    """The status whose cause it is."""
    if (way, raised) in (("through_a_module", RecursionError), ("through_a_file", MemoryError)):
        return ResourceExhaustedError
    refusals: dict[str, tuple[type[BaseException], ...]] = {
        "__dlpack__": (RuntimeError,),
        "__dlpack_device__": (RuntimeError, ValueError),
        "__array__ in a list": (ValueError,),
        "through_a_file": (ValueError,),
    }
    is_refusal = issubclass(raised, refusals.get(way, ())) and raised is not RecursionError
    return InvalidArgumentError if is_refusal else None


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize("tier", ["plain", "fast"])
@pytest.mark.parametrize("raised", CLASSES)
def test_what_is_raised_in_a_call(raised: type[BaseException], tier: str, device: str) -> None:
    own = raised("mine")

    def fail(*_: Any, **__: Any) -> Any:
        raise own

    with Session(device, tier=tier) as session:
        session.load(ARITHMETIC, ASYNCHRONOUS)
        ways = {way.__name__: partial(way, session, fail) for way in WAYS}
        ways |= {name: partial(passed, session, make, fail) for name, make in ARGUMENTS.items()}
        for name, way in ways.items():
            error, status = outcome(way), stands_for_it(name, raised)
            if status is None:
                assert error is own, name
            else:
                assert isinstance(error, status) and error.__cause__ is own, name


@pytest.mark.parametrize("raised", CLASSES)
def test_what_is_raised_in_an_awaited_call(raised: type[BaseException]) -> None:
    """Python makes RuntimeError of a StopIteration that leaves a coroutine."""
    own = raised("mine")

    def fail(*_: Any, **__: Any) -> Any:
        raise own

    with Session("local-sync") as session:
        session.load(ASYNCHRONOUS)

        async def awaited() -> None:
            with session.tap(keep=fail):
                await session["asynchronous.add"].async_(N, N)

        async def caught() -> BaseException | None:
            try:
                await awaited()
            except BaseException as error:
                return error
            return None

        error = asyncio.run(caught())
        if raised is StopIteration:
            assert type(error) is RuntimeError and error.__cause__ is own
        else:
            assert error is own


class OwnStatus(DataLossError):
    """Made by other arguments than a status is."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.reason = reason


class OwnLimit(DeadlineExceededError):
    """Which Python makes in another way, since it is an ``OSError``."""

    def __init__(self, code: int, *, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.reason = reason


def _async(session: Session, array: Any) -> Any:
    return asyncio.run(session["asynchronous.add"].async_(array, N))


async def _awaited(array: Any) -> Any:
    return await array


WAITS: dict[str, Callable[[Session, Any], Any]] = {
    "wait": lambda session, array: array.wait(),
    "await": lambda session, array: asyncio.run(_awaited(array)),
    "to_host": lambda session, array: array.to_host(),
    "numpy": lambda session, array: np.asarray(array),
    "memoryview": lambda session, array: np.from_dlpack(array),
    "element": lambda session, array: array[0],
    "list": lambda session, array: array.tolist(),
    "number": lambda session, array: array.item(3),
    "argument": lambda session, array: session["asynchronous.add"](array, N),
    "argument of a call that is awaited": _async,
    "argument of what is submitted": lambda session, array: (
        session["asynchronous.add"].submit(array, N).wait()
    ),
}  # fmt: skip


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize("how", WAITS)
def test_whoever_waits_for_what_is_submitted(how: str, device: str) -> None:
    """Each gets it as it was raised: it does not keep what it has come through before."""
    own = KeyError("mine")

    def fail(dispatch: object) -> None:
        raise own

    with Session(device) as session:
        session.load(ARITHMETIC, ASYNCHRONOUS)
        with session.tap(keep=fail):
            array = session["asynchronous.add"].submit(N, N)
            with pytest.raises(KeyError):
                array.wait()
        depths = set()
        for _ in range(3):
            with pytest.raises(KeyError) as caught:
                WAITS[how](session, array)
            assert caught.value is own
            depths.add(len(list(traceback.walk_tb(own.__traceback__))))
        assert len(depths) == 1


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
@pytest.mark.parametrize("status", [OwnStatus, OwnLimit])
def test_a_status_of_the_caller(status: type[OwnStatus | OwnLimit], device: str) -> None:
    def fail(dispatch: object) -> None:
        raise status(7, reason="mine")

    with Session(device) as session:
        add = session.load(ASYNCHRONOUS).add
        with session.tap(keep=fail):
            ways: list[Callable[[], Any]] = [
                lambda: add(N, N), lambda: add.submit(N, N), lambda: asyncio.run(add.async_(N, N)),
            ]  # fmt: skip
            for way in ways:
                with pytest.raises(status, match="7: mine") as caught:
                    np.asarray(way())
                assert vars(caught.value)["reason"] == "mine"
