"""What every call of the fake driver goes through."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tests.cuda.fake_results import CUresult

_STICKY = {CUresult.CUDA_ERROR_ILLEGAL_ADDRESS, CUresult.CUDA_ERROR_LAUNCH_FAILED}


class Fault(Exception):
    """A kernel or copy that failed on the device."""

    def __init__(self, result: CUresult) -> None:
        super().__init__(result.name)
        self.result = result


def driver_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Records the call, and fails it when the test or a fault says so."""
    name = function.__name__

    @functools.wraps(function)
    def call(self: Any, *arguments: Any) -> Any:
        self.record(name, arguments)
        planned = self.failures.get(name)
        if planned:
            return (planned.pop(0), *[None] * RESULTS.get(name, 0))
        if self.lost is not None and name not in _WITHOUT_CONTEXT:
            return (self.lost, *[None] * RESULTS.get(name, 0))
        if name not in _WITHOUT_CONTEXT and self.current() is None:
            return (CUresult.CUDA_ERROR_INVALID_CONTEXT, *[None] * RESULTS.get(name, 0))
        try:
            return function(self, *arguments)
        except Fault as fault:
            if fault.result in _STICKY:
                self.lost = fault.result
            return (fault.result, *[None] * RESULTS.get(name, 0))

    return call


RESULTS = {
    "cuDriverGetVersion": 1, "cuDeviceGetCount": 1, "cuDeviceGet": 1, "cuDeviceGetName": 1,
    "cuDeviceGetUuid": 1, "cuDeviceGetPCIBusId": 1, "cuDeviceTotalMem": 1, "cuDeviceGetAttribute": 1,
    "cuDevicePrimaryCtxRetain": 1, "cuMemAlloc": 1, "cuMemHostAlloc": 1, "cuMemHostGetDevicePointer": 1,
    "cuMemGetInfo": 2, "cuStreamCreate": 1, "cuEventCreate": 1, "cuPointerGetAttribute": 1,
    "cuGetErrorName": 1, "cuGetErrorString": 1, "cuGetProcAddress": 2,
    "cuLinkCreate": 1, "cuLinkComplete": 2, "cuModuleLoadData": 1, "cuModuleGetFunction": 1,
    "cuFuncGetAttribute": 1, "cuGraphCreate": 1, "cuGraphAddKernelNode": 1, "cuGraphAddEmptyNode": 1,
    "cuGraphInstantiate": 1, "cuEventElapsedTime": 1, "cuCtxPopCurrent": 1,
}  # fmt: skip
"""Results after the status."""
_WITHOUT_CONTEXT = {
    "cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid",
    "cuDeviceGetPCIBusId", "cuDeviceTotalMem", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuGetErrorName", "cuGetErrorString",
    "cuGetProcAddress",
}  # fmt: skip
"""A process whose device is lost can call these as well."""
