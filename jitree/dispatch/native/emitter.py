"""Writes the LLVM IR of one function.

That is blocks, edges, values, and the ways out to the interpreter.

Where an instruction cannot be completed, the function takes a side exit: it writes its registers to its frame
as they were at the latest *safepoint* and the interpreter goes on from there. A safepoint is an instruction
before which everything that has an effect was done; what lies between it and the exit is executed once more,
without harm.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Final

from jitree.base.records import NamedTuple
from jitree.codegen.ir_text import LLVM_TYPES, UNLIKELY, ModuleText, is_pure
from jitree.dispatch.native import rows
from jitree.dispatch.native.prelude import CONTEXT, ENTRIES, FIXED, FRAMES
from jitree.dispatch.native.reading import BINDINGS
from jitree.dispatch.native.rows import on_pointers
from jitree.dispatch.native.site import CheckedText
from jitree.dispatch.native.ssa import (
    REF,
    ZERO,
    Block,
    SsaFunction,
    SsaInstruction,
    Value,
    Variable,
    constant,
    operand,
)
from jitree.regs.layout import ACCESS_WRITE, ENTRY, KIND_BUFFER, LIBRARY_FUNCTIONS, MODULE, STATE

Registers = dict[Variable, Value]
_ALIGNMENTS: Final = {"i32": 4, "f32": 4, "i64": 8, "f64": 8, "ref": 8}


class Safepoint:
    """Names a place to go back to. It is an instruction and what the registers hold in front of it."""

    def __init__(self, instruction: SsaInstruction, registers: Registers) -> None:
        self.instruction = instruction
        self.registers = dict(registers)
        self.label = ""


class Emitter(CheckedText):
    """Text under construction. Methods that end in a value return LLVM operands."""

    def __init__(
        self,
        function: SsaFunction,
        module: ModuleText,
        symbol: str,
        asks: bool,
        parameters: Sequence[str] = (),
    ) -> None:
        """``parameters`` (i64) come after the function's own."""
        super().__init__()
        self.filled: Container[Value] = ()
        """Buffers that are not zero when they are made, until loops have written what they read. In front of
        those, side exits zero them: the interpreter may write less."""
        self.borrowed: Container[Value] = ()
        """References that others keep (:mod:`~jitree.dispatch.native.reading`)."""
        self._parameters = parameters
        self.asks = asks
        """Whether Python may execute instructions that compiled code does not know."""
        self.function = function
        self.module = module
        self.symbol = symbol
        self.result_type = struct_type(function.result_types)
        self.conditions: dict[Value, str] = {}
        """The i1 of comparisons that are also i32 values."""
        self.buffers = _buffers(function)
        self._again: dict[Block, str] = {}
        """Labels of more edges into blocks, which change none of their parameters."""
        self.headers: dict[Block, str] = {}
        """Labels of blocks that begin something else than themselves."""
        self.registers: Registers = {}
        """What the registers hold in front of the instruction under construction."""
        self._safepoint: Safepoint
        self._after: list[str] = []
        self._values = max(map(attrgetter("number"), function.values()), default=0) + len(function.arguments)
        self._incoming: dict[tuple[Block, Block], list[str]] = {}
        self._known: dict[str, str] = {}
        """Names by expression, of what the code that leads here and nowhere else has computed for good."""
        self._required: set[str] = set()
        """What held there."""

    # -- text ------------------------------------------------------------------------------------------

    def text(self) -> str:
        """The whole function."""
        lines: list[str] = []
        for line in self._lines:
            if isinstance(line, str):
                lines.append(line)
            elif isinstance(line, Block):
                sources, again = self._sources(line), self._again.get(line)
                lines += [_phi(parameter, sources, again) for parameter in line.parameters]
            else:
                sources = self._sources(line.block)
                lines.append(_phi(line.value, [sources[number] for number in line.ways]))
        parameters = [CONTEXT, "i64 %fuel"]
        parameters += [f"{LLVM_TYPES[value.type]} {value.name}" for value in self.function.arguments]
        parameters += [f"i64 %{name}" for name in self._parameters]
        head = f"define internal fastcc {self.result_type} @{self.symbol}({', '.join(parameters)}) #0 {{"
        return "\n".join([head, *lines, *self._after, "}\n"])

    def _sources(self, block: Block) -> list[str]:
        """The labels where a block's edges come from; the edges inside a nest have none."""
        waiting = {pair: iter(labels) for pair, labels in self._incoming.items()}
        return [next(waiting.get((source, block), iter(())), "") for source in block.predecessors]

    def let(self, expression: str) -> str:
        is_steady = is_pure(expression) or expression.endswith(FIXED)
        return self._once(expression) if is_steady else super().let(expression)

    def _once(self, expression: str) -> str:
        """Does as :meth:`let` for what has not changed since."""
        name = self._known.get(expression)
        if name is None:
            name = self._known[expression] = super().let(expression)
        return name

    def is_new(self, condition: str) -> bool:
        """Whether a condition (i1) that is required now has not been before."""
        is_new = condition not in self._required
        self._required.add(condition)
        return is_new

    def require(self, condition: str) -> None:
        if self.is_new(condition):
            super().require(condition)

    def label(self, name: str) -> None:
        super().label(name)
        self._known, self._required = {}, set()

    def go_on(self, name: str) -> None:
        super().label(name)

    def raw(self, text: str) -> None:
        """Lines of other origin."""
        self._lines.append(text)

    def new_number(self) -> int:
        """A number for a new value."""
        self._values += 1
        return self._values

    def join(self, value: Value, block: Block, ways: Sequence[int]) -> None:
        """Defines a value by the edges into a block; its operands belong to the predecessors of these
        positions."""
        self._lines.append(_Join(value, block, tuple(ways)))

    # -- blocks and edges ------------------------------------------------------------------------------

    def begin_block(self, block: Block) -> None:
        self.label(block.label)
        self._lines.append(block)
        self.registers = dict(block.entry)
        for parameter in block.parameters:
            self.defined(parameter)

    def edge(self, block: Block, target: Block) -> str:
        """The label to branch to for an edge out of the current IR block."""
        return self.edge_from(block, target, self.current_label)

    def edge_from(self, block: Block, target: Block, source: str) -> str:
        """As :meth:`edge`, out of the IR block of a label."""
        self._incoming.setdefault((block, target), []).append(source)
        return self.headers.get(target, target.label)

    # -- values ----------------------------------------------------------------------------------------

    def define(self, value: Value, expression: str) -> None:
        """The instruction that makes a value."""
        self.do(f"{value.name} = {expression}")
        self.defined(value)

    def name(self, value: Value, text: str) -> None:
        """Makes an operand the value."""
        kind = LLVM_TYPES[value.type]
        if value.type == REF:
            self.do(f"{value.name} = getelementptr i8, ptr {text}, i64 0")
        else:
            self.do(f"{value.name} = bitcast {kind} {text} to {kind}")
        self.defined(value)

    def defined(self, value: Value) -> None:
        """The caller has just defined a value: what is known of a buffer is read at once."""
        if value in self.buffers:
            self._publish_buffer(value)

    def retain_all(self, values: Iterable[Value]) -> None:
        for value in values:
            if self.is_counted(value):
                self.do(f"call void @vm.retain(ptr {value.name})")

    def drop_all(self, values: Iterable[Value]) -> None:
        for value in values:
            if self.is_counted(value):
                self.do(f"call void @vm.drop(ptr {value.name}, ptr %state)")

    def is_counted(self, value: Value) -> bool:
        """Whether registers that hold a reference own it."""
        return value not in self.borrowed and constant(value) is None

    def is_bindings(self, value: Value) -> bool:
        """Whether a reference is a kernel's list of bindings. They are buffers and stay what they are."""
        return not self.asks and value in self.borrowed and value is self.function.arguments[BINDINGS]

    def call(self, name: str, *arguments: str) -> str:
        self.module.define(f"{rows.function(self.module.declare, name)}\n{on_pointers(name)}")
        return super().call(name, *arguments)

    def truth(self, value: Value) -> str:
        """Whether an i32 is not 0."""
        known = self.conditions.get(value)
        return known if known is not None else self.let(f"icmp ne i32 {operand(value)}, 0")

    def _publish_buffer(self, value: Value) -> None:
        """``%vN.address``, ``%vN.length`` and ``%vN.room``: of a ``vm.buffer`` its bytes, how many they are
        and how many of them may be written; 0 bytes for null and anything else. ``%vN.is``: whether it is a
        buffer; ``%vN.writable``."""
        name = value.name
        is_new = value.operation == "buffer.alloc"
        is_binding = value.operation == "list.get.ref" and self.is_bindings(value.operands[0])
        entry = name if is_new or is_binding else self.entry(name)
        address = f"load ptr, ptr {self.field(entry, ENTRY['address'])}, align 8{ENTRIES}"
        self.do(f"{name}.address = {address}")
        if is_new:
            self._publish_extent(name, "true", "true", operand(value.operands[0]))
            return
        is_buffer = "true" if is_binding else self.let(f"icmp eq i32 {self.kind(entry)}, {KIND_BUFFER}")
        length = self.let(f"load i64, ptr {self.field(entry, ENTRY['length'])}, align 8{ENTRIES}")
        access = self.let(f"load i32, ptr {self.field(entry, ENTRY['access'])}, align 4{ENTRIES}")
        may_write = self.let(f"icmp ne i32 {self.let(f'and i32 {access}, {ACCESS_WRITE}')}, 0")
        self._publish_extent(name, is_buffer, may_write, length)

    def _publish_extent(self, name: str, is_buffer: str, may_write: str, length: str) -> None:
        self.do(f"{name}.is = and i1 {is_buffer}, true")
        self.do(f"{name}.writable = and i1 {name}.is, {may_write}")
        self.do(f"{name}.length = select i1 {name}.is, i64 {length}, i64 0")
        self.do(f"{name}.room = select i1 {name}.writable, i64 {name}.length, i64 0")

    def buffer(self, value: Value, extent: str) -> str:
        """``address``, ``length``, ``room``, ``is`` or ``writable`` of the buffer that a reference is."""
        if value.operation == ZERO or value.operation == "const.ref.zero":
            return {"address": "null", "is": "false", "writable": "false"}.get(extent, "0")
        return f"{value.name}.{extent}"

    def entry(self, reference: str) -> str:
        """The handle entry of a reference; for null one that is all zero."""
        is_null = self.let(f"icmp eq ptr {reference}, null")
        return self.let(f"select i1 {is_null}, ptr @null.entry, ptr {reference}")

    def kind(self, entry: str) -> str:
        """Reads the kind (KIND_*) of an entry's object. It holds as long as something refers to it."""
        return self._once(f"load i32, ptr {self.field(entry, ENTRY['kind'])}, align 4{ENTRIES}")

    # -- memory ----------------------------------------------------------------------------------------

    def state_pointer(self, field: str) -> str:
        """A pointer in the state block that does not change."""
        return self.let(f"load ptr, ptr {self.field('%state', STATE[field])}, align 8{FIXED}")

    def module_pointer(self, field: str) -> str:
        """A pointer in the module's record."""
        module = self.state_pointer("module")
        return self.let(f"load ptr, ptr {self.field(module, MODULE[field])}, align 8{FIXED}")

    def math(self, name: str) -> str:
        """The address of a C function."""
        return self.library(LIBRARY_FUNCTIONS.index(name))

    def library(self, index: int) -> str:
        """An entry of the table of C functions."""
        return self.let(f"load ptr, ptr {self.field(self.state_pointer('math'), 8 * index)}, align 8{FIXED}")

    def place(self, variable: Variable) -> str:
        """The address of a register in the frame."""
        if variable.type == REF:
            return self.field("%refs", 8 * variable.slot)
        return self.field("%values", 4 * variable.slot)

    def spill(self, variable: Variable, value: Value) -> None:
        """Writes a register to the frame."""
        kind = LLVM_TYPES[variable.type]
        place = self.place(variable)
        self.do(f"store {kind} {operand(value)}, ptr {place}, align {_ALIGNMENTS[variable.type]}{FRAMES}")

    def load(self, variable: Variable) -> str:
        """How to read a register from the frame: an expression."""
        place = self.place(variable)
        return f"load {LLVM_TYPES[variable.type]}, ptr {place}, align {_ALIGNMENTS[variable.type]}{FRAMES}"

    # -- side exits ------------------------------------------------------------------------------------

    def safepoint(self, instruction: SsaInstruction) -> None:
        """Everything in front of the instruction is done for good."""
        self._safepoint = Safepoint(instruction, self.registers)

    def side_exit(self) -> str:
        """The label of the side exit to the safepoint."""
        safepoint = self._safepoint
        if not safepoint.label:
            safepoint.label = self.fresh("side_exit")
            self.side_exit_block(safepoint.label, safepoint.instruction, safepoint.registers, self.fuel_left)
        return safepoint.label

    def side_exit_block(
        self,
        label: str,
        instruction: SsaInstruction,
        registers: Registers,
        fuel: Callable[[], str],
        written: Iterable[Variable] = (),
    ) -> None:
        """Adds a side exit in front of an instruction. ``fuel`` says in that block what is left of
        it; registers that are ``written`` are in the frame already."""
        with self.aside(label):
            self._zero(registers)
            self.save(registers, instruction.live, written)
            left = fuel()
            record, pc = self.function.record, instruction.pc
            self.do(
                "call fastcc void @vm.side_exit(ptr %state, ptr %frame, ptr %values, ptr %refs, "
                f"i64 {record}, i64 {pc}, i64 {left})"
            )
            self.do(f"ret {self.result_type} zeroinitializer")

    def _zero(self, registers: Registers) -> None:
        """Zeroes the buffers in registers that are yet to be filled."""
        for value in dict.fromkeys(registers.values()):
            if value in self.filled and value in self.buffers:
                memset, name = self.math("memset"), value.name
                self.do(f"call ptr {memset}(ptr {name}.address, i32 0, i64 {name}.length)")

    def save(self, registers: Registers, live: int, written: Iterable[Variable]) -> None:
        """Writes the live variables and all references to the frame."""
        left_out = set(written)
        words: list[int] = []
        for variable in self.function.variables(live):
            if variable in left_out:
                continue
            if constant(registers[variable]) is None:
                self.spill(variable, registers[variable])
            else:
                words += _words(variable, registers[variable])
        if words:
            table = self.module.table(words)
            self.do(f"call fastcc void @vm.constants(ptr %values, ptr {table}, i64 {len(words)})")
        null: dict[int, int] = {}
        for variable, value in registers.items():
            if variable.type != REF or variable in left_out:
                continue
            if operand(value) == "null":
                word, bit = divmod(variable.slot, 64)
                null[word] = null.get(word, 0) | 1 << bit
            else:
                if value in self.borrowed:
                    self.do(f"call fastcc void @vm.keep(ptr {value.name})")
                self.spill(variable, value)
        for word, bits in null.items():
            first = self.field("%refs", 8 * 64 * word)
            self.do(f"call fastcc void @vm.clear(ptr {first}, i64 {bits - (bits >> 63 << 64)})")

    @contextmanager
    def aside(self, label: str) -> Iterator[None]:
        """What is written inside goes into a block after all others."""
        kept = self._lines, self.current_label, self._known, self._required
        self._lines = []
        self.label(label)
        yield
        self._after += [line for line in self._lines if isinstance(line, str)]
        self._lines, self.current_label, self._known, self._required = kept

    def fuel_left(self) -> str:
        return self.let("load i64, ptr %fuel.at, align 8")

    def spend_iteration(self, block: Block) -> None:
        """As :meth:`spend`, where a loop begins. With more fuel it begins again there: LLVM makes two of it,
        and the inner one knows how often it runs."""
        again = self._again[block] = self.fresh("again")
        self._spend(block.instructions[0], again)
        with self.aside(again):
            self.set_fuel(self.let(f"add i64 {self.fuel_left()}, 1"))
            self.jump(block.label)

    def spend(self, instruction: SsaInstruction) -> None:
        """Counts a call. When the time is over, the function takes a side exit before it if Python wants
        that. The interpreter then has no fuel left for its next branch or call."""
        self._spend(instruction, "")

    def _spend(self, instruction: SsaInstruction, again: str) -> None:
        left = self.let(f"sub i64 {self.fuel_left()}, 1")
        self.set_fuel(left)
        empty, over, going_on = self.fresh("out_of_fuel"), self.fresh("out_of_time"), self.fresh("go")
        self.branch(self.let(f"icmp eq i64 {left}, 0"), empty, going_on, UNLIKELY)
        with self.aside(empty):
            more = self.let("call fastcc i64 @vm.refuel_function(ptr %state)")
            self.set_fuel(more)
            self.branch(self.let(f"icmp sle i64 {more}, 0"), over, again or going_on)
        self.side_exit_block(over, instruction, self.registers, lambda: self.let(f"add i64 {more}, 1"))
        self.label(going_on)

    def set_fuel(self, fuel: str) -> None:
        self.do(f"store i64 {fuel}, ptr %fuel.at, align 8")


class _Join(NamedTuple):
    """A phi whose labels are not known yet."""

    value: Value
    block: Block
    ways: tuple[int, ...]


def _words(variable: Variable, value: Value) -> Iterator[int]:
    """A constant in a register, for ``@vm.constants``: a row for each slot, which is above 32 bits of it."""
    bits = value.literals[0] if value.literals and value.operation != ZERO else 0
    for part in range(_ALIGNMENTS[variable.type] // 4):
        yield variable.slot + part << 32 | bits >> 32 * part & 0xFFFFFFFF


def _phi(value: Value, sources: Sequence[str], again: str | None = None) -> str:
    edges = list(zip(value.operands, sources, strict=True))
    edges += [(value, again)] if again else []
    pairs = ", ".join(f"[ {operand(item)}, %{source} ]" for item, source in edges)
    return f"  {value.name} = phi {LLVM_TYPES[value.type]} {pairs}"


def struct_type(kinds: Sequence[str]) -> str:
    """What functions return: the fuel that is left, 0 after a side exit, and their results."""
    return f"{{ {', '.join(['i64', *(LLVM_TYPES[kind] for kind in kinds)])} }}"


def _buffers(function: SsaFunction) -> set[Value]:
    """The references that are used as buffers whose elements are read or written."""
    return {
        value
        for block in function.blocks
        for instruction in block.instructions
        if instruction.mnemonic.startswith("buffer.")
        for value in instruction.operands
        if value.type == REF
    }
