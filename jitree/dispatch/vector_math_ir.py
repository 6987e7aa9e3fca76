"""The functions of :mod:`jitree.dispatch.vector_math` as LLVM IR, for one value or a vector of any length.

The functions are run on symbolic values: their primitives are replaced by ones that write an instruction
each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

from jitree.dispatch import vector_math
from jitree.dispatch.primitives import INVALID_NAN
from jitree.dispatch.semantics import SEMANTICS
from jitree.errors import InternalError

_LLVM: Final = {"i1": "i1", "i32": "i32", "i64": "i64", "f32": "float", "f64": "double"}
_SIGNED: Final = {"lt": "slt", "gt": "sgt", "le": "sle", "ge": "sge", "eq": "eq", "ne": "ne"}
_ORDERED: Final = {"lt": "olt", "gt": "ogt", "le": "ole", "ge": "oge", "eq": "oeq", "ne": "une"}

MNEMONICS: Final = frozenset(
    mnemonic
    for mnemonic, semantic in SEMANTICS.items()
    if semantic.function.__module__ == vector_math.__name__
)
"""Instructions whose meaning is one of these functions."""


def llvm_type(kind: str, lanes: int) -> str:
    """``i1 i32 i64 f32 f64`` as a scalar, for one lane, or a vector."""
    return _LLVM[kind] if lanes == 1 else f"<{lanes} x {_LLVM[kind]}>"


def function_text(mnemonic: str, symbol: str, lanes: int, linkage: str = "") -> str:
    """The definition of a function, as ``symbol`` names it (with its @), over scalars or vectors.

    Inlined into its callers, without any flag that would let LLVM change results.
    """
    semantic = SEMANTICS[mnemonic]
    writer = _Writer(lanes)
    arguments = [_Value(writer, kind, f"%a{n}") for n, kind in enumerate(semantic.argument_types)]
    result = writer.value(_symbolic(semantic.function, writer)(*arguments), semantic.result_type)
    parameters = ", ".join(f"{llvm_type(argument.kind, lanes)} {argument.name}" for argument in arguments)
    kind = llvm_type(semantic.result_type, lanes)
    lines = "\n".join(writer.lines)
    head = f"define {linkage} {kind} {symbol}({parameters}) alwaysinline"
    return f"{head} {{\n{lines}\n  ret {kind} {result.name}\n}}\n"


@dataclass(frozen=True, slots=True, eq=False)
class _Value:
    """The result of an instruction. Operators write further ones; numbers among their operands are constants
    of the other operand's type."""

    writer: _Writer
    kind: str
    name: str

    def _binary(self, other: Any, integer: str, floating: str) -> _Value:
        operation = floating if self.kind.startswith("f") else integer
        return self.writer.binary(operation, self, self.writer.value(other, self.kind))

    def __add__(self, other: Any) -> _Value:
        return self._binary(other, "add", "fadd")

    def __sub__(self, other: Any) -> _Value:
        return self._binary(other, "sub", "fsub")

    def __mul__(self, other: Any) -> _Value:
        return self._binary(other, "mul", "fmul")

    def __and__(self, other: Any) -> _Value:
        return self._binary(other, "and", "")

    def __or__(self, other: Any) -> _Value:
        return self._binary(other, "or", "")

    def __xor__(self, other: Any) -> _Value:
        return self._binary(other, "xor", "")

    def __lshift__(self, other: Any) -> _Value:
        return self._binary(other, "shl", "")

    def __rshift__(self, other: Any) -> _Value:
        return self._binary(other, "ashr", "")

    def __neg__(self) -> _Value:
        return self.writer.instruction(self.kind, f"fneg {self.writer.typed(self)}")

    def _compare(self, other: Any, relation: str) -> _Value:
        floating = self.kind.startswith("f")
        operation = f"fcmp {_ORDERED[relation]}" if floating else f"icmp {_SIGNED[relation]}"
        right = self.writer.value(other, self.kind)
        return self.writer.instruction("i1", f"{operation} {self.writer.typed(self)}, {right.name}")

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, "lt")

    def __le__(self, other: Any) -> Any:
        return self._compare(other, "le")

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, "gt")

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, "ge")

    def __eq__(self, other: object) -> Any:
        return self._compare(other, "eq")

    def __ne__(self, other: object) -> Any:
        return self._compare(other, "ne")

    def __hash__(self) -> int:
        return hash(self.name)


class _Writer:
    """Instructions of one function, in order."""

    def __init__(self, lanes: int) -> None:
        self.lines: list[str] = []
        self._lanes = lanes

    def typed(self, value: _Value) -> str:
        return f"{llvm_type(value.kind, self._lanes)} {value.name}"

    def instruction(self, kind: str, text: str) -> _Value:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return _Value(self, kind, name)

    def binary(self, operation: str, left: _Value, right: _Value) -> _Value:
        return self.instruction(left.kind, f"{operation} {self.typed(left)}, {right.name}")

    def value(self, value: Any, kind: str) -> _Value:
        """A value as it is, a Python number as a constant."""
        if isinstance(value, _Value):
            if value.kind != kind:
                raise InternalError(f"a value of type {value.kind} where {kind} is needed in vector math")
            return value
        text = _literal(value, kind)
        if self._lanes > 1:
            text = f"splat ({_LLVM[kind]} {text})"
        return _Value(self, kind, text)

    def convert(self, operation: str, value: Any, kind: str) -> _Value:
        return self.instruction(kind, f"{operation} {self.typed(value)} to {llvm_type(kind, self._lanes)}")


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
    """What the names that vector math imports stand for in a function that is being written."""

    def convert_to(kind: str, operation: str) -> Callable[[Any], _Value]:
        """To a floating-point type; a value that has it already was rounded by its instruction."""

        def convert(x: Any) -> _Value:
            if not isinstance(x, _Value) or x.kind == kind:
                return writer.value(x, kind)
            return writer.convert(operation, x, kind)

        return convert

    def choose(condition: _Value, if_true: Any, if_false: Any) -> _Value:
        kind = next(value.kind for value in (if_true, if_false) if isinstance(value, _Value))
        true, false = writer.value(if_true, kind), writer.value(if_false, kind)
        text = ", ".join(map(writer.typed, (condition, true, false)))
        return writer.instruction(kind, f"select {text}")

    return {
        "INVALID_NAN": INVALID_NAN,
        "choose": choose,
        "divide": lambda left, right: writer.binary("fdiv", left, right),
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
    return FunctionType(function.__code__, replaced, function.__name__)
