"""Generates the loop's IR and its image, from the instruction table.

A handler for each instruction and each fused superinstruction, and the table of handlers; the text is kept
nowhere. Numba cannot say that handlers call each other in place of returning. So they are LLVM IR, which an
intrinsic links into the function ``run`` where that is compiled: by Numba (:mod:`jitree.dispatch.fast.loop`),
or by the builder of the image. Only those and tests import this module. What handlers do on memory and
references is :mod:`jitree.dispatch.native.site`, whose registers decoded words name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from llvmlite import ir

from jitree.base.stop_word import NEVER
from jitree.codegen.checked.layout import frame_checks
from jitree.codegen.frontend import compiled, intrinsic, link_texts, signature, signature_of, types
from jitree.codegen.image.generated import Generated, one_unit
from jitree.codegen.image.shipped import CHECKED
from jitree.dispatch import semantics_code
from jitree.dispatch.fast.calls import (
    BRANCHES,
    CALLS,
    emit_branch,
    emit_call,
    emit_conditional_next,
    emit_moves,
    emit_shape,
    emit_two_ways,
)
from jitree.dispatch.fast.handler import (
    ARITHMETIC,
    PARAMETERS,
    Handler,
    declarations,
    emit_arithmetic,
    emit_copied_compare,
)
from jitree.dispatch.native.rows import METADATA, declaration, on_pointers
from jitree.dispatch.native.site import (
    LIST_STATEMENTS,
    MEMORY_STATEMENTS,
    REFERENCE_STATEMENTS,
    Site,
    Statement,
)
from jitree.dispatch.semantics import SEMANTICS
from jitree.regs.access import CALLED, CLOCK, STOP, clock
from jitree.regs.layout import (
    ACCESS_WRITE,
    ENTRY,
    EXIT_FINISHED,
    EXIT_OUT_OF_FUEL,
    EXIT_SIDE,
    EXIT_STOPPED,
    FRAME,
    KIND_BUFFER,
    STATE,
)
from jitree.vmfb.instructions import BY_MNEMONIC
from jitree.vmfb.superinstructions import LOOP_BY_NAME, LOOPS, SUPERINSTRUCTIONS, Part, Superinstruction
from jitree.vmfb.words import OPCODE_NAMES

_STATEMENTS: Final[Mapping[str, Statement]] = {
    **MEMORY_STATEMENTS, **LIST_STATEMENTS, **REFERENCE_STATEMENTS
}  # fmt: skip
MEMORY: Final = tuple(_STATEMENTS)
_FETCHED: Final = ("buffer.load.", "buffer.store.", "global.")
"""Beginnings of the mnemonics of frequent instructions, whose words are read two by two."""


def emit_on_memory(handler: Handler, mnemonic: str) -> None:
    site = LoopSite(handler, mnemonic)
    if mnemonic.startswith(_FETCHED):
        handler.fetch(1, site.size)
    site.finish(_STATEMENTS[mnemonic](site))


class LoopSite(Site):
    """Values are the bits in their registers: i32 or i64."""

    def __init__(self, handler: Handler, mnemonic: str) -> None:
        super().__init__(handler, mnemonic)
        self._handler = handler
        self._operands: list[tuple[int, str]] = []
        """(word, type) of each."""
        self._literals: list[int] = []
        self._result = (0, "")
        self.size = 1
        """Words of the instruction."""
        for operand in BY_MNEMONIC[mnemonic].operands:
            prefix, _, kind = operand.kind.partition(".")
            place = self.size, _TYPES.get(kind, "i32")
            if operand.output:
                self._result = place
            elif prefix == "imm":
                self._literals.append(self.size)
            else:
                self._operands.append(place)
                self.size += operand.movable  # a word that says whether it is moved
            self.size += 1

    def operand(self, number: int) -> str:
        position, kind = self._operands[number]
        return self._handler.ref(position) if kind == "ptr" else self._handler.value(kind, position)

    def kind(self, number: int) -> str:
        return self._operands[number][1]

    @property
    def result_kind(self) -> str:
        return self._result[1]

    def literal(self, number: int) -> str:
        return self._handler.ordinal(self._literals[number])

    def truth(self, number: int) -> str:
        return self.text.let(f"icmp ne i32 {self.operand(number)}, 0")

    def comparison(self, condition: str) -> str:
        return f"zext i1 {condition} to i32"

    def take(self, number: int) -> str:
        return take(self._handler, self._handler.place(self._operands[number][0]))

    def drop(self, number: int) -> None:
        self.text.do(f"call void @vm.drop(ptr {self.take(number)}, ptr %state)")

    def put(self, place: str, number: int, scope: str) -> None:
        self.text.do(f"call void @vm.put(ptr {self.take(number)}, ptr {place}, ptr %state)")

    def entry(self, number: int, kind: int) -> str:
        reference = self.operand(number)
        self.require(self.text.let(f"icmp ne ptr {reference}, null"))
        actual = self._handler.load("i32", self.text.field(reference, ENTRY["kind"]))
        self.require(self.text.let(f"icmp eq i32 {actual}, {kind}"))
        return reference

    def element(self, number: int, offset: int, kind: str, shift: int, is_written: bool) -> str:
        entry, index = self.entry(number, KIND_BUFFER), self.operand(offset)
        limit = self.text.let(f"lshr i64 {self._length(entry)}, {shift}")
        self.require(self.text.let(f"icmp ult i64 {index}, {limit}"))
        byte = self.text.let(f"shl i64 {index}, {shift}")
        place = self.indexed("i8", self._address(entry), byte)
        if is_written:
            self._require_writable(entry)
        return place

    def extent(self, number: int, is_written: bool = False) -> tuple[str, str]:
        entry = self.entry(number, KIND_BUFFER)
        if is_written:
            self._require_writable(entry)
        return self._address(entry), self._length(entry)

    def scoped(self, access: str, scope: str) -> str:
        """A handler is too short for it to matter."""
        return access

    def _length(self, entry: str) -> str:
        return self._handler.load("i64", self.text.field(entry, ENTRY["length"]))

    def _address(self, entry: str) -> str:
        return self._handler.pointer_field(entry, ENTRY["address"])

    def _require_writable(self, entry: str) -> None:
        access = self._handler.load("i32", self.text.field(entry, ENTRY["access"]))
        bit = self.text.let(f"and i32 {access}, {ACCESS_WRITE}")
        self.require(self.text.let(f"icmp ne i32 {bit}, 0"))

    def finish(self, result: str | None) -> None:
        """Writes the result; the instruction is done."""
        position, kind = self._result
        if result is not None and kind == "ptr":
            self._handler.put(position, result)
        elif result is not None:
            self._handler.set_value(kind, position, self.text.let(result))
        self._handler.advance(self.size)


_TYPES: Final = {"ref": "ptr", "i64": "i64", "f64": "i64"}


def take(handler: Handler, operand: str) -> str:
    """Takes a counted reference out of a register named by two words: moved out, or copied."""
    register = handler.ref_place(handler.ordinal_at(operand))
    ref = handler.load_pointer(register)
    moved = handler.let(f"icmp ne i64 {handler.ordinal_at(handler.element('i32', operand, '1'))}, 0")
    move, copy, taken = handler.fresh("move"), handler.fresh("copy"), handler.fresh("taken")
    handler.branch(moved, move, copy)
    handler.label(move)
    handler.store_pointer("null", register)
    handler.jump(taken)
    handler.label(copy)
    handler.do(f"call void @vm.retain(ptr {ref})")
    handler.jump(taken)
    handler.label(taken)
    return ref


def emit_reference(handler: Handler, mnemonic: str) -> None:
    _REFERENCE_EMITTERS[mnemonic](handler)


def _emit_zero(handler: Handler) -> None:
    handler.put(1, "null")
    handler.advance(2)


def _emit_discard(handler: Handler) -> None:
    """count, (ref, move) each: drops all of them"""
    first = handler.place(2)
    count = handler.ordinal(1)
    with handler.counted(count) as index:
        operand = handler.element("[2 x i32]", first, index)
        register = handler.ref_place(handler.ordinal_at(operand))
        handler.do(f"call void @vm.put(ptr null, ptr {register}, ptr %state)")
    handler.move_to(handler.element("[2 x i32]", first, count))


def _emit_switch(handler: Handler) -> None:
    """index, type, (default, move), count, (case, move) each, result; only the chosen one moves"""
    index = handler.unsigned_value(1)
    count = handler.ordinal(5)
    inside = handler.let(f"icmp ult i64 {index}, {count}")
    cases = handler.place(6)
    case = handler.element("[2 x i32]", cases, index)
    chosen = handler.let(f"select i1 {inside}, ptr {case}, ptr {handler.place(3)}")
    reference = handler.load_pointer(handler.ref_place(handler.ordinal_at(chosen)))
    LoopSite(handler, "switch.ref").require_type(reference, 0)
    ref = take(handler, chosen)
    out = handler.element("[2 x i32]", cases, count)
    register = handler.ref_place(handler.ordinal_at(out))
    handler.do(f"call void @vm.put(ptr {ref}, ptr {register}, ptr %state)")
    handler.move_to(handler.element("i32", out, "1"))


_REFERENCE_EMITTERS: Final = {
    "const.ref.zero": _emit_zero,
    "discard.refs": _emit_discard,
    "switch.ref": _emit_switch,
}
REFERENCES: Final = tuple(_REFERENCE_EMITTERS)


_COUNTING: Final = ("retain", "drop", "put", "move")
_ACCESS: Final = tuple(function.__name__ for function in CALLED)

ATTRIBUTES: Final = """\
attributes #1 = { nounwind noinline "no-builtins" }
"""

_RETURN: Final = """\
; Leaves the loop: {why}.
define internal preserve_nonecc i64 @{name}({parameters}) #1 {{
  %pc.at = getelementptr i8, ptr %state, i64 {pc}
  store ptr %pc, ptr %pc.at, align 8
  %values.at = getelementptr i8, ptr %state, i64 {values}
  store ptr %values, ptr %values.at, align 8
  %refs.at = getelementptr i8, ptr %state, i64 {refs}
  store ptr %refs, ptr %refs.at, align 8
  %fuel.at = getelementptr i8, ptr %state, i64 {fuel}
  store i64 %fuel, ptr %fuel.at, align 8
  %status.at = getelementptr i8, ptr %state, i64 {status}
  store i64 {left}, ptr %status.at, align 8
  ret i64 {left}
}}
"""

_EXIT: Final = """\
; Leaves the loop: the call of the host is complete. What machine code made and nothing refers to goes first.
define internal preserve_nonecc i64 @exit({parameters}) #1 {{
  %released.at = getelementptr i8, ptr %state, i64 {released}
  %released = load ptr, ptr %released.at, align 8
  %sweep.at = getelementptr i8, ptr %state, i64 {sweep}
  %sweep = load ptr, ptr %sweep.at, align 8
  %some = icmp ne ptr %released, null
  %able = icmp ne ptr %sweep, null
  %both = and i1 %some, %able
  br i1 %both, label %free, label %leave
free:
  call void %sweep(ptr %state)
  br label %leave
leave:
  %left = call preserve_nonecc i64 @finish({arguments})
  ret i64 %left
}}
"""

_REFUEL: Final = """\
; The fuel is used up, and nothing of this instruction has happened: it begins again with more, in its time.
define internal preserve_nonecc i64 @out_of_fuel({parameters}) #1 {{
  %more = call fastcc i64 @vm.refuel(ptr %state)
  %over = icmp eq i64 %more, 0
  br i1 %over, label %leave, label %go
leave:
  %left = musttail call preserve_nonecc i64 @out_of_time({arguments})
  ret i64 %left
go:
  %spendable = add i64 %more, 1
  %opcode = load i32, ptr %pc, align 4
  %index = zext i32 %opcode to i64
  %slot = getelementptr ptr, ptr %table, i64 %index
  %handler = load ptr, ptr %slot, align 8
  %done = musttail call preserve_nonecc i64 %handler({again})
  ret i64 %done
}}
"""

_RUN: Final = """\
; Runs from where the state block says until the loop must return; the result says why (EXIT_*). If a thread
; has rung, or a deadline has passed, the first branch looks: what Python has done since may have taken long.
define i64 @loop(ptr %state) #0 {{
  %here = call ptr @llvm.frameaddress.p0(i32 0)
  %stack.at = getelementptr i8, ptr %state, i64 {stack}
  %stack = load i64, ptr %stack.at, align 8
  %room = sub i64 0, %stack
  %limit = getelementptr i8, ptr %here, i64 %room
  %limit.at = getelementptr i8, ptr %state, i64 {stack_limit}
  store ptr %limit, ptr %limit.at, align 8
  %fuel.at = getelementptr i8, ptr %state, i64 {fuel}
  %left.before = load i64, ptr %fuel.at, align 8
  %math.at = getelementptr i8, ptr %state, i64 {math}
  %math = load ptr, ptr %math.at, align 8
  %word.place = getelementptr i8, ptr %math, i64 {stop}
  %word.at = load ptr, ptr %word.place, align 8
  %word = load i64, ptr %word.at, align 8
  %attended.at = getelementptr i8, ptr %state, i64 {attended}
  %attended = load i64, ptr %attended.at, align 8
  %rung = icmp ne i64 %word, %attended
  %limited = icmp slt i64 %word, {never}
  br i1 %limited, label %timed, label %begin
timed:
  %clock.place = getelementptr i8, ptr %math, i64 {clock}
  %clock = load ptr, ptr %clock.place, align 8
  %now = call i64 %clock()
  %passed = icmp sge i64 %now, %word
  br label %begin
begin:
  %late = phi i1 [ false, %0 ], [ %passed, %timed ]
  %looks = or i1 %rung, %late
  %fuel = select i1 %looks, i64 1, i64 %left.before
  %resume.at = getelementptr i8, ptr %state, i64 {resume}
  %resume = load ptr, ptr %resume.at, align 8
  %compiled = icmp ne ptr %resume, null
  br i1 %compiled, label %first, label %go
first:
  store ptr null, ptr %resume.at, align 8
  %frame.at = getelementptr i8, ptr %state, i64 {frame}
  %frame = load ptr, ptr %frame.at, align 8
  %remaining = call i64 %resume(ptr %state, ptr %frame, i64 %fuel)
  %stopped = icmp eq i64 %remaining, 0
  br i1 %stopped, label %stop, label %go
stop:
  %status.at = getelementptr i8, ptr %state, i64 {status}
  store i64 {exit_stopped}, ptr %status.at, align 8
  ret i64 {exit_stopped}
go:
  %spendable = phi i64 [ %fuel, %begin ], [ %remaining, %first ]
  %pc.at = getelementptr i8, ptr %state, i64 {pc}
  %pc = load ptr, ptr %pc.at, align 8
  %values.at = getelementptr i8, ptr %state, i64 {values}
  %values = load ptr, ptr %values.at, align 8
  %refs.at = getelementptr i8, ptr %state, i64 {refs}
  %refs = load ptr, ptr %refs.at, align 8
  %opcode = load i32, ptr %pc, align 4
  %index = zext i32 %opcode to i64
  %slot = getelementptr ptr, ptr @handlers, i64 %index
  %handler = load ptr, ptr %slot, align 8
  %left = call preserve_nonecc i64 %handler(ptr %pc, ptr %values, ptr %refs, ptr %state, ptr @handlers, \
i64 %spendable)
  ret i64 %left
}}
declare ptr @llvm.frameaddress.p0(i32)
"""


def _returning(name: str, why: str, left: int) -> str:
    return _RETURN.format(name=name, why=why, left=left, parameters=PARAMETERS, **STATE.offsets)


def prelude() -> str:
    """Everything but the handlers and their table."""
    parts = [
        _RUN.format(exit_stopped=EXIT_STOPPED, stop=STOP, never=NEVER, clock=CLOCK, **STATE.offsets),
        _returning("side_exit", "nothing of this instruction has happened", EXIT_SIDE),
        _returning("out_of_time", "the time is over", EXIT_OUT_OF_FUEL),
        _REFUEL.format(
            parameters=PARAMETERS, arguments=PARAMETERS, again=PARAMETERS.replace("%fuel", "%spendable")
        ),
        _returning("finish", "the call of the host is complete", EXIT_FINISHED),
        _EXIT.format(parameters=PARAMETERS, arguments=PARAMETERS, **STATE.offsets),
        *(declaration(name) + on_pointers(name) for name in (*_COUNTING, *_ACCESS, "refuel")),
    ]
    return "\n".join(parts)


SIDE_EXITS: Final = frozenset((
    "block", "call", "call.variadic", "call.yieldable", "call.variadic.yieldable",  # never in decoded code
    "buffer.alloc", "buffer.clone", "buffer.hash", "fail", "yield", "trace", "print",
))  # fmt: skip
"""Instructions without a handler: they allocate, fail or are rare, and leave the loop to the plain tier."""

_INSTRUCTIONS: Final = tuple((Part(name),) for name in OPCODE_NAMES)
_EMITTERS: Final = {
    **dict.fromkeys(ARITHMETIC, emit_arithmetic),
    **dict.fromkeys(BRANCHES, emit_branch),
    **dict.fromkeys(CALLS, emit_call),
    **dict.fromkeys(REFERENCES, emit_reference),
    **dict.fromkeys(MEMORY, emit_on_memory),
}

SIGNATURE: Final = signature(types.int64, types.int64)


def handler_text(parts: Superinstruction) -> str:
    """The IR of the handler of an instruction or a superinstruction."""
    handler = Handler(_symbol(parts))
    for part in parts:
        handler.begin_part(part.links)
        _emitter(part.name)(handler, part.name)
        handler.end_part()
    if not handler.ended:
        handler.dispatch()
    return handler.text()


def _symbol(parts: Superinstruction) -> str:
    return f"op.{' + '.join(map(str, parts))}"


def _emitter(part: str) -> Callable[[Handler, str], None]:
    if part.startswith("br:"):
        return emit_shape
    if part.startswith("cond_br:"):
        return emit_conditional_next
    return _emit_loop if part.startswith("loop:") else _EMITTERS[part]


def _emit_loop(handler: Handler, name: str) -> None:
    """Writes the moves, the comparison and the branch of a loop."""
    loop = LOOP_BY_NAME[name]
    handler.spend()
    emit_moves(handler, loop.shape)
    condition = emit_copied_compare(handler, loop.compare, loop.branch_size)
    operands = len(SEMANTICS[loop.compare].argument_types) + 1
    emit_two_ways(handler, condition, loop.branch_size + operands)


def loop_text() -> str:
    """The whole text but for the semantics functions, which it declares."""
    superinstructions = (*_INSTRUCTIONS, *((Part(loop.name),) for loop in LOOPS), *SUPERINSTRUCTIONS)
    handlers = [handler_text(parts) for parts in superinstructions if parts[0].name not in SIDE_EXITS]
    declared = ["declare i64 @llvm.umin.i64(i64, i64)", *declarations()]
    checks = _checks(superinstructions) if CHECKED else []
    return "\n".join(
        [prelude(), *declared, *handlers, *checks, _table(superinstructions), ATTRIBUTES + METADATA]
    )


def _checks(superinstructions: Sequence[Superinstruction]) -> list[str]:
    """What looks at registers of frames, and the names of handlers for it."""
    names = [_symbol(parts) for parts in superinstructions]
    texts = [f'@"checked.{name}" = internal constant [{len(name) + 1} x i8] c"{name}\\00"' for name in names]
    values, refs = ((FRAME[name], FRAME[f"{name}_end"]) for name in ("values", "refs"))
    return [frame_checks(STATE["frame"], values=values, refs=refs), *texts]


def _table(superinstructions: Sequence[Superinstruction]) -> str:
    """The handlers by opcode word."""
    entries = [
        "  ptr @side_exit" if parts[0].name in SIDE_EXITS else f'  ptr @"{_symbol(parts)}"'
        for parts in superinstructions
    ]
    rows = ",\n".join(entries)
    return f"@handlers = internal constant [{len(entries)} x ptr] [\n{rows}\n]"


@intrinsic(SIGNATURE)
def handlers(context: Any, builder: Any, stated: Any, given: Any) -> Any:
    """``handlers(state)`` goes through the handlers, from where the state block says."""
    link_texts(context, [loop_text(), *semantics_code.texts()], "loop")
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.IntType(64), [pointer])
    return builder.call(ir.Function(builder.module, kind, "loop"), [builder.inttoptr(given[0], pointer)])


def run(state: int) -> int:
    """Runs bytecode on the state block at an address until Python is needed; why, is the result (EXIT_*)."""
    return handlers(state)  # type: ignore[call-arg,no-any-return]


def generate() -> Generated:
    """The loop's image: the functions ``run`` and ``clock``, what they link, and the rows as notes."""
    made, time = compiled(run, "run", SIGNATURE), compiled(clock, "clock", signature_of(clock))
    return one_unit([made.text, *made.linked, time.text], ("run", "clock"), semantics_code.rows())
