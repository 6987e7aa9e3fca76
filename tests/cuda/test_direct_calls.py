"""What machine code of calls does without Python on a CUDA device: numbers, short waits of awaited calls."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import jitree
from jitree import Session
from jitree.api.calls.native import image as calls_image
from jitree.codegen import image
from jitree.cuda.device import CudaDevice
from jitree.dispatch.fast.engine import LOOP
from jitree.hal.local import executor
from jitree.modules.hal.native import RECIPE
from tests.cuda.fake import FakeDriver
from tests.cuda.programs import LENDING, LENDING_ASYNC, PROGRAM_KERNELS
from tests.cuda.test_lending import warm

X = np.arange(8, dtype=np.float32)
PACKAGE = str(Path(jitree.__file__).parent)


@pytest.fixture(scope="module", autouse=True)
def machine_code() -> None:
    for recipe in (RECIPE, LOOP, calls_image.RECIPE):
        image.wait(recipe)
    executor.require_native_executor()


@pytest.fixture
def session(fake: FakeDriver, device: CudaDevice) -> Iterator[Session]:
    fake.kernels.update(PROGRAM_KERNELS)
    with Session(device=device) as session:
        yield session


def functions_of(call: Callable[[], Any]) -> tuple[Any, set[str]]:
    """The result of a call, and the package's Python functions that it has called."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            found.add(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return result, found


@pytest.mark.parametrize("value", [X.tolist(), tuple(X.tolist()), [*range(8)], [*X]])
def test_numbers_go_to_the_device_without_python(session: Session, value: Any) -> None:
    add, x = session.load(LENDING).add, session.to_device(X)
    warm(add, x, value)
    result, called = functions_of(lambda: add(x, value))
    assert not called and np.array_equal(np.asarray(result), 2 * X)
    with pytest.raises(jitree.errors.InvalidArgumentError):
        add(x, [1.0] * 7)
    with pytest.raises(jitree.errors.InvalidArgumentError):
        add(x, [1.0] * 7 + ["a"])
    assert np.array_equal(np.asarray(add(x, value)), 2 * X)


@pytest.mark.parametrize("module", [LENDING, LENDING_ASYNC])
def test_an_awaited_call_waits_a_moment_before_it_is_called_back(
    fake: FakeDriver, session: Session, module: Path
) -> None:
    add, x = session.load(module).add, session.to_device(X)

    async def calls(count: int) -> list[Any]:
        return [await add.async_(x, x) for _ in range(count)]

    asyncio.run(calls(20))
    assert add.is_direct
    fake.calls.clear()
    results = asyncio.run(calls(3))
    assert all(np.array_equal(np.asarray(result), 2 * X) for result in results)
    assert not {"cuEventRecord", "cuEventSynchronize"} & set(fake.names())

    async def late() -> Any:
        fake.hold()
        call = asyncio.ensure_future(add.async_(x, x))
        await asyncio.sleep(0.01)
        assert not call.done()
        fake.release()
        return await call

    assert np.array_equal(np.asarray(asyncio.run(late())), 2 * X)


class PlainProducer:
    """Another library's array in host memory, with the Python protocol of DLPack only."""

    def __dlpack__(self, **options: Any) -> Any:
        return X.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return X.__dlpack_device__()


def test_calls_left_to_python_keep_machine_code(session: Session) -> None:
    add, x, producer = session.load(LENDING).add, session.to_device(X), PlainProducer()
    warm(add, x, producer)
    direct = add._direct
    assert np.array_equal(np.asarray(add(x, producer)), 2 * X) and add._direct is direct
