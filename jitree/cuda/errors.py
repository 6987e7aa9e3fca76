"""What the numbers that driver calls return mean as status codes (``CUresult`` of cuda.h)."""

from __future__ import annotations

from typing import Final

from jitree.errors import StatusCode

OUT_OF_MEMORY: Final = 2
NOT_INITIALIZED: Final = 3
NO_DEVICE: Final = 100
NOT_READY: Final = 600
PEER_ACCESS_ALREADY_ENABLED: Final = 704

_STATUS: Final = {
    1: StatusCode.INVALID_ARGUMENT,  # INVALID_VALUE
    OUT_OF_MEMORY: StatusCode.RESOURCE_EXHAUSTED,
    NOT_INITIALIZED: StatusCode.FAILED_PRECONDITION,
    4: StatusCode.CANCELLED,  # DEINITIALIZED: the process ends
    34: StatusCode.UNAVAILABLE,  # STUB_LIBRARY
    36: StatusCode.UNAVAILABLE,  # CALL_REQUIRES_NEWER_DRIVER
    46: StatusCode.UNAVAILABLE,  # DEVICE_UNAVAILABLE: in exclusive use
    NO_DEVICE: StatusCode.UNAVAILABLE,
    101: StatusCode.NOT_FOUND,  # INVALID_DEVICE
    200: StatusCode.INVALID_ARGUMENT,  # INVALID_IMAGE
    209: StatusCode.INCOMPATIBLE,  # NO_BINARY_FOR_GPU
    217: StatusCode.UNIMPLEMENTED,  # PEER_ACCESS_UNSUPPORTED
    218: StatusCode.INVALID_ARGUMENT,  # INVALID_PTX
    221: StatusCode.UNAVAILABLE,  # JIT_COMPILER_NOT_FOUND
    222: StatusCode.INCOMPATIBLE,  # UNSUPPORTED_PTX_VERSION
    400: StatusCode.INVALID_ARGUMENT,  # INVALID_HANDLE
    500: StatusCode.NOT_FOUND,
    NOT_READY: StatusCode.DEFERRED,
    701: StatusCode.RESOURCE_EXHAUSTED,  # LAUNCH_OUT_OF_RESOURCES
    702: StatusCode.DEADLINE_EXCEEDED,  # LAUNCH_TIMEOUT
    800: StatusCode.PERMISSION_DENIED,  # NOT_PERMITTED
    801: StatusCode.UNIMPLEMENTED,  # NOT_SUPPORTED
    803: StatusCode.UNAVAILABLE,  # SYSTEM_DRIVER_MISMATCH
}

LOST: Final = frozenset((214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 911))
"""Failures after which a context answers nothing but the same failure: faults and asserts of kernels,
uncorrectable memory and link errors, a destroyed context."""


def status_of(result: int) -> StatusCode:
    """INTERNAL for what a correct program never meets."""
    return _STATUS.get(result, StatusCode.INTERNAL)
