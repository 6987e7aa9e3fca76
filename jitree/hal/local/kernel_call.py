"""Calling one workgroup from Python, with denormals flushed as compiled kernels expect, without any compiler.

A few bytes of machine code set the floating-point mode, call, and restore it, so that the mode never holds
while Python runs.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from functools import cache
from typing import Final

from jitree.base.memory import Mapping, map_code
from jitree.base.once import once

DISPATCH_STATE: Final = struct.Struct("<IIHHIIHBBQQQQ")
"""Workgroup size, constant count, workgroup counts, concurrency, binding count; three table addresses. The
last word is our own: the address of the job's failure, which ends it when it is not zero."""
WORKGROUP_STATE: Final = struct.Struct("<IIHHIQI")
"""Workgroup id, reserved, processor, local memory and its size."""

KernelCall = Callable[[int, int, int, int], int]
"""(function, environment, dispatch state, workgroup state) -> what the function returned; all addresses."""

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
_MACHINE_NAMES: Final = {"amd64": "x86_64", "arm64": "aarch64"}

_DIRECT: Final = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_FLUSHED: Final = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 4)


@once
def _machine_code() -> Mapping | None:
    machine = os.uname().machine.lower()
    code = _CODE.get(_MACHINE_NAMES.get(machine, machine))
    return None if code is None else map_code(bytes.fromhex(code))


@cache
def kernel_call() -> KernelCall:
    """How workgroups are called here; directly, with denormals as they are, where there is no code above."""
    code = _machine_code()
    if code is not None:
        return _FLUSHED(code.address)
    return lambda function, *states: _DIRECT(function)(*states)
