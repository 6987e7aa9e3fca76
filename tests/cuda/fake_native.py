"""Calls of the fake driver as C functions, for machine code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tests.cuda.fake_graphs import NodeParameters

_ARGUMENTS = {
    "cuCtxSetCurrent": 1, "cuStreamSynchronize": 1, "cuGraphLaunch": 2, "cuGraphExecKernelNodeSetParams": 3,
}  # fmt: skip


def callbacks(driver: Any) -> dict[str, Any]:
    """By name; they live as long as machine code may call them."""
    return {
        name: ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * count)(_call(getattr(driver, name), name))
        for name, count in _ARGUMENTS.items()
    }


def address(callback: Any) -> int:
    found = ctypes.cast(callback, ctypes.c_void_p).value
    assert found
    return found


def _call(function: Callable[..., Any], name: str) -> Callable[..., int]:
    def call(*arguments: int) -> int:
        if name == "cuGraphExecKernelNodeSetParams":
            executable, node, structure = arguments
            return int(function(executable, node, NodeParameters(structure))[0])
        return int(function(*arguments)[0])

    return call
