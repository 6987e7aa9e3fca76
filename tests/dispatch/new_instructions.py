"""Instructions that do not exist: added to a copy of the package, and checked in it by running this."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings

from jitree.errors import StatusCode
from jitree.vmfb.instructions import BY_MNEMONIC
from tests.dispatch import test_programs, test_semantics
from tests.dispatch.native.nests import test_operations
from tests.dispatch.semantics_reference import EXACT, Array, edge_columns
from tests.vmfb.test_disassemble import lines
from tests.vmfb.test_verify import sample, status


class Addition(NamedTuple):
    row: str
    """Of the instruction table."""
    family: str
    """The file ``semantics_*.py`` of the function."""
    function: str
    reference: Callable[..., Any]
    """The same with numpy."""

    @property
    def mnemonic(self) -> str:
        return self.row.split()[4]


def _unsigned(x: Array) -> Array:
    return x.view(f"u{x.itemsize}")


def _rotated(x: Array, amount: Array) -> Array:
    bits = 8 * x.itemsize
    left = (amount & (bits - 1)).astype(_unsigned(x).dtype)
    right = (-amount & (bits - 1)).astype(left.dtype)
    rotated: Array = (_unsigned(x) << left | _unsigned(x) >> right).view(x.dtype)
    return rotated


ADDITIONS = (
    Addition("core 0x91 17 - popcount.i32 x:r.i32 >out:r.i32", "integer", """
def popcount_i32(x: int) -> int:
    bits, count = u32(x), 0
    while bits != 0:
        bits, count = bits & (bits - 1), count + 1
    return i32(count)
""", lambda x: np.array([bin(bits).count("1") for bits in _unsigned(x).tolist()], np.int32)),
    Addition("core 0x92 17 - add_sat.i32 lhs:r.i32 rhs:r.i32 >out:r.i32", "integer", """
def add_sat_i32(lhs: int, rhs: int) -> int:
    total = lhs + rhs
    if total > 0x7FFFFFFF:
        return 0x7FFFFFFF
    return total if total > INT32_MIN else INT32_MIN
""", lambda a, b: np.clip(a.astype(np.int64) + b, -(2**31), 2**31 - 1).astype(np.int32)),
    Addition("core 0x93 17 - rotl.i64 x:r.i64 amount:r.i32 >out:r.i64", "integer", """
def rotl_i64(x: int, amount: int) -> int:
    return i64(x << (amount & 63)) | i64(shift_right_logical(u64(x), u64(-amount & 63)))
""", _rotated),
    Addition("core 0x94 17 - clamp.i64 x:r.i64 low:r.i64 high:r.i64 >out:r.i64", "integer", """
def clamp_i64(x: int, low: int, high: int) -> int:
    return low if x < low else high if x > high else x
""", lambda x, low, high: np.where(x < low, low, np.minimum(x, high))),
    Addition("core 0x95 17 - cmp.gt.i64.u lhs:r.i64 rhs:r.i64 >out:r.i32", "integer", """
def cmp_gt_i64_u(lhs: int, rhs: int) -> int:
    return 1 if u64(lhs) > u64(rhs) else 0
""", lambda a, b: (_unsigned(a) > _unsigned(b)).astype(np.int32)),
    Addition("core 0x96 17 - sign.i64 x:r.i64 >out:r.i32", "integer", """
def sign_i64(x: int) -> int:
    return 1 if x > 0 else -1 if x < 0 else 0
""", lambda x: np.sign(x).astype(np.int32)),
    Addition("core 0x97 17 - trunc.i64.i8 x:r.i64 >out:r.i32", "float", """
def trunc_i64_i8(x: int) -> int:
    return i32(x & 0xFF)
""", lambda x: (x & 0xFF).astype(np.int32)),
    Addition("core 0x98 17 - mod.i32 lhs:r.i32 rhs:r.i32 >out:r.i32", "integer", """
def mod_i32(lhs: int, rhs: int) -> int:
    require_signed_division(lhs, rhs, INT32_MIN)
    rest = signed_remainder(lhs, rhs)
    return rest + rhs if rest != 0 and (rest < 0) != (rhs < 0) else rest
""", np.mod),
    Addition("core 0x99 17 - select.odd.i64 x:r.i64 odd:r.i64 even:r.i64 >out:r.i64", "integer", """
def select_odd_i64(x: int, odd: int, even: int) -> int:
    return odd if x & 1 == 1 else even
""", lambda x, odd, even: np.where(x & 1 == 1, odd, even)),
    Addition("f32 0x90 17 - copysign.f32 x:r.f32 sign:r.f32 >out:r.f32", "float", """
def copysign_f32(x: int, sign: int) -> int:
    return (x & 0x7FFFFFFF) | (sign & -0x80000000)
""", lambda x, sign: (x & 0x7FFFFFFF) | (sign & -0x80000000)),
    Addition("f32 0x91 17 - lerp.f32 a:r.f32 b:r.f32 t:r.f32 >out:r.f32", "float", """
def lerp_f32(a: float, b: float, t: float) -> float:
    return f32(a + f32(t * f32(b - a)))
""", lambda a, b, t: a + t * (b - a)),
    Addition("f32 0x92 17 - scaled.f32 x:r.f32 halve:r.i32 >out:r.f64", "float", """
def scaled_f32(x: float, halve: int) -> float:
    return x * 0.5 if halve != 0 else x * 2.0
""", lambda x, halve: x.astype(np.float64) * np.where(halve != 0, 0.5, 2.0)),
    Addition("f32 0x93 17 - cmp.bits.f32 lhs:r.f32 rhs:r.f32 >out:r.i32", "float", """
def cmp_bits_f32(lhs: int, rhs: int) -> int:
    return 1 if lhs == rhs else 0
""", lambda a, b: (a == b).astype(np.int32)),
    Addition("f64 0x90 17 - cmp.gt.f64.o lhs:r.f64 rhs:r.f64 >out:r.i32", "float", """
def cmp_gt_f64_o(lhs: float, rhs: float) -> int:
    return 1 if lhs > rhs else 0
""", lambda a, b: (a > b).astype(np.int32)),
    Addition("f64 0x91 17 - square.f64 x:r.f64 >out:r.f64", "float", """
def square_f64(x: float) -> float:
    return x * x
""", np.square),
    Addition("f64 0x92 17 - cast.f64.ui16 x:r.f64 >out:r.i32", "float", """
def cast_f64_ui16(x: float) -> int:
    return i32(integer(x)) & 0xFFFF if x > -1e9 and x < 1e9 else 0
""", lambda x: np.where(np.abs(x) < 1e9, x, 0).astype(np.int64).astype(np.int32) & 0xFFFF),
)  # fmt: skip
"""One of each class."""

REFERENCES = {"rotl.i32": _rotated} | {addition.mnemonic: addition.reference for addition in ADDITIONS}
"""By mnemonic; the first one is the example of CONTRIBUTING.md."""


def add_to(package: Path, row: str, family: str, function: str) -> None:
    """Edits the two files: a row after the last one of its set, and a function."""
    table = package / "vmfb" / "isa.tsv"
    rows = table.read_text(encoding="utf-8").splitlines()
    own_set = row.split()[0]
    last = max(number for number, line in enumerate(rows) if line.split()[0] == own_set)
    rows.insert(last + 1, row)
    table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    with (package / "dispatch" / f"semantics_{family}.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\n{function.strip()}\n")


def check() -> None:
    """In the copy: what has been added is there, and right."""
    mnemonics = list(REFERENCES)
    EXACT.update(REFERENCES)
    test_semantics.COMPARED[:] = mnemonics
    for mnemonic in mnemonics:
        test_semantics._check(mnemonic, edge_columns(mnemonic))
        if mnemonic in test_operations.COMPUTED and mnemonic not in test_operations.DIVISIONS:
            test_operations.test_vectors(mnemonic)
        operands = [f"%i{2 * number}" for number in range(len(BY_MNEMONIC[mnemonic].operands) - 1)]
        text = f"%i8 = {mnemonic} {', '.join(operands)}"
        assert f"vm.{mnemonic} %i0" in "\n".join(lines(text))
        assert status(sample(f"{text}\nreturn")) is StatusCode.OK
        assert status(sample(f"{text}\nreturn", value_count=8)) is StatusCode.OUT_OF_RANGE
        assert status(sample(f"{text}\nreturn", bytecode=16)) is StatusCode.INVALID_ARGUMENT
    test_semantics.test_division_fails_alike("mod.i32")
    test_semantics.test_rows_are_short_and_without_names_of_a_compiler()
    assert any(row.mnemonic == "mod.i32" for row in test_programs.PURE)
    test_programs.PURE[:] = [row for row in test_programs.PURE if row.mnemonic in mnemonics]
    random_programs()


@settings(max_examples=30, deadline=None)
@given(test_programs.arithmetic(), test_programs.inputs)
def random_programs(program: test_programs.Program, values: tuple[float, ...]) -> None:
    test_programs.check_arithmetic(program, values, test_programs.nothing, "fast")


if __name__ == "__main__":
    check()
