"""Writes arithmetic instructions as LLVM IR over scalars or vectors.

They are the rows of the semantics functions (:mod:`jitree.dispatch.native.rows`), but for a few that are
faster in vectors when they are written otherwise; a test compares those on edge values. Operations that
can fail are in only with divisors that cannot make them fail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

from jitree.base.platform import processor
from jitree.codegen.ir_text import llvm_type
from jitree.codegen.vector_math import pairs, registers
from jitree.codegen.vector_math.ir import FUNCTIONS, calling_shared, function_texts
from jitree.dispatch.native import rows
from jitree.dispatch.semantics import SEMANTICS

if TYPE_CHECKING:
    from jitree.dispatch.native.nests.writer import Writer
    from jitree.dispatch.native.ssa import SsaInstruction, Value

LIBRARY: Final = frozenset(
    mnemonic for mnemonic, semantic in SEMANTICS.items() if semantic.math_function is not None
)
"""Instructions that call a C function, which takes one value at a time."""
Emitter = Callable[["Writer", int, list[str]], str]
"""(writer, lanes, operands) → result."""


def is_pure(item: SsaInstruction | Value) -> bool:
    """A result that depends on the operands alone, and no way to fail."""
    mnemonic = item.operation if hasattr(item, "operation") else item.mnemonic
    if not _is_known(mnemonic):
        return False
    if mnemonic.startswith("fpowi"):  # written out for its exponent
        return item.operands[1].operation.startswith("const.")
    semantic = SEMANTICS.get(mnemonic)
    return semantic is None or semantic.refusal is None or _never_fails(semantic.refusal, item.operands)


@cache
def _is_known(mnemonic: str) -> bool:
    """A constant, or what can be computed where it does not fail."""
    if mnemonic.startswith("const."):
        return mnemonic != "const.ref.rodata"
    return mnemonic in SEMANTICS and (can_compute(mnemonic) or mnemonic in LIBRARY)


def can_compute(mnemonic: str) -> bool:
    """Whether :func:`emit` knows an instruction: whether it is without branches, and no C function."""
    row = rows.rows().get(mnemonic)
    return mnemonic in _WRITTEN or (row is not None and not row.text)


def _never_fails(refusal: str, operands: Sequence[Value]) -> bool:
    """Whether it is a division by a constant that fits every number."""
    if not refusal.endswith("division"):
        return False
    divisor = operands[1]
    return divisor.operation in ("const.i32", "const.i64") and divisor.literals[0] not in (0, -1)


def emit(w: Writer, mnemonic: str, n: int, operands: list[str]) -> str:
    """The result of an instruction."""
    written = _WRITTEN.get(mnemonic)
    if written is not None:
        return written(w, n, operands)
    return rows.result(w.let, w.context.declare, mnemonic, operands, n)


def fenced(w: Writer, kind: str, n: int, value: str) -> str:
    """See :func:`jitree.dispatch.native.rows.fenced`."""
    return rows.fenced(w.let, w.context.declare, kind, n, value)


def condition(w: Writer, n: int, value: str) -> str:
    """Whether an i32 is not 0, as i1."""
    return w.let(f"icmp ne {llvm_type('i32', n)} {value}, {'zeroinitializer' if n > 1 else '0'}")


def _rounded_integer(kind: str, result: str) -> Emitter:
    """Rounds halves away from zero; what does not fit into 64 bits becomes the smallest integer."""
    limit = "0x43E0000000000000"  # 2**63

    def emit(w: Writer, n: int, a: list[str]) -> str:
        real, wide = llvm_type(kind, n), llvm_type("i64", n)
        rounded = w.intrinsic("round", kind, n, a)
        size = w.intrinsic("fabs", kind, n, [rounded])
        fits = w.let(f"fcmp olt {real} {size}, {w.splat(kind, limit, n)}")
        zero = w.splat(kind, "0.0", n)
        safe = w.let(f"select {llvm_type('i1', n)} {fits}, {real} {rounded}, {real} {zero}")
        integer = w.let(f"fptosi {real} {safe} to {wide}")
        if result == "i32":  # of the smallest integer the low half is 0 as well
            return w.let(f"trunc {wide} {integer} to {llvm_type('i32', n)}")
        minimum = w.splat("i64", str(-(2**63)), n)
        return w.let(f"select {llvm_type('i1', n)} {fits}, {wide} {integer}, {wide} {minimum}")

    return emit


def _half_to_even(kind: str) -> Emitter:
    """-0.5 becomes +0."""

    def emit(w: Writer, n: int, a: list[str]) -> str:
        vector = llvm_type(kind, n)
        even = w.intrinsic("roundeven", kind, n, a)
        odd = w.let(f"fcmp oeq {vector} {a[0]}, {w.splat(kind, '-5.000000e-01', n)}")
        zero = w.splat(kind, "0.0", n)
        return w.let(f"select {llvm_type('i1', n)} {odd}, {vector} {zero}, {vector} {even}")

    return emit


def _integer_power(kind: str) -> Emitter:
    """By repeated squaring; the exponent is a constant, which a splat may be written around."""

    def binary(w: Writer, n: int, operation: str, left: str, right: str) -> str:
        return w.let(f"{operation} {llvm_type(kind, n)} {left}, {right}")

    def emit(w: Writer, n: int, a: list[str]) -> str:
        base, exponent = a[0], int(a[1].rstrip(")").split()[-1])
        one = fenced(w, kind, n, w.splat(kind, "1.0", n))
        power, steps = one, abs(exponent)
        while steps:
            if steps & 1:
                power = binary(w, n, "fmul", power, base)
            steps >>= 1
            if steps:
                base = binary(w, n, "fmul", base, base)
        return binary(w, n, "fdiv", one, power) if exponent < 0 else power

    return emit


def vector_functions(lanes: int) -> Mapping[str, Callable[..., float]]:
    """Names vector math functions written otherwise for so many lanes."""
    flags = processor.words("flags")
    if lanes != registers.LANES or not {"avx2", "fma"} <= flags:
        return {}
    return registers.FUNCTIONS if "avx512f" in flags else pairs.FUNCTIONS


def _own_function(mnemonic: str) -> Emitter:
    kind = SEMANTICS[mnemonic].result_type

    def emit(w: Writer, n: int, a: list[str]) -> str:
        symbol = f'@"math.{mnemonic}"' if n == 1 else f'@"math.{mnemonic}.{n}"'
        texts = function_texts(mnemonic, symbol, n, "internal", vector_functions(n).get(mnemonic))
        for text in calling_shared(texts):
            w.context.define(text)
        vector = llvm_type(kind, n)
        return w.let(f"call {vector} {symbol}({', '.join(f'{vector} {operand}' for operand in a)})")

    return emit


_WRITTEN: Final[dict[str, Emitter]] = {
    "round.f32.even": _half_to_even("f32"),
    "round.f64.even": _half_to_even("f64"),
    "fpowi.f32": _integer_power("f32"),
    "fpowi.f64": _integer_power("f64"),
    "cast.f32.si32": _rounded_integer("f32", "i32"),
    "cast.f32.ui32": _rounded_integer("f32", "i32"),
    "cast.f32.si64": _rounded_integer("f32", "i64"),
    "cast.f64.si64": _rounded_integer("f64", "i64"),
    "cast.f64.ui64": _rounded_integer("f64", "i64"),
    **{mnemonic: _own_function(mnemonic) for mnemonic in FUNCTIONS},
}
"""What is written otherwise than its row: one comparison in place of two, one instruction in place of
branches, a product for each bit of a constant exponent; and vector mathematics."""
