"""LLVM IR of ``vmvx`` functions as bytecode calls them (``regs.layout.COMPILED_DONE``).

Machine code handles the plain cases: buffers that are there, numbers below 2**30 that are not negative,
elements inside their buffers, tiles that :mod:`~jitree.modules.vmvx.packing` advises. For everything else,
failures among it, it says that nothing has happened, and the function in Python does the same work. Loops are
left to LLVM to vectorise, but for products of matrices, whose tiles of results stay in registers.

Only the builder and tests call this module.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from jitree.codegen.ir_text import FunctionText
from jitree.regs.layout import ACCESS_WRITE, COMPILED_DONE, ENTRY, KIND_BUFFER
from jitree.vmfb.words import TAG_REF_MOVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT: Final = 1 << 30
"""Sums of a few products of such numbers do not overflow."""
_LEFT: Final = 1
assert COMPILED_DONE == 0

HEADER: Final = """
declare float @llvm.fabs.f32(float)
declare float @llvm.ceil.f32(float)
declare float @llvm.floor.f32(float)
declare float @llvm.sqrt.f32(float)
declare i32 @llvm.ctlz.i32(i32, i1)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare <8 x float> @llvm.fmuladd.v8f32(<8 x float>, <8 x float>, <8 x float>)
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.vectorize.enable", i1 true}
attributes #0 = { nounwind "no-builtins" }
"""
"""No library functions: copying loops must not become calls of memcpy."""


class Thunk(FunctionText):
    """Writes one function: registers in, checks, work."""

    def __init__(self, symbol: str, cconv: str) -> None:
        super().__init__()
        self._lines += [
            f"define i32 @{symbol}(ptr %state, ptr %values, ptr %refs, ptr %words) #0 {{",
            "entry:",
        ]
        self._block = "entry"
        self._registers: list[str] = []
        self.arguments = [
            self._argument(index, kind) for index, kind in enumerate(cconv[1:].partition("_")[0])
        ]
        """References are addresses of entries; numbers are i64, i32 sign-extended."""

    def label(self, name: str) -> None:
        super().label(name)
        self._block = name

    def require(self, condition: str) -> None:
        """Leaves the case to Python unless the condition holds."""
        following = self.fresh("valid")
        self.do(f"br i1 {condition}, label %{following}, label %left")
        self.label(following)

    def compare(self, how: str, lhs: str, rhs: str | int) -> str:
        return self.let(f"icmp {how} i64 {lhs}, {rhs}")

    def arithmetic(self, operation: str, first: str | int, *others: str | int) -> str:
        result = str(first)
        for other in others:
            result = self.let(f"{operation} i64 {result}, {other}")
        return result

    def add(self, *terms: str | int) -> str:
        return self.arithmetic("add", *terms)

    def multiply(self, *factors: str | int) -> str:
        return self.arithmetic("mul", *factors)

    def small(self, *numbers: str) -> None:
        """Not negative and below the limit."""
        for number in numbers:
            self.require(self.compare("ult", number, LIMIT))

    def positive(self, *numbers: str) -> None:
        for number in numbers:
            self.require(self.compare("ne", number, 0))

    def place(self, base: str, kind: str, index: str | int) -> str:
        return self.let(f"getelementptr {kind}, ptr {base}, i64 {index}")

    def load(self, kind: str, place: str) -> str:
        return self.let(f"load {kind}, ptr {place}, align 1")

    def elements(self, buffer: str, kind: str, offset: str, steps: list[tuple[str | int, str | int]]) -> str:
        """The address of element ``offset``. The last one used, with ``steps`` of (stride, count), has to be
        in the buffer."""
        self.small(offset)
        last = self.add(offset, *(self.multiply(stride, self.add(count, -1)) for stride, count in steps))
        end = self.multiply(self.add(last, 1), WIDTHS[kind])
        length = self.load("i64", self.place(buffer, "i8", ENTRY["length"]))
        self.require(self.compare("ule", end, length))
        return self.place(self.load("ptr", self.place(buffer, "i8", ENTRY["address"])), kind, offset)

    def writable(self, buffer: str) -> None:
        access = self.load("i32", self.place(buffer, "i8", ENTRY["access"]))
        bit = self.let(f"and i32 {access}, {ACCESS_WRITE}")
        self.require(self.let(f"icmp ne i32 {bit}, 0"))

    @contextmanager
    def loop(self, count: str | int, metadata: str = "") -> Iterator[str]:  # type: ignore[override]
        """Repeats what is inside ``count`` times; gives the number of the turn."""
        body, done, index = self.fresh("body"), self.fresh("done"), self.fresh("%index")
        before = self._block
        self.do(f"br i1 {self.compare('sgt', str(count), 0)}, label %{body}, label %{done}")
        self.label(body)
        hole = len(self._lines)
        yield index
        self._lines.insert(hole, f"  {index} = phi i64 [ 0, %{before} ], [ {index}.next, %{self._block} ]")
        self.do(f"{index}.next = add nuw nsw i64 {index}, 1")
        more = self.compare("slt", f"{index}.next", count)
        self.do(f"br i1 {more}, label %{body}, label %{done}{metadata}")
        self.label(done)

    def fold(
        self, count: str, kind: str, first: list[str], turn: Callable[[str, list[str]], list[str]]
    ) -> list[str]:
        """Values that ``turn(index, values)`` replaces ``count`` times, at least once."""
        body, done, index = self.fresh("body"), self.fresh("done"), self.fresh("%index")
        before, values = self._block, [self.fresh("%value") for _ in first]
        self.do(f"br label %{body}")
        self.label(body)
        hole = len(self._lines)
        last = turn(index, values)
        phis = [f"  {index} = phi i64 [ 0, %{before} ], [ {index}.next, %{self._block} ]"]
        for value, start, end in zip(values, first, last, strict=True):
            phis.append(f"  {value} = phi {kind} [ {start}, %{before} ], [ {end}, %{self._block} ]")
        self._lines[hole:hole] = phis
        self.do(f"{index}.next = add nuw nsw i64 {index}, 1")
        self.do(f"br i1 {self.compare('slt', f'{index}.next', count)}, label %{body}, label %{done}")
        self.label(done)
        return last

    def text(self) -> str:
        """The whole function. Registers that the call gives up are emptied; one that holds the last reference
        stays filled until it is written to or its function returns."""
        for index, (register, tag) in enumerate(self._moved()):
            give, check, keep = f"give{index}", f"check{index}", f"keep{index}"
            self.do(f"br i1 {self.let(f'icmp eq i32 {tag}, {TAG_REF_MOVE}')}, label %{check}, label %{keep}")
            self.label(check)
            entry = self.load("ptr", register)
            filled, look = self.let(f"icmp ne ptr {entry}, null"), f"look{index}"
            self.do(f"br i1 {filled}, label %{look}, label %{keep}")
            self.label(look)
            place = self.place(entry, "i8", ENTRY["count"])
            references = self.load("i32", place)
            shared = self.let(f"icmp sgt i32 {references}, 1")
            self.do(f"br i1 {shared}, label %{give}, label %{keep}")
            self.label(give)
            self.do(f"store i32 {self.let(f'sub i32 {references}, 1')}, ptr {place}")
            self.do(f"store ptr null, ptr {register}")
            self.do(f"br label %{keep}")
            self.label(keep)
        return "\n".join([*self._lines, f"  ret i32 {COMPILED_DONE}", "left:", f"  ret i32 {_LEFT}", "}", ""])

    def _argument(self, index: int, kind: str) -> str:
        tag = self.place("%words", "i32", 2 * index)
        register = self.let(f"sext i32 {self.load('i32', self.place('%words', 'i32', 2 * index + 1))} to i64")
        if kind == "i":
            return self.let(f"sext i32 {self.load('i32', self.place('%values', 'i32', register))} to i64")
        if kind == "I":
            return self.load("i64", self.place("%values", "i32", register))
        place = self.place("%refs", "ptr", register)
        self._registers += [place, tag]
        entry = self.load("ptr", place)
        self.require(self.let(f"icmp ne ptr {entry}, null"))
        stored = self.load("i32", self.place(entry, "i8", ENTRY["kind"]))
        self.require(self.let(f"icmp eq i32 {stored}, {KIND_BUFFER}"))
        return entry

    def _moved(self) -> list[tuple[str, str]]:
        places = zip(self._registers[::2], self._registers[1::2], strict=True)
        return [(register, self.load("i32", tag)) for register, tag in places]


WIDTHS: Final = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "float": 4}
VECTORISED: Final = ", !llvm.loop !0"
