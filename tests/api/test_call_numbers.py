"""Floats below 32 bits as machine code of calls converts them: the bits that numpy gives."""

from __future__ import annotations

import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jitree import Session
from jitree.api.calls.declaration import Parameter
from jitree.api.calls.native.layout import PASS_BF16, PASS_F16
from jitree.api.calls.native.numbers import brain_of, half_of, widened
from jitree.api.calls.number_packing import FloatBitsPacker
from jitree.codegen.primitives import narrow
from jitree.errors import InvalidArgumentError
from jitree.regs.layout import LIST_I32, LIST_I64, LIST_VARIANT
from jitree.regs.list import VmList
from tests.api.direct import direct, needs_machine_code
from tests.api.programs import ECHO


def bits_of(value: float) -> int:
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


@given(st.floats(-65536, 65536) | st.floats(-1e-4, 1e-4) | st.floats(-1e-7, 1e-7))
@example(2.0**-25)
@example(3 * 2.0**-26)
@example(65519.999)
@example(-0.0)
def test_f16_is_rounded_as_numpy_does(value: float) -> None:
    try:
        expected = FloatBitsPacker(Parameter("x", "f16"), np.dtype(np.float16)).pack(value)
    except InvalidArgumentError:
        expected = -1
    assert half_of(bits_of(value)) == expected


@given(st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-1e38, 1e38))
@example(3.3961775292304601e38)
@example(1.00390625)
@example(-1e-45)
def test_bf16_is_rounded_as_numpy_does(value: float) -> None:
    try:
        expected = FloatBitsPacker(Parameter("x", "bf16"), np.dtype(ml_dtypes.bfloat16)).pack(value)
    except InvalidArgumentError:
        expected = -1
    assert brain_of(narrow(bits_of(value))) == expected


@pytest.mark.parametrize(("kind", "dtype"), [(PASS_F16, np.float16), (PASS_BF16, ml_dtypes.bfloat16)])
def test_all_values(kind: int, dtype: Any) -> None:
    words = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        wide = words.view(dtype).astype(np.float64)
    for bits, value in zip(words.tolist(), wide.tolist(), strict=True):
        (actual,) = struct.unpack("<d", struct.pack("<Q", widened(kind, bits) & (1 << 64) - 1))
        assert actual == value or (actual != actual and value != value), bits


@needs_machine_code
def test_calls() -> None:
    with Session("local-sync", tier="fast") as session:
        session.load(ECHO)
        echo = direct(session["module.s_f16"], 1.5)
        for value in (0.1, -0.0, 65504.0, 1e-7, float("inf"), float("nan"), 3, np.float32(0.5), True):
            expected = float(np.float16(value))
            result = echo(value)
            assert type(result) is float and (result == expected or expected != expected)
        for bad in (65520.0, 1e300, 2049, "1"):
            with pytest.raises(InvalidArgumentError, match="input0: expected f16 but got"):
                echo(bad)


def test_lists_of_values_are_as_if_appended() -> None:
    for code, name, values in (
        (LIST_I32, "i32", [1, -2, 3]),
        (LIST_VARIANT, "?", [5, 6]),
        (LIST_I32, "i32", []),
    ):
        appended = VmList(code)
        for value in values:
            appended.append(value)
        made = VmList.of_values(code, LIST_I64 if code == LIST_VARIANT else code, values)
        for number in (7, 8):
            assert list(made) == list(appended) and repr(made) == repr(appended) and name in repr(made)
            assert [made.tag(index) for index in range(len(made))] == [
                appended.tag(index) for index in range(len(appended))
            ]
            made.append(number)
            appended.append(number)
        made.resize(1)
        made.resize(3)
        assert made[0] == appended[0] and len(made) == 3
