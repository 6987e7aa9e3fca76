"""C functions made of Python functions fail unless Python says otherwise."""

from __future__ import annotations

import ctypes
import operator
import sys
import threading
from _thread import interrupt_main
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from jitree.base import callbacks, finalizers
from jitree.base.callbacks import Callback, allocator_address, free, revive, take_kept
from jitree.dispatch.native import engine as native_engine
from jitree.errors import PermissionDeniedError, StatusCode
from jitree.hal.local import interrupts

_FAILURE = -7
_each: Any = operator.call
_TYPE = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 3)


class Example:
    """A callback that takes three numbers, and what it has failed with."""

    def __init__(self, function: Callable[[int, int, int], int]) -> None:
        self.errors: list[BaseException] = []
        self.callback = Callback(function, 3, self._failed, _FAILURE)
        self.call = _TYPE(self.callback.address)

    def _failed(self, error: BaseException, *arguments: int) -> int:
        self.errors.append(error)
        return 100 + sum(arguments)


@pytest.mark.parametrize("name", ["_table", "map_code"])
def test_where_the_system_lets_the_process_make_no_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor the few bytes by which AArch64 finds its threads, for what all callbacks share."""

    def refused(*arguments: object) -> None:
        raise PermissionDeniedError("this process may make no code")

    monkeypatch.setattr(callbacks, name, refused)
    assert Example(lambda a, b, c: a + b + c).call(1, 2, 3) == 6


def _on_another_thread(action: Callable[[], object]) -> None:
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


@pytest.mark.parametrize("run", [lambda action: action(), _on_another_thread])
def test_results_and_errors(run: Callable[[Callable[[], object]], None]) -> None:
    example = Example(lambda a, b, c: a // b + c)
    results: list[int] = []
    run(
        lambda: results.extend(
            [example.call(6, 2, 1), example.call(1, 0, 2), example.call(-(1 << 40), 1 << 40, 3)]
        )
    )
    assert results == [4, 103, 2]
    assert [type(error) for error in example.errors] == [ZeroDivisionError]


def _server(monkeypatch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> Generator[Any, int, None]:
    monkeypatch.setattr(callbacks, "_call", fail)
    monkeypatch.setattr(callbacks, "_fail", lambda record, error: None)
    return callbacks._table()._server(0)


def _looks(monkeypatch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> Generator[Any, int, None]:
    monkeypatch.setattr(interrupts, "_first_look", fail)
    monkeypatch.setattr(interrupts, "raised_later", lambda error: iter(()))
    return interrupts._first_looks()


def _slow_calls(monkeypatch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> Generator[Any, int, None]:
    borrowed: Any = partial(fail, None)
    return native_engine._steps(borrowed, [None])


@pytest.mark.parametrize("make", [_server, _looks, _slow_calls])
def test_a_second_interrupt_between_calls_ends_no_callback(
    make: Callable[[pytest.MonkeyPatch, Callable[..., Any]], Generator[Any, int, None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes where a loop begins again. A generator that has ended answers machine code no more."""
    both: tuple[Callable[[], Any], ...] = (
        interrupt_main,
        partial(finalizers._raise_in, threading.get_ident(), KeyboardInterrupt),
    )
    steps: Any = make(monkeypatch, partial(next, filter(None, map(_each, both))))
    next(steps)
    with suppress(KeyboardInterrupt):
        steps.send(0)
    assert steps.gi_frame is not None
    steps.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_callbacks_where_the_stack_of_calls_is_full_fail_alone() -> None:
    """Wherever the limit is met: where Python enters the callback, in it, or where its error is handled."""
    callback = Callback(lambda: sum([1, 2]), 0, lambda error: 4, _FAILURE)
    call = ctypes.CFUNCTYPE(ctypes.c_int32)(callback.address)

    def deep(calls: int) -> int:
        return deep(calls - 1) if calls else call()

    met: set[int | None] = set()
    for calls in range(sys.getrecursionlimit() - 150, sys.getrecursionlimit()):
        try:
            met.add(deep(calls))
        except RecursionError:
            met.add(None)
        revive()
        assert call() == 3, calls
    assert {3, None, _FAILURE} <= met


def test_an_interrupt_before_the_first_line_is_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C comes, and Python looks for it where the callback begins."""
    example = Example(lambda *_: 0)
    for _ in range(3):
        steps: list[Callable[[], object]] = [interrupt_main, partial(example.call, 1, 2, 3)]
        assert [*map(operator.methodcaller("__call__"), steps)] == [None, 106]
        assert isinstance(example.errors.pop(), KeyboardInterrupt)
        assert example.call(1, 2, 3) == 0
    assert capfd.readouterr().err == ""


def test_closing_of_generators_that_a_callback_raises_is_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    """It closes none of the package's own."""

    def function(*_: int) -> int:
        raise GeneratorExit

    example = Example(function)
    for _ in range(3):
        assert example.call(1, 2, 3) == 106
        assert isinstance(example.errors.pop(), GeneratorExit)
    assert capfd.readouterr().err == ""


def test_callbacks_inside_each_other() -> None:
    def function(depth: int, *_: int) -> int:
        if depth == 0:
            raise ValueError
        return int(example.call(depth - 1, 0, 0)) + 1

    example = Example(function)
    for depth in (0, 5, 40):
        assert example.call(depth, 0, 0) == 100 + depth


def test_failing_twice_is_a_failure_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: None)

    def failed(error: BaseException, *_: int) -> int:
        raise error

    def function(*_: int) -> int:
        raise ValueError

    callback = Callback(function, 3, failed, _FAILURE)
    results: list[int] = []
    for run in (_on_another_thread, operator.methodcaller("__call__")):
        run(lambda: results.append(_TYPE(callback.address)(1, 2, 3)))
    assert results == [_FAILURE] * 2


def test_an_interrupted_allocation_fails() -> None:
    """Code in a library gets a status, its caller the interrupt."""
    kind = ctypes.CFUNCTYPE(
        ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p
    )
    size, place = ctypes.c_size_t(64), ctypes.c_void_p()
    allocate = partial(kind(allocator_address()), None, 0, ctypes.addressof(size), ctypes.addressof(place))
    steps: list[Callable[[], object]] = [interrupt_main, allocate]
    assert [*map(operator.methodcaller("__call__"), steps)] == [None, StatusCode.RESOURCE_EXHAUSTED]
    assert bytes(place) == bytes(8) and isinstance(take_kept(), KeyboardInterrupt)
    assert allocate() == 0
    assert place.value
    free(place.value)
