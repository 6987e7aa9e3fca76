"""What only the processor can do: time, waiting, the floating-point mode. As machine code the functions are
those of :mod:`jitree.codegen.processor_texts`.

Compiled kernels expect denormals flushed, and the mode must never hold while Python runs. So in Python
:func:`call_kernel` sets it, with a few bytes of machine code, and the others leave it alone.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from functools import cache
from typing import Final

from jitree.base.memory import map_code

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
    os.sched_yield()


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
    machine = os.uname().machine.lower()
    code = _CODE.get({"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine))
    if code is None:
        return lambda function, *states: _DIRECT(function)(*states)
    mapping = map_code(bytes.fromhex(code))
    _kept.append(mapping)
    return _FLUSHED(mapping.address)


_kept: Final[list[object]] = []
"""Threads that come at the same time make one mapping each."""
