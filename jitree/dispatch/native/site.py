"""States instructions on memory or references, for all machine code.

The loop and compiled functions are made of it.

It is a function of a :class:`Site` (here of references: constants, copies, casts, choices, comparisons; the
others: :mod:`~jitree.dispatch.native.memory`), which gives the result: of a value an LLVM expression, of a
reference a counted one. A site knows where operands and results are: in registers that decoded words name, or
in values of a function. What cannot be done here is left to the interpreter (:class:`CheckedText`).
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from jitree.codegen.ir_text import LIKELY, FunctionText
from jitree.dispatch.native.counting import call
from jitree.dispatch.native.prelude import FIXED
from jitree.regs.layout import MODULE, STATE

if TYPE_CHECKING:
    from jitree.dispatch.semantics import Semantic

_EXACT: Final = {"add": ("add",), "sub": ("sub",), "mul": ("mul",), "fma": ("mul", "add"), "shl": ("shl",)}
"""LLVM's instructions on the operands one after the other."""
MUCH: Final = 1 << 16
"""Bytes or iterations of a nest, some microseconds, after which the clock is looked at."""
_IMPORT_FUEL: Final = 1 << 8
"""Branches that an import counts as."""


class CheckedText(FunctionText, abc.ABC):
    """A function with side exits."""

    def call(self, name: str, *arguments: str) -> str:
        """What a function of :mod:`jitree.regs.access` gives."""
        return self.let(call(name, arguments))

    @abc.abstractmethod
    def side_exit(self) -> str:
        """The label to branch to where an instruction cannot be done here, and nothing of it has happened."""

    def require(self, condition: str) -> None:
        """A side exit unless the condition (i1) holds."""
        going_on = self.fresh("ok")
        self.branch(condition, going_on, self.side_exit(), LIKELY)
        self.go_on(going_on)

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

    @abc.abstractmethod
    def fuel_left(self) -> str:
        """Branches until the clock is looked at (i64)."""

    @abc.abstractmethod
    def set_fuel(self, fuel: str) -> None:
        """What is left after an instruction that is no branch, at least one."""

    def spend_bytes(self, count: str) -> None:
        """Counts an instruction on so many bytes or elements of buffers: the next branch or call looks at the
        clock if they were many."""
        is_much = self.let(f"icmp ugt i64 {count}, {MUCH}")
        self.set_fuel(self.let(f"select i1 {is_much}, i64 1, i64 {self.fuel_left()}"))

    def spend_import(self) -> None:
        """Counts a call of an import's machine code, which may take long."""
        left = self.fuel_left()
        enough = self.let(f"icmp ugt i64 {left}, {_IMPORT_FUEL}")
        rest = self.let(f"sub i64 {left}, {_IMPORT_FUEL}")
        self.set_fuel(self.let(f"select i1 {enough}, i64 {rest}, i64 1"))


class Site(abc.ABC):
    """Operands are register operands, and literals the others, each counted in the order of the table."""

    def __init__(self, text: CheckedText, mnemonic: str) -> None:
        self.text = text
        self.mnemonic = mnemonic

    def require(self, condition: str) -> None:
        """Nothing of the instruction happens here unless the condition (i1) holds."""
        self.text.require(condition)

    @abc.abstractmethod
    def operand(self, number: int) -> str:
        """A reference that the instruction looks at, or a value."""

    @abc.abstractmethod
    def kind(self, number: int) -> str:
        """The LLVM type of an operand."""

    @property
    @abc.abstractmethod
    def result_kind(self) -> str:
        """The LLVM type of the result."""

    @abc.abstractmethod
    def literal(self, number: int) -> str:
        """An i64."""

    @abc.abstractmethod
    def truth(self, number: int) -> str:
        """Whether an i32 is not 0."""

    @abc.abstractmethod
    def comparison(self, condition: str) -> str:
        """The result of a comparison."""

    @abc.abstractmethod
    def take(self, number: int) -> str:
        """A counted reference: that of the register if the register gives it up, else another one."""

    @abc.abstractmethod
    def drop(self, number: int) -> None:
        """Drops the reference of a register that gives it up."""

    @abc.abstractmethod
    def put(self, place: str, number: int, scope: str) -> None:
        """Puts a reference that is taken in place of another one in memory."""

    @abc.abstractmethod
    def entry(self, number: int, kind: int) -> str:
        """The handle entry of a reference, which must be of a kind (KIND_*)."""

    @abc.abstractmethod
    def element(self, number: int, offset: int, kind: str, shift: int, is_written: bool) -> str:
        """The address of an element, ``1 << shift`` bytes, which must lie in a buffer."""

    @abc.abstractmethod
    def extent(self, number: int, is_written: bool = False) -> tuple[str, str]:
        """The address and the length of what must be a buffer."""

    @abc.abstractmethod
    def scoped(self, access: str, scope: str) -> str:
        """An access to memory, of which the metadata says what it does not overlap."""

    # -- what follows ----------------------------------------------------------------------------------

    def read(self, kind: str, place: str, scope: str, alignment: int = 8) -> str:
        return self.text.let(self.scoped(f"load {kind}, ptr {place}, align {alignment}", scope))

    def module(self, field: str, kind: str = "ptr") -> str:
        """A field of the module's record."""
        module = self.read("ptr", self.text.field("%state", STATE["module"]), FIXED)
        return self.read(kind, self.text.field(module, MODULE[field]), FIXED)

    def indexed(self, kind: str, base: str, index: str) -> str:
        """The address of the element of an array in memory."""
        return self.text.let(f"getelementptr {kind}, ptr {base}, i64 {index}")

    def wide(self, number: int) -> str:
        """An i32 operand as i64, zero extended."""
        return self.text.let(f"zext i32 {self.operand(number)} to i64")

    def bits(self, number: int) -> tuple[str, str]:
        """The type and the text of a value as an integer."""
        kind, value = self.kind(number), self.operand(number)
        if kind not in ("float", "double"):
            return kind, value
        integer = "i32" if kind == "float" else "i64"
        return integer, self.text.let(f"bitcast {kind} {value} to {integer}")

    def retain(self, reference: str) -> None:
        self.text.do(f"call void @vm.retain(ptr {reference})")

    def expected_type(self, number: int) -> str:
        """The type that a literal names."""
        place = self.indexed("i32", self.module("types"), self.literal(number))
        return self.text.let(f"sext i32 {self.read('i32', place, FIXED, 4)} to i64")

    def is_bindings(self, number: int) -> bool:
        """Whether an operand is a kernel's list of bindings (:mod:`~jitree.dispatch.native.ownership`)."""
        return False

    def require_type(self, reference: str, number: int) -> None:
        """A reference must be null or of the type that a literal names."""
        self.require(self.text.call("is_of", reference, self.expected_type(number)))


Statement = Callable[[Site], str | None]


def _rodata(site: Site) -> str:
    """segment, result"""
    reference = site.read("ptr", site.indexed("ptr", site.module("rodata"), site.literal(0)), FIXED)
    site.require(site.text.let(f"icmp ne ptr {reference}, null"))
    site.retain(reference)
    return reference


def _assign(site: Site) -> str:
    """source, result"""
    return site.take(0)


def _cast(site: Site) -> str:
    """source, type, result"""
    site.require_type(site.operand(0), 0)
    return site.take(0)


def _select(site: Site) -> str:
    """condition, type, if true, if false, result; both that have the move flag are moved"""
    condition = site.truth(0)
    chosen = site.text.let(f"select i1 {condition}, ptr {site.operand(1)}, ptr {site.operand(2)}")
    site.require_type(chosen, 0)
    site.retain(chosen)
    site.drop(1)
    site.drop(2)
    return chosen


def _compare(site: Site) -> str:
    """Handles are unique for an object, so identity is equality of addresses."""
    relation = "eq" if site.mnemonic == "cmp.eq.ref" else "ne"
    lhs = site.operand(0)
    rhs = "null" if site.mnemonic == "cmp.nz.ref" else site.operand(1)
    return site.comparison(site.text.let(f"icmp {relation} ptr {lhs}, {rhs}"))


REFERENCE_STATEMENTS: Final[dict[str, Statement]] = {
    "const.ref.rodata": _rodata,
    "assign.ref": _assign,
    "cast.any.ref": _cast,
    "select.ref": _select,
    "cmp.eq.ref": _compare,
    "cmp.ne.ref": _compare,
    "cmp.nz.ref": _compare,
}
