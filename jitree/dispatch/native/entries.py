"""How the interpreter enters native functions: arguments and results lie in registers in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from jitree.dispatch.native.calls import Needs
from jitree.dispatch.native.emitter import struct_type
from jitree.dispatch.native.module_text import LLVM_TYPES
from jitree.dispatch.native.source import FunctionSource
from jitree.regs.layout import FRAME, MODULE, STATE

_ALIGNMENTS: Final = {"i32": 4, "f32": 4, "i64": 8, "f64": 8, "ref": 8}


def enter_symbol(ordinal: int) -> str:
    """Of the entry that runs a function whose frame has just been made."""
    return f"enter.{ordinal}"


def resume_symbol(ordinal: int) -> str:
    """Of the entry that goes on in the middle of a function, at one of its places."""
    return f"resume.{ordinal}"


def tail_symbol(ordinal: int) -> str:
    """Of the entry that goes on inside a nest: to its header, and from there as ``resume``."""
    return f"tail.{ordinal}"


def enter_text(function: FunctionSource, needs: Needs) -> str:
    """Entry of a function that the interpreter calls; without room on the stack it is left to that."""
    lines = _head(enter_symbol(function.ordinal))
    lines += [
        f"  %frame.end = getelementptr i8, ptr %frame, i64 {FRAME.size * needs.frames}",
        f"  %values.end = getelementptr i8, ptr %values, i64 {needs.values}",
        f"  %refs.end = getelementptr i8, ptr %refs, i64 {needs.refs}",
        "  %fits = call i1 @room(ptr %state, ptr %frame.end, ptr %values.end, ptr %refs.end)",
        "  br i1 %fits, label %call, label %refuse, !prof !2",
        "refuse:",
        "  call fastcc void @vm.side_exit(ptr %state, ptr %frame, ptr %values, ptr %refs, "
        f"i64 {function.ordinal}, i64 {function.start}, i64 %fuel)",
        "  ret i64 %fuel",
        "call:",
    ]
    arguments = []
    for number, (kind, slot) in enumerate(function.arguments):
        base, width = ("%refs", 8) if kind == "ref" else ("%values", 4)
        lines += [
            f"  %a{number}.at = getelementptr i8, ptr {base}, i64 {width * slot}",
            f"  %a{number} = load {LLVM_TYPES[kind]}, ptr %a{number}.at, align {_ALIGNMENTS[kind]}",
        ]
        arguments.append(f"{LLVM_TYPES[kind]} %a{number}")
    return "\n".join(lines + _call_and_deliver(function, f"f{function.ordinal}", arguments))


def resume_text(function: FunctionSource) -> str:
    """Entry in the middle of a function."""
    lines = [*_head(resume_symbol(function.ordinal)), "  br label %call", "call:"]
    return "\n".join(lines + _call_and_deliver(function, f"r{function.ordinal}", []))


def tail_text(function: FunctionSource, stops: Iterable[int]) -> str:
    """Entry inside the nests of a function, in code that leaves at ``stops``: there it is resumed."""
    cases = " ".join(f"i64 {pc}, label %resume" for pc in stops)
    lines = [
        *_head(tail_symbol(function.ordinal)),
        f"  %frame.at = getelementptr i8, ptr %state, i64 {STATE['frame']}",
        f"  %module.at = getelementptr i8, ptr %state, i64 {STATE['module']}",
        f"  %pc.at = getelementptr i8, ptr %state, i64 {STATE['pc']}",
        *_call_and_deliver(
            function,
            f"t{function.ordinal}",
            [],
            [
                "  %spent = icmp ule i64 %remaining, 1",
                "  %top = load ptr, ptr %frame.at, align 8",
                "  %inner = icmp ne ptr %top, %frame",
                "  %elsewhere = or i1 %spent, %inner",
                "  br i1 %elsewhere, label %interpret, label %look",
                "look:",
                "  %module = load ptr, ptr %module.at, align 8",
                f"  %code.at = getelementptr i8, ptr %module, i64 {MODULE['code']}",
                "  %code = load i64, ptr %code.at, align 8",
                "  %pc = load i64, ptr %pc.at, align 8",
                "  %distance = sub i64 %pc, %code",
                "  %word = lshr i64 %distance, 2",
                f"  switch i64 %word, label %interpret [ {cases} ]",
                "resume:",
                f'  %resumed = call i64 @"{resume_symbol(function.ordinal)}"'
                "(ptr %state, ptr %frame, i64 %remaining)",
                "  ret i64 %resumed",
                "interpret:",
            ],
        ),
    ]
    return "\n".join(lines)


def _head(symbol: str) -> list[str]:
    return [
        f'define i64 @"{symbol}"(ptr %state, ptr %frame, i64 %fuel) #0 {{',
        f"  %values.at = getelementptr i8, ptr %frame, i64 {FRAME['values']}",
        "  %values = load ptr, ptr %values.at, align 8",
        f"  %refs.at = getelementptr i8, ptr %frame, i64 {FRAME['refs']}",
        "  %refs = load ptr, ptr %refs.at, align 8",
    ]


def _call_and_deliver(
    function: FunctionSource, symbol: str, arguments: list[str], when_left: Sequence[str] = ()
) -> list[str]:
    """Calls and puts the results into the registers that the call of the interpreter wants them in. What is
    done ``when_left`` finds the fuel in ``%remaining``."""
    kind = struct_type(function.results)
    given = ", ".join(["ptr %state", "ptr %frame", "ptr %values", "ptr %refs", "i64 %fuel", *arguments])
    lines = [
        f"  %result = call fastcc {kind} @{symbol}({given})",
        f"  %left = extractvalue {kind} %result, 0",
        "  %gone = icmp eq i64 %left, 0",
        "  br i1 %gone, label %left.it, label %deliver",
        "left.it:",
        f"  %left.at = getelementptr i8, ptr %state, i64 {STATE['fuel']}",
        "  %remaining = load i64, ptr %left.at, align 8",
        *when_left,
        "  ret i64 %remaining",
        "deliver:",
    ]
    if function.results:
        lines += [
            f"  %list.at = getelementptr i8, ptr %frame, i64 {FRAME['results']}",
            "  %list = load ptr, ptr %list.at, align 8",
            f"  %caller.values.at = getelementptr i8, ptr %frame, i64 {FRAME['values'] - FRAME.size}",
            "  %caller.values = load ptr, ptr %caller.values.at, align 8",
            f"  %caller.refs.at = getelementptr i8, ptr %frame, i64 {FRAME['refs'] - FRAME.size}",
            "  %caller.refs = load ptr, ptr %caller.refs.at, align 8",
        ]
    for number, result in enumerate(function.results):
        lines += _deliver(number, result, kind)
    return [*lines, "  call fastcc void @vm.pop(ptr %state, ptr %frame)", "  ret i64 %left", "}\n"]


def _deliver(number: int, kind: str, struct: str) -> list[str]:
    name, llvm = f"%r{number}", LLVM_TYPES[kind]
    lines = [
        f"  {name} = extractvalue {struct} %result, {number + 1}",
        f"  {name}.word = getelementptr i8, ptr %list, i64 {8 * number + 4}",
        f"  {name}.slot = load i32, ptr {name}.word, align 4",
    ]
    if kind != "ref":
        return [
            *lines,
            f"  {name}.to = getelementptr i32, ptr %caller.values, i32 {name}.slot",
            f"  store {llvm} {name}, ptr {name}.to, align {_ALIGNMENTS[kind]}",
        ]
    return [
        *lines,
        f"  {name}.to = getelementptr ptr, ptr %caller.refs, i32 {name}.slot",
        f"  {name}.old = load ptr, ptr {name}.to, align 8",
        f"  store ptr {name}, ptr {name}.to, align 8",
        f"  call void @vm.drop(ptr {name}.old, ptr %state)",
    ]
