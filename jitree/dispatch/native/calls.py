"""Emits calls, returns and scratch buffers, and the interpreter's ways into functions.

Calls are between functions of a module, or of imports. Where the interpreter enters, arguments and results
lie in registers in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import LIKELY, LLVM_TYPES, FunctionText
from jitree.dispatch.native.compiled_site import Shortcut, ask, read_back, spill_operands
from jitree.dispatch.native.emitter import Emitter, Registers, struct_type
from jitree.dispatch.native.prelude import FIXED
from jitree.dispatch.native.source import FunctionSource, ModuleSource
from jitree.dispatch.native.ssa import REF, SsaInstruction, Value, operand
from jitree.regs.layout import COMPILED_DONE, FRAME, IMPORT, MODULE, SCRATCH_ALIGNMENT, STATE

IMPORT_WORDS: Final = 6
"""Words of a ``call.import`` in front of its list of arguments."""
_INTERNAL_WORDS: Final = 5

_ALIGNMENTS: Final = {"i32": 4, "f32": 4, "i64": 8, "f64": 8, "ref": 8}
_FRAME: Final = 128
"""Bytes of the processor's stack that a function takes beside its registers."""
_LARGE: Final = 8 << 10
"""Bytes that a call takes without looking."""


class Needs(NamedTuple):
    """Counts stack of a function and its callees. Calls that check for themselves are not counted."""

    frames: int
    values: int
    """Bytes of value slots."""
    refs: int
    """Bytes of ref registers."""

    @property
    def is_large(self) -> bool:
        """Whether each call looks for room, also where no function calls itself."""
        return _FRAME * self.frames + self.values + self.refs > _LARGE


class Callees(NamedTuple):
    """What is known of the functions of a module."""

    source: ModuleSource
    needs: Mapping[int, Needs]
    """What the functions that are native need, by ordinal."""
    recursive: frozenset[int]
    """Functions that can come back to themselves."""
    bounded: frozenset[int]
    """Functions without loops and calls, which take no fuel."""
    asks: bool
    """Whether Python may execute instructions of theirs."""


def emit_call(
    emitter: Emitter, instruction: SsaInstruction, following: SsaInstruction, callees: Callees
) -> None:
    """``call.internal``; ``following`` is the instruction after it."""
    ordinal = instruction.literals[0]
    needs = callees.needs.get(ordinal)
    if needs is None:
        emitter.jump(emitter.side_exit())
        emitter.label(emitter.fresh("never"))
        for result in instruction.results:
            emitter.define(result, f"freeze {LLVM_TYPES[result.type]} poison")
        return
    if needs.is_large or {ordinal, emitter.function.ordinal} <= callees.recursive:
        _require_room(emitter, needs)
    if ordinal not in callees.bounded:
        emitter.spend(instruction)
    emitter.retain_all(instruction.retained)
    arguments = ["ptr %state", "ptr %frame.next", "ptr %values.next", "ptr %refs.next"]
    arguments.append(f"i64 {emitter.fuel_left()}")
    arguments += [f"{LLVM_TYPES[value.type]} {operand(value)}" for value in instruction.operands]
    kind = struct_type(callees.source.functions[ordinal].results)
    apart = " noinline" if needs.is_large else ""
    call = emitter.let(f"call fastcc {kind} @f{ordinal}({', '.join(arguments)}){apart}")
    left = emitter.let(f"extractvalue {kind} {call}, 0")
    emitter.do(f"store i64 {left}, ptr %fuel.at, align 8")
    suspended, returned = emitter.fresh("suspended"), emitter.fresh("returned")
    emitter.branch(emitter.let(f"icmp eq i64 {left}, 0"), suspended, returned, ", !prof !1")
    _suspend(emitter, suspended, instruction, following, callees.source)
    emitter.label(returned)
    for number, result in enumerate(instruction.results, 1):
        emitter.define(result, f"extractvalue {kind} {call}, {number}")
    emitter.drop_all(instruction.dropped)


def _require_room(emitter: Emitter, needs: Needs) -> None:
    frame = emitter.field("%frame.next", FRAME.size * needs.frames)
    values = emitter.field("%values.next", needs.values)
    refs = emitter.field("%refs.next", needs.refs)
    emitter.require(emitter.let(f"call i1 @room(ptr %state, ptr {frame}, ptr {values}, ptr {refs})"))
    emitter.require(emitter.let("call i1 @deep.enough(ptr %state)"))


def _suspend(
    emitter: Emitter, label: str, instruction: SsaInstruction, following: SsaInstruction, source: ModuleSource
) -> None:
    """Adds a block in which this function too leaves its call."""
    registers = _during_call(emitter.registers, instruction)
    live = following.live
    for variable in instruction.outputs:
        if variable.type != REF:
            live &= ~(1 << emitter.function.bit(variable))
    with emitter.aside(label):
        emitter.save(registers, live, ())
        pc = instruction.pc
        after = pc + source.words[pc + 1]
        results = pc + _INTERNAL_WORDS + 3 * source.words[pc + 3]
        emitter.do(
            "call fastcc void @vm.suspend(ptr %state, ptr %frame, ptr %values, ptr %refs, "
            f"i64 {emitter.function.record}, i64 {after}, i64 {results})"
        )
        emitter.do(f"ret {emitter.result_type} zeroinitializer")


def _during_call(registers: Registers, instruction: SsaInstruction) -> Registers:
    """What the registers hold while the callee runs: arguments have been moved away, results have not
    come."""
    found = dict(registers)
    results = set(instruction.results)
    for variable, value in instruction.changes:
        if value not in results:
            found[variable] = value
    references = [variable for variable in instruction.outputs if variable.type == REF]
    for variable, old in zip(references, instruction.dropped, strict=True):
        if old not in results:  # else a second result for the same register
            found[variable] = old
    return found


def emit_import(emitter: Emitter, instruction: SsaInstruction) -> None:
    """``call.import``: by the function's machine code, else by Python; the interpreter calls other
    modules."""
    imports = emitter.module_pointer("imports")
    record = emitter.field(imports, IMPORT.size * instruction.literals[1])
    written = spill_operands(emitter, instruction)
    code = emitter.let(f"load ptr, ptr {emitter.field(record, IMPORT['compiled'])}, align 8")
    compiled, slow, done = emitter.fresh("compiled"), emitter.fresh("python"), emitter.fresh("called")
    emitter.branch(emitter.let(f"icmp eq ptr {code}, null"), slow, compiled)
    emitter.label(compiled)
    words = emitter.field(emitter.module_pointer("code"), 4 * (instruction.pc + IMPORT_WORDS))
    status = emitter.let(f"call i32 {code}(ptr %state, ptr %values, ptr %refs, ptr {words})")
    emitter.branch(emitter.let(f"icmp eq i32 {status}, {COMPILED_DONE}"), done, slow)
    with emitter.aside(slow):
        ask(emitter, instruction, written, record)
        emitter.do(f"br label %{done}")
    emitter.label(done)
    emitter.spend_import()
    read_back(emitter, instruction)


def emit_resolved(emitter: Emitter, instruction: SsaInstruction) -> None:
    imports = emitter.module_pointer("imports")
    place = emitter.field(imports, IMPORT.size * instruction.literals[0] + IMPORT["resolved"])
    resolved = emitter.let(f"load i64, ptr {place}, align 8{FIXED}")
    emitter.define(instruction.results[0], f"trunc i64 {resolved} to i32")


_KNOWN: Final = ("const.i32", "const.i32.zero")
_OF_SCRATCH: Final = frozenset(((), *((1 << bit,) for bit in range(SCRATCH_ALIGNMENT.bit_length()))))
"""Literals of constants: alignments that the memory for buffers has which die with their function."""


def emit_alloc(emitter: Emitter, instruction: SsaInstruction) -> None:
    """``buffer.alloc``: from the memory for buffers that die with their function, where there is some."""
    length, alignment = map(operand, instruction.operands)
    shortcut = Shortcut(emitter, instruction)
    wanted = instruction.operands[1]
    if wanted.operation not in _KNOWN or wanted.literals not in _OF_SCRATCH:
        shortcut.require(emitter.let(f"icmp ule i32 {alignment}, {SCRATCH_ALIGNMENT}"))
        shared = emitter.let(f"and i32 {alignment}, {emitter.let(f'sub i32 {alignment}, 1')}")
        shortcut.require(emitter.let(f"icmp eq i32 {shared}, 0"))
    allocate = "take" if instruction.results[0] in emitter.filled else "allocate"
    entry = emitter.let(f"call fastcc ptr @vm.{allocate}(ptr %state, i64 {length})")
    shortcut.require(emitter.let(f"icmp ne ptr {entry}, null"))
    (variable,) = instruction.outputs
    emitter.drop_all((emitter.registers[variable],))
    shortcut.finish(entry)


def emit_return(emitter: Emitter, instruction: SsaInstruction) -> None:
    emitter.retain_all(instruction.retained)
    emitter.drop_all(instruction.dropped)
    result = _pack(emitter, emitter.result_type, instruction.operands)
    emitter.do(f"ret {emitter.result_type} {result}")


def _pack(emitter: Emitter, kind: str, values: tuple[Value, ...]) -> str:
    result = emitter.let(f"insertvalue {kind} zeroinitializer, i64 {emitter.fuel_left()}, 0")
    for number, value in enumerate(values, 1):
        result = emitter.let(
            f"insertvalue {kind} {result}, {LLVM_TYPES[value.type]} {operand(value)}, {number}"
        )
    return result


EMITTERS: Final[dict[str, Callable[[Emitter, SsaInstruction], None]]] = {
    "call.import": emit_import,
    "import.resolved": emit_resolved,
    "buffer.alloc": emit_alloc,
    "return": emit_return,
}


def enter_symbol(ordinal: int) -> str:
    """Names the entry that runs a function with a new frame."""
    return f"enter.{ordinal}"


def resume_symbol(ordinal: int) -> str:
    """Names the entry that resumes a function at a place."""
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
    """Calls and puts results where the interpreter's call wants them. After a side exit, ``after_exit`` is
    given the fuel."""
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
