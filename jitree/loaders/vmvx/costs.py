"""Estimates what a workgroup costs before its kernel has run.

A reading goes through the bytecode once, from its beginning to its end, with what registers hold where that
is known: constants, the number of the workgroup, what is computed from them, and the first values of
counters. So the bound of a loop is known, but for sizes that the program computes. This guess decides
which kernels are built first, and when calls wait for them; results do not depend on it.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from jitree.base.records import NamedTuple
from jitree.vmfb.words import BASE_OPCODE, OPCODE, signed

if TYPE_CHECKING:
    from jitree.vmfb.program import DecodedFunction, DecodedModule

_UNKNOWN_COUNT: Final = 16
"""How often a loop is thought to go round whose bound is not known."""
_MOST_TIMES: Final = 1e15
"""How often an instruction is thought to run, at most: for days. What many loops say is no float."""
_X, _Y, _Z = 3, 4, 5
"""Arguments of a kernel that are the workgroup's number."""

Known = dict[int, int]
"""What is known of registers, by the slot."""


def _divided(number: int, divisor: int) -> int | None:
    return number // divisor if divisor else None


def _rest(number: int, divisor: int) -> int | None:
    return number % divisor if divisor else None


_CHOSEN: Final = {"min": min, "max": max}
_COMPUTED: Final[dict[str, Callable[[int, int], int | None]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": _divided,
    "rem": _rest,
}
_OPERATIONS: Final = {
    OPCODE[name]: operation
    for stem, operation in (_COMPUTED | _CHOSEN).items()
    for kind in ("i32", "i64")
    for name in (f"{stem}.{kind}", f"{stem}.{kind}.s", f"{stem}.{kind}.u")
    if name in OPCODE
}
"""By opcode: of two registers."""
_KEPT: Final = frozenset(map(OPCODE.__getitem__, ("ext.i32.i64.s", "ext.i32.i64.u", "trunc.i64.i32")))
_SELECTED: Final = frozenset(map(OPCODE.__getitem__, ("select.i32", "select.i64")))
"""Compilers correct quotients and remainders of negative numbers by these, which no workgroup has."""
_MULTIPLY_ADD: Final = frozenset(map(OPCODE.__getitem__, ("fma.i32", "fma.i64")))
_COMPARED: Final = frozenset(OPCODE[f"cmp.lt.{kind}.{sign}"] for kind in ("i32", "i64") for sign in "su")
_NO_VALUE: Final = frozenset(
    opcode
    for name, opcode in OPCODE.items()
    if name.endswith(".ref")
    or name.startswith(("assign", "buffer.alloc", "buffer.c", "buffer.fill", "buffer.store", "call", "cast"))
    or name.startswith(("const.ref", "discard", "fail", "list.alloc", "list.re", "list.set", "return"))
)
"""Instructions that write no value register."""
_ZEROS: Final = frozenset(map(OPCODE.__getitem__, ("const.i32.zero", "const.i64.zero")))
_CONSTANT_32: Final = OPCODE["const.i32"]
_CONSTANT_64: Final = OPCODE["const.i64"]
_BRANCH: Final = OPCODE["br"]
_BARE_BRANCH: Final = OPCODE["br.bare"]
_CONDITIONAL: Final = OPCODE["cond_br"]


class KernelCosts:
    """Instructions that workgroups of an executable's kernels run."""

    def __init__(self, program: DecodedModule, ordinals: Sequence[int]) -> None:
        """``ordinals``: of the kernels' functions."""
        self._program = program
        self._ordinals = ordinals

    def of_workgroup(self, kernel: int, count: int) -> float:
        """Estimates a mean workgroup from the first, the middle and the last one.

        Tiles at the end of a row or column are smaller.
        """
        function = self._program.functions[self._ordinals[kernel]]
        groups = {0, count // 2, max(count - 1, 0)}
        return sum(_Reading(self._program, function, number).cost() for number in groups) / len(groups)


class _Loop(NamedTuple):
    """From its first word to the branch back."""

    first: int
    last: int
    rounds: int
    """How often it goes round."""


class _Around(NamedTuple):
    """The innermost loop around what is looked at, or the function."""

    last: int
    times: float
    """How often its instructions run."""


class _Reading:
    """The way through one function. Word indices count from its first word."""

    def __init__(self, program: DecodedModule, function: DecodedFunction, number: int) -> None:
        """``number``: x of the workgroup, in the first row."""
        starts = program.instruction_words
        first, last = bisect_left(starts, function.start), bisect_left(starts, function.end)
        self._starts = [start - function.start for start in starts[first:last]]
        self._words: list[int] = program.words[function.start : function.end].tolist()
        x, y, z = (function.argument_slots[place][1] for place in (_X, _Y, _Z))
        self._known: Known = {x: number, y: 0, z: 0}
        self._compared: dict[int, tuple[int, int]] = {}
        """The registers that a truth in a register compares."""
        self._bounds: dict[int, tuple[int, int | None]] = {}
        """By the place of a conditional branch: the counter that it looks at, and how far that has to go."""
        self._conditions: list[int] = []
        """The places of these branches, in order."""
        self._steps: dict[int, tuple[int, int]] = {}
        """Where a register was last added to, and what."""
        self._loops: list[_Loop] = []

    def cost(self) -> float:
        for at, following in pairwise([*self._starts, len(self._words)]):
            self._read(at, following)
        cost, around = float(len(self._starts)), [_Around(len(self._words), 1.0)]
        for loop in sorted(self._loops, key=lambda loop: (loop.first, -loop.last)):
            while around[-1].last < loop.first:
                around.pop()
            outer = around[-1].times
            times = min(loop.rounds * outer, _MOST_TIMES)
            cost += (times - outer) * self._instructions(loop.first, loop.last)
            around.append(_Around(loop.last, times))
        return cost

    def _read(self, at: int, following: int) -> None:
        words = self._words
        opcode = BASE_OPCODE[words[at]]
        if opcode in (_BRANCH, _BARE_BRANCH):
            self._branch(at, at + words[at + 1])
            if opcode == _BRANCH:
                self._move(at + 2)
        elif opcode == _CONDITIONAL:
            self._look(at)
        elif opcode not in _NO_VALUE:
            result = words[following - 1]
            value = self._value(opcode, at, result)
            if opcode in _COMPARED:
                self._compared[result] = words[at + 1], words[at + 2]
            if value is None:
                self._known.pop(result, None)
            else:
                self._known[result] = signed(value, 64)

    def _value(self, opcode: int, at: int, result: int) -> int | None:
        """What an instruction computes, where that is known."""
        words, known = self._words, self._known
        if opcode in _ZEROS:
            return 0
        if opcode == _CONSTANT_32:
            return words[at + 1]
        if opcode == _CONSTANT_64:
            return words[at + 1] & 0xFFFFFFFF | words[at + 2] << 32
        if opcode in _KEPT:
            return known.get(words[at + 1])
        if opcode in _SELECTED:
            return known.get(words[at + 3])
        operation = _OPERATIONS.get(opcode)
        if operation is None and opcode not in _MULTIPLY_ADD:
            return None
        one, other = known.get(words[at + 1]), known.get(words[at + 2])
        if operation in (min, max) and (one is None or other is None):
            return other if one is None else one
        if operation is operator.add and result in words[at + 1 : at + 3]:
            step = other if result == words[at + 1] else one
            if step:
                self._steps[result] = at, step
            return one  # the counter of a loop, as it begins
        if one is None or other is None:
            return None
        if operation is not None:
            return operation(one, other)
        more = known.get(words[at + 3])
        return None if more is None else one * other + more

    def _move(self, at: int) -> None:
        """Moves of a branch; those of a branch back leave counters as they were at the beginning."""
        words = self._words
        moved = [
            (words[place + 2], self._known.get(words[place + 1]))
            for place in range(at + 1, at + 1 + 3 * words[at], 3)
        ]
        for destination, value in moved:
            if value is None:
                self._known.pop(destination, None)
            else:
                self._known[destination] = value

    def _branch(self, at: int, target: int) -> None:
        if target <= at:
            self._loops.append(_Loop(target, at, self._rounds(target, at)))

    def _look(self, at: int) -> None:
        """At a conditional branch: one that leaves a loop says how often it goes round."""
        compared = self._compared.get(self._words[at + 1])
        if compared is not None:
            counter, bound = (self._known.get(register) for register in compared)
            length = None if counter is None or bound is None else bound - counter
            self._bounds[at] = compared[0], length
            self._conditions.append(at)
        for displacement in self._words[at + 2 : at + 4]:
            self._branch(at, at + displacement)

    def _rounds(self, first: int, last: int) -> int:
        """How often a loop goes round that ends here: its first condition says it."""
        leaving = bisect_left(self._conditions, first)
        if leaving == len(self._conditions) or self._conditions[leaving] > last:
            return _UNKNOWN_COUNT
        counter, length = self._bounds[self._conditions[leaving]]
        if length is None:
            return _UNKNOWN_COUNT
        place, step = self._steps.get(counter, (0, 1))
        return max(-(-length // abs(step if place >= first else 1)), 1)

    def _instructions(self, first: int, last: int) -> int:
        """How many there are from one word to another."""
        return bisect_left(self._starts, last + 1) - bisect_left(self._starts, first)
