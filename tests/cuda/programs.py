"""The programs of ``tests/data/cuda``: their kernels in numpy, for the fake driver."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.cuda.fake import FakeDriver, FakeKernel

DATA = Path(__file__).parent.parent / "data" / "cuda"
STATELESS = DATA / "stateless.vmfb"
STATEFUL = DATA / "stateful.vmfb"
STORAGE = DATA / "storage.vmfb"
LENDING = DATA / "lending.vmfb"
LENDING_ASYNC = DATA / "lending_async.vmfb"
POSITIONS = DATA / "positions.vmfb"

Shape = tuple[int, int, int]


def _elementwise(operation: Callable[..., npt.ArrayLike], dtypes: tuple[str, ...], count: int) -> FakeKernel:
    """``operation`` on the inputs; the last binding is the result."""

    def run(driver: FakeDriver, words: list[int], grid: Shape, block: Shape) -> None:
        *inputs, output = (
            driver.bytes_at(word, count * np.dtype(dtype).itemsize).view(dtype)
            for word, dtype in zip(words, dtypes, strict=True)
        )
        output[:] = operation(*inputs)

    return FakeKernel(len(dtypes), run)


def _moved(puts: int, gets: int) -> FakeKernel:
    """A row of eight elements from one binding to another, of which one has a row for
    each position."""

    def run(driver: FakeDriver, words: list[int], grid: Shape, block: Shape) -> None:
        source, target, position = words
        row = 32 * (position & 0xFFFFFFFF)
        driver.bytes_at(target + puts * row, 32)[:] = driver.bytes_at(source + gets * row, 32)

    return FakeKernel(3, run)


PROGRAM_KERNELS = {
    "put_dispatch_0_slow_memcpy": _moved(1, 0),
    "get_dispatch_0_slow_memcpy": _moved(0, 1),
    "add_dispatch_0_elementwise_8_f32": _elementwise(np.add, ("f4", "f4", "f4"), 8),
    "largest_dispatch_0_elementwise_8_f32": _elementwise(np.maximum, ("f4", "f4", "f4"), 8),
    "multiply_into_dispatch_0_elementwise_8_f32": _elementwise(np.square, ("f4", "f4"), 8),
    "subtract_from_dispatch_0_elementwise_8_f32": _elementwise(np.subtract, ("f4", "f4", "f4"), 8),
    "double_into_dispatch_0_elementwise_8_f32": _elementwise(lambda x: x + x, ("f4", "f4"), 8),
    "scale_dispatch_0_elementwise_8_f32": _elementwise(lambda x: x + x, ("f4", "f4"), 8),
    "scale_dispatch_1_elementwise_8_f32": _elementwise(np.add, ("f4", "f4", "f4"), 8),
    "repeat_dispatch_0_elementwise": _elementwise(lambda steps: steps > 0, ("i4", "u1"), 1),
    "repeat_dispatch_1_elementwise": _elementwise(lambda i: i + 1, ("i4", "i4"), 1),
    "repeat_dispatch_2_elementwise_8_f32": _elementwise(lambda x: x * np.float32(0.5), ("f4", "f4"), 8),
    "repeat_dispatch_3_elementwise": _elementwise(np.less, ("i4", "i4", "u1"), 1),
    "shift_dispatch_0_elementwise_8_f32": _elementwise(np.add, ("f4", "f4", "f4"), 8),
    "twice_dispatch_0_elementwise_8_f32": _elementwise(lambda x: x + x, ("f4", "f4"), 8),
    "accumulate_dispatch_0_elementwise_8_f32": _elementwise(np.add, ("f4", "f4", "f4"), 8),
}
