"""An instruction on memory or references, as both the loop and compiled functions execute it.

What it does is stated once, as a function of a :class:`Site` (:mod:`~jitree.dispatch.native.memory`,
:mod:`~jitree.dispatch.native.lists`, :mod:`~jitree.dispatch.native.references`), which gives the result:
of a value an LLVM expression, of a reference a counted one. A site knows where operands and results are: in
registers that decoded words name, or in values of a function.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

from jitree.dispatch.native.checked_text import CheckedText
from jitree.dispatch.native.prelude import FIXED
from jitree.regs.layout import MODULE, STATE


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
        """Whether an operand is a kernel's list of bindings (:mod:`~jitree.dispatch.native.borrowing`)."""
        return False

    def require_type(self, reference: str, number: int) -> None:
        """A reference must be null or of the type that a literal names."""
        self.require(self.text.call("is_of", reference, self.expected_type(number)))


Statement = Callable[[Site], str | None]
