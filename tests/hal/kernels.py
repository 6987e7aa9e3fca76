"""Executables of Python functions, called as compiled kernels are: C functions over three state records."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitree.codegen.record import size_of
from jitree.errors import NotFoundError
from jitree.hal.command_layout import ENTRY_SEQUENTIAL, KernelEntry
from jitree.hal.device import Device
from jitree.hal.executable import Executable, LocalExecutable

_KERNEL = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


@dataclass
class Call:
    """What a kernel is called with for one workgroup."""

    constants: tuple[int, ...]
    bindings: list[np.ndarray]
    """As bytes."""
    workgroup: tuple[int, int, int]
    count: tuple[int, int, int]

    @property
    def index(self) -> int:
        """Of the workgroup in the grid, x fastest."""
        x, y, z = self.workgroup
        return x + self.count[0] * (y + self.count[1] * z)


@dataclass
class Kernel:
    name: str
    function: Callable[[Call], int]
    constant_count: int | None = None
    binding_count: int | None = None
    local_memory: int = 0
    sequential: bool = False


def _state(dispatch: int, workgroup: int) -> Call:
    words = ctypes.string_at(dispatch, 48)
    (constant_count,) = struct.unpack_from("<H", words, 10)
    x, y, z = struct.unpack_from("<IIH", words, 12)
    binding_count = words[23]
    constants, pointers, lengths = struct.unpack_from("<QQQ", words, 24)
    addresses = struct.unpack(f"<{binding_count}Q", ctypes.string_at(pointers, 8 * binding_count))
    sizes = struct.unpack(f"<{binding_count}Q", ctypes.string_at(lengths, 8 * binding_count))
    return Call(
        struct.unpack(f"<{constant_count}I", ctypes.string_at(constants, 4 * constant_count)),
        [np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
         for address, size in zip(addresses, sizes, strict=True)],
        struct.unpack("<IIH", ctypes.string_at(workgroup, 10)),
        (x, y, z),
    )  # fmt: skip


class PythonExecutable(LocalExecutable):
    """``hal.executable.LocalExecutable`` over Python functions."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.kernels = kernels
        self._callbacks = [self._callback(kernel.function) for kernel in kernels]
        self._environment = np.zeros(128, np.uint8)
        self._entries = array("q")
        for ordinal, (kernel, callback) in enumerate(zip(kernels, self._callbacks, strict=True)):
            code = ctypes.cast(callback, ctypes.c_void_p).value
            self._entries.frombytes(struct.pack(
                "<3q6i", code, self._environment.ctypes.data, 0, kernel.local_memory,
                ENTRY_SEQUENTIAL if kernel.sequential else 0,
                -1 if kernel.constant_count is None else kernel.constant_count,
                -1 if kernel.binding_count is None else kernel.binding_count, ordinal, 0,
            ))  # fmt: skip

    @staticmethod
    def _callback(function: Callable[[Call], int]) -> Any:
        def run(environment: int, dispatch: int, workgroup: int) -> int:
            return function(_state(dispatch, workgroup))

        return _KERNEL(run)

    @property
    def name(self) -> str:
        return "python"

    @property
    def function_count(self) -> int:
        return len(self.kernels)

    def function_name(self, ordinal: int) -> str:
        return self.kernels[ordinal].name

    def function_label(self, ordinal: int) -> str:
        return self.kernels[ordinal].name

    def lookup(self, name: str) -> int:
        for ordinal, kernel in enumerate(self.kernels):
            if kernel.name == name:
                return ordinal
        raise NotFoundError(name)

    def constant_count(self, ordinal: int) -> int | None:
        return self.kernels[ordinal].constant_count

    def binding_count(self, ordinal: int) -> int | None:
        return self.kernels[ordinal].binding_count

    def entry_point(self, ordinal: int) -> int:
        return self._entries.buffer_info()[0] + ordinal * size_of(KernelEntry)

    def local_memory(self, ordinal: int) -> int:
        return self.kernels[ordinal].local_memory


def _add(call: Call) -> int:
    """target[i] = source[i] + constant for the i-th 32-bit word of each workgroup."""
    source, target = (binding.view("<u4") for binding in call.bindings)
    if call.index < len(target):
        target[call.index] = (int(source[call.index]) + call.constants[0]) & 0xFFFFFFFF
    return 0


def _count(call: Call) -> int:
    """Adds one to the word of the workgroup."""
    call.bindings[0].view("<u4")[call.index] += 1
    return 0


def _fail(call: Call) -> int:
    return 42 if call.index == call.constants[0] else 0


ADD, COUNT, FAIL = 0, 1, 2


def make_executable(device: Device) -> Executable:
    """ADD, COUNT and FAIL for a device."""
    if device.id == "cuda":
        from tests.cuda.kernels import load_executable

        return load_executable(device)
    return PythonExecutable([
        Kernel("add", _add, constant_count=1, binding_count=2),
        Kernel("count", _count),
        Kernel("fail", _fail, constant_count=1, binding_count=0),
    ])  # fmt: skip
