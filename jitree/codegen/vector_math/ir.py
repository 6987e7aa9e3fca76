"""The functions of :mod:`functions` as LLVM IR, for one value or a vector.

The functions are run on symbolic values: their primitives are replaced by ones that write an instruction
each, or a loop. What runs rarely becomes a function of one value; a vector calls it for the lanes that
need it.

Compiling the rare ways of exponentials took a sixth of the time of some models' kernels. Images have them
from the one that they begin with a copy of (:data:`jitree.dispatch.native.prelude.BASE`), in which vectors
are arguments and results in memory: it is shipped for processors that differ in the registers for them.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any, Final

from jitree.codegen.ir_text import LLVM_TYPES, FunctionText, llvm_type
from jitree.codegen.numbers import INVALID_NAN
from jitree.codegen.vector_math import functions, registers
from jitree.errors import InternalError

_SIGNED: Final = {"lt": "slt", "gt": "sgt", "le": "sle", "ge": "sge", "eq": "eq", "ne": "ne"}
_ORDERED: Final = {"lt": "olt", "gt": "ogt", "le": "ole", "ge": "oge", "eq": "oeq", "ne": "une"}

FUNCTIONS: Final[dict[str, Callable[..., float]]] = {
    name.replace("_", "."): function
    for name, function in vars(functions).items()
    if name.endswith(("_f32", "_f64"))
}
"""By the instruction whose meaning they are: operands and result are of the type that the name ends in."""


@functools.cache
def function_texts(
    mnemonic: str, symbol: str, lanes: int, linkage: str = "", other: Callable[..., float] | None = None
) -> tuple[str, ...]:
    """Gives the lines and definitions of a function's module. ``symbol`` names it (with its @), over scalars
    or vectors. Functions have texts in common: each text goes into a module once.

    Inlined into its callers, without any flag that would let LLVM change results. ``other`` stands for the
    function of the instruction.
    """
    function, kind = FUNCTIONS[mnemonic], mnemonic[-3:]
    writer = _Writer(lanes)
    signature = (kind,) * function.__code__.co_argcount, kind
    text = _definition(writer, other or function, signature, f"{linkage} {{}} {symbol}", "alwaysinline")
    return (*writer.others, text)


Signature = tuple[tuple[str, ...], str]


def _definition(
    writer: _Writer, function: Callable[..., Any], signature: Signature, name: str, attributes: str
) -> str:
    """Writes a definition; ``name`` has linkage, type and symbol. The type of the result has a place in
    it."""
    kinds, result_kind = signature
    arguments = [_Value(writer, kind, f"%a{n}") for n, kind in enumerate(kinds)]
    result = writer.value(_symbolic(function, writer)(*arguments), result_kind)
    parameters = ", ".join(map(writer.typed, arguments))
    head = f"define {name.format(llvm_type(result_kind, writer.lanes))}({parameters}) {attributes}"
    return f"{head} {{\n{writer.text()}\n  ret {writer.typed(result)}\n}}\n"


class _Value:
    """The result of an instruction. Operators write further ones; numbers among their operands are constants
    of the other operand's type."""

    __slots__ = ("kind", "name", "writer")

    def __init__(self, writer: _Writer, kind: str, name: str) -> None:
        self.writer = writer
        self.kind = kind
        self.name = name

    def _binary(self, other: Any, integer: str, floating: str) -> _Value:
        operation = floating if self.kind.startswith("f") else integer
        return self.writer.binary(operation, self, self.writer.value(other, self.kind))

    def _compare(self, other: Any, relation: str) -> _Value:
        floating = self.kind.startswith("f")
        operation = f"fcmp {_ORDERED[relation]}" if floating else f"icmp {_SIGNED[relation]}"
        right = self.writer.value(other, self.kind)
        return self.writer.instruction("i1", f"{operation} {self.writer.typed(self)}, {right.name}")

    __add__ = __radd__ = functools.partialmethod(_binary, integer="add", floating="fadd")
    __sub__ = functools.partialmethod(_binary, integer="sub", floating="fsub")
    __mul__ = __rmul__ = functools.partialmethod(_binary, integer="mul", floating="fmul")
    __and__ = functools.partialmethod(_binary, integer="and", floating="")
    __or__ = functools.partialmethod(_binary, integer="or", floating="")
    __xor__ = functools.partialmethod(_binary, integer="xor", floating="")
    __lshift__ = functools.partialmethod(_binary, integer="shl", floating="")
    __rshift__ = functools.partialmethod(_binary, integer="ashr", floating="")
    __lt__ = functools.partialmethod(_compare, relation="lt")
    __le__ = functools.partialmethod(_compare, relation="le")
    __gt__ = functools.partialmethod(_compare, relation="gt")
    __ge__ = functools.partialmethod(_compare, relation="ge")
    __eq__ = functools.partialmethod(_compare, relation="eq")
    __ne__ = functools.partialmethod(_compare, relation="ne")

    def __rsub__(self, other: Any) -> _Value:
        return self.writer.value(other, self.kind)._binary(self, "sub", "fsub")

    def __neg__(self) -> _Value:
        return self.writer.instruction(self.kind, f"fneg {self.writer.typed(self)}")

    def __hash__(self) -> int:
        return hash(self.name)


class _Writer(FunctionText):
    """Instructions of one function, in order."""

    def __init__(self, lanes: int) -> None:
        super().__init__()
        self.others: list[str] = []
        """Declarations, tables and functions that it needs."""
        self.lanes = lanes
        self.label("entry")

    def typed(self, value: _Value) -> str:
        return f"{llvm_type(value.kind, self.lanes)} {value.name}"

    def instruction(self, kind: str, text: str) -> _Value:
        return _Value(self, kind, self.let(text))

    def binary(self, operation: str, left: _Value, right: _Value) -> _Value:
        return self.instruction(left.kind, f"{operation} {self.typed(left)}, {right.name}")

    def call(self, result: str, function: str, arguments: list[_Value]) -> _Value:
        operands = ", ".join(map(self.typed, arguments))
        return self.instruction(result, f"call {llvm_type(result, self.lanes)} {function}({operands})")

    def value(self, value: Any, kind: str) -> _Value:
        """A value as it is, a Python number as a constant."""
        if isinstance(value, _Value):
            if value.kind != kind:
                raise InternalError(f"a value of type {value.kind} where {kind} is needed in vector math")
            return value
        text = _literal(value, kind)
        if self.lanes > 1:
            text = f"splat ({LLVM_TYPES[kind]} {text})"
        return _Value(self, kind, text)

    def convert(self, operation: str, value: Any, kind: str) -> _Value:
        return self.instruction(kind, f"{operation} {self.typed(value)} to {llvm_type(kind, self.lanes)}")


def _literal(value: float, kind: str) -> str:
    if kind == "i1":
        return "true" if value else "false"
    if not kind.startswith("f"):
        return str(int(value))
    if kind == "f32" and value == value and struct.unpack("<f", struct.pack("<f", value))[0] != value:
        raise InternalError(f"the constant {value!r} of vector math is no binary32 number")
    # LLVM writes float literals as the bits of the binary64 number, for f32 as well.
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _primitives(writer: _Writer) -> dict[str, Any]:
    """Maps imported names to what they write in a function."""

    def convert_to(kind: str, operation: str) -> Callable[[Any], _Value]:
        """Converts to a floating-point type; a value that has it already was rounded by its instruction."""

        def convert(x: Any) -> _Value:
            if not isinstance(x, _Value) or x.kind == kind:
                return writer.value(x, kind)
            return writer.convert(operation, x, kind)

        return convert

    def choose(condition: _Value, if_true: Any, if_false: Any) -> _Value:
        kind = _kind_of(if_true, if_false)
        true, false = writer.value(if_true, kind), writer.value(if_false, kind)
        text = ", ".join(map(writer.typed, (condition, true, false)))
        return writer.instruction(kind, f"select {text}")

    return {
        "INVALID_NAN": INVALID_NAN,
        "choose": choose,
        "divide": lambda left, right: writer.binary("fdiv", left, right),
        "multiply_add": functools.partial(_multiply_add, writer, "fmuladd"),
        "fused_multiply_add": functools.partial(_multiply_add, writer, "fma"),
        "row": functools.partial(_row, writer),
        "pair": functools.partial(_pair, writer),
        "scaled": functools.partial(_scaled, writer),
        "seldom": functools.partial(_seldom, writer),
        "lookup": functools.partial(_lookup, writer),
        "rarely": functools.partial(_rarely, writer),
        "accumulate": functools.partial(_accumulate, writer),
        "f32": convert_to("f32", "fptrunc"),
        "f64": convert_to("f64", "fpext"),
        "i32": lambda x: writer.value(x, "i32"),
        "i64": lambda x: writer.value(x, "i64"),
        "f32_from_integer": lambda x: writer.convert("sitofp", x, "f32"),
        "f32_to_bits": lambda x: writer.convert("bitcast", x, "i32"),
        "f32_of_bits": lambda x: writer.convert("bitcast", x, "f32"),
        "f64_to_bits": lambda x: writer.convert("bitcast", x, "i64"),
        "f64_of_bits": lambda x: writer.convert("bitcast", x, "f64"),
    }


def _kind_of(*values: Any) -> str:
    """The type of numbers among which are constants."""
    return next((value.kind for value in values if isinstance(value, _Value)), "f64")


def _multiply_add(writer: _Writer, intrinsic: str, *operands: Any) -> _Value:
    """``fmuladd`` is one instruction where the processor has it, two where not."""
    kind = _kind_of(*operands)
    suffix = kind if writer.lanes == 1 else f"v{writer.lanes}{kind}"
    vector = llvm_type(kind, writer.lanes)
    name = f"@llvm.{intrinsic}.{suffix}"
    writer.others.append(f"declare {vector} {name}({vector}, {vector}, {vector})")
    return writer.call(kind, name, [writer.value(x, kind) for x in operands])


def _table(writer: _Writer, table: Callable[[], Sequence[Any]]) -> str:
    writer.others.append(_table_text(table))
    return f'@"table.{table.__name__}"'


@functools.cache
def _table_text(table: Callable[[], Sequence[Any]]) -> str:
    """Defines a table of numbers, or of rows in order."""
    rows = table()
    numbers = rows if isinstance(rows[0], float) else [number for row in rows for number in row]
    digits = struct.pack(f">{len(numbers)}d", *numbers).hex().upper()
    elements = ", ".join(f"double 0x{digits[at : at + 16]}" for at in range(0, len(digits), 16))
    name = f'@"table.{table.__name__}"'
    return f"{name} = internal unnamed_addr constant [{len(numbers)} x double] [{elements}]"


def _lookup(writer: _Writer, table: Callable[[], tuple[float, ...]], index: _Value) -> _Value:
    symbol = _table(writer, table)
    lanes = writer.lanes
    places = writer.let(f"getelementptr double, ptr {symbol}, {writer.typed(index)}")
    if lanes == 1:
        return writer.instruction("f64", f"load double, ptr {places}, align 8")
    name, vector = f"@llvm.masked.gather.v{lanes}f64.v{lanes}p0", f"<{lanes} x double>"
    writer.others.append(f"declare {vector} {name}(<{lanes} x ptr>, i32, <{lanes} x i1>, {vector})")
    mask = f"<{lanes} x i1> splat (i1 true), {vector} zeroinitializer"
    return writer.instruction("f64", f"call {vector} {name}(<{lanes} x ptr> {places}, i32 8, {mask})")


def _row(writer: _Writer, table: Callable[[], tuple[tuple[float, ...], ...]], index: _Value) -> list[_Value]:
    """Each column is two registers: of AVX-512 with 32 rows, of AVX2 with 16."""
    columns = zip(*table(), strict=True)
    texts = ([f"float {_literal(number, 'f32')}" for number in column] for column in columns)
    return [_column(writer, column, index) for column in texts]


def _column(writer: _Writer, numbers: list[str], index: _Value) -> _Value:
    half = len(numbers) // 2
    kind, indices = f"<{half} x float>", f"<{half} x i32>"
    low, high = (f"{kind} <{', '.join(part)}>" for part in (numbers[:half], numbers[half:]))
    if half == writer.lanes:
        name = "@llvm.x86.avx512.vpermi2var.ps.512"
        writer.others.append(f"declare {kind} {name}({kind}, {indices}, {kind})")
        return writer.instruction("f32", f"call {kind} {name}({low}, {writer.typed(index)}, {high})")
    name = "@llvm.x86.avx2.permps"
    writer.others.append(f"declare {kind} {name}({kind}, {indices})")
    places = [_picked(writer, index, range(first, first + half)) for first in range(0, writer.lanes, half)]
    found = []
    for part in (low, high):
        lanes = [writer.let(f"call {kind} {name}({part}, {indices} {place})") for place in places]
        text = f"shufflevector {kind} {lanes[0]}, {kind} {lanes[1]}, {_mask(range(writer.lanes))}"
        found.append(writer.instruction("f32", text))
    upper = (index & half) == half
    return writer.instruction("f32", f"select {', '.join(map(writer.typed, (upper, *found[::-1])))}")


def _picked(writer: _Writer, value: _Value, lanes: Sequence[int]) -> str:
    return writer.let(
        f"shufflevector {writer.typed(value)}, {llvm_type(value.kind, writer.lanes)} poison, {_mask(lanes)}"
    )


def _mask(lanes: Sequence[int]) -> str:
    """Lanes that a shuffle takes."""
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {lane}' for lane in lanes)}>"


_IN_EIGHT: Final = (0, 1, 4, 5, 2, 3, 6, 7)
"""Rows in this order are two registers of AVX2 out of which one shuffle takes all of a column."""


def _pair(
    writer: _Writer, table: Callable[[], Sequence[tuple[float, float]]], first: int, index: _Value
) -> list[_Value]:
    """Rows are 64 bits, which each lane loads by itself: LLVM would take two more instructions for that."""
    count, name = writer.lanes, f'@"pairs.{table.__name__}"'
    rows = [f"i64 {int.from_bytes(struct.pack('<2f', *row), 'little')}" for row in table()]
    writer.others.append(f"{name} = internal unnamed_addr constant [{len(rows)} x i64] [{', '.join(rows)}]")
    twos = writer.let(f"bitcast {writer.typed(index)} to <{count // 2} x i64>")
    loaded = []
    for two in range(count // 2):
        word = writer.let(f"extractelement <{count // 2} x i64> {twos}, i32 {two}")
        for half in ("and i64 {}, 4294967295", "lshr i64 {}, 32"):
            number = writer.let(half.format(word))
            place = f"getelementptr i64, ptr getelementptr (i64, ptr {name}, i64 {-first}), i64 {number}"
            loaded.append(writer.let(f"load double, ptr {writer.let(place)}"))
    order = [lane & -8 | _IN_EIGHT[lane & 7] for lane in range(count)]
    parts = []
    for one, other in zip(order[::2], order[1::2], strict=True):
        part = writer.let(f"insertelement <2 x double> poison, double {loaded[one]}, i32 0")
        parts.append(writer.let(f"insertelement <2 x double> {part}, double {loaded[other]}, i32 1"))
    while len(parts) > 1:
        kind = f"<{count // len(parts)} x double>"
        mask = _mask(range(2 * count // len(parts)))
        joined = zip(parts[::2], parts[1::2], strict=True)
        parts = [writer.let(f"shufflevector {kind} {one}, {kind} {other}, {mask}") for one, other in joined]
    halves = writer.let(f"bitcast <{count} x double> {parts[0]} to <{2 * count} x float>")
    text = f"shufflevector <{2 * count} x float> {halves}, <{2 * count} x float> poison, "
    return [writer.instruction("f32", text + _mask([2 * place + half for place in order])) for half in (0, 1)]


def _scaled(writer: _Writer, value: _Value, exponent: _Value) -> _Value:
    """An instruction of AVX-512, which rounds as the processor is told to."""
    name, kind = "@llvm.x86.avx512.mask.scalef.ps.512", "<16 x float>"
    writer.others.append(f"declare {kind} {name}({kind}, {kind}, {kind}, i16, i32)")
    operands = f"{writer.typed(value)}, {writer.typed(exponent)}, {kind} zeroinitializer, i16 -1, i32 4"
    return writer.instruction("f32", f"call {kind} {name}({operands})")


def _seldom(
    writer: _Writer, condition: _Value, function: Any, arguments: tuple[_Value, ...], value: _Value
) -> _Value:
    """A branch around a call with the same lanes."""
    symbol = f'@"math.{function.__name__}.{writer.lanes}"'
    whole = _Writer(writer.lanes)
    signature = tuple(argument.kind for argument in arguments), value.kind
    text = _definition(whole, function.__wrapped__, signature, f"internal {{}} {symbol}", "noinline cold")
    writer.others += [*whole.others, text]
    return _branch(writer, condition, value, lambda: writer.call(value.kind, symbol, [*arguments]))


def _rarely(
    writer: _Writer, condition: _Value, function: Any, arguments: tuple[_Value, ...], value: _Value
) -> _Value:
    """A branch around a call that takes only the lanes which need it."""
    symbol = _rare_function(
        writer, function.__wrapped__, [argument.kind for argument in arguments], value.kind
    )
    operands = [*arguments] if writer.lanes == 1 else [condition, *arguments, value]
    return _branch(writer, condition, value, lambda: writer.call(value.kind, symbol, operands))


def _branch(writer: _Writer, condition: _Value, value: _Value, otherwise: Callable[[], _Value]) -> _Value:
    """The value; if the condition holds for a lane, what is written in the branch."""
    chosen = condition
    if writer.lanes > 1:
        bits = writer.instruction("i1", f"bitcast {writer.typed(condition)} to i{writer.lanes}")
        chosen = writer.instruction("i1", f"icmp ne i{writer.lanes} {bits.name}, 0")
    kind = llvm_type(value.kind, writer.lanes)
    with writer.maybe(chosen.name, [(kind, value.name)]) as rare:
        rare.next = [otherwise().name]
    return _Value(writer, value.kind, rare.result[0])


def _rare_function(writer: _Writer, function: Any, kinds: list[str], result: str) -> str:
    """Names the function for a rare value, or for some lanes."""
    one = _Writer(1)
    symbol = f'@"math.{function.__name__}"'
    text = _definition(one, function, (tuple(kinds), result), f"internal {{}} {symbol}", "noinline cold")
    writer.others += [*one.others, text]
    if writer.lanes == 1:
        return symbol
    of_lanes = f'@"math.{function.__name__}.{writer.lanes}"'
    writer.others.append(_for_lanes(of_lanes, symbol, kinds, result, writer.lanes))
    return of_lanes


def _for_lanes(symbol: str, function: str, kinds: list[str], result: str, lanes: int) -> str:
    vectors = [llvm_type(kind, lanes) for kind in kinds]
    parameters = "".join(f"{vector} %a{n}, " for n, vector in enumerate(vectors))
    scalars = [f"  %x{n} = extractelement {vector} %a{n}, i32 %lane\n" for n, vector in enumerate(vectors)]
    operands = ", ".join(f"{llvm_type(kind, 1)} %x{n}" for n, kind in enumerate(kinds))
    vector, scalar = llvm_type(result, lanes), llvm_type(result, 1)
    head = f"{vector} {symbol}(<{lanes} x i1> %chosen, {parameters}{vector} %value)"
    return f"""define internal {head} noinline cold {{
entry:
  br label %next.lane
next.lane:
  %lane = phi i32 [ 0, %entry ], [ %next, %more ]
  %result = phi {vector} [ %value, %entry ], [ %merged, %more ]
  %needs = extractelement <{lanes} x i1> %chosen, i32 %lane
  br i1 %needs, label %compute, label %more
compute:
{"".join(scalars)}  %y = call {scalar} {function}({operands})
  %replaced = insertelement {vector} %result, {scalar} %y, i32 %lane
  br label %more
more:
  %merged = phi {vector} [ %result, %next.lane ], [ %replaced, %compute ]
  %next = add i32 %lane, 1
  %left = icmp ult i32 %next, {lanes}
  br i1 %left, label %next.lane, label %end
end:
  ret {vector} %merged
}}
"""


def _accumulate(
    writer: _Writer, step: Callable[..., Any], rows: Callable[[], Any], state: Any, argument: Any
) -> tuple[_Value, ...]:
    """A loop over a table; of one value."""
    if writer.lanes != 1:
        raise InternalError("a loop in vector math that is not rare")
    count = len(rows())
    table = _table(writer, rows)
    first = [("double", writer.value(start, "f64").name) for start in state]
    with writer.loop("0", str(count), 1, first) as iteration:
        row = []
        for n in range(2):
            place = writer.let(f"getelementptr [2 x double], ptr {table}, i64 {iteration.counter}, i64 {n}")
            row.append(writer.instruction("f64", f"load double, ptr {place}, align 8"))
        values = tuple(_Value(writer, "f64", name) for name in iteration.values)
        results = tuple(step(values, tuple(row), argument))
        iteration.next = [result.name for result in results]
    return results


def _symbolic(function: Callable[..., Any], writer: _Writer) -> Callable[..., Any]:
    """The same function over symbolic primitives, those that it calls as well."""
    primitives = _primitives(writer)

    def replace(value: Any, name: str) -> Any:
        if name in primitives:
            return primitives[name]
        if isinstance(value, FunctionType):
            return _symbolic(value, writer)
        return value

    assert isinstance(function, FunctionType)
    names = function.__globals__.keys() & set(function.__code__.co_names)
    replaced = {name: replace(function.__globals__[name], name) for name in names}
    symbolic = FunctionType(function.__code__, replaced, function.__name__)
    symbolic.__wrapped__ = function  # type: ignore[attr-defined]
    return symbolic


_SHARED: Final = "exp.f32"
"""The commonest function: its rare ways take 2.5 KB of each image, those of tanh would take 20."""
_SCALARS: Final = ("math.exp_exact", "math.exp_carefully")
_VECTORS: Final = ("math.exp_carefully.16", "math.exp_f32.16")
_IN_MEMORY: Final = ".in_memory"
SHARED_ENTRIES: Final = (*_SCALARS, *(f"{name}{_IN_MEMORY}" for name in _VECTORS))
_HEAD: Final = re.compile(r'define internal ([^@]+) @"([^"]+)"\(([^)]*)\) noinline cold \{')


def shared_texts() -> Iterator[str]:
    """Texts of a module that has the rare ways which images share."""
    ways = (1, None), (registers.LANES, None), (registers.LANES, registers.FUNCTIONS[_SHARED])
    texts = (
        text for lanes, way in ways for text in function_texts(_SHARED, "@f", lanes, "internal", way)[:-1]
    )
    for text in dict.fromkeys(texts):
        head = _HEAD.match(text)
        yield text.replace("define internal", "define", 1) if head and head[2] in _SCALARS else text
        if head and head[2] in _VECTORS:
            result, name, parameters = head.groups()
            loads = [
                f"  {value} = load {kind}, ptr {value}.at"
                for kind, value in map(_split, parameters.split(", "))
            ]
            call = f'  %y = call {result} @"{name}"({parameters})\n  store {result} %y, ptr %y.at\n  ret void'
            lines = f'define void @"{name}{_IN_MEMORY}"({_places(parameters)}) {{', *loads, call, "}\n"
            yield "\n".join(lines)


def calling_shared(texts: Iterable[str]) -> Iterator[str]:
    """Gives a function's texts, with calls of what images share."""
    for text in texts:
        head = _HEAD.match(text)
        if head is None or head[2] not in (*_SCALARS, *_VECTORS):
            yield text
            continue
        result, name, parameters = head.groups()
        if name in _SCALARS:
            yield f'declare {result} @"{name}"({parameters}) nounwind willreturn memory(none)'
            continue
        places = _places(parameters)
        yield f'declare void @"{name}{_IN_MEMORY}"({places}) nounwind willreturn memory(argmem: readwrite)'
        stores = [
            f"  {value}.at = alloca {kind}\n  store {kind} {value}, ptr {value}.at"
            for kind, value in map(_split, parameters.split(", "))
        ]
        call = f'  call void @"{name}{_IN_MEMORY}"({places})\n  %y = load {result}, ptr %y.at'
        yield "\n".join((head[0], f"  %y.at = alloca {result}", *stores, call, f"  ret {result} %y\n}}\n"))


def _split(parameter: str) -> tuple[str, str]:
    """Its type and its name."""
    kind, _, name = parameter.rpartition(" ")
    return kind, name


def _places(parameters: str) -> str:
    return ", ".join(["ptr %y.at", *(f"ptr {_split(item)[1]}.at" for item in parameters.split(", "))])
