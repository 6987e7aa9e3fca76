"""What readers are told of calls that machine code makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jitree import Function, Session
from jitree.base.events import ALLOCATION, CALL, DISPATCH, EventReader, listen, stop_listening
from jitree.errors import CancelledError, InternalError, UnavailableError
from jitree.hal.stepwise import Teller
from jitree.observe import regions
from jitree.observe.tensors import ObservedDispatch
from tests.api.programs import PROGRAMS

GIVEN = np.ones((4, 64), np.float32), np.ones((64, 71), np.float32), np.zeros(71, np.float32)


class Reader(EventReader):
    """Keeps the kinds of what ends and of calls that begin; fails where something of a kind does."""

    reads_calls = True

    def __init__(self, kind: str = "", error: BaseException | None = None) -> None:
        self._kind, self._error = kind, error
        self.told: list[str] = []

    def submitted(self, work: Any) -> EventReader:
        return self

    def begins(self, event: Any) -> None:
        if event.kind == CALL:
            self.ends(event)

    def ends(self, event: Any) -> None:
        if event.kind == self._kind and self._error is not None:
            raise self._error
        self.told.append(event.kind)


@pytest.fixture
def normalized() -> Iterator[Function]:
    with Session("local-sync", tier="fast") as session:
        function = session.load(PROGRAMS / "seen.vmfb").normalized
        for _ in range(4):
            function(*GIVEN)
        assert function.is_direct
        yield function


def read(function: Function, reader: Reader) -> list[npt.NDArray[Any]]:
    """The results of a call that is read."""
    sources = function.device, function.session.context.table
    for source in sources:
        listen(source, reader)
    try:
        return [np.array(result) for result in function(*GIVEN)]
    finally:
        for source in sources:
            stop_listening(source, reader)


def test_calls_memory_and_dispatches_are_told(normalized: Function) -> None:
    reader = Reader()
    results = read(normalized, reader)
    assert normalized.is_direct and reader.told[0] == CALL
    assert reader.told.count(DISPATCH) == 3 and reader.told.count(ALLOCATION) >= 1
    count = len(reader.told)
    for result, other in zip(results, normalized(*GIVEN), strict=True):
        assert np.array_equal(result, other)
    assert len(reader.told) == count


@pytest.mark.parametrize("error", [UnavailableError("no more"), KeyboardInterrupt(), ValueError("z")])
@pytest.mark.parametrize("kind", [ALLOCATION, CALL, DISPATCH])
def test_a_reader_that_fails_ends_the_call(normalized: Function, kind: str, error: BaseException) -> None:
    expected = [np.array(result) for result in normalized(*GIVEN)]
    for _ in range(3):
        with pytest.raises(type(error)):
            read(normalized, Reader(kind, error))
        for result, known in zip(normalized(*GIVEN), expected, strict=True):
            assert np.array_equal(result, known)


def test_a_dispatch_of_no_executable_is_an_error() -> None:
    """It was looked for without end."""
    teller = Teller(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(InternalError, match="no executable that is in use"):
        teller._kernel(1)


@pytest.mark.parametrize("known", [1 << 20, 0])
def test_later_calls_are_shown_as_the_first(
    normalized: Function, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where what is known of the first is used, also where it is forgotten at once."""
    monkeypatch.setattr(regions, "_LARGEST_KNOWN", known)
    looked: list[ObservedDispatch] = []
    session = normalized.session
    with session.tap() as taps, session.tap(keep=looked.append):
        kept = [[np.array(result) for result in normalized(*GIVEN)] for _ in range(3)]
    assert len({tuple(map(np.ndarray.tobytes, one)) for one in kept}) == 1
    for dispatches in (taps, looked):
        shown = [
            (tap.label, tap.function, tap.location, [*map(repr, tap.inputs), *map(repr, tap.outputs)],
             [tensor.origin for tensor in tap.inputs], [tensor.stats for tensor in tap.outputs])
            for tap in dispatches
        ]  # fmt: skip
        assert shown[:3] == shown[3:6] == shown[6:] and [tap.call for tap in dispatches[::3]] == [0, 1, 2]
    assert looked[0].inputs[0].array is None, "nobody has asked for it while it was looked at"


def test_a_list_that_fails_is_forgotten(normalized: Function) -> None:
    """It is cancelled between two of its dispatches."""

    class Canceller(Reader):
        def ends(self, event: Any) -> None:
            if event.kind == DISPATCH:
                normalized.session.cancel()

    with pytest.raises(CancelledError):
        read(normalized, Canceller())
    told: Any = normalized.device
    assert not told._told.function.__self__._running
    read(normalized, Reader())
