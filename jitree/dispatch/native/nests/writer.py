"""Writing the LLVM IR of a nest: vectors, loops, and what runs under a condition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jitree.codegen.ir_text import FunctionText, llvm_type

if TYPE_CHECKING:
    from jitree.dispatch.native.nest_context import NestContext


class Writer(FunctionText):
    """The text of one nest. Names and labels begin with the context's prefix."""

    def __init__(self, context: NestContext) -> None:
        super().__init__(context.prefix)
        self.context = context

    def fresh(self, name: str) -> str:
        return super().fresh(self.context.prefix + name)

    def taken(self) -> str:
        """The text so far, which this no longer has."""
        text = self.text()
        self._lines = []
        return text

    def splat(self, kind: str, scalar: str, lanes: int) -> str:
        """A scalar, constant or not, in every lane."""
        if lanes == 1:
            return scalar
        scalar_type, vector = llvm_type(kind, 1), llvm_type(kind, lanes)
        if not scalar.startswith("%"):
            return f"splat ({scalar_type} {scalar})"
        first = self.let(f"insertelement {vector} poison, {scalar_type} {scalar}, i64 0")
        return self.let(f"shufflevector {vector} {first}, {vector} poison, <{lanes} x i32> zeroinitializer")

    def intrinsic(self, name: str, kind: str, lanes: int, operands: Sequence[str], extra: str = "") -> str:
        """A call of an LLVM intrinsic of one type; ``extra`` is appended to the operands."""
        vector = llvm_type(kind, lanes)
        suffix = kind if lanes == 1 else f"v{lanes}{kind}"
        parameters = [vector] * len(operands) + ["i1"] * extra.count("i1")
        self.context.declare(f"declare {vector} @llvm.{name}.{suffix}({', '.join(parameters)})")
        arguments = ", ".join(f"{vector} {operand}" for operand in operands)
        return self.let(f"call {vector} @llvm.{name}.{suffix}({arguments}{extra})")
