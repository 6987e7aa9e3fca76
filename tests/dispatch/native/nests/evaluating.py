"""Computes what the guard of a nest would find, instead of writing it: each instruction as it is given.

Numbers of 64 and of 128 bits wrap as theirs do.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from jitree.dispatch.native.nests import Nest
from jitree.dispatch.native.nests.body import Body
from jitree.dispatch.native.nests.guard import Guard
from jitree.dispatch.native.nests.memory import Places
from jitree.dispatch.native.nests.structure import Polynomial
from jitree.dispatch.native.nests.writer import NestBuffer, Writer
from jitree.dispatch.native.ssa import Value

_BINARY: Final = re.compile(r"(\w+) (i\d+|ptr) (\S+), (\S+)")
_COMPARISON: Final = re.compile(r"icmp (\w+) (i\d+|ptr) (\S+), (\S+)")
_CAST: Final = re.compile(r"(sext|zext|trunc|ptrtoint) (i\d+|ptr) (\S+) to i(\d+)")
_CALL: Final = re.compile(r"call i64 @llvm\.(smax|umin)\.i64\(i64 (\S+), i64 (\S+)\)")
_LANE: Final = re.compile(r"(?:insertelement <1 x i1> poison, i1|extractelement <1 x \w+>) (\S+), i64 0")
_SIGNED: Final[dict[str, Callable[[int, int], bool]]] = {
    "eq": operator.eq, "ne": operator.ne, "slt": operator.lt, "sle": operator.le, "sgt": operator.gt,
    "sge": operator.ge,
}  # fmt: skip
_UNSIGNED: Final = {"ult": operator.lt, "ule": operator.le, "ugt": operator.gt, "uge": operator.ge}


def wrap(number: int, bits: int = 64) -> int:
    """As a signed number of so many bits."""
    half = 1 << bits - 1
    return (number + half) % (2 * half) - half


def _quotient(left: int, right: int) -> int:
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


class Evaluator(Writer):
    """Has the value of each name."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.values: dict[str, int] = {}
        self.loads: list[tuple[int, bool]] = []
        """Indices of elements that are read in front of the loops, and whether they are."""
        self.found = 0
        """What is there."""

    def at(self, kind: str, pointer: str, index: int | str) -> str:
        return self.name(self.number(str(index)))

    def masked_load(
        self, kind: str, element: str, lanes: int, place: str, mask: str, otherwise: str = ""
    ) -> str:
        self.loads.append((self.number(place), bool(self.number(mask))))
        return self.name(self.found if self.loads[-1][1] else 0)

    def name(self, number: int) -> str:
        name = f"%e{len(self.values)}"
        self.values[name] = number
        return name

    def number(self, text: str) -> int:
        if text in ("true", "false"):
            return int(text == "true")
        if text.startswith("%"):
            return self.values[text]
        return int(text) if text.removeprefix("-").isdigit() else float(text)  # type: ignore[return-value]

    def let(self, expression: str) -> str:
        return self.name(self._computed(expression))

    def _computed(self, expression: str) -> int:
        if found := _COMPARISON.fullmatch(expression):
            relation, kind, *texts = found.groups()
            left, right = map(self.number, texts)
            if relation in _SIGNED:
                return int(_SIGNED[relation](left, right))
            mask = (1 << (64 if kind == "ptr" else int(kind[1:]))) - 1
            return int(_UNSIGNED[relation](left & mask, right & mask))
        if found := _CAST.fullmatch(expression):
            operation, kind, text, bits = found.groups()
            number = self.number(text)
            return wrap(number & ((1 << int(kind[1:])) - 1) if operation == "zext" else number, int(bits))
        if found := _CALL.fullmatch(expression):
            operation, *texts = found.groups()
            left, right = map(self.number, texts)
            if operation == "smax":
                return max(left, right)
            return wrap(min(left % 2**64, right % 2**64))
        if found := _LANE.fullmatch(expression):
            return self.number(found[1])
        found = _BINARY.fullmatch(expression)
        assert found is not None, expression
        operation, kind, *texts = found.groups()
        left, right = map(self.number, texts)
        bits = int(kind[1:])
        mask = (1 << bits) - 1
        unsigned = (left & mask), (right & mask)
        results: Mapping[str, Callable[[], int]] = {
            "add": lambda: left + right, "sub": lambda: left - right, "mul": lambda: left * right,
            "and": lambda: left & right, "or": lambda: left | right, "xor": lambda: left ^ right,
            "sdiv": lambda: _quotient(left, right), "udiv": lambda: unsigned[0] // unsigned[1],
            "lshr": lambda: unsigned[0] >> unsigned[1],
        }  # fmt: skip
        return results[operation]() & 1 if bits == 1 else wrap(results[operation](), bits)


class Memory(NamedTuple):
    """Of a buffer."""

    address: int
    length: int


class Verdict(NamedTuple):
    """Of a guard."""

    passes: bool
    """Whether the nest runs, and has iterations."""
    loads: list[tuple[int, bool]]
    """Indices of elements that are read before, and whether they are."""


def context_of(values: Mapping[Value, int | Memory]) -> Any:
    """What a nest has to know of the function around it."""
    names: dict[str, int] = {}

    def value(one: Value) -> str:
        number = values[one]
        assert isinstance(number, int)
        names[f"%value{one.number}"] = number
        return f"%value{one.number}"

    def buffer(one: Value) -> NestBuffer:
        memory = values[one]
        assert isinstance(memory, Memory)
        own = f"%address{one.number}", f"%length{one.number}"
        names.update(zip(own, memory, strict=True))
        return NestBuffer(own[0], own[1], own[1])

    return SimpleNamespace(
        value=value, buffer=buffer, prefix="n", live_outs=[], declare=lambda line: None, names=names,
        access="", deopt="", done="", is_bindings=lambda value: False,
    )  # fmt: skip


def guarded(nest: Nest, values: Mapping[Value, int | Memory], found: int = 0) -> Verdict:
    """What the guard of a nest finds. ``found`` is what elements hold that are read in front."""
    context = context_of(values)
    writer = Evaluator(context)
    writer.values, writer.found = context.names, found
    fits, runs = Guard(writer, nest, Body(writer, nest, Places(), {})).gather()
    return Verdict(bool(writer.number(fits) and writer.number(runs)), writer.loads)


def value_of(polynomial: Polynomial, numbers: Mapping[Value, int]) -> int:
    """The number that a polynomial is, without wrapping."""
    total = 0
    for monomial, number in polynomial.terms.items():
        for symbol in monomial:
            number *= numbers[symbol]
        total += number
    return total


def corners(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """All iterations of loops where they are few; else the first and the last ones."""
    found: list[tuple[int, ...]] = [()]
    for count in counts:
        few = range(count) if count <= 8 else (0, 1, 2, count // 2, count - 2, count - 1)
        found = [(*one, number) for one in found for number in few]
    return found
