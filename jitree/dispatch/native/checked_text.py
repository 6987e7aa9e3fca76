"""Functions over bytecode's values that leave what they cannot do to the interpreter."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from jitree.codegen.ir_text import LIKELY, FunctionText
from jitree.dispatch.native.counting import call

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
