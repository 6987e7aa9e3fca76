"""Writes LLVM IR: instructions with fresh names, blocks, loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jitree.codegen.vector_math.ir import llvm_type

if TYPE_CHECKING:
    from jitree.dispatch.native.nest_context import NestContext


class Writer:
    """The text of one nest. Names and labels begin with the context's prefix."""

    def __init__(self, context: NestContext) -> None:
        self.context = context
        self._lines: list[str] = []
        self._count = 0
        self.block = ""
        """Label of the block that is being written."""

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def line(self, text: str) -> None:
        self._lines.append(f"  {text}")

    def fresh(self) -> str:
        self._count += 1
        return f"{self.context.prefix}{self._count}"

    def let(self, text: str) -> str:
        name = f"%{self.fresh()}"
        self.line(f"{name} = {text}")
        return name

    def begin(self, label: str) -> None:
        """Starts a block; the one before has been ended."""
        self._lines.append(f"{label}:")
        self.block = label

    def branch(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch_if(self, condition: str, true: str, false: str) -> None:
        self.line(f"br i1 {condition}, label %{true}, label %{false}")

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

    @contextmanager
    def loop(self, start: str, end: str, step: int, carried: list[tuple[str, str]]) -> Iterator[Iteration]:
        """A loop that runs at least once: counter from ``start`` in steps to ``end``, which it has to meet.

        ``carried`` are (type, value) of what goes from one iteration to the next, ``Iteration.next``.
        """
        label, before = self.fresh(), self.block
        latch, after = f"{label}.latch", f"{label}.end"
        self.branch(label)
        self.begin(label)
        counter = f"%{label}.counter"
        self.line(f"{counter} = phi i64 [ {start}, %{before} ], [ {counter}.next, %{latch} ]")
        names = [f"%{label}.c{number}" for number in range(len(carried))]
        at = len(self._lines)
        iteration = Iteration(counter, names)
        yield iteration
        phis = [
            f"  {name} = phi {kind} [ {value}, %{before} ], [ {following}, %{latch} ]"
            for name, (kind, value), following in zip(names, carried, iteration.next, strict=True)
        ]
        self._lines[at:at] = phis
        self.branch(latch)
        self.begin(latch)
        self.line(f"{counter}.next = add i64 {counter}, {step}")
        more = self.let(f"icmp slt i64 {counter}.next, {end}")
        self.branch_if(more, label, after)
        self.begin(after)

    @contextmanager
    def maybe(self, condition: str, carried: list[tuple[str, str]]) -> Iterator[Iteration]:
        """What is written inside runs only if the condition holds; ``Iteration.result`` is what it assigns to
        ``Iteration.next``, or what was carried in."""
        label, before = self.fresh(), self.block
        iteration = Iteration("", [value for _, value in carried])
        self.branch_if(condition, label, f"{label}.end")
        self.begin(label)
        yield iteration
        last = self.block
        self.branch(f"{label}.end")
        self.begin(f"{label}.end")
        for (kind, value), following in zip(carried, iteration.next, strict=True):
            iteration.result.append(self.let(f"phi {kind} [ {value}, %{before} ], [ {following}, %{last} ]"))


class Iteration:
    """Inside a loop: its counter, the carried values in it, and, when assigned, in the next one; these
    are also what is left after the loop. After something that may not have run, that is ``result``."""

    def __init__(self, counter: str, values: list[str]) -> None:
        self.counter = counter
        self.values = values
        self.next: list[str] = []
        self.result: list[str] = []
