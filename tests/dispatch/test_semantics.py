"""Every arithmetic, comparison, conversion and bit instruction: the plain function, the machine code of the
loop and numpy agree."""

from __future__ import annotations

import functools
import re

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitree.codegen.vector_math.ir import FUNCTIONS
from jitree.dispatch.context import Context
from jitree.dispatch.native import rows as rows_of_functions
from jitree.dispatch.semantics import SEMANTICS
from jitree.errors import InvalidArgumentError
from jitree.regs.buffer import VmBuffer
from jitree.regs.ref_types import RefTypes
from jitree.vmfb.decode import BytecodeModule
from jitree.vmfb.instructions import INSTRUCTIONS
from jitree.vmfb.words import FUSED, STRICT
from tests.assembler import Assembler
from tests.dispatch.semantics_reference import (
    CLOSE,
    DTYPES,
    EXACT,
    Array,
    assert_same_bits,
    by_plain,
    edge_columns,
    kinds_of,
)  # fmt: skip

COMPARED = [name for name in SEMANTICS if not name.endswith(".exact")]
"""Programs cannot have the others (tests/dispatch/test_sizes.py)."""
DIVISIONS = [name for name in COMPARED if SEMANTICS[name].refusal is not None]
_MINIMUM = {"i32": -(2**31), "i64": -(2**63)}
_LANES = 64


def test_every_instruction_is_compared() -> None:
    """With numpy those that have a reference, which is not fewer than there were; and all tiers."""
    referenced = set(EXACT) | set(CLOSE)
    assert referenced <= set(SEMANTICS) and len(referenced) >= 167
    arithmetic = (
        "add",
        "sub",
        "mul",
        "div",
        "rem",
        "fma",
        "cmp",
        "cast",
        "trunc",
        "ext",
        "shl",
        "shr",
        "round",
    )
    expected = {row.mnemonic for row in INSTRUCTIONS if row.mnemonic.split(".")[0] in arithmetic}
    assert {name for name in expected if not name.endswith(".ref")} <= set(SEMANTICS)


def _group(mnemonic: str) -> str:
    """The function that applies an instruction: what cannot fail shares one by the kinds of operands."""
    return mnemonic if SEMANTICS[mnemonic].refusal is not None else " ".join(kinds_of(mnemonic)[:-1])


@functools.cache
def groups() -> dict[str, list[str]]:
    """The instructions of each function."""
    found: dict[str, list[str]] = {}
    for mnemonic in COMPARED:
        if mnemonic.endswith(".fused"):
            continue
        found.setdefault(_group(mnemonic), []).append(mnemonic)
    return found


def _loop(mnemonics: list[str]) -> tuple[str, str]:
    """(calling convention, text) of a function that applies instructions to the elements of buffers. What it
    counts keeps the native tier from writing it anew in vectors, which tests of nests look at."""
    *kinds, _ = kinds_of(mnemonics[0])
    count = len(kinds)
    loads = [f"%i{8 + 2 * n} = buffer.load.{kind} %r{n}, %i2" for n, kind in enumerate(kinds)]
    operands = ", ".join(f"%i{8 + 2 * n}" for n in range(count))
    results = [
        f"%i16 = {mnemonic} {operands}\nbuffer.store.{kinds_of(mnemonic)[-1]} %r{count + n}, %i2, %i16"
        for n, mnemonic in enumerate(mnemonics)
    ]
    lines = [
        "%i2 = const.i64 0", "%i4 = const.i64 1", "br ^head", "^head:", "%i6 = cmp.lt.i64.s %i2, %i0",
        "cond_br %i6, ^body, ^done", "^body:", *loads, *results, "%i20 = add.i32 %i20, %i20",
        "%i2 = add.i64 %i2, %i4", "br ^head", "^done:", "return []",
    ]  # fmt: skip
    return "0I" + "r" * (count + len(mnemonics)) + "_v", "\n".join(lines)


@functools.cache
def _context(tier: str, arithmetic: str) -> Context:
    program = Assembler("m")
    names = list(groups()) if arithmetic == STRICT else [_group("fma.f32")]  # the one that differs
    for name in names:
        program.function(name, *_loop(groups()[name]))
    context = Context(RefTypes(), tier=tier)
    context.register([BytecodeModule.load(program.build(), None, arithmetic)])
    return context


def by_loop(mnemonic: str, arguments: list[Array], tier: str = "fast") -> Array:
    """The results of a tier's machine code. Files have no ``fma.f32.fused``; it is what kernels make of
    another."""
    arithmetic = FUSED if mnemonic == "fma.f32.fused" else STRICT
    mnemonic = mnemonic.removesuffix(".fused")
    group = groups()[_group(mnemonic)]
    results = [np.zeros(len(arguments[0]), DTYPES[SEMANTICS[other].result_type]) for other in group]
    buffers = [VmBuffer.alias(np.ascontiguousarray(array)) for array in (*arguments, *results)]
    context = _context(tier, arithmetic)
    context.invoke(context.lookup(f"m.{_group(mnemonic)}"), [len(results[0]), *buffers])
    return results[group.index(mnemonic)]


def valid(mnemonic: str, arguments: list[Array]) -> list[Array]:
    """Without the rows that must fail."""
    semantic = SEMANTICS[mnemonic]
    if semantic.refusal is None:
        return arguments
    lhs, rhs, *_ = arguments
    keep = rhs != 0
    if semantic.refusal == "signed_division":
        keep &= ~((rhs == -1) & (lhs == _MINIMUM[semantic.argument_types[0]]))
    return [array[keep] for array in arguments]


def _assert_same_new_nan(arguments: list[Array], compiled: Array, plain: Array) -> None:
    """A NaN that comes of numbers is the same one on all tiers (which of two NaNs goes on is open)."""
    numbers = np.ones(len(compiled), bool)
    for array in arguments:
        numbers &= ~np.isnan(array)
    assert compiled[numbers].tobytes() == plain[numbers].tobytes()


def _check(mnemonic: str, arguments: list[Array]) -> None:
    arguments = valid(mnemonic, arguments)
    plain = by_plain(mnemonic, arguments)
    for tier in ("fast", "native"):
        compiled = by_loop(mnemonic, arguments, tier)
        assert_same_bits(mnemonic, arguments, compiled, plain)
        _assert_same_new_nan(arguments, compiled, plain)
    with np.errstate(all="ignore"):
        if mnemonic in EXACT:
            assert_same_bits(mnemonic, arguments, plain, EXACT[mnemonic](*arguments))
        elif mnemonic in CLOSE:
            expected = CLOSE[mnemonic](*arguments)
            tolerance = 64 * np.finfo(expected.dtype).eps
            np.testing.assert_allclose(plain, expected, tolerance, np.finfo(expected.dtype).tiny)


@pytest.mark.parametrize("mnemonic", COMPARED)
def test_on_edge_values(mnemonic: str) -> None:
    _check(mnemonic, edge_columns(mnemonic))


def _bits(kind: str) -> st.SearchStrategy[npt.NDArray[np.uint8]]:
    """Random bits: for floats mostly values of any exponent, with NaNs and subnormals among them."""
    size = _LANES * np.dtype(DTYPES[kind]).itemsize
    return st.binary(min_size=size, max_size=size).map(lambda data: np.frombuffer(data, np.uint8))


@settings(max_examples=300)
@given(data=st.data(), mnemonic=st.sampled_from([name for name in COMPARED if name not in CLOSE]))
def test_on_random_bits(data: st.DataObject, mnemonic: str) -> None:
    kinds = SEMANTICS[mnemonic].argument_types
    _check(mnemonic, [data.draw(_bits(kind)).view(DTYPES[kind]) for kind in kinds])


@pytest.mark.parametrize("mnemonic", DIVISIONS)
def test_division_fails_alike(mnemonic: str) -> None:
    kind, signed = SEMANTICS[mnemonic].argument_types[0], SEMANTICS[mnemonic].refusal == "signed_division"
    dtype = DTYPES[kind]
    failing = [(5, 0), (0, 0), (_MINIMUM[kind], -1)] if signed else [(5, 0), (0, 0)]
    for row in failing:
        with pytest.raises(InvalidArgumentError) as plain:
            SEMANTICS[mnemonic].function(*row)
        with pytest.raises(InvalidArgumentError) as fast:
            by_loop(mnemonic, [np.array([value], dtype) for value in row])
        with pytest.raises(InvalidArgumentError) as native:
            by_loop(mnemonic, [np.array([value], dtype) for value in row], "native")
        assert fast.value.message == native.value.message == plain.value.message


def test_bits_of_floats_pass_unchanged() -> None:
    """Signalling NaNs and their signs survive what only looks at bits."""
    patterns = np.array([0x7F800001, 0x7FA00000, 0xFF800001, 0xFFC12345], np.uint32).view(np.int32)
    for mnemonic, expected in (
        ("bitcast.i32.f32", patterns),
        ("neg.f32", patterns ^ np.int32(-(2**31))),
        ("abs.f32", patterns & np.int32(0x7FFFFFFF)),
    ):
        assert by_plain(mnemonic, [patterns]).tolist() == expected.tolist()
        for tier in ("fast", "native"):
            assert by_loop(mnemonic, [patterns], tier).tolist() == expected.tolist()


def test_rows_are_short_and_without_names_of_a_compiler() -> None:
    """What compiled functions are written with: a few instructions that any LLVM knows."""
    rows = rows_of_functions.rows()
    assert (set(rows) & set(SEMANTICS)) | set(FUNCTIONS) == {
        mnemonic for mnemonic, semantic in SEMANTICS.items() if semantic.math_function is None
    }
    for mnemonic in set(rows) & set(SEMANTICS):
        row = rows[mnemonic]
        if mnemonic in EXACT:
            assert len(row.lines) <= (24 if mnemonic.endswith(".fused") else 8), mnemonic
            assert bool(row.condition) == mnemonic.startswith("cmp."), mnemonic
        text = "\n".join([*row.lines, row.text])
        assert not re.search(r'range\(|#\d|!\w|%[^av\d]|"\$', text), f"{mnemonic}: {text}"
    assert rows["add.i32"].lines == ["add i32 %a1, %a0"]
    texts = [mnemonic for mnemonic, row in rows.items() if row.text and mnemonic in EXACT]
    assert [mnemonic for mnemonic in texts if "cast" in mnemonic] == ["cast.f32.ui64"]
