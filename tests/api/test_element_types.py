"""Every element type in and out of a program."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jitree import Array, Session
from jitree.errors import InvalidArgumentError, ResourceExhaustedError
from jitree.types import BY_NAME
from tests.api.programs import ARITHMETIC, ECHO

VALUES: dict[str, Any] = {
    "i1": np.array([True, False, True]),
    "i2": np.array([-2, -1, 0, 1, 1], ml_dtypes.int2),
    "i4": np.array([-8, -1, 0, 7, 3], ml_dtypes.int4),
    "i8": np.array([-128, 0, 127], np.int8),
    "i16": np.array([-32768, 5, 32767], np.int16),
    "i32": np.array([-(1 << 31), 5, (1 << 31) - 1], np.int32),
    "i64": np.array([-(1 << 63), 5, (1 << 63) - 1], np.int64),
    "f16": np.array([1.5, -0.0, np.inf, 6e-8], np.float16),
    "bf16": np.array([1.5, -0.0, np.inf, 1e-38], ml_dtypes.bfloat16),
    "f32": np.array([1.5, -0.0, np.inf, 1e-40], np.float32),
    "f64": np.array([1.5, -0.0, np.inf, 5e-324], np.float64),
    "f8E4M3FN": np.array([1.5, -0.0, 448], ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.array([1.5, -0.0, np.inf], ml_dtypes.float8_e5m2),
    "f8E4M3FNUZ": np.array([1.5, 0, 240], ml_dtypes.float8_e4m3fnuz),
    "f8E5M2FNUZ": np.array([1.5, 0, 57344], ml_dtypes.float8_e5m2fnuz),
    "complex_f32": np.array([1 + 2j, -0.5j], np.complex64),
    "complex_f64": np.array([1 + 2j, -0.5j], np.complex128),
}


@pytest.fixture(scope="module")
def session() -> Session:
    session = Session("local-sync", tier="plain")
    session.load(ECHO)
    return session


@pytest.mark.parametrize("name", VALUES)
def test_arrays_of_each_type_return_bit_for_bit(session: Session, name: str) -> None:
    value = VALUES[name]
    function = session[f"module.e1_{name}"]
    for given in (value, session.to_device(value), value[::-1], value[:0], value[:1]):
        expected = np.asarray(given)
        result = function(given)
        assert isinstance(result, Array)
        host = np.asarray(result)
        assert (host.dtype, host.shape) == (expected.dtype, expected.shape)
        assert host.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", [name for name in VALUES if not name.startswith("complex")])
def test_python_numbers_become_each_type(session: Session, name: str) -> None:
    values = [True, False] if name == "i1" else [1, 0, 1]
    result = session[f"module.e1_{name}"](values)
    assert result.dtype == BY_NAME[name].dtype
    assert np.asarray(result).astype(np.float32).tolist() == [float(value) for value in values]


def test_numbers_of_each_type(session: Session) -> None:
    for name, values in {
        "i1": (True, False), "i8": (-128, 127), "i16": (-5, 32767), "i32": (-(1 << 31), 7),
        "i64": (-(1 << 63), 7), "index": (0, 1 << 40), "f16": (1.5, -0.25, 65504.0), "f32": (1.5, 2.0**-149),
        "f64": (0.1, 5e-324),
    }.items():  # fmt: skip
        function = session[f"module.s_{name}"]
        for value in values:
            assert function(value) == value and type(function(value)) is type(value)
    assert session["module.s_f16"](0.1) == float(np.float16(0.1))
    for bad in (65536, 1e6, 2049, "1"):
        with pytest.raises(InvalidArgumentError, match="input0: expected f16 but got"):
            session["module.s_f16"](bad)


def test_nan_payloads_survive(session: Session) -> None:
    value = np.array([0x7FC00001, 0xFFC12345], np.uint32).view(np.float32)
    assert np.asarray(session["module.e1_f32"](value)).tobytes() == value.tobytes()


def test_unsigned_and_opaque_arrays(session: Session) -> None:
    unsigned = np.array([0, 0xFFFFFFFF], np.uint32)
    result = session["module.e1_i32"](unsigned)
    assert np.asarray(result).astype(np.int32).tolist() == [0, -1]
    opaque = np.array([1.5, 2.5], np.float32).view("V4")
    assert np.asarray(session["module.e1_f32"](opaque)).tobytes() == opaque.tobytes()


@pytest.mark.parametrize("name", [name for name in VALUES if name not in ("i2", "i4")])
def test_opaque_elements_have_the_size_of_what_they_are_passed_as(session: Session, name: str) -> None:
    """Programs look at the bytes only, of which there may be too many."""
    function, value = session[f"module.e1_{name}"], VALUES[name]
    size = value.itemsize
    for given in (value.view(f"V{size}"), session.to_device(value.view(f"V{size}"))):
        if name != "i1" or isinstance(given, np.ndarray):
            assert np.asarray(function(given)).tobytes() == value.tobytes()
    for other in {size + 1, size + 2, 2 * size, 1} - {size}:
        for given in (np.zeros(3, f"V{other}"), np.zeros(2, f"V{other}")[0], np.void(b"9" * other)):
            with pytest.raises(InvalidArgumentError, match="input0"):
                function(given)


def test_opaque_bytes_are_booleans_if_they_are_0_and_1(session: Session) -> None:
    function = session["module.e1_i1"]
    assert np.asarray(function(np.array([1, 0, 1], np.uint8).view("V1"))).tolist() == [True, False, True]
    for given in (np.array([2, 0], np.uint8).view("V1"), np.array([-1], np.int8)):
        with pytest.raises(InvalidArgumentError, match="it has other elements than 0 and 1"):
            function(given)


def test_packed_elements_take_half_a_byte(session: Session) -> None:
    array = session.to_device(np.array([1, -2, 3], ml_dtypes.int4))
    assert (array.size, array.nbytes, array.buffer_view.buffer.byte_length) == (3, 2, 2)
    assert bytes(array.buffer_view.buffer.host_view()) == b"\xe1\x03"
    assert array.to_host().tolist() == [1, -2, 3]


@pytest.mark.parametrize(("dtype", "name"), [("V1", "f32"), ("V2", "i8"), ("V4", "i64"), ("V3", "f32")])
def test_views_of_opaque_elements_of_another_width(session: Session, dtype: str, name: str) -> None:
    """The command line passes views, which programs check by themselves."""
    view = session.to_device(np.zeros(2, dtype)).buffer_view
    with pytest.raises(InvalidArgumentError, match="element type mismatch"):
        session[f"module.e1_{name}"](view)


@pytest.mark.parametrize("order", ["<f4", ">f4"])
@pytest.mark.parametrize("sandbox", [False, "process"])
def test_a_view_of_more_elements_than_there_is_memory_for(order: str, sandbox: bool | str) -> None:
    huge = np.broadcast_to(np.array(1, order), (1 << 45,))
    with (
        pytest.raises(ResourceExhaustedError, match="35184372088832xfloat32"),
        Session("local-sync", parameters=[{"w": huge}], sandbox=sandbox) as one,
    ):
        one.load(ARITHMETIC)
    if sandbox:
        with (
            Session("local-sync", sandbox=sandbox) as one,
            pytest.raises(ResourceExhaustedError, match="35184"),
        ):
            one.load(ARITHMETIC).numbers(huge, 2, 3.0, 4.0, True, 6)
