"""Arithmetic instructions as LLVM IR over scalars or vectors: the rows of the instruction table in nests.

What each means is stated in :mod:`jitree.dispatch.semantics`; a test compares. Operations that can fail are
in only with divisors that cannot make them fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from jitree.dispatch import vector_math_ir
from jitree.dispatch.semantics import SEMANTICS
from jitree.dispatch.vector_math_ir import llvm_type

if TYPE_CHECKING:
    from jitree.dispatch.native.nests.writer import Writer
    from jitree.dispatch.native.ssa import Instruction, Value

Emitter = Callable[["Writer", int, list[str]], str]
"""(writer, lanes, operands) → result."""

_INTEGER: Final = {
    "add": "add", "sub": "sub", "mul": "mul", "and": "and", "or": "or", "xor": "xor",
    "div.s": "sdiv", "div.u": "udiv", "rem.s": "srem", "rem.u": "urem",
}  # fmt: skip
_FLOAT: Final = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_FLOAT_COMPARES: Final = {
    "eq.o": "oeq", "eq.u": "ueq", "ne.o": "une", "ne.u": "une", "lt.o": "olt", "lt.u": "ult", "lte.o": "ole",
    "lte.u": "ule",
}  # fmt: skip
_SHIFTS: Final = {"shl": "shl", "shr.s": "ashr", "shr.u": "lshr"}
_ROUNDINGS: Final = {"ceil": "ceil", "floor": "floor", "round": "round", "sqrt": "sqrt"}
_BITS: Final = {"i32": 32, "i64": 64, "f32": 32, "f64": 64}


def is_pure(item: Instruction | Value) -> bool:
    """A result that depends on the operands alone, and no way to fail."""
    mnemonic = item.operation if hasattr(item, "operation") else item.mnemonic
    if mnemonic.startswith("const.") and mnemonic != "const.ref.rodata":
        return True
    if mnemonic.startswith(("div.i", "rem.i")):
        return _never_fails(item.operands[1])
    if mnemonic.startswith("fpowi"):  # written out for its exponent
        return item.operands[1].operation.startswith("const.")
    return mnemonic in EMITTERS or (mnemonic in SEMANTICS and SEMANTICS[mnemonic].math_function is not None)


def _never_fails(divisor: Value) -> bool:
    return divisor.operation in ("const.i32", "const.i64") and divisor.literals[0] not in (0, -1)


def uses_library(value: Value) -> bool:
    """Calls a C function, which takes one value at a time."""
    semantic = SEMANTICS.get(value.operation)
    return semantic is not None and semantic.math_function is not None


def _binary(operation: str, kind: str) -> Emitter:
    return lambda w, n, a: w.let(f"{operation} {llvm_type(kind, n)} {a[0]}, {a[1]}")


def _compare(comparison: str, kind: str) -> Emitter:
    def emit(w: Writer, n: int, a: list[str]) -> str:
        right = a[1] if len(a) > 1 else "zeroinitializer" if n > 1 else "0"
        bit = w.let(f"{comparison} {llvm_type(kind, n)} {a[0]}, {right}")
        return w.let(f"zext {llvm_type('i1', n)} {bit} to {llvm_type('i32', n)}")

    return emit


def _is_nan(kind: str) -> Emitter:
    compare = _compare("fcmp uno", kind)
    return lambda w, n, a: compare(w, n, [a[0], a[0]])


def _multiply_add(kind: str) -> Emitter:
    multiply, add = ("fmul", "fadd") if kind.startswith("f") else ("mul", "add")

    def emit(w: Writer, n: int, a: list[str]) -> str:
        product = _binary(multiply, kind)(w, n, a[:2])
        return _binary(add, kind)(w, n, [product, a[2]])

    return emit


def _select(kind: str) -> Emitter:
    def emit(w: Writer, n: int, a: list[str]) -> str:
        bit = condition(w, n, a[0])
        vector = llvm_type(kind, n)
        if kind.startswith("f"):
            a = [a[0], fenced(w, kind, n, a[1]), fenced(w, kind, n, a[2])]
        return w.let(f"select {llvm_type('i1', n)} {bit}, {vector} {a[1]}, {vector} {a[2]}")

    return emit


def fenced(w: Writer, kind: str, n: int, value: str) -> str:
    """A float of which LLVM knows nothing: what it would make of a choice between compared values flushes
    subnormal ones, and what it would make of a negation or a multiplication by one keeps the bits of others.
    """
    return w.intrinsic("arithmetic.fence", kind, n, [value])


def _negated(kind: str) -> Emitter:
    return lambda w, n, a: fenced(w, kind, n, w.let(f"fneg {llvm_type(kind, n)} {a[0]}"))


def condition(w: Writer, n: int, value: str) -> str:
    """Whether an i32 is not 0, as i1."""
    return w.let(f"icmp ne {llvm_type('i32', n)} {value}, {'zeroinitializer' if n > 1 else '0'}")


def _smaller(comparison: str, kind: str, order: tuple[int, int]) -> Emitter:
    """The right operand if the comparison of the operands in this order holds, else the left one."""

    def emit(w: Writer, n: int, a: list[str]) -> str:
        vector = llvm_type(kind, n)
        bit = w.let(f"{comparison} {vector} {a[order[0]]}, {a[order[1]]}")
        return w.let(f"select {llvm_type('i1', n)} {bit}, {vector} {a[1]}, {vector} {a[0]}")

    return emit


def _call(intrinsic: str, kind: str, extra: str = "") -> Emitter:
    return lambda w, n, a: w.intrinsic(intrinsic, kind, n, a, extra)


def _shift(operation: str, kind: str) -> Emitter:
    def emit(w: Writer, n: int, a: list[str]) -> str:
        amount = w.let(f"and {llvm_type('i32', n)} {a[1]}, {w.splat('i32', str(_BITS[kind] - 1), n)}")
        if kind == "i64":
            amount = w.let(f"zext {llvm_type('i32', n)} {amount} to {llvm_type('i64', n)}")
        return w.let(f"{operation} {llvm_type(kind, n)} {a[0]}, {amount}")

    return emit


def _convert(operation: str, source: str, result: str) -> Emitter:
    return lambda w, n, a: w.let(f"{operation} {llvm_type(source, n)} {a[0]} to {llvm_type(result, n)}")


def _low_bits(bits: int) -> Emitter:
    mask = str((1 << bits) - 1)
    return lambda w, n, a: w.let(f"and {llvm_type('i32', n)} {a[0]}, {w.splat('i32', mask, n)}")


def _sign_extend(bits: int) -> Emitter:
    def emit(w: Writer, n: int, a: list[str]) -> str:
        narrow = f"i{bits}" if n == 1 else f"<{n} x i{bits}>"
        low = w.let(f"trunc {llvm_type('i32', n)} {a[0]} to {narrow}")
        return w.let(f"sext {narrow} {low} to {llvm_type('i32', n)}")

    return emit


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


def _reciprocal_root(kind: str) -> Emitter:
    def emit(w: Writer, n: int, a: list[str]) -> str:
        root = w.intrinsic("sqrt", kind, n, a)
        return w.let(f"fdiv {llvm_type(kind, n)} {w.splat(kind, '1.0', n)}, {root}")

    return emit


def _integer_power(kind: str) -> Emitter:
    """By repeated squaring; the exponent is a constant, which a splat may be written around."""
    multiply, divide = _binary("fmul", kind), _binary("fdiv", kind)

    def emit(w: Writer, n: int, a: list[str]) -> str:
        base, exponent = a[0], int(a[1].rstrip(")").split()[-1])
        one = fenced(w, kind, n, w.splat(kind, "1.0", n))
        power, steps = one, abs(exponent)
        while steps:
            if steps & 1:
                power = multiply(w, n, [power, base])
            steps >>= 1
            if steps:
                base = multiply(w, n, [base, base])
        return divide(w, n, [one, power]) if exponent < 0 else power

    return emit


def _own_function(mnemonic: str) -> Emitter:
    kind = SEMANTICS[mnemonic].result_type

    def emit(w: Writer, n: int, a: list[str]) -> str:
        symbol = f'@"math.{mnemonic}"' if n == 1 else f'@"math.{mnemonic}.{n}"'
        w.context.define(vector_math_ir.function_text(mnemonic, symbol, n, "internal"))
        vector = llvm_type(kind, n)
        return w.let(f"call {vector} {symbol}({', '.join(f'{vector} {operand}' for operand in a)})")

    return emit


def _copy(w: Writer, n: int, a: list[str]) -> str:
    return a[0]


def _integer_rows(kind: str) -> dict[str, Emitter]:
    rows: dict[str, Emitter] = {
        f"fma.{kind}": _multiply_add(kind),
        f"select.{kind}": _select(kind),
        f"abs.{kind}": _call("abs", kind, ", i1 false"),
        f"ctlz.{kind}": _call("ctlz", kind, ", i1 false"),
        f"not.{kind}": lambda w, n, a: _binary("xor", kind)(w, n, [a[0], w.splat(kind, "-1", n)]),
        f"cmp.eq.{kind}": _compare("icmp eq", kind),
        f"cmp.ne.{kind}": _compare("icmp ne", kind),
        f"cmp.nz.{kind}": _compare("icmp ne", kind),
    }
    for name, operation in _INTEGER.items():
        family, _, sign = name.partition(".")
        rows[f"{family}.{kind}.{sign}" if sign else f"{family}.{kind}"] = _binary(operation, kind)
    for name, operation in _SHIFTS.items():
        family, _, sign = name.partition(".")
        rows[f"{family}.{kind}.{sign}" if sign else f"{family}.{kind}"] = _shift(operation, kind)
    for sign in "su":
        rows[f"cmp.lt.{kind}.{sign}"] = _compare(f"icmp {sign}lt", kind)
        rows[f"min.{kind}.{sign}"] = _call(f"{sign}min", kind)
        rows[f"max.{kind}.{sign}"] = _call(f"{sign}max", kind)
    return rows


def _float_rows(kind: str) -> dict[str, Emitter]:
    rows: dict[str, Emitter] = {
        f"fma.{kind}": _multiply_add(kind),
        f"select.{kind}": _select(kind),
        f"abs.{kind}": _call("fabs", kind),
        f"neg.{kind}": _negated(kind),
        f"min.{kind}": _smaller("fcmp olt", kind, (1, 0)),
        f"max.{kind}": _smaller("fcmp olt", kind, (0, 1)),
        f"round.{kind}.even": _half_to_even(kind),
        f"rsqrt.{kind}": _reciprocal_root(kind),
        f"fpowi.{kind}": _integer_power(kind),
        f"cmp.nan.{kind}": _is_nan(kind),
    }
    rows |= {f"{name}.{kind}": _binary(operation, kind) for name, operation in _FLOAT.items()}
    rows |= {f"{name}.{kind}": _call(intrinsic, kind) for name, intrinsic in _ROUNDINGS.items()}
    for name, comparison in _FLOAT_COMPARES.items():
        relation, ordered = name.split(".")
        rows[f"cmp.{relation}.{kind}.{ordered}"] = _compare(f"fcmp {comparison}", kind)
    return rows


EMITTERS: Final[dict[str, Emitter]] = {
    **_integer_rows("i32"),
    **_integer_rows("i64"),
    **_float_rows("f32"),
    **_float_rows("f64"),
    "trunc.i32.i8": _low_bits(8),
    "trunc.i32.i16": _low_bits(16),
    "trunc.i64.i32": _convert("trunc", "i64", "i32"),
    "ext.i8.i32.s": _sign_extend(8),
    "ext.i8.i32.u": _low_bits(8),
    "ext.i16.i32.s": _sign_extend(16),
    "ext.i16.i32.u": _low_bits(16),
    "ext.i32.i64.s": _convert("sext", "i32", "i64"),
    "ext.i32.i64.u": _convert("zext", "i32", "i64"),
    "trunc.f64.f32": _convert("fptrunc", "f64", "f32"),
    "ext.f32.f64": _convert("fpext", "f32", "f64"),
    "cast.si32.f32": _convert("sitofp", "i32", "f32"),
    "cast.ui32.f32": _convert("uitofp", "i32", "f32"),
    "cast.si64.f32": _convert("sitofp", "i64", "f32"),
    "cast.ui64.f32": _convert("uitofp", "i64", "f32"),
    "cast.si64.f64": _convert("sitofp", "i64", "f64"),
    "cast.ui64.f64": _convert("uitofp", "i64", "f64"),
    "cast.f32.si32": _rounded_integer("f32", "i32"),
    "cast.f32.ui32": _rounded_integer("f32", "i32"),
    "cast.f32.si64": _rounded_integer("f32", "i64"),
    "cast.f64.si64": _rounded_integer("f64", "i64"),
    "cast.f64.ui64": _rounded_integer("f64", "i64"),
    "bitcast.i32.f32": _convert("bitcast", "i32", "f32"),
    "bitcast.f32.i32": _convert("bitcast", "f32", "i32"),
    "bitcast.i64.f64": _convert("bitcast", "i64", "f64"),
    "bitcast.f64.i64": _convert("bitcast", "f64", "i64"),
    **{mnemonic: _own_function(mnemonic) for mnemonic in vector_math_ir.MNEMONICS},
}
"""What a nest can compute, in vectors as well as one by one; C library functions aside."""
