"""States how the loop and compiled functions call what they share.

It also has the metadata of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jitree.regs.layout import STATE

METADATA: Final = """\
attributes #0 = { nounwind "no-builtins" }
attributes #2 = { nounwind alwaysinline "no-builtins" }
!0 = !{}
!1 = !{!"branch_weights", i32 1, i32 4096}
!2 = !{!"branch_weights", i32 4096, i32 1}
!9 = !{!"jitree"}
!10 = !{!"bytes", !9, i64 0}
!11 = !{!"globals", !9, i64 0}
!12 = !{!"entry", !9, i64 0}
!13 = !{!"count", !9, i64 0}
!14 = !{!"frame", !9, i64 0}
!15 = !{!"state", !9, i64 0}
!16 = !{!"list slot", !9, i64 0}
!17 = !{!"link", !9, i64 0}
!20 = !{!10, !10, i64 0}
!21 = !{!11, !11, i64 0}
!22 = !{!12, !12, i64 0}
!23 = !{!13, !13, i64 0}
!24 = !{!14, !14, i64 0}
!25 = !{!15, !15, i64 0}
!26 = !{!16, !16, i64 0}
!27 = !{!17, !17, i64 0}
"""
"""Functions with attributes #0 are the usual ones, those with #2 are inlined. After !1 and !2 are branches
that are nearly never and nearly always taken, after !20 and the next accesses that do not overlap others."""

ALIASES: Final = {"entry": "!22", "count": "!23", "state": "!25", "list slot": "!26", "link": "!27"}
"""The metadata of what :mod:`jitree.regs.access` and :mod:`jitree.regs.access` name."""
UNLIKELY: Final = "!1"
LIKELY: Final = "!2"

_CALLS: Final = {
    "retain": ("ptr", "void i64", "#2"),
    "drop": ("ptr released", "void void", "#2"),
    "put": ("ptr ptr released", "void void", "#2"),
    "move": ("i32 i64 i64 ptr ptr ptr ptr released", "void void", "#2"),
    "clear": ("ptr i64", "void void", "#1"),
    "constants": ("ptr ptr i64", "void void", "#1"),
    "side_exit": ("ptr ptr ptr ptr i64 i64 i64", "void void", "#1"),
    "suspend": ("ptr ptr ptr ptr i64 i64 i64", "void void", "#1"),
    "pop": ("ptr ptr", "void void", "#3"),
    "slow": ("ptr ptr ptr ptr i64 i64 ptr", "i64 i64", "#1"),
    "allocate": ("ptr i64", "ptr i64", "#3"),
    "take": ("ptr i64", "ptr i64", "#3"),
    "refuel": ("ptr", "i64 i64", "#1"),
    "refuel_function": ("ptr", "i64 i64", "#1"),
    "packed": ("ptr ptr i64 i64", "i64 i64", "#3"),
    "look": ("ptr", "i1 i1", "#1"),
    "is_of": ("ptr i64", "i1 i1", "#2"),
    "list_made": ("ptr i64 i64", "ptr i64", "#2"),
    "list_holds": ("ptr i64", "i1 i1", "#2"),
    "list_grows": ("ptr i64", "i1 i1", "#2"),
    "has_element": ("ptr i64", "i1 i1", "#2"),
    "slot_of": ("ptr i64", "ptr i64", "#2"),
    "list_reads": ("ptr i64", "i1 i1", "#2"),
    "list_takes": ("ptr ptr i64", "i1 i1", "#2"),
    "list_reads_ref": ("ptr i64", "i1 i1", "#2"),
    "list_takes_ref": ("ptr ptr ptr", "i1 i1", "#2"),
    "buffer_fill": ("ptr ptr i64 i64 i64 i64 i64", "i1 i1", "#2"),
    "buffer_copy": ("ptr ptr i64 i64 ptr i64 i64 i64", "i1 i1", "#2"),
    "buffer_compare": ("ptr ptr i64 i64 ptr i64 i64 i64", "i64 i64", "#2"),
}
"""Parameters, result and the function's own result, attributes. ``released`` is the list of a state block."""
_CONVERSIONS: Final = {"ptr": "ptrtoint ptr", "i32": "zext i32", "i64": "add i64 0,"}


def declaration(name: str) -> str:
    parameters, results, _ = _CALLS[name]
    count = len(parameters.split())
    return f"declare {results.split()[1]} @{name}({', '.join(['i64'] * count)})\n"


def call(name: str, arguments: Sequence[str]) -> str:
    """A call of :func:`on_pointers`, of what is inlined."""
    kinds, results, _ = _CALLS[name]
    typed = (
        f"{'ptr' if kind == 'released' else kind} {argument}"
        for kind, argument in zip(kinds.split(), arguments, strict=True)
    )
    return f"call {results.split()[0]} @vm.{name}({', '.join(typed)})"


def declared(name: str) -> str:
    """The declaration of :func:`on_pointers`, of what another unit has and does not inline."""
    kinds, results, attributes = _CALLS[name]
    return f"declare fastcc {results.split()[0]} @vm.{name}({', '.join(kinds.split())}) {attributes}"


def on_pointers(name: str) -> str:
    """``@vm.<name>``, of pointers: calls a function of :mod:`jitree.regs.access`, :mod:`jitree.regs.access`
    or :mod:`jitree.dispatch.native.side_exits`, to which addresses are integers."""
    kinds, results, attributes = _CALLS[name]
    result, made = results.split()
    parameters, lines, passed = [], [], []
    for number, kind in enumerate(kinds.split()):
        operand = f"%a{number}"
        parameters.append(f"{'ptr' if kind == 'released' else kind} {operand}")
        if kind == "released":
            lines.append(f"  %list = getelementptr i8, ptr {operand}, i64 {STATE['released']}")
            kind, operand = "ptr", "%list"
        lines.append(f"  %b{number} = {_CONVERSIONS[kind]} {operand}{'' if kind == 'i64' else ' to i64'}")
        passed.append(f"i64 %b{number}")
    lines.append(f"  {'' if made == 'void' else '%made = '}call {made} @{name}({', '.join(passed)})")
    if result == "ptr":
        lines.append("  %place = inttoptr i64 %made to ptr")
    lines.append(
        "  ret ptr %place"
        if result == "ptr"
        else "  ret void"
        if result == "void"
        else f"  ret {result} %made"
    )
    convention = "" if attributes == "#2" else "fastcc "  # nothing is left of what is inlined
    head = f"define internal {convention}{result} @vm.{name}({', '.join(parameters)}) {attributes} {{"
    return "\n".join([head, *lines, "}"])
