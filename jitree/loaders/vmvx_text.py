"""LLVM IR of the loop over workgroups, around a kernel that the native tier has lowered.

The builder process imports this module. It does not take numba.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen import image
from jitree.dispatch.native.calls import Needs
from jitree.dispatch.native.cut_function import PARAMETERS
from jitree.loaders.vmvx_images import SPANS
from jitree.loaders.vmvx_workgroups import has_room, kernel
from jitree.regs.layout import FRAME

_PLACES: Final = ("state", "frame", "values", "refs")
_HANDLES: Final = ("local", "constants", "bindings")
_IDS: Final = ("x", "y", "z", "size_x", "size_y", "size_z", "count_x", "count_y", "count_z")


class Kernel(NamedTuple):
    """A kernel as its ``workgroups`` calls it."""

    symbol: str
    """The symbol of the lowered function, in the same LLVM module."""
    needs: Needs
    """Room that it and its callees take on the machine's stacks."""
    parts: int
    """Into how many parts a workgroup of it can be cut; 1: it takes no such parameters."""
    borrows: bool
    """Whether it leaves the references that it is given to its caller."""


def texts(lowered: str, own: Kernel) -> list[str]:
    """The text of the lowered module, and that of ``workgroups``."""
    return [f"{lowered}\n{_bridges(own)}", image.wait(SPANS).notes.decode()]


def _bridges(own: Kernel) -> str:
    """``kernel`` and ``has_room`` of a kernel: the lowered function; its room."""
    needs = own.needs
    parts = f", {', '.join(f'i64 %{name}' for name in PARAMETERS)}" if own.parts > 1 else ""
    return f"""
define i64 @"kernel"({_parameters(kernel)}) alwaysinline nounwind "no-builtins" {{
{_lines("%{0}.ptr = inttoptr i64 %{0} to ptr", (*_PLACES, *_HANDLES))}
{_lines("%{0}.i32 = trunc i64 %{0} to i32", _IDS)}
  %fuelled = icmp ugt i64 %fuel, 1
  br i1 %fuelled, label %run, label %empty, !prof !2
empty:
  %more = call fastcc i64 @vm.refuel_function(ptr %state.ptr)
  %over = icmp sle i64 %more, 0
  %refuelled = add i64 %more, 1
  br i1 %over, label %leave, label %run
leave:
  ret i64 0
run:
  %given = phi i64 [ %fuel, %0 ], [ %refuelled, %empty ]
  %spendable = sub i64 %given, 1
{"" if own.borrows else _lines("call void @retain(ptr %{0}.ptr)", _HANDLES)}
  %outcome = call fastcc {{ i64 }} @{own.symbol}(
    {", ".join(f"ptr %{name}.ptr" for name in _PLACES)}, i64 %spendable,
    {", ".join(f"ptr %{name}.ptr" for name in _HANDLES)}, {", ".join(f"i32 %{name}.i32" for name in _IDS)}
    {parts}
  ) alwaysinline
  %left = extractvalue {{ i64 }} %outcome, 0
  ret i64 %left
}}
define i1 @"has_room"({_parameters(has_room)}) alwaysinline nounwind "no-builtins" {{
{_lines("%{0}.ptr = inttoptr i64 %{0} to ptr", _PLACES)}
  %frame.end = getelementptr i8, ptr %frame.ptr, i64 {FRAME.size * needs.frames}
  %values.end = getelementptr i8, ptr %values.ptr, i64 {needs.values}
  %refs.end = getelementptr i8, ptr %refs.ptr, i64 {needs.refs}
  %fits = call i1 @room(ptr %state.ptr, ptr %frame.end, ptr %values.end, ptr %refs.end)
  ret i1 %fits
}}
"""


def _parameters(function: Callable[..., object]) -> str:
    return ", ".join(f"i64 %{name}" for name in function.__annotations__ if name != "return")


def _lines(form: str, names: Iterable[str]) -> str:
    return "\n".join("  " + form.format(name) for name in names)
