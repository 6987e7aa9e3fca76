"""The image of the native walker: LLVM IR templates, and the few lines that differ between processors."""

from __future__ import annotations

import os
import re
from typing import Final

from jitree.codegen.image import Recipe
from jitree.hal import command_layout
from jitree.hal.local import walk_layout

_FOLDER: Final = os.path.dirname(__file__)
_TEMPLATES: Final = ("walk.ll", "walk_team.ll", "walk_rows.ll")
_NAME: Final = r"\$([a-z_]+\.[a-z_]+|[A-Z][A-Z_]*)"

RECIPE: Final = Recipe(
    name="walker",
    title="the walker of command buffers",
    generator="jitree.hal.local.walk_image:texts",
    sources=(
        *(os.path.join(_FOLDER, name) for name in _TEMPLATES),
        __file__, walk_layout.__file__, command_layout.__file__,
    ),
    entries=("execute", "serve", "dismiss", "estimate", "clock"),
    seconds=1,
)  # fmt: skip

_X86_64: Final = """
define i64 @futex_call() alwaysinline {
  ret i64 202
}
define i64 @enter_kernels() alwaysinline {
  %place = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %place)
  %old = load i32, ptr %place
  %new = or i32 %old, 32832
  store i32 %new, ptr %place
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  %result = zext i32 %old to i64
  ret i64 %result
}
define void @leave_kernels(i64 %mode) alwaysinline {
  %place = alloca i32
  %old = trunc i64 %mode to i32
  store i32 %old, ptr %place
  call void @llvm.x86.sse.ldmxcsr(ptr %place)
  ret void
}
define void @pause() alwaysinline {
  call void @llvm.x86.sse2.pause()
  ret void
}
define i64 @ticks() alwaysinline {
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
define i64 @futex_call() alwaysinline {
  ret i64 98
}
define i64 @enter_kernels() alwaysinline {
  %old = call i64 @llvm.aarch64.get.fpcr()
  %new = or i64 %old, 17301504
  call void @llvm.aarch64.set.fpcr(i64 %new)
  ret i64 %old
}
define void @leave_kernels(i64 %mode) alwaysinline {
  call void @llvm.aarch64.set.fpcr(i64 %mode)
  ret void
}
define void @pause() alwaysinline {
  call void @llvm.aarch64.hint(i32 1)
  ret void
}
define i64 @ticks() alwaysinline {
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
define i64 @futex_call() alwaysinline {
  ret i64 98
}
define i64 @enter_kernels() alwaysinline {
  ret i64 0
}
define void @leave_kernels(i64 %mode) alwaysinline {
  ret void
}
define void @pause() alwaysinline {
  call void asm sideeffect ".word 0x0100000f", ""()
  ret void
}
define i64 @ticks() alwaysinline {
  %now = call i64 asm sideeffect "rdtime $0", "=r"()
  ret i64 %now
}
"""
"""RISC-V cannot flush denormals."""

_MACHINES: Final = {"x86_64": _X86_64, "amd64": _X86_64, "aarch64": _AARCH64, "arm64": _AARCH64,
                    "riscv64": _RISCV64}  # fmt: skip


def supported() -> bool:
    """Whether there is a native walker for this processor."""
    return os.uname().machine.lower() in _MACHINES


def texts(machine: str | None = None) -> list[str]:
    """The LLVM IR of the walker for a machine (as ``uname -m`` names it), by default this one."""
    names = walk_layout.template_names()
    templates = [re.sub(_NAME, lambda found: str(names[found[1]]), _template(name)) for name in _TEMPLATES]
    return [*templates, _MACHINES[(machine or os.uname().machine).lower()]]


def _template(name: str) -> str:
    with open(os.path.join(_FOLDER, name), encoding="utf-8") as file:
        return file.read()
