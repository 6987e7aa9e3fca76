"""Byte lengths are computed exactly: what has no room in 64 bits is refused, wherever it comes from."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from jitree import Module, Session
from jitree.errors import OutOfRangeError, ResourceExhaustedError, StatusError
from jitree.types import BY_NAME, LARGEST_LENGTH
from tests.api.programs import SIZES
from tests.assembler import Assembler

F32, I4, I8 = BY_NAME["f32"], BY_NAME["i4"], BY_NAME["i8"]
CALLS = range(4)
"""The slow path, and machine code from the third call on."""


@pytest.fixture
def module(session: Session) -> Module:
    return session.load(SIZES)


@pytest.mark.parametrize(
    ("shape", "bytes_i4", "bytes_f32"),
    [((), 1, 4), ((3,), 2, 12), ((2, 3), 3, 24), ((0,), 0, 0), ((3, 0, 7), 0, 0), ((2**40,), 2**39, 2**42)],
)
def test_lengths(shape: tuple[int, ...], bytes_i4: int, bytes_f32: int) -> None:
    assert I4.byte_length(shape) == bytes_i4 and F32.byte_length(shape) == bytes_f32


def test_the_longest() -> None:
    assert I8.byte_length((LARGEST_LENGTH,)) == LARGEST_LENGTH
    with pytest.raises(OutOfRangeError, match="`9223372036854775808xi8`: its byte length overflows 64 bits"):
        I8.byte_length((LARGEST_LENGTH + 1,))
    with pytest.raises(OutOfRangeError, match=r"dimension 1 is negative \(-3\)"):
        I8.byte_length((2, -3))


IMPOSSIBLE: list[tuple[tuple[int, ...], type[StatusError]]] = [
    ((2**62,), OutOfRangeError),
    ((2**62 + 10**6,), OutOfRangeError),
    ((-(2**63),), OutOfRangeError),
    ((2**63 - 1,), OutOfRangeError),
    ((-1,), OutOfRangeError),
    ((-1000,), ResourceExhaustedError),
    ((2**61,), OutOfRangeError),  # bytes that do not fit in 64 bits; iree.runtime has RESOURCE_EXHAUSTED
    ((2**60,), ResourceExhaustedError),
    ((2**32, 2**32), OutOfRangeError),
    ((-1, -1), OutOfRangeError),
    ((0, -1), OutOfRangeError),
    ((-4, -4), OutOfRangeError),
    ((-2, 2**31), ResourceExhaustedError),
]
"""Statuses as iree.runtime 3.13 has them, where it survives."""


@pytest.mark.parametrize(("shape", "status"), IMPOSSIBLE, ids=lambda value: str(value))
def test_results_of_programs(module: Module, shape: tuple[int, ...], status: type[StatusError]) -> None:
    function = module.vector if len(shape) == 1 else module.matrix
    for _ in CALLS:
        with pytest.raises(status):
            function(*shape)
    assert module.vector(3).shape == (3,) and module.matrix(0, 5).shape == (0, 5)


@pytest.mark.parametrize(
    "shape", [(2**62,), (-1,), (-2, -2), (2**32, 2**32), (np.int64(2**62), np.int64(4)), (0, -1), (2**70,)]
)
def test_empty_arrays(session: Session, shape: tuple[int, ...]) -> None:
    with pytest.raises(OutOfRangeError):
        session.empty(shape)
    with pytest.raises(ResourceExhaustedError):
        session.empty(2**60)


@pytest.mark.parametrize("dtype", ["f4", "int4"])
def test_few_bytes_that_are_shown_as_many(session: Session, dtype: str) -> None:
    one = np.ones(1, ml_dtypes.int4 if dtype == "int4" else dtype)
    with pytest.raises(ResourceExhaustedError):
        session.to_device(np.broadcast_to(one, (2**50,)))


@pytest.mark.parametrize(
    ("sign", "message"),
    [("s", "65537 and 65536 does not fit in 32 bits"), ("u", "a buffer of 65536 bytes cannot be viewed")],
)
def test_products_of_32_bits(session: Session, sign: str, message: str) -> None:
    """A product that wraps before it is extended makes no array that is larger than its memory."""
    program = (
        Assembler(f"narrow_{sign}")
        .import_function("hal.devices.get", "0i_r")
        .import_function("hal.device.queue.alloca", "0rIrrIiiII_r")
        .import_function("hal.buffer_view.create", "0rIIiiCID_r")
    )
    program.function("f", "0ii_r", f"""
        %i2 = const.i32 0
        [%r0] = call @hal.devices.get [%i2]
        %i4 = mul.i32 %i0, %i1
        %i6:7 = ext.i32.i64.{sign} %i4
        %i8:9 = const.i64 -1
        %i10:11 = const.i64 0
        %i12 = const.i32 48
        %i13 = const.i32 3075
        %r1 = const.ref.zero
        [%r3] = call @hal.device.queue.alloca [%r0, %i8:9, %r1, %r1, %i10:11, %i12, %i13, %i6:7, %i10:11]
        %i14 = const.i32 268435464
        %i15 = const.i32 1
        %i16:17 = ext.i32.i64.{sign} %i0
        %i18:19 = ext.i32.i64.{sign} %i1
        [%r4] = call.variadic @hal.buffer_view.create [{"0xFFFF, " * 5}2] \
            [%r3, %i10:11, %i6:7, %i14, %i15, %i16:17, %i18:19]
        return [%r4]
    """)  # fmt: skip
    function = session.load(program.build()).f
    for _ in CALLS:
        with pytest.raises(OutOfRangeError, match=message):
            function(65537, 65536)
    assert function(3, 5).shape == (3, 5)
