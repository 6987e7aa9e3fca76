"""What copies much memory looks between parts whether it is to end, and the session goes on when it does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitree
from jitree.base import cancel_scopes, copying
from jitree.errors import CancelledError, StatusError
from jitree.hal.enums import MemoryAccess
from jitree.hal.fence import Fence
from jitree.hal.objects import open_file
from jitree.types import BY_NAME
from tests.hal.helpers import allocate

ADD = Path(__file__).parents[1] / "security" / "addd.vmfb"
PARTS = 3
SIZE = PARTS * copying.PART
COUNT = SIZE // 4
NUMBERS = np.ones(COUNT + 16, np.float32)
UNALIGNED = NUMBERS[(1 - NUMBERS.ctypes.data // 4) % 16 :][:COUNT]
STRIDED = np.ones(2 * COUNT, np.float32)[::2]
SWAPPED = np.ones(COUNT, ">f4")
TRANSPOSED = np.ones((COUNT // 8, 4, 2), np.float32).transpose(2, 1, 0)
PACKED = np.ones(PARTS << 20, BY_NAME["i4"].dtype)


def transfer(session: jitree.Session, submit: Callable[[Any, Any, Fence], None]) -> None:
    device = session.device
    done = Fence.create(device)
    submit(device, allocate(device, SIZE), done)
    done.wait()


def through_a_file(session: jitree.Session, name: str) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(SIZE)
        opened = open_file(file.name, MemoryAccess.ALL)
        transfer(
            session,
            lambda device, buffer, done: (
                device.queue_read(-1, None, done, opened, 0, buffer, 0, SIZE)
                if name == "read"
                else device.queue_write(-1, None, done, buffer, 0, opened, 0, SIZE)
            ),
        )


ATTEMPTS: dict[str, Callable[[jitree.Session], Any]] = {
    "an argument": lambda session: session["module.addd"](UNALIGNED, UNALIGNED),
    "one of any strides": lambda session: session["module.addd"](STRIDED, STRIDED),
    "of the other byte order": lambda session: session["module.addd"](SWAPPED, SWAPPED),
    "lists": lambda session: session["module.addd"]([1.0] * COUNT, [1] * COUNT),
    "an array for the device": lambda session: session.to_device(TRANSPOSED),
    "packed elements": lambda session: session.to_device(PACKED),
    "a part of an array": lambda session: session.empty((COUNT,)).__setitem__(slice(None), STRIDED),
    "a copy for the host": lambda session: session.empty((COUNT,)).__array__(copy=True),
    "other elements for the host": lambda session: session.empty((COUNT,)).astype(np.int32),
    "a fill": lambda session: transfer(
        session, lambda device, buffer, done: device.queue_fill(-1, None, done, buffer, 0, SIZE, 7, 1)
    ),
    "a copy on the device": lambda session: transfer(
        session,
        lambda device, buffer, done: device.queue_copy(
            -1, None, done, allocate(device, SIZE), 0, buffer, 0, SIZE
        ),
    ),
    "reading a file": lambda session: through_a_file(session, "read"),
    "writing a file": lambda session: through_a_file(session, "write"),
}


@pytest.fixture(scope="module")
def session() -> Any:
    with jitree.Session("local-sync") as session:
        session.load(ADD)
        yield session


def end_at(look: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The look of that number tells that the thread is to end; how many there were."""
    looks = 0

    def why_to_end() -> StatusError | None:
        nonlocal looks
        looks += 1
        return CancelledError("as session.cancel() does") if looks == look else None

    monkeypatch.setattr(cancel_scopes, "why_to_end", why_to_end)
    return lambda: looks


@pytest.mark.parametrize("name", ATTEMPTS)
def test_it_ends_between_parts(session: jitree.Session, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = end_at(0, monkeypatch)
    ATTEMPTS[name](session)
    assert looks() >= PARTS
    for look in (1, PARTS):
        end_at(look, monkeypatch)
        with pytest.raises(CancelledError, match=r"session.cancel\(\)"):
            ATTEMPTS[name](session)
    monkeypatch.undo()
    assert (np.asarray(session["module.addd"](UNALIGNED, STRIDED)) == 2).all()


def test_of_a_separate_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with jitree.Session("local-sync", sandbox="process") as session:
        add = session.load(ADD).addd
        looks = end_at(0, monkeypatch)
        assert (add(STRIDED, UNALIGNED) == 2).all()
        count = looks()
        assert count >= 3 * PARTS
        for look in (2, count // 2, count - 2):
            end_at(look, monkeypatch)
            with pytest.raises(CancelledError, match=r"session.cancel\(\)"):
                add(STRIDED, UNALIGNED)
        monkeypatch.undo()
        assert (add(STRIDED, UNALIGNED) == 2).all()
