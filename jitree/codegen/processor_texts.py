"""States in LLVM IR what only one kind of processor can do. All that differs between them is here.

It defines the functions of :mod:`jitree.codegen.primitives`, and ``rounded_once`` and ``flushed`` of
:mod:`jitree.codegen.numbers`. Texts that call one are the same for every machine; the compiler adds the
definitions for its target.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from jitree.base.platform.processor import MACHINES

PREFIX: Final = "processor."
_NAME: Final = re.compile(rf'@"{re.escape(PREFIX)}([^"]+)"')
_ROUNDED_ONCE: Final = "rounded_once.float"

_AS_IT_IS: Final = """
define float @processor.flushed.float(float %x) alwaysinline nounwind { ret float %x }
define double @processor.flushed.double(double %x) alwaysinline nounwind { ret double %x }
"""
"""Instructions of a minimum flush what they give, or there are none that flush."""

_CANONICAL: Final = """
define float @processor.flushed.float(float %x) alwaysinline nounwind {
  %result = call float @llvm.canonicalize.f32(float %x)
  ret float %result
}
define double @processor.flushed.double(double %x) alwaysinline nounwind {
  %result = call double @llvm.canonicalize.f64(double %x)
  ret double %result
}
declare float @llvm.canonicalize.f32(float)
declare double @llvm.canonicalize.f64(double)
"""

_X86_64: Final = """
define i64 @processor.flush_denormals() alwaysinline nounwind {
  %place = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %old = load i32, ptr %place
  %new = or i32 %old, 32832
  store i32 %new, ptr %place
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  %result = zext i32 %old to i64
  ret i64 %result
}
define void @processor.restore_denormals(i64 %mode) alwaysinline nounwind {
  %place = alloca i32
  %old = trunc i64 %mode to i32
  store i32 %old, ptr %place
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  ret void
}
define void @processor.pause() alwaysinline nounwind {
  call void @llvm.x86.sse2.pause()
  ret void
}
define i64 @processor.ticks() alwaysinline nounwind {
  %now = call i64 @llvm.readcyclecounter()
  ret i64 %now
}
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
declare void @llvm.x86.sse2.pause()
declare i64 @llvm.readcyclecounter()
"""
"""MXCSR bits 0x8040: flush to zero, denormals are zero."""

_AARCH64: Final = """
define i64 @processor.flush_denormals() alwaysinline nounwind {
  %old = call i64 @llvm.aarch64.get.fpcr()
  %new = or i64 %old, 17301504
  call void @llvm.aarch64.set.fpcr(i64 %new)
  ret i64 %old
}
define void @processor.restore_denormals(i64 %mode) alwaysinline nounwind {
  call void @llvm.aarch64.set.fpcr(i64 %mode)
  ret void
}
define void @processor.pause() alwaysinline nounwind {
  call void @llvm.aarch64.hint(i32 1)
  ret void
}
define i64 @processor.ticks() alwaysinline nounwind {
  %now = call i64 @llvm.read_volatile_register.i64(metadata !0)
  ret i64 %now
}
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
declare void @llvm.aarch64.hint(i32)
declare i64 @llvm.read_volatile_register.i64(metadata)
!0 = !{!"cntvct_el0"}
"""
"""FPCR bits 0x1080000: flush to zero, of half precision too."""

_RISCV64: Final = """
define i64 @processor.flush_denormals() alwaysinline nounwind {
  ret i64 0
}
define void @processor.restore_denormals(i64 %mode) alwaysinline nounwind {
  ret void
}
define void @processor.pause() alwaysinline nounwind {
  call void asm sideeffect ".word 0x0100000f", ""()
  ret void
}
define i64 @processor.ticks() alwaysinline nounwind {
  %now = call i64 asm sideeffect "rdtime $0", "=r"()
  ret i64 %now
}
"""
"""The same for RISC-V, which cannot flush denormals."""

_TEXTS: Final = {
    "x86_64": _X86_64 + _AS_IT_IS, "aarch64": _AARCH64 + _CANONICAL, "riscv64": _RISCV64 + _AS_IT_IS
}  # fmt: skip
assert _TEXTS.keys() == MACHINES


_FUSED: Final = """
define float @processor.rounded_once.float(float %x, float %y, float %z) alwaysinline nounwind {
  %result = call float @llvm.fma.f32(float %x, float %y, float %z)
  ret float %result
}
declare float @llvm.fma.f32(float, float, float)
"""

_IN_STEPS: Final = """
define float @processor.rounded_once.float(float %x, float %y, float %z) alwaysinline nounwind {
  %left = fpext float %x to double
  %right = fpext float %y to double
  %addend = fpext float %z to double
  %product = fmul double %left, %right
  %total = fadd double %product, %addend
  %part = fsub double %total, %product
  %rest = fsub double %total, %part
  %lost = fsub double %product, %rest
  %lost.too = fsub double %addend, %part
  %error = fadd double %lost, %lost.too
  %bits = bitcast double %total to i64
  %last = and i64 %bits, 1
  %even = icmp eq i64 %last, 0
  %inexact = fcmp one double %error, 0.0
  %moves = and i1 %even, %inexact
  %grows = fcmp ogt double %error, 0.0
  %positive = fcmp ogt double %total, 0.0
  %outwards = xor i1 %grows, %positive
  %step = select i1 %outwards, i64 -1, i64 1
  %moved = add i64 %bits, %step
  %odd = select i1 %moves, i64 %moved, i64 %bits
  %wide = bitcast i64 %odd to double
  %result = fptrunc double %wide to float
  ret float %result
}
"""
"""The steps of :func:`jitree.codegen.numbers.rounded_once`."""

_X86_WITH_FMA: Final = ("x86-64-v3", "x86-64-v4")


def needed(texts: Iterable[str], triple: str, cpu: str = "", features: str = "") -> list[str]:
    """What texts lack on a target."""
    machine = triple.partition("-")[0]
    names = {name for text in texts for name in _NAME.findall(text)}
    found = [_TEXTS[machine]] if names - {_ROUNDED_ONCE} else []
    if _ROUNDED_ONCE in names:
        fuses = machine == "aarch64" or cpu in _X86_WITH_FMA or "+fma" in features.split(",")
        found.append(_FUSED if fuses else _IN_STEPS)
    return found
