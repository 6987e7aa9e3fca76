"""The kernels that the random programs of ``tests.modules.hal_programs`` dispatch, on the fake driver."""

from __future__ import annotations

import numpy as np

from jitree.hal.device import Device
from jitree.hal.executable import Executable, ExecutableParameters
from tests.cuda.executables import executable_bytes
from tests.cuda.fake import FakeDriver, FakeKernel
from tests.cuda.fake_call import Fault
from tests.cuda.fake_results import CUresult

_PARAMETERS = {"count": (0, 1), "fail": (2, 1), "multiply": (0, 3)}
"""Constants and bindings."""


def _entry(name: str, constants: int, bindings: int) -> str:
    kinds = [".u64"] * bindings + [".u32"] * constants
    parameters = ", ".join(f".param {kind} {name}_{index}" for index, kind in enumerate(kinds))
    return f".visible .entry {name}({parameters})\n{{\n\tret;\n}}\n"


PTX = ".version 6.0\n.target sm_60\n.address_size 64\n" + "".join(
    _entry(name, *counts) for name, counts in _PARAMETERS.items()
)
Shape = tuple[int, int, int]


def _count(driver: FakeDriver, words: list[int], grid: Shape, block: Shape) -> None:
    driver.bytes_at(words[0], 4 * grid[0] * grid[1] * grid[2]).view("<u4")[:] += 1


def _multiply(driver: FakeDriver, words: list[int], grid: Shape, block: Shape) -> None:
    size = 4 * grid[0] * grid[1] * grid[2]
    first, second, product = (driver.bytes_at(address, size).view("<f4") for address in words)
    with np.errstate(all="ignore"):
        product[:] = first * second


def _fault(driver: FakeDriver, words: list[int], grid: Shape, block: Shape) -> None:
    raise Fault(CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)


FAULT = FakeKernel(3, _fault)
KERNELS = {
    "count": FakeKernel(1, _count),
    "fail": FakeKernel(3, _count),
    "multiply": FakeKernel(3, _multiply),
}


def executable(device: Device) -> Executable:
    exports = [(name, (1, 1, 1), *counts) for name, counts in _PARAMETERS.items()]
    data = memoryview(executable_bytes(PTX.encode(), exports))
    return device.create_executable_cache().prepare_executable(ExecutableParameters("cuda-nvptx-fb", data))
