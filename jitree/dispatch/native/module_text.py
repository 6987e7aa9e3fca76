"""LLVM IR under construction: the body of a function, and what functions need beside their own text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from jitree.dispatch.native.counting import call
from jitree.dispatch.native.ssa import ZERO, Value

if TYPE_CHECKING:
    from jitree.dispatch.semantics import Semantic

LLVM_TYPES: Final = {"i32": "i32", "i64": "i64", "f32": "float", "f64": "double", "ref": "ptr"}
UNLIKELY: Final = ", !prof !1"
LIKELY: Final = ", !prof !2"
_EXACT: Final = {"add": ("add",), "sub": ("sub",), "mul": ("mul",), "fma": ("mul", "add"), "shl": ("shl",)}
"""LLVM's instructions on the operands one after the other."""
_FIRST_FREE: Final = 100
"""Numbers of metadata below belong to the prelude."""


class FunctionText:
    """The body of a function, line by line."""

    def __init__(self) -> None:
        self._lines: list[Any] = []
        """Strings, or whatever becomes some at the end."""
        self._names = 0

    def let(self, expression: str) -> str:
        """Adds ``%tn = expression`` and returns ``%tn``."""
        name = f"%t{self._names}"
        self._names += 1
        self._lines.append(f"  {name} = {expression}")
        return name

    def do(self, statement: str) -> None:
        self._lines.append(f"  {statement}")

    def label(self, name: str) -> None:
        """Begins a block."""
        self._lines.append(f"{name}:")

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: str, if_true: str, if_false: str, weight: str = "") -> None:
        self.do(f"br i1 {condition}, label %{if_true}, label %{if_false}{weight}")

    def call(self, name: str, *arguments: str) -> str:
        """What a function of :mod:`jitree.regs.access` gives."""
        return self.let(call(name, arguments))

    def field(self, record: str, offset: int) -> str:
        """The address of a record's field."""
        return record if offset == 0 else self.let(f"getelementptr i8, ptr {record}, i64 {offset}")

    def side_exit(self) -> str:
        """The label to branch to where an instruction cannot be done here, and nothing of it has happened."""
        raise NotImplementedError

    def require(self, condition: str) -> None:
        """A side exit unless the condition (i1) holds."""
        going_on = self.fresh("ok")
        self.branch(condition, going_on, self.side_exit(), LIKELY)
        self.label(going_on)

    def require_valid(self, mnemonic: str, semantic: Semantic, arguments: Sequence[str]) -> None:
        """A side exit where an instruction fails."""
        if semantic.refusal in ("exact", "exact_32"):
            self._require_exact(mnemonic, semantic, arguments)
        elif semantic.refusal == "count":
            self.require(self.let(f"icmp ult i64 {arguments[0]}, {1 << 32}"))
        elif semantic.refusal is not None:
            self._require_quotient(semantic, arguments)

    def _require_exact(self, mnemonic: str, semantic: Semantic, arguments: Sequence[str]) -> None:
        """A side exit where the result in 128 bits is another one."""
        narrow = semantic.result_type
        if mnemonic.startswith("shl"):
            arguments = [arguments[0], self.let(f"and i32 {arguments[1]}, {int(narrow[1:]) - 1}")]
        kinds = zip(semantic.argument_types, arguments, strict=True)
        first, *others = (self.let(f"sext {kind} {argument} to i128") for kind, argument in kinds)
        for operation, other in zip(_EXACT[mnemonic.split(".")[0]], others, strict=True):
            first = self.let(f"{operation} i128 {first}, {other}")
        result = self.let(f"trunc i128 {first} to {narrow}")
        again = self.let(f"sext {narrow} {result} to i128")
        self.require(self.let(f"icmp eq i128 {first}, {again}"))

    def _require_quotient(self, semantic: Semantic, arguments: Sequence[str]) -> None:
        """A side exit where a division fails: by zero, and where the quotient does not fit."""
        kind, (lhs, rhs) = semantic.argument_types[0], arguments[:2]
        self.require(self.let(f"icmp ne {kind} {rhs}, 0"))
        if semantic.refusal == "signed_division":
            is_minimum = self.let(f"icmp eq {kind} {lhs}, {-(1 << (int(kind[1:]) - 1))}")
            is_negation = self.let(f"icmp eq {kind} {rhs}, -1")
            overflow = self.let(f"and i1 {is_minimum}, {is_negation}")
            self.require(self.let(f"xor i1 {overflow}, true"))

    def fresh(self, name: str) -> str:
        """A label that nothing else in the function has."""
        self._names += 1
        return f"{name}.{self._names - 1}"


class ModuleText:
    """Declarations, definitions and metadata, each once however often it is asked for."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}
        self._metadata: dict[str, str] = {}

    def declare(self, line: str) -> None:
        """A line outside of functions."""
        self._lines[line] = None

    def define(self, text: str) -> None:
        """A whole function that others call."""
        self._lines[text] = None

    def intrinsic(self, name: str, result: str, arguments: Iterable[str]) -> str:
        """``@name`` of a function of LLVM."""
        self.declare(f"declare {result} @{name}({', '.join(arguments)})")
        return f"@{name}"

    def metadata(self, text: str) -> str:
        """The number (``!n``) of a metadata node; nodes that begin with ``distinct`` are never shared."""
        key = f"{text} {len(self._metadata)}" if text.startswith("distinct") else text
        number = self._metadata.get(key)
        if number is None:
            number = self._metadata[key] = f"!{_FIRST_FREE + len(self._metadata)}"
            self._lines[f"{number} = {text}"] = None
        return number

    def text(self) -> str:
        return "\n".join(self._lines)


def constant(value: Value) -> str | None:
    """A value that is a constant as LLVM operand; None for others."""
    operation = value.operation
    if operation == ZERO or operation == "const.ref.zero":
        return {"ref": "null", "f32": "0.0", "f64": "0.0"}.get(value.type, "0")
    if not operation.startswith("const.") or operation == "const.ref.rodata":
        return None
    bits = value.literals[0] if value.literals else 0
    if value.type == "f32":
        return f"bitcast (i32 {_signed(bits, 32)} to float)"
    if value.type == "f64":
        return f"bitcast (i64 {_signed(bits, 64)} to double)"
    return str(_signed(bits, 32 if value.type == "i32" else 64))


def _signed(bits: int, width: int) -> int:
    bits &= (1 << width) - 1
    return bits - (1 << width) if bits >> width - 1 else bits


def operand(value: Value) -> str:
    """A value as LLVM operand."""
    return constant(value) or value.name


def is_neutral(value: Value) -> bool:
    """A constant 0.0, 1.0 or their negative, with which LLVM takes arithmetic to change no bits."""
    bits = value.literals[0] if value.literals else 0
    one, sign = {"f32": (0x3F800000, 1 << 31), "f64": (0x3FF0000000000000, 1 << 63)}.get(value.type, (0, 0))
    return one != 0 and constant(value) is not None and bits & (sign - 1) in (0, one)
