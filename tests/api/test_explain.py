"""What `session.explain` says of calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import HostExport, HostModule, Session
from jitree.api.explain import Explanation
from jitree.api.function import Function
from jitree.api.module import Module
from jitree.errors import InvalidArgumentError, NotFoundError, OutOfRangeError
from tests.api.programs import ARITHMETIC, CACHES

START = np.arange(128, dtype=np.float32).reshape(16, 8)
TOKEN = np.full(8, 3, np.float32)


@pytest.fixture
def module(session: Session) -> Module:
    return session.load(CACHES)


class Doubling(HostModule):
    """A module whose functions are Python's."""

    name = "doubling"

    def exports(self) -> Iterable[HostExport]:
        return [HostExport("twice", "0r_r", lambda state, view: view)]


def test_functions_of_python_are_explained_too(session: Session) -> None:
    session.append_module(Doubling())
    explanation = session.explain("doubling.twice")
    session["doubling.twice"](session.to_device(TOKEN))
    assert [(item.bytes, item.copied) for item in explanation.arguments] == [(32, 0)]
    assert explanation.calls == 1 and explanation.failures == 0


def explained(session: Session, name: str, *arguments: Any, **named: Any) -> Explanation:
    """The third of calls that are alike."""
    explanation: Explanation = session.explain(name)
    assert "no call has been looked at" in str(explanation)
    for call in range(3):
        cache: list[Any] = [session.to_device(START)] if name != "caches.own" else []
        if "donate" in named:
            cache = [jitree.donate(cache[0])]
        if "out" in named:
            named["out"] = cache[0]
        session[name](*arguments, *cache, **{key: value for key, value in named.items() if key != "donate"})
        assert explanation.calls == call + 1
    return explanation


def test_updates_in_place(module: Module, session: Session) -> None:
    token = session.to_device(TOKEN)
    for name, named in (("into", {}), ("donated", {"donate": True}), ("view", {}), ("later", {})):
        found = explained(session, f"caches.{name}", token, 5, **named)
        assert [item.name for item in found.arguments] == ["input0", "input2"]
        assert found.updated == ("input2",) and not any(item.copied for item in found.arguments)
        assert found.allocated < START.nbytes and found.reserved == 0
        assert found.copied == 32, "the row of the token"
        if name != "view":
            assert [item.lies_in for item in found.results] == [None, "input2"]
            assert "output1: 512 bytes, in the memory of input2" in str(found)
        assert "input2: 512 bytes, used where it lies, updated in place" in str(found)
    own = explained(session, "caches.own", token, 5)
    assert own.copied == 32 and own.updated == () and own.allocated < START.nbytes


def test_a_cache_put_where_it_is_and_elsewhere(module: Module, session: Session) -> None:
    token, cache = session.to_device(TOKEN), session.to_device(START)
    found = session.explain(module.to)
    module.to(token, 5, cache, out=cache)
    assert found.updated == ("input2", "input3") and found.copied == 32
    module.to(token, 6, cache, out=session.empty((16, 8)))
    assert found.copied == 32 + START.nbytes and found.results[1].lies_in == "input3"


def test_copies_say_why(module: Module, session: Session) -> None:
    found = explained(session, "caches.donated", TOKEN, 5)
    first, cache = found.arguments
    assert first.copied == 32 and "session.to_device" in first.why
    assert cache.copied == 512 and "pass jitree.donate(x)" in cache.why and cache.updated is False
    assert found.results[1].lies_in == "input2" and "copied: 544 bytes to pass arguments" in str(found)


def test_what_programs_copy_for_storage_elsewhere(session: Session) -> None:
    """The same on a function without any cache."""
    module = session.load(ARITHMETIC)
    x = session.to_device(np.ones(4, np.float32))
    with session.explain(module.add) as found:
        module.add(x, x)
        assert (found.updated, found.copied, found.results[0].lies_in) == ((), 0, None)
        assert found.allocated == 16 and found.function == "arithmetic.add"
        assert session.explain(module.add) is found and session.explain() == {"arithmetic.add": found}
        with pytest.raises(InvalidArgumentError):
            module.add(x, x[:2])
        assert found.calls == 1, "a call that fails is not explained"
    assert session.explain() == {}
    for _ in range(12):
        assert np.array_equal(module.add(x, x), [2, 2, 2, 2])
    assert found.calls == 1 and module.add.is_direct == (session.tier == "fast")


def test_failures_leave_the_device_as_it_was(module: Module, session: Session) -> None:
    cache = session.to_device(START)
    with session.explain("caches.into") as found:
        with pytest.raises(OutOfRangeError):
            module.into(TOKEN, 16, cache)
        assert not found.calls
        module.into(TOKEN, 1, cache)
        assert found.updated == ("input2",)


def test_copies_that_pass_arguments_are_not_the_programs(module: Module, session: Session) -> None:
    found = explained(session, "caches.donated", session.to_device(TOKEN), 5)
    assert found.arguments[1].copied == 512 and found.copied == 32, "the row of the token alone"


def aligned(shape: tuple[int, ...]) -> Any:
    """A numpy array that the device may write to where it lies."""
    size = 4 * int(np.prod(shape))
    memory = np.zeros(size + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + size].view(np.float32).reshape(shape)


def host_arguments(session: Session, function: Function) -> tuple[Any, Any, Any]:
    """Of ``scratch_of_shape``: ones, and storage of zeros, which the device may write to where it lies;
    memory for intermediate results."""
    x, target = aligned((1 << 15,)), aligned((1 << 15,))
    x += 1
    return x, target, session.empty(function.workspace_size(x, 1, target), np.uint8)


class Producer:
    """An array of another library."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._array


@pytest.mark.parametrize("kind", [np.asarray, Producer])
def test_host_arrays_are_copied(session: Session, kind: Any) -> None:
    function = session.load(CACHES).scratch_of_shape
    x, target, memory = host_arguments(session, function)
    with session.explain(function) as found:
        for _ in range(2):
            result = function(kind(x), 1, kind(target), memory)
            first, second = found.arguments[:2]
            assert (first.copied, first.updated) == (x.nbytes, False)
            assert (second.copied, second.updated) == (target.nbytes, False)
            assert np.array_equal(result, 6 * x) and not target.any()


def test_host_arrays_that_results_are_written_to(session: Session) -> None:
    function = session.load(CACHES).scratch_of_shape
    x, target, memory = host_arguments(session, function)
    with session.explain(function) as found:
        for _ in range(2):
            result = function(x, 1, memory, out=target)
            first, second = found.arguments[:2]
            assert (first.copied, first.updated) == (x.nbytes, False)
            assert (second.copied, second.updated) == (0, True)
            assert np.array_equal(target, 6 * x) and np.array_equal(result, target)
            assert found.results[0].lies_in == second.name


def test_bytes_that_were_there_already(module: Module, session: Session) -> None:
    """A reference may be written to, and contents do not tell."""
    cache, token = session.to_device(START), session.to_device(TOKEN)
    with session.explain(module.view) as found:
        for expected in (True, None, None):
            module.view(token, 5, cache)
            assert found.arguments[1].updated is expected
        assert "perhaps updated" in str(found) and found.updated == ()


def test_a_failed_call_is_not_the_last_one(module: Module, session: Session) -> None:
    cache = session.to_device(START)
    with session.explain(module.into) as found:
        for _ in range(2):
            with pytest.raises(OutOfRangeError):
                module.into(TOKEN, 16, cache)
        assert found.failures == 2 and "no call has been looked at (2 failed)" in str(found)
        module.into(TOKEN, 1, cache)
        assert found.failures == 0 and "the last call:" in str(found)
        with pytest.raises(InvalidArgumentError):
            module.into(TOKEN, 1, cache[:2])
        assert found.calls == 1 and "the last call that did not fail (1 failed since):" in str(found)


def test_odd_questions(module: Module, session: Session) -> None:
    with pytest.raises(NotFoundError):
        session.explain("caches.nothing")
    with pytest.raises(InvalidArgumentError, match="a function or its name"):
        session.explain(3)  # type: ignore[arg-type]
