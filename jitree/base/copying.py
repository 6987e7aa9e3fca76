"""Copies much memory in parts.

Between two of them a thread looks whether what it does is to end.

One copy by numpy may take seconds, in which neither Ctrl-C nor a deadline ends it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jitree.base.cancel_scopes import require_going_on
from jitree.errors import ResourceExhaustedError, pass_interruption

if TYPE_CHECKING:
    import numpy.typing as npt

PROGRESS: Final = "jitree.base.logs"
"""The module that reports go to. Who wants to be told has imported it."""
PART: Final = 4 << 20
"""Bytes that are copied at once: a few milliseconds, where memory is new to the process."""


def copy_into(target: npt.NDArray[Any], source: npt.NDArray[Any]) -> None:
    """``target[...] = source``, which has as many elements along each axis. Raises why the thread is to end
    what it does; a part has been copied then."""
    if target.nbytes <= PART:
        target[...] = source
        return
    if np.may_share_memory(target, source):
        source = copy_of(source, source.dtype)
    for place in parts_of(target):
        target[place] = source[place]


def copy_of(source: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """``source.astype(dtype, order="C")``, in parts. RESOURCE_EXHAUSTED where it gets no memory."""
    if source.nbytes <= PART or np.dtype(dtype).itemsize == 0:
        with room_for(source):
            return source.astype(dtype, order="C")
    with room_for(source):
        target = np.empty(source.shape, dtype)
    copy_into(target, source)
    return target


@contextmanager
def room_for(array: npt.NDArray[Any]) -> Iterator[None]:
    """RESOURCE_EXHAUSTED where a copy of the elements gets no memory: an array may show a few bytes as many
    elements."""
    try:
        yield
    except MemoryError as error:
        pass_interruption(error)
        shaped = "x".join((*map(str, array.shape), array.dtype.name))
        raise ResourceExhaustedError(f"no memory on the host for the elements of a {shaped} array") from error


def parts_of(array: npt.NDArray[Any]) -> Iterator[tuple[Any, ...]]:
    """Where the parts of an array are, in its order. Looks before each of several."""
    if array.nbytes <= PART:
        yield (...,)
        return
    told, done = sys.modules.get(PROGRESS), 0
    for place in _parts(array.shape, array.itemsize):
        require_going_on()
        yield place
        if told is not None:
            done += array[place].nbytes
            told.report("copying", done, array.nbytes, "bytes")


def ranges(count: int, step: int, look: Callable[[], object] = require_going_on) -> Iterator[slice]:
    """The parts of so many things, at most ``step`` in each. Looks before each of several."""
    for first in range(0, count, step):
        if count > step:
            look()
        yield slice(first, min(first + step, count))


def _parts(shape: tuple[int, ...], size: int) -> Iterator[tuple[slice, ...]]:
    """``size``: bytes of an element."""
    row = size
    for length in shape[1:]:
        row *= length
    if row > PART:
        for index in range(shape[0]):
            for rest in _parts(shape[1:], size):
                yield slice(index, index + 1), *rest
        return
    step = max(PART // max(row, 1), 1)
    for first in range(0, shape[0], step):
        yield (slice(first, first + step),)
