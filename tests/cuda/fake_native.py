"""Calls of the fake driver as C functions, for machine code."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

from tests.cuda.fake_graphs import NodeParameters

_ARGUMENTS = {
    "cuCtxSetCurrent": 1, "cuGraphLaunch": 2, "cuGraphExecKernelNodeSetParams": 3, "cuStreamQuery": 1,
    "cuEventRecord": 2, "cuStreamWaitEvent": 3, "cuLaunchKernelEx": 4, "cuMemcpyHtoDAsync": 4,
}  # fmt: skip


def serve(driver: Any) -> None:
    """From now on machine code of devices that are made may call the driver, too."""
    driver.callbacks = {  # they live as long as the driver
        name: ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * count)(_call(weakref.ref(driver), name))
        for name, count in _ARGUMENTS.items()
    }
    for name, callback in driver.callbacks.items():
        driver.machine_code[name] = ctypes.cast(callback, ctypes.c_void_p).value


def _call(driver: weakref.ref[Any], name: str) -> Callable[..., int]:
    """It does not keep the driver, which keeps it."""

    def call(*arguments: Any) -> int:
        if name == "cuGraphExecKernelNodeSetParams":
            executable, node, structure = arguments
            arguments = executable, node, NodeParameters(structure)
        return int(getattr(driver(), name)(*arguments)[0])

    return call
