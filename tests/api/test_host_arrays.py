"""Arrays of the host as arguments: a call changes none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from jitree import Module, Session
from tests.api.direct import CALLS, prepare_calls
from tests.api.programs import ALIASES

COUNT = 16384
X = np.arange(COUNT, dtype=np.float32)

WRITES: dict[str, Callable[[Module, Any], Any]] = {
    "storage by position": lambda module, array: module.into(X, array),
    "storage by name": lambda module, array: module.into(X, input1=array),
    "consumed": lambda module, array: module.replace(array, np.full(4, 2, np.float32)),
    "undeclared": lambda module, array: module.update(array, np.full(4, 2, np.float32)),
    "undeclared, by a kernel": lambda module, array: (
        module.accumulate(array.reshape(128, 128), np.full((128, 8), 0.5, np.float32)).to_host().reshape(-1)
        + 1
    ),
    "a view": lambda module, array: module.put_into(X, array),
    "a view that is updated": lambda module, array: module.set_first(array, 2.0),
    "asynchronous": lambda module, array: module["into_view$async"](X, array),
    "submitted": lambda module, array: module["into_view$async"].submit(X, array),
}


def at(offset: int, elements: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """A copy of elements that begins so many bytes after a multiple of 64."""
    block = np.zeros(elements.nbytes + 128, np.uint8)
    start = -block.__array_interface__["data"][0] % 64 + offset
    made = block[start : start + elements.nbytes].view(np.float32)
    made[:] = elements
    return made


@pytest.mark.parametrize("writeable", [True, False])
@pytest.mark.parametrize("offset", [0, 4])
@pytest.mark.parametrize("name", WRITES)
def test_a_call_changes_none(session: Session, name: str, offset: int, writeable: bool) -> None:
    prepare_calls()
    module = session.load(ALIASES)
    array = at(offset, np.full(COUNT, -1, np.float32))
    array.flags.writeable = writeable
    for _ in range(CALLS + 1):
        result = WRITES[name](module, array)
        assert result[1] == (-1 if "updated" in name else 2), "the result has what is written"
        assert (array == -1).all()
