"""Arguments that lie in the memory that a result is put into: results are those of arguments that do not."""

from __future__ import annotations

from collections.abc import Callable
from threading import Timer
from typing import Any

import numpy as np
import pytest

from jitree import Array, Session
from jitree.errors import InvalidArgumentError
from jitree.hal.buffer import BufferView
from jitree.hal.fence import Fence
from tests.api.direct import direct
from tests.api.programs import OUTPUTS, TURNED

X = np.arange(128 * 128, dtype=np.float32).reshape(128, 128)
X.flags.writeable = False
ROW = X.nbytes // 128
ROUNDS = 3
"""Machine code makes the last calls, where there is any."""

Call = Callable[[Any, Array], Any]
WAYS: dict[str, Call] = {
    "the same array": lambda turned, x: turned(x, out=x),
    "by position": lambda turned, x: turned(x, x),
    "another array of its memory": lambda turned, x: turned(x, out=Array(x.buffer_view, x.device)),
    "its view": lambda turned, x: turned(x.buffer_view, out=x),
    "numpy array in, lent": lambda turned, x: turned(np.asarray(x), out=x),
    "numpy array out": lambda turned, x: turned(x, out=np.asarray(x)),
    "numpy array in and out": lambda turned, x: turned(np.asarray(x), out=np.asarray(x)),
}


@pytest.fixture(params=["plain", "fast"])
def session(request: pytest.FixtureRequest) -> Session:
    session = Session("local-sync", tier=request.param)
    module = session.load(TURNED)
    if request.param == "fast":
        direct(module.turned, X, session.empty(X.shape))
    return session


@pytest.mark.parametrize("way", WAYS)
def test_a_result_in_the_memory_of_its_argument(session: Session, way: str) -> None:
    for _ in range(ROUNDS):
        x = session.to_device(X.copy())  # large arrays are used in place
        assert np.array_equal(WAYS[way](session["module.turned"], x), X.T) and np.array_equal(x, X.T)


@pytest.mark.parametrize("rows", [1, 64, -64])
def test_a_result_in_a_part_of_that_memory(session: Session, rows: int) -> None:
    memory = session.to_device(np.zeros((256, 128), np.float32))

    def part(first: int) -> Array:
        buffer = memory.buffer_view.buffer.subspan(first * ROW, X.nbytes)
        return Array(BufferView(buffer, X.shape, memory.buffer_view.element_type), session.device)

    for _ in range(ROUNDS):
        x, out = part(64), part(64 + rows)
        np.asarray(x)[:] = X
        assert np.array_equal(session["module.turned"](x, out=out), X.T)


def test_results_in_one_memory(session: Session) -> None:
    split = session.load(OUTPUTS).split
    x, storage = np.arange(4, dtype=np.float32), session.empty(4)
    for _ in range(ROUNDS):
        with pytest.raises(InvalidArgumentError, match="input2 lies in the memory of input1, where the prog"):
            split(x, out=(storage, storage))
        assert np.array_equal(split(x, out=(storage, session.empty(4)))[0], 2 * x)


def compute(memory: Array, fence: Fence) -> None:
    np.asarray(memory)[:] = X
    fence.signal()


def test_an_argument_that_is_still_computed() -> None:
    """It is waited for before it is copied."""
    with Session("local-task", tier="fast") as session:
        turned = session.load(TURNED).turned
        for _ in range(ROUNDS):
            memory, fence = session.to_device(np.zeros_like(X)), Fence.create(session.device)
            timer = Timer(0.05, compute, (memory, fence))
            timer.start()
            assert np.array_equal(turned(Array(memory.buffer_view, session.device, fence), out=memory), X.T)
            timer.join()
