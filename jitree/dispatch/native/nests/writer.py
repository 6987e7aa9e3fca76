"""Writing the LLVM IR of a nest: vectors, loops, and what runs under a condition.

What does not change in a loop is written in front of it, and what a block has already is not written again:
LLVM's passes would find both, in many times the time that this takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from jitree.codegen.ir_text import FunctionText, Iteration, is_pure, llvm_type

if TYPE_CHECKING:
    from jitree.dispatch.native.nest_context import NestContext

_NAME: Final = re.compile(r"%[-\w.]+")


class _Front:
    """The place in front of a loop."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.known: dict[str, str] = {}
        """Names by expression."""


class Writer(FunctionText):
    """The text of one nest. Names and labels begin with the context's prefix."""

    def __init__(self, context: NestContext) -> None:
        super().__init__(context.prefix)
        self.context = context
        self._own = f"%{context.prefix}"
        self._fronts: list[_Front] = []
        """Of the loops under construction, from the outermost one."""
        self._depths: dict[str, int] = {}
        """In how many loops a value lies; one of the nest that is not here lies in all."""
        self._known: dict[str, str] = {}
        """Names by expression, in the block under construction."""

    def let(self, expression: str) -> str:
        if not is_pure(expression):
            return super().let(expression)
        inside = len(self._fronts)
        depth = max(map(self.depth, _NAME.findall(expression)), default=0) if inside else 0
        known = self._known if depth >= inside else self._fronts[depth].known
        name = known.get(expression)
        if name is None:
            name = known[expression] = super().let(expression)
            if depth < inside:
                self._fronts[depth].lines.append(self._lines.pop())
            self._depths[name] = min(depth, inside)
        return name

    def depth(self, name: str) -> int:
        """In how many of the loops under construction a value changes."""
        depth = self._depths.get(name)
        if depth is None:
            return len(self._fronts) if name.startswith(self._own) else 0
        return depth

    def label(self, name: str) -> None:
        super().label(name)
        self._known = {}

    def go_on(self, name: str) -> None:
        super().label(name)

    @contextmanager
    def loop(
        self, start: str, end: str, step: int | str, carried: list[tuple[str, str]]
    ) -> Iterator[Iteration]:
        front = _Front()
        self._lines.append(front)
        self._fronts.append(front)
        with super().loop(start, end, step, carried) as iteration:
            self._depths.update(dict.fromkeys((iteration.counter, *iteration.values), len(self._fronts)))
            yield iteration
        self._fronts.pop()

    def text(self) -> str:
        lines: list[str] = []
        for line in self._lines:
            lines += [line] if isinstance(line, str) else line.lines
        return "\n".join(lines)

    def fresh(self, name: str) -> str:
        return super().fresh(self.context.prefix + name)

    def taken(self) -> str:
        """The text so far, which this no longer has."""
        text = self.text()
        self._lines = []
        self._known = {}
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
