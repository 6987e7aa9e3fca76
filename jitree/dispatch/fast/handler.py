"""Writes the LLVM IR of one handler, and handlers of arithmetic.

A handler is the function that executes one instruction (or a fused run of them). It has the code pointer, the
frame's registers, the state block, the handler table and the fuel in arguments and ends by a tail call of the
handler of the instruction that comes next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from jitree.codegen.image.shipped import CHECKED
from jitree.codegen.ir_text import LLVM_TYPES, UNLIKELY
from jitree.dispatch.native.site import CheckedText
from jitree.dispatch.semantics import SEMANTICS, Semantic
from jitree.regs.layout import EXIT_STOPPED, MATH_FUNCTIONS, STATE

PARAMETERS: Final = "ptr %pc, ptr %values, ptr %refs, ptr %state, ptr %table, i64 %fuel"
_ALIGNMENT: Final = {"i32": 4, "i64": 8, "f32": 4, "f64": 8}
CONSTANT: Final = "!invariant.load !0"
"""Marks loads from decoded code and tables, which never change while the loop runs."""


class Handler(CheckedText):
    """IR text under construction. Operands are words relative to the current instruction.

    Methods return SSA names. Positions of words count from the instruction's opcode word.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._side_exits: list[str] = []
        self._base = "%pc"
        self._start = 0
        self._side_exit_label = ""
        self._fuel = "%fuel"
        self.ended = False
        self._parts: list[tuple[str, str]] = []
        self._written = ("", "")
        self._fetched: dict[tuple[str, int], str] = {}
        self._forwarded: dict[int, tuple[str, str]] = {}

    def text(self) -> str:
        """The whole function. The last part must have ended with :meth:`dispatch` or :meth:`go`."""
        assert self.ended, self.name
        header = f'define internal preserve_nonecc i64 @"{self.name}"({PARAMETERS}) #0 {{'
        return "\n".join([header, "entry:", *self._lines, *self._side_exits, "}"])

    # -- the instruction's words -----------------------------------------------------------------------

    def place(self, position: int) -> str:
        """The address of a word of the current instruction."""
        offset = self._start + position
        return self._base if offset == 0 else self.let(f"getelementptr i32, ptr {self._base}, i64 {offset}")

    def word(self, position: int) -> str:
        """An i32 word."""
        return self.let(f"load i32, ptr {self.place(position)}, align 4, {CONSTANT}")

    def fetch(self, position: int, count: int) -> None:
        """Reads words ahead, two by one load: loads are what handlers have most of."""
        for first in range(position, position + count - 1, 2):
            pair = self.let(f"load i64, ptr {self.place(first)}, align 4, {CONSTANT}")
            place = self._start + first
            self._fetched[self._base, place] = self.let(f"and i64 {pair}, {0xFFFFFFFF}")
            self._fetched[self._base, place + 1] = self.let(f"lshr i64 {pair}, 32")

    def ordinal(self, position: int) -> str:
        """A word as i64, never negative."""
        fetched = self._fetched.get((self._base, self._start + position))
        if fetched is not None:
            return fetched
        return self.let(f"zext i32 {self.word(position)} to i64")

    def ordinal_at(self, place: str) -> str:
        """The word at an address as i64, never negative."""
        return self.let(f"zext i32 {self.let(f'load i32, ptr {place}, align 4, {CONSTANT}')} to i64")

    def target(self, position: int) -> str:
        """The address that a displacement word of the current instruction leads to."""
        distance = self.let(f"sext i32 {self.word(position)} to i64")
        return self.let(f"getelementptr i32, ptr {self.place(0)}, i64 {distance}")

    def begin_part(self, links: Sequence[tuple[int, int]]) -> None:
        """Begins a part of a superinstruction. ``links`` are the operands, by word position, known to be the
        register that an earlier part, by number, wrote: they are not read again."""
        self._forwarded = {position: self._parts[number] for position, number in links}

    def end_part(self) -> None:
        """Notes what the part wrote."""
        self._parts.append(self._written)

    def advance(self, words: int) -> None:
        """The current instruction is done; the next part begins after its words."""
        self._start += words
        self._side_exit_label = ""

    def move_to(self, address: str) -> None:
        """The current instruction is done; the next part begins at an address."""
        self._base = address
        self._start = 0
        self._side_exit_label = ""

    # -- registers and fields --------------------------------------------------------------------------

    def value_place(self, ordinal: str) -> str:
        return self._checked("values", self.let(f"getelementptr i32, ptr %values, i64 {ordinal}"))

    def ref_place(self, ordinal: str) -> str:
        return self._checked("refs", self.let(f"getelementptr ptr, ptr %refs, i64 {ordinal}"))

    def _checked(self, which: str, place: str) -> str:
        """The place of a register, which is the current frame's."""
        if CHECKED:
            self.do(f'call void @checked.frame.{which}(ptr {place}, ptr %state, ptr @"checked.{self.name}")')
        return place

    def value(self, kind: str, position: int) -> str:
        """The value register named by an operand word."""
        forwarded = self._forwarded.get(position)
        if forwarded is not None:
            written, value = forwarded
            if written == kind:
                return value
            return self.let(f"bitcast {LLVM_TYPES[written]} {value} to {LLVM_TYPES[kind]}")
        return self.load(kind, self.value_place(self.ordinal(position)))

    def unsigned_value(self, position: int) -> str:
        """The i32 value register named by an operand word, zero extended to i64."""
        return self.let(f"zext i32 {self.value('i32', position)} to i64")

    def set_value(self, kind: str, position: int, value: str) -> None:
        self.store(kind, value, self.value_place(self.ordinal(position)))
        self._written = (kind, value)

    def ref(self, position: int) -> str:
        """The handle in the ref register named by an operand word."""
        return self.load_pointer(self.ref_place(self.ordinal(position)))

    def put(self, position: int, ref: str) -> None:
        """Puts a counted reference into the ref register named by an operand word."""
        self.do(f"call void @vm.put(ptr {ref}, ptr {self.ref_place(self.ordinal(position))}, ptr %state)")

    def load(self, kind: str, address: str, alignment: int = 0) -> str:
        return self.let(f"load {LLVM_TYPES[kind]}, ptr {address}, align {alignment or _ALIGNMENT[kind]}")

    def store(self, kind: str, value: str, address: str, alignment: int = 0) -> None:
        self.do(f"store {LLVM_TYPES[kind]} {value}, ptr {address}, align {alignment or _ALIGNMENT[kind]}")

    def load_pointer(self, address: str) -> str:
        return self.let(f"load ptr, ptr {address}, align 8")

    def store_pointer(self, value: str, address: str) -> None:
        self.do(f"store ptr {value}, ptr {address}, align 8")

    def pointer_field(self, record: str, offset: int) -> str:
        """The pointer in a record's field."""
        return self.load_pointer(self.field(record, offset))

    # -- control ---------------------------------------------------------------------------------------

    @contextmanager
    def counted(self, count: str) -> Iterator[str]:
        """A loop: the body is emitted once and runs ``count`` (i64) times; yields the index (i64)."""
        is_any = self.let(f"icmp ne i64 {count}, 0")
        with self.maybe(is_any, []), self.loop("0", count, 1, []) as iteration:
            yield iteration.counter

    def element(self, kind: str, base: str, index: str) -> str:
        """The address of an array element; ``kind`` is its IR type."""
        return self.let(f"getelementptr {kind}, ptr {base}, i64 {index}")

    def side_exit(self) -> str:
        """The label of a block that leaves the loop at the current instruction."""
        if not self._side_exit_label:
            self._side_exit_label = self.fresh("side_exit")
            base = self._base
            lines = [f"{self._side_exit_label}:"]
            if self._start:
                address = f"%at.{self._names}"
                self._names += 1
                lines.append(f"  {address} = getelementptr i32, ptr {base}, i64 {self._start}")
                base = address
            self._side_exits += [
                *lines,
                *_tail_call("@side_exit", base, f"%left.{self._names}", fuel=self._fuel),
            ]
            self._names += 1
        return self._side_exit_label

    def spend(self) -> None:
        """Counts an instruction without which no program runs for ever. When the time is over, Python
        executes it, which then also sees to signals such as Ctrl-C."""
        place = self.place(0)
        self._fuel = self.let(f"sub i64 {self._fuel}, 1")
        out_of_fuel, going_on = self.fresh("out_of_fuel"), self.fresh("fuelled")
        self.branch(self.let(f"icmp eq i64 {self._fuel}, 0"), out_of_fuel, going_on, UNLIKELY)
        self._side_exits += [
            f"{out_of_fuel}:",
            *_tail_call("@out_of_fuel", place, f"%left.{self._names}", fuel=self._fuel),
        ]
        self._names += 1
        self.label(going_on)

    def fuel_left(self) -> str:
        return self._fuel

    def set_fuel(self, fuel: str) -> None:
        self._fuel = fuel

    def dispatch(self) -> None:
        """Goes on with the next instruction."""
        self._go(self.ordinal(0), self.place(0), "%values", "%refs")

    def go(self, address: str, values: str = "%values", refs: str = "%refs") -> None:
        """Goes on with the instruction at an address. The current IR block ends; others may follow."""
        self._go(self.ordinal_at(address), address, values, refs)

    def _go(self, opcode: str, address: str, values: str, refs: str) -> None:
        slot = self.let(f"getelementptr ptr, ptr %table, i64 {opcode}")
        handler = self.let(f"load ptr, ptr {slot}, align 8, {CONSTANT}")
        self.tail_call(handler, address, values, refs)
        self.ended = True

    def call_native(self, code: str, frame: str) -> None:
        """Enters the machine code of a function whose frame has been made; then goes on as STATE says."""
        status = self.field("%state", STATE["status"])
        left = self.let(f"call i64 {code}(ptr %state, ptr {frame}, i64 {self._fuel})")
        stopped, going_on = self.fresh("stopped"), self.fresh("back")
        self.branch(self.let(f"icmp eq i64 {left}, 0"), stopped, going_on, UNLIKELY)
        self._side_exits += [
            f"{stopped}:",
            f"  store i64 {EXIT_STOPPED}, ptr {status}, align 8",
            f"  ret i64 {EXIT_STOPPED}",
        ]
        self.label(going_on)
        address, values, refs = (
            self.pointer_field("%state", STATE[name]) for name in ("pc", "values", "refs")
        )
        spent, self._fuel = self._fuel, left
        self.go(address, values, refs)
        self._fuel = spent

    def tail_call(self, handler: str, address: str, values: str = "%values", refs: str = "%refs") -> None:
        """Calls a handler for the instruction at an address in place of returning."""
        result = f"%t{self._names}"
        self._names += 1
        self._lines += _tail_call(handler, address, result, values, refs, self._fuel)
        self.ended = True


def _tail_call(
    handler: str,
    address: str,
    result: str,
    values: str = "%values",
    refs: str = "%refs",
    fuel: str = "%fuel",
) -> list[str]:
    arguments = f"ptr {address}, ptr {values}, ptr {refs}, ptr %state, ptr %table, i64 {fuel}"
    return [f"  {result} = musttail call preserve_nonecc i64 {handler}({arguments})", f"  ret i64 {result}"]


_CONSTANTS: Final = ("const.i32", "const.i64", "const.f32", "const.f64")
ARITHMETIC: Final = (*SEMANTICS, *_CONSTANTS, *(f"{name}.zero" for name in _CONSTANTS))


def emit_arithmetic(handler: Handler, mnemonic: str) -> None:
    """Reads the operands, computes, writes the result."""
    if mnemonic in SEMANTICS:
        _emit_semantic(handler, mnemonic, SEMANTICS[mnemonic])
    else:
        _emit_constant(handler, mnemonic)


def _emit_constant(handler: Handler, mnemonic: str) -> None:
    kind = "i64" if "64" in mnemonic else "i32"
    size = {"i32": 1, "i64": 2}[kind]
    if mnemonic.endswith(".zero"):
        value, out = "0", 1
    else:
        value, out = handler.load(kind, handler.place(1), alignment=4), 1 + size
    handler.set_value(kind, out, value)
    handler.advance(out + 1)


def _emit_semantic(handler: Handler, mnemonic: str, semantic: Semantic) -> None:
    count = len(semantic.argument_types)
    handler.fetch(1, count + 2)  # and the next opcode
    result = _compute(handler, mnemonic, semantic, 1)
    handler.set_value(semantic.result_type, 1 + count, result)
    handler.advance(2 + count)


def emit_copied_compare(handler: Handler, mnemonic: str, position: int) -> str:
    """A comparison whose operands stand at a word position; the condition as i1."""
    semantic = SEMANTICS[mnemonic]
    count = len(semantic.argument_types)
    handler.fetch(position, count + 1)
    result = _compute(handler, mnemonic, semantic, position)
    handler.set_value("i32", position + count, result)
    return handler.let(f"icmp ne i32 {result}, 0")


def _compute(handler: Handler, mnemonic: str, semantic: Semantic, position: int) -> str:
    kinds = semantic.argument_types
    arguments = [handler.value(kind, position + number) for number, kind in enumerate(kinds)]
    handler.require_valid(mnemonic, semantic, arguments)
    typed = ", ".join(f"{LLVM_TYPES[k]} {a}" for k, a in zip(kinds, arguments, strict=True))
    function = _function(handler, mnemonic, semantic)
    return handler.let(f"call {LLVM_TYPES[semantic.result_type]} {function}({typed})")


def _function(handler: Handler, mnemonic: str, semantic: Semantic) -> str:
    if semantic.math_function is None:
        return symbol(mnemonic)
    table = handler.pointer_field("%state", STATE["math"])
    return handler.pointer_field(table, 8 * MATH_FUNCTIONS.index(semantic.math_function))


def symbol(mnemonic: str) -> str:
    """The name that the builder gives the compiled semantics function."""
    return f'@"semantics.{mnemonic}"'


def declarations() -> list[str]:
    """One line for each semantics function that the builder has to supply."""
    return [
        f"declare {LLVM_TYPES[semantic.result_type]} {symbol(mnemonic)}"
        f"({', '.join(LLVM_TYPES[kind] for kind in semantic.argument_types)})"
        for mnemonic, semantic in SEMANTICS.items()
        if semantic.math_function is None
    ]
