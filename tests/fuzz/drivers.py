"""Each Nth call of the CUDA driver fails once, on the driver that tests have in place of a GPU.

The calls end in a status or in their results, all that was taken from the driver is given back, and the next
session on it is right. What the driver fails to give back itself is its own.
"""

from __future__ import annotations

import gc
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import numpy as np

from jitree import Session
from jitree.codegen.image import cache
from jitree.cuda import ptx, timings
from jitree.cuda.device import CudaDevice
from jitree.errors import StatusError
from tests.cuda import fake_native
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_results import CUresult
from tests.cuda.kernels import KERNELS
from tests.cuda.programs import DATA, PROGRAM_KERNELS
from tests.fuzz.campaign import CASES, Campaign, Result
from tests.fuzz.faults import WrongError
from tests.fuzz.interruptions import resources

RESULTS: Final = (
    CUresult.CUDA_ERROR_OUT_OF_MEMORY,
    CUresult.CUDA_ERROR_INVALID_VALUE,
    CUresult.CUDA_ERROR_ILLEGAL_ADDRESS,
)
PROGRAM: Final = DATA / "add_async.vmfb"
_GIVING_BACK: Final = ("Free", "Destroy", "Unload", "Release", "Synchronize", "Query", "SetCurrent")
"""Parts of the names of calls after whose failure something stays with the driver. Memory does where the
context is lost, with which it ends."""
_X: Final = np.arange(8, dtype=np.float32)


class Case(NamedTuple):
    nth: int
    result: CUresult


class FailingDriver(FakeDriver):
    """Fails one call."""

    def __init__(self, devices: int = 1) -> None:
        super().__init__(devices)
        self.asked = self.nth = 0
        self.result = CUresult.CUDA_SUCCESS
        self.failed = ""
        self.kernels |= KERNELS | PROGRAM_KERNELS
        fake_native.serve(self)

    def record(self, name: str, arguments: tuple[Any, ...]) -> None:
        super().record(name, arguments)
        self.asked += 1
        if self.asked == self.nth:
            self.failed = name
            self.fail_next(name, self.result)

    def taken(self) -> tuple[int, ...]:
        """What has not been given back."""
        return len(self.allocations), len(self.streams), len(self.events), sum(self.contexts)


def is_given_back(driver: FailingDriver, before: tuple[int, ...]) -> bool:
    """Whether all is that was taken, but what the driver has failed to give back itself."""
    is_lost = driver.result == CUresult.CUDA_ERROR_ILLEGAL_ADDRESS and driver.taken()[1:] == before[1:]
    return driver.taken() == before or is_lost or any(part in driver.failed for part in _GIVING_BACK)


@contextmanager
def _apart() -> Iterator[None]:
    """Has no tracer of real GPUs, and compiled code in a folder of its own."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(patch.object(timings, "tracer", lambda: None))
        for name in ("load_cubins", "store_cubins"):
            function = getattr(ptx, name)

            def apart(*arguments: Any, function: Any = function) -> Any:
                with patch.object(cache, "_chosen", folder):
                    return function(*arguments)

            stack.enter_context(patch.object(ptx, name, apart))
        yield


def _calls(driver: FakeDriver) -> None:
    with CudaDevice(driver, 0) as device, Session(device=device, tier="fast") as session:
        add = session.load(PROGRAM).add
        results = [add.submit(_X, _X), add(_X, _X)]
        results.append(add.submit(results[0], _X))
        for result, factor in zip(results, (2, 2, 3), strict=True):
            if not np.array_equal(np.asarray(result), factor * _X):
                raise WrongError(f"{np.asarray(result)}, not {factor * _X}")


def generate(number: int) -> Case:
    return Case(number // len(RESULTS) + 1, RESULTS[number % len(RESULTS)])


def run(case: Case) -> Result:
    with _apart():
        before = resources()
        result = _run(case)
        gc.collect()
        after = resources()
    if result[1] and (after[0] > before[0] or after[1] - before[1]):
        result[0].append(f"{case}: threads and descriptors {after}, {before} before")
    return result


def _run(case: Case) -> Result:
    driver, found = FailingDriver(), list[str]()
    driver.nth, driver.result = case.nth, case.result
    before = driver.taken()
    end = "a result"
    try:
        _calls(driver)
    except StatusError as error:
        end = error.code.name
    except Exception as error:
        found.append(f"{case}, {driver.failed}: {error!r}")
    if not driver.failed:
        return [], Counter()
    gc.collect()
    what = f"{case}, {driver.failed}, {end}"
    if not is_given_back(driver, before):
        found.append(f"{what}: {driver.taken()} is left, {before} before")
    if driver.lost is None:
        try:
            _calls(driver)
        except Exception as error:
            found.append(f"{what}, the next time: {error!r}")
    return found, Counter({CASES: 1, f"{driver.failed}: {end}": 1})


CAMPAIGN: Final = Campaign("calls of the CUDA driver", generate, run, batch=12, prepare=lambda: None)
