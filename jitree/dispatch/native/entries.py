"""How the interpreter enters native functions: arguments and results lie in registers in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from jitree.codegen.ir_text import LIKELY, LLVM_TYPES, FunctionText
from jitree.dispatch.native.calls import Needs
from jitree.dispatch.native.emitter import struct_type
from jitree.dispatch.native.source import FunctionSource
from jitree.regs.layout import FRAME, MODULE, STATE

_ALIGNMENTS: Final = {"i32": 4, "f32": 4, "i64": 8, "f64": 8, "ref": 8}


def enter_symbol(ordinal: int) -> str:
    """The symbol of the entry that runs a function whose frame has just been made."""
    return f"enter.{ordinal}"


def resume_symbol(ordinal: int) -> str:
    """The symbol of the entry that goes on in the middle of a function, at one of its places."""
    return f"resume.{ordinal}"


def tail_symbol(ordinal: int) -> str:
    """The symbol of the entry that goes on inside a nest: to its header, and from there as ``resume``."""
    return f"tail.{ordinal}"


class _Entry(FunctionText):
    """``i64 (state, frame, fuel)`` over the registers of a frame."""

    def __init__(self, symbol: str) -> None:
        super().__init__()
        self._symbol = symbol
        self.values = self.pointer("%frame", FRAME["values"])
        self.refs = self.pointer("%frame", FRAME["refs"])

    def pointer(self, record: str, offset: int) -> str:
        return self.let(f"load ptr, ptr {self.field(record, offset)}, align 8")

    def word(self, record: str, offset: int) -> str:
        return self.let(f"load i64, ptr {self.field(record, offset)}, align 8")

    def text(self) -> str:
        head = f'define i64 @"{self._symbol}"(ptr %state, ptr %frame, i64 %fuel) #0 {{'
        return "\n".join([head, *self._lines, "}\n"])


def enter_text(function: FunctionSource, needs: Needs) -> str:
    """Entry of a function that the interpreter calls; without room on the stack it is left to that."""
    entry = _Entry(enter_symbol(function.ordinal))
    sizes = (("%frame", FRAME.size * needs.frames), (entry.values, needs.values), (entry.refs, needs.refs))
    ends = ", ".join(f"ptr {entry.field(base, size)}" for base, size in sizes)
    entry.branch(entry.let(f"call i1 @room(ptr %state, {ends})"), "call", "refuse", LIKELY)
    entry.label("refuse")
    entry.do(
        f"call fastcc void @vm.side_exit(ptr %state, ptr %frame, ptr {entry.values}, ptr {entry.refs}, "
        f"i64 {function.record}, i64 {function.start}, i64 %fuel)"
    )
    entry.do("ret i64 %fuel")
    entry.label("call")
    arguments = []
    for kind, slot in function.arguments:
        place = entry.field(*((entry.refs, 8 * slot) if kind == "ref" else (entry.values, 4 * slot)))
        given = entry.let(f"load {LLVM_TYPES[kind]}, ptr {place}, align {_ALIGNMENTS[kind]}")
        arguments.append(f"{LLVM_TYPES[kind]} {given}")
    return _call_and_deliver(entry, function, f"f{function.ordinal}", arguments)


def resume_text(function: FunctionSource) -> str:
    """Entry in the middle of a function."""
    return _call_and_deliver(_Entry(resume_symbol(function.ordinal)), function, f"r{function.ordinal}")


def tail_text(function: FunctionSource, stops: Iterable[int]) -> str:
    """Entry inside the nests of a function, in code that leaves at ``stops``: there it is resumed."""
    entry = _Entry(tail_symbol(function.ordinal))

    def go_on(fuel: str) -> None:
        spent = entry.let(f"icmp ule i64 {fuel}, 1")
        inner = entry.let(f"icmp ne ptr {entry.pointer('%state', STATE['frame'])}, %frame")
        entry.branch(entry.let(f"or i1 {spent}, {inner}"), "interpret", "look")
        entry.label("look")
        code = entry.word(entry.pointer("%state", STATE["module"]), MODULE["code"])
        distance = entry.let(f"sub i64 {entry.word('%state', STATE['pc'])}, {code}")
        cases = " ".join(f"i64 {pc}, label %resume" for pc in stops)
        entry.do(f"switch i64 {entry.let(f'lshr i64 {distance}, 2')}, label %interpret [ {cases} ]")
        entry.label("resume")
        symbol = resume_symbol(function.ordinal)
        resumed = entry.let(f'call i64 @"{symbol}"(ptr %state, ptr %frame, i64 {fuel})')
        entry.do(f"ret i64 {resumed}")
        entry.label("interpret")

    return _call_and_deliver(entry, function, f"t{function.ordinal}", (), go_on)


def _call_and_deliver(
    entry: _Entry,
    function: FunctionSource,
    symbol: str,
    arguments: Sequence[str] = (),
    after_exit: Callable[[str], None] | None = None,
) -> str:
    """Calls and puts the results into the registers that the call of the interpreter wants them in. After a
    side exit, ``after_exit`` is given the fuel."""
    kind = struct_type(function.results)
    registers = f"ptr %state, ptr %frame, ptr {entry.values}, ptr {entry.refs}, i64 %fuel"
    result = entry.let(f"call fastcc {kind} @{symbol}({', '.join([registers, *arguments])})")
    left = entry.let(f"extractvalue {kind} {result}, 0")
    entry.branch(entry.let(f"icmp eq i64 {left}, 0"), "exit", "deliver")
    entry.label("exit")
    fuel = entry.word("%state", STATE["fuel"])
    if after_exit is not None:
        after_exit(fuel)
    entry.do(f"ret i64 {fuel}")
    entry.label("deliver")
    if function.results:
        places = entry.pointer("%frame", FRAME["results"])
        values = entry.pointer("%frame", FRAME["values"] - FRAME.size)
        refs = entry.pointer("%frame", FRAME["refs"] - FRAME.size)
    for number, name in enumerate(function.results):
        value = entry.let(f"extractvalue {kind} {result}, {number + 1}")
        slot = entry.let(f"load i32, ptr {entry.field(places, 8 * number + 4)}, align 4")
        base, element = (refs, "ptr") if name == "ref" else (values, "i32")
        place = entry.let(f"getelementptr {element}, ptr {base}, i32 {slot}")
        if name == "ref":
            old = entry.let(f"load ptr, ptr {place}, align 8")
            entry.do(f"store ptr {value}, ptr {place}, align 8")
            entry.do(f"call void @vm.drop(ptr {old}, ptr %state)")
        else:
            entry.do(f"store {LLVM_TYPES[name]} {value}, ptr {place}, align {_ALIGNMENTS[name]}")
    entry.do("call fastcc void @vm.pop(ptr %state, ptr %frame)")
    entry.do(f"ret i64 {left}")
    return entry.text()
