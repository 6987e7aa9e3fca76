"""Builds the text of a function in LLVM IR, with what it needs beside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

LLVM_TYPES: Final = {
    "i1": "i1", "i16": "i16", "i32": "i32", "i64": "i64", "f32": "float", "f64": "double", "ref": "ptr",
}  # fmt: skip
UNLIKELY: Final = ", !prof !1"
LIKELY: Final = ", !prof !2"
PURE: Final = frozenset((
    "add", "sub", "mul", "shl", "lshr", "ashr", "and", "or", "xor", "icmp", "fcmp", "select", "trunc", "zext",
    "sext", "fpext", "fptrunc", "sitofp", "uitofp", "fptosi", "bitcast", "getelementptr", "ptrtoint",
    "inttoptr", "insertelement", "extractelement", "shufflevector", "fadd", "fsub", "fmul", "fdiv", "fneg",
    "freeze",
))  # fmt: skip
"""Instructions that give the same wherever they stand, and do nothing else: none traps or reads memory."""
PURE_OTHERS: Final = re.compile(
    r"[us](?:div|rem) .*, (?:splat \(\w+ )?[1-9]\d*\)?"
    r"|call .* @llvm\.(?:arithmetic\.fence|fma|fmuladd|[us]min|[us]max|fshl|floor|ceil|round|trunc|fabs)\..*"
)
"""Divisions by constants that trap for no dividend, and LLVM's functions on numbers."""
_FIRST_FREE: Final = 100
"""Numbers of metadata below belong to the preludes."""


def is_pure(expression: str) -> bool:
    """Whether it gives the same wherever it stands, and does nothing else."""
    return expression.partition(" ")[0] in PURE or bool(PURE_OTHERS.fullmatch(expression))


@cache
def llvm_type(kind: str, lanes: int) -> str:
    """``i1 i32 i64 f32 f64`` as a scalar, for one lane, or a vector."""
    return LLVM_TYPES[kind] if lanes == 1 else f"<{lanes} x {LLVM_TYPES[kind]}>"


class FunctionText:
    """The body of a function, line by line. Names of values are the prefix and a number."""

    def __init__(self, prefix: str = "t") -> None:
        self._lines: list[Any] = []
        """Strings, or what becomes some at the end."""
        self._names = 0
        self._prefix = prefix
        self.current_label = "entry"
        """The label of the block under construction."""

    def text(self) -> str:
        return "\n".join(self._lines)

    def let(self, expression: str) -> str:
        """Adds ``%tn = expression`` and returns ``%tn``."""
        name = f"%{self._prefix}{self._names}"
        self._names += 1
        self._lines.append(f"  {name} = {expression}")
        return name

    def do(self, statement: str) -> None:
        self._lines.append(f"  {statement}")

    def label(self, name: str) -> None:
        """Begins a block."""
        self._lines.append(f"{name}:")
        self.current_label = name

    def go_on(self, name: str) -> None:
        """Begins a block to which nothing but the current one leads."""
        self.label(name)

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: str, if_true: str, if_false: str, weight: str = "") -> None:
        self.do(f"br i1 {condition}, label %{if_true}, label %{if_false}{weight}")

    def field(self, record: str, offset: int) -> str:
        """The address of a record's field."""
        return record if offset == 0 else self.let(f"getelementptr i8, ptr {record}, i64 {offset}")

    def fresh(self, name: str) -> str:
        """A label that nothing else in the function has."""
        self._names += 1
        return f"{name}.{self._names - 1}"

    @contextmanager
    def loop(
        self, start: str, end: str, step: int | str, carried: list[tuple[str, str]]
    ) -> Iterator[Iteration]:
        """A loop that runs at least once: counter from ``start`` in steps until ``end``.

        ``carried`` are (type, value) of what goes from one iteration to the next, ``Iteration.next``.
        """
        label, before = self.fresh("loop"), self.current_label
        latch, after = f"{label}.latch", f"{label}.end"
        self.jump(label)
        self.label(label)
        counter = f"%{label}.counter"
        self.do(f"{counter} = phi i64 [ {start}, %{before} ], [ {counter}.next, %{latch} ]")
        names = [f"%{label}.c{number}" for number in range(len(carried))]
        at = len(self._lines)
        iteration = Iteration(counter, names)
        yield iteration
        phis = [
            f"  {name} = phi {kind} [ {value}, %{before} ], [ {following}, %{latch} ]"
            for name, (kind, value), following in zip(names, carried, iteration.next, strict=True)
        ]
        self._lines[at:at] = phis
        self.jump(latch)
        self.label(latch)
        self.do(f"{counter}.next = add i64 {counter}, {step}")
        more = self.let(f"icmp slt i64 {counter}.next, {end}")
        self.branch(more, label, after)
        self.label(after)

    @contextmanager
    def maybe(self, condition: str, carried: list[tuple[str, str]]) -> Iterator[Iteration]:
        """What is written inside runs only if the condition holds; ``Iteration.result`` is what it assigns to
        ``Iteration.next``, or what was carried in."""
        label, before = self.fresh("maybe"), self.current_label
        iteration = Iteration("", [value for _, value in carried])
        self.branch(condition, label, f"{label}.end")
        self.go_on(label)
        yield iteration
        last = self.current_label
        self.jump(f"{label}.end")
        self.label(f"{label}.end")
        for (kind, value), following in zip(carried, iteration.next, strict=True):
            iteration.result.append(self.let(f"phi {kind} [ {value}, %{before} ], [ {following}, %{last} ]"))


class Iteration:
    """Gives a loop's body its counter and the carried values. What is assigned is for the next iteration, and
    is also what is left after the loop. After something that may not have run, that is ``result``."""

    def __init__(self, counter: str, values: list[str]) -> None:
        self.counter = counter
        self.values = values
        self.next: list[str] = []
        self.result: list[str] = []


class ModuleText:
    """Declarations, definitions and metadata, each once however often it is asked for."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}
        self._metadata: dict[str, str] = {}
        self._tables: dict[str, str] = {}

    def declare(self, line: str) -> None:
        """A line outside of functions."""
        self._lines[line] = None

    def define(self, text: str) -> None:
        """A whole function that others call."""
        self._lines[text] = None

    def table(self, rows: Sequence[int]) -> str:
        """The address of constants of 64 bits."""
        items = ", ".join(f"i64 {row}" for row in rows)
        name = self._tables.setdefault(items, f"@table.{len(self._tables)}")
        self.declare(f"{name} = internal unnamed_addr constant [{len(rows)} x i64] [ {items} ]")
        return name

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
