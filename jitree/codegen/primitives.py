"""States memory, addresses, calls and tiles for functions over integers of 64 bits.

:mod:`jitree.codegen.functions` says what they become as machine code; in Python they do the same, slowly.
Tiles are 8 x 8 sums of products, which stay in registers: as machine code eight vectors, which LLVM does
not make of loops. What only the processor can do is here, too: time, waiting, the floating-point mode, which
:mod:`jitree.codegen.processor_texts` has as machine code.

Compiled kernels expect denormals flushed, and the mode must never hold while Python runs. So in Python
:func:`call_kernel` sets it, with a few bytes of machine code, and the others leave it alone.

``values = Floats(address)``, ``values[3] = values[2]``: numbers of one type next to each other. As machine
code these are pointers, not integers, so that LLVM makes vectors of loops over them.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import numpy as np
import numpy.typing as npt

from jitree.base.platform import MACHINE, map_code
from jitree.codegen.record import MemoryRecord, memory_as, place_of

Function = TypeVar("Function", bound=Callable[..., object])

_MASK: Final = (1 << 64) - 1
_NUMBERS, _LONGS = memory_as("i"), memory_as("q")


def load8(address: int) -> int:
    """A byte, without sign."""
    return ctypes.c_uint8.from_address(address).value


def load32(address: int) -> int:
    return ctypes.c_int32.from_address(address).value if address & 3 else _NUMBERS[address >> 2]


def load64(address: int) -> int:
    return ctypes.c_int64.from_address(address).value if address & 7 else _LONGS[address >> 3]


def store8(address: int, value: int) -> None:
    ctypes.c_uint8.from_address(address).value = value


def store32(address: int, value: int) -> None:
    ctypes.c_int32.from_address(address).value = value


def store64(address: int, value: int) -> None:
    ctypes.c_int64.from_address(address).value = value


def call(address: int, *arguments: int) -> int:
    """Calls C code: addresses and integers in, an integer out."""
    kinds = [ctypes.c_int64] * (len(arguments) + 1)
    result: int = ctypes.CFUNCTYPE(*kinds)(address)(*arguments)
    return result


def call_int(address: int, *arguments: int) -> int:
    """As :func:`call`, of a function whose result is an ``int``."""
    kinds = [ctypes.c_int64] * len(arguments)
    result: int = ctypes.CFUNCTYPE(ctypes.c_int32, *kinds)(address)(*arguments)
    return result


def call_double(address: int, bits: int) -> int:
    """Calls C code of one argument, a double given by its bits."""
    (number,) = struct.unpack("d", bits.to_bytes(8, "little", signed=bits < 0))
    result: int = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_double)(address)(number)
    return result


def narrow(bits: int) -> int:
    """The bits of a 64-bit float as those of a 32-bit one."""
    (number,) = struct.unpack("d", (bits & _MASK).to_bytes(8, "little"))
    return ctypes.c_int32.from_buffer(ctypes.c_float(number)).value


def widen(bits: int) -> int:
    """The bits of a 32-bit float as those of a 64-bit one."""
    number = ctypes.c_float.from_buffer(ctypes.c_uint32(bits & 0xFFFFFFFF)).value
    return ctypes.c_int64.from_buffer(ctypes.c_double(number)).value


def below(left: int, right: int) -> bool:
    """Less, both read without sign."""
    return left & _MASK < right & _MASK


def lesser(left: int, right: int) -> int:
    return left if left < right else right


def greater(left: int, right: int) -> int:
    return left if left > right else right


def quotient(left: int, right: int) -> int:
    """The quotient of numbers that are not negative."""
    return left // right


def remainder(left: int, right: int) -> int:
    """The remainder of numbers that are not negative."""
    return left % right


def unlikely(condition: bool) -> bool:
    """What is nearly never true."""
    return condition


def bit_length(value: int) -> int:
    """The bits of a number that is not negative."""
    return value.bit_length()


APART: Final[set[Callable[..., object]]] = set()


def apart(function: Function) -> Function:
    """Keeps a function's machine code out of its callers. Their other ways then save no registers for it."""
    APART.add(function)
    return function


_stack: Final[list[ctypes.Array[ctypes.c_char]]] = []


def stack_address() -> int:
    """Where the stack is now; in Python 1 MiB, so that there is room."""
    return 1 << 20


def stack(size: int) -> int:
    """The address of memory, aligned to 64 bytes, that lasts until the function ends; in Python for ever. Not
    in a loop: memory of a known size is the same each time."""
    block = ctypes.create_string_buffer(size + 64)
    _stack.append(block)
    return (ctypes.addressof(block) + 63) & -64


SIDE: Final = 8
DEPTH: Final = 2
"""Products of bytes are added in pairs: processors have an instruction for that."""
Tile = npt.NDArray[Any]


def _memory(address: int, kind: Any, count: int) -> Tile:
    return np.frombuffer((ctypes.c_char * (count * np.dtype(kind).itemsize)).from_address(address), kind)


def float_tile(address: int) -> Tile:
    """64 of binary32 in memory, row by row."""
    return _memory(address, np.float32, SIDE * SIDE).reshape(SIDE, SIDE)


def integer_tile(address: int) -> Tile:
    """64 integers of 32 bits in memory."""
    return _memory(address, np.int32, SIDE * SIDE).reshape(SIDE, SIDE)


def float_zeros() -> Tile:
    return np.zeros((SIDE, SIDE), np.float32)


def integer_zeros() -> Tile:
    return np.zeros((SIDE, SIDE), np.int32)


def add_floats(tile: Tile, lhs: int, rhs: int) -> Tile:
    """Adds products of 8 by 8 numbers, rounded once or twice."""
    with np.errstate(all="ignore"):
        products: Tile = np.outer(_memory(lhs, np.float32, SIDE), _memory(rhs, np.float32, SIDE))
        return tile + products


def add_bytes(tile: Tile, lhs: int, rhs: int) -> Tile:
    """Adds products of 8 pairs of bytes by 8 others."""
    left, right = (
        _memory(place, np.int8, SIDE * DEPTH).reshape(SIDE, DEPTH).astype(np.int32) for place in (lhs, rhs)
    )
    products: Tile = left @ right.T
    return tile + products


def store_tile(address: int, tile: Tile) -> None:
    _memory(address, tile.dtype, SIDE * SIDE).reshape(SIDE, SIDE)[...] = tile


class ElementMemory(MemoryRecord):
    """The base of the classes, one for each type."""

    if TYPE_CHECKING:
        kind: ClassVar[Any]
        width: ClassVar[int]
        """Bytes of an element."""

    def __getitem__(self, index: int) -> Any:
        return self.kind.from_address(place_of(self) + self.width * index).value

    def __setitem__(self, index: int, value: float) -> None:
        self.kind.from_address(place_of(self) + self.width * index).value = value


class Bytes(ElementMemory):
    kind, width = ctypes.c_int8, 1


class Halves(ElementMemory):
    kind, width = ctypes.c_int16, 2


class Words(ElementMemory):
    kind, width = ctypes.c_int32, 4


class Longs(ElementMemory):
    kind, width = ctypes.c_int64, 8


class Floats(ElementMemory):
    kind, width = ctypes.c_float, 4


NUMBERS: Final = {Bytes: "int8", Halves: "int16", Words: "int32", Longs: "int64", Floats: "float32"}
"""The types of elements, as Numba names them."""


_CODE: Final = {
    # sub rsp, 24; stmxcsr [rsp]; mov eax, [rsp]; or eax, 0x8040; mov [rsp+4], eax; ldmxcsr [rsp+4]
    # mov rax, rdi; mov rdi, rsi; mov rsi, rdx; mov rdx, rcx; call rax; ldmxcsr [rsp]; add rsp, 24; ret
    "x86_64": """
        4883ec18 0fae1c24 8b0424 0d40800000 89442404 0fae542404
        4889f8 4889f7 4889d6 4889ca ffd0 0fae1424 4883c418 c3
    """,
    # stp x29, x30, [sp, #-32]!; mov x29, sp; mrs x9, fpcr; str x9, [sp, #16]; mov x10, #0x1080000
    # orr x10, x9, x10; msr fpcr, x10; mov x11, x0; mov x0, x1; mov x1, x2; mov x2, x3; blr x11
    # ldr x9, [sp, #16]; msr fpcr, x9; ldp x29, x30, [sp], #32; ret
    "aarch64": """
        fd7bbea9 fd030091 09443bd5 e90b00f9 0a21a0d2
        2a010aaa 0a441bd5 eb0300aa e00301aa e10302aa e20303aa 60013fd6
        e90b40f9 09441bd5 fd7bc2a8 c0035fd6
    """,
}
"""``call(function, environment, dispatch, workgroup)`` under MXCSR |= 0x8040 or FPCR |= 0x1080000."""

_DIRECT: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_FLUSHED: Final = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)


def ticks() -> int:
    """A clock: nanoseconds, or what the processor counts."""
    return time.perf_counter_ns()


def pause() -> None:
    """A thread calls it while it waits for another one."""
    time.sleep(0)


def flush_denormals() -> int:
    """Sets the mode; gives what it was."""
    return 0


def restore_denormals(mode: int) -> None:
    pass


def call_kernel(function: int, environment: int, dispatch: int, workgroup: int) -> int:
    """Calls a function of an executable, with denormals flushed; what it returns."""
    return _kernel_call()(function, environment, dispatch, workgroup)


@cache
def _kernel_call() -> Callable[[int, int, int, int], int]:
    """Leaves denormals as they are where there is no code above."""
    code = _CODE.get(MACHINE)
    if code is None:
        return lambda function, *states: _DIRECT(function)(*states)
    mapping = map_code(bytes.fromhex(code))
    _kept.append(mapping)
    return _FLUSHED(mapping.address)


_kept: Final[list[object]] = []
"""Threads that come at the same time make one mapping each."""
