"""Exchange of arrays by DLPack, also of the types that numpy does not exchange."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jitree import Session
from jitree.base import dlpack
from jitree.errors import InvalidArgumentError
from tests.api.programs import ARITHMETIC, ECHO

EXTENDED = [
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2fnuz,
    ml_dtypes.float8_e4m3fnuz,
]


@pytest.fixture(scope="module")
def session() -> Session:
    return Session("local-sync", tier="plain")


class Producer:
    """An array of another library."""

    def __init__(self, array: np.ndarray[Any, Any], device: tuple[int, int] = (1, 0)) -> None:
        self.array = array
        self.device = device

    def __dlpack__(self, **options: Any) -> Any:
        return dlpack.export(self.array, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


NUMPY = [np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float64, np.complex64]


@pytest.mark.parametrize("dtype", NUMPY)
def test_numpy_takes_arrays_without_copying(session: Session, dtype: Any) -> None:
    array = session.to_device(np.array([[1, 0, 1], [0, 1, 1]], dtype))
    taken = np.from_dlpack(array)
    assert taken.dtype == dtype and np.array_equal(taken, array)
    assert taken.__array_interface__["data"][0] == array.buffer_view.buffer.host_address
    assert array.__dlpack_device__() == (1, 0)


@pytest.mark.parametrize("dtype", EXTENDED)
def test_extended_types_in_both_directions(session: Session, dtype: Any) -> None:
    array = session.to_device(np.array([[1, 2, 3], [4, 5, 6]], dtype))
    buffer = array.buffer_view.buffer
    alive = weakref.ref(buffer.allocation)
    taken = dlpack.import_array(array)
    assert taken.dtype == dtype and np.array_equal(taken, array)
    assert taken.__array_interface__["data"][0] == buffer.host_address
    row = taken[1]
    del taken, array, buffer
    gc.collect()
    assert alive() is not None and row.astype(int).tolist() == [4, 5, 6]
    del row
    gc.collect()
    assert alive() is None


def test_what_the_capsules_say(session: Session) -> None:
    """A consumer sees the DLPack code, whatever numpy thinks of it."""
    array = session.to_device(np.zeros(4, ml_dtypes.bfloat16))
    for version in (None, (1, 0)):
        tensor = dlpack._tensor(array.__dlpack__(max_version=version))
        assert (tensor.code, tensor.bits, tensor.lanes) == (4, 16, 1)
    assert dlpack._tensor("no capsule") is None
    with pytest.raises((BufferError, RuntimeError)):
        np.from_dlpack(array)


def test_capsules_that_are_never_taken_are_freed(session: Session) -> None:
    array = session.to_device(np.zeros(4, ml_dtypes.bfloat16))
    alive = weakref.ref(array.buffer_view.buffer.allocation)
    capsule = array.__dlpack__()
    del array
    gc.collect()
    assert alive() is not None
    del capsule
    gc.collect()
    assert alive() is None


def test_programs_take_foreign_arrays(session: Session) -> None:
    module, echo = session.load(ARITHMETIC), session.load(ECHO)
    values = np.arange(4, dtype=np.float32)
    assert np.array_equal(module.add(Producer(values), values), values * 2)
    strided = np.arange(8, dtype=np.float32)[::2]
    assert np.array_equal(module.add(Producer(strided), strided), strided * 2)
    for name, dtype in (("bf16", EXTENDED[0]), ("f8E5M2", EXTENDED[1]), ("f8E4M3FN", EXTENDED[2])):
        given = np.array([1, 2, 3], dtype)
        assert np.asarray(echo[f"e1_{name}"](Producer(given))).tobytes() == given.tobytes()
    assert np.array_equal(module.add(values, Producer(values.astype(ml_dtypes.bfloat16))), values * 2)
    with pytest.raises(InvalidArgumentError, match="input1 element type mismatch"):
        module.add(values, Producer(values.astype(np.float64)))
    with pytest.raises(InvalidArgumentError, match="another device's memory"):
        module.add(values, Producer(values, (2, 0)))


def test_refusals(session: Session) -> None:
    array = session.to_device(np.zeros(4, ml_dtypes.bfloat16))
    with pytest.raises(BufferError):
        array.__dlpack__(dl_device=(2, 0))

    class Strange(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            capsule = super().__dlpack__(**options)
            dlpack._tensor(capsule).code = 77
            return capsule

    with pytest.raises(InvalidArgumentError, match="Strange cannot be taken"):
        dlpack.import_array(Strange(np.zeros(2, np.float32)))


CLAIMS: dict[str, dict[str, Any]] = {
    "more bits than the type has": {"code": 4, "bits": 32},
    "fewer bits than the type has": {"code": 4, "bits": 8},
    "a byte of two bytes": {"code": 10},
    "no rank": {"rank": -1},
    "sizes nowhere": {"rank": 2, "shape": None},
    "elements beyond all memory": {"byte_offset": (1 << 64) - 1},
}


@pytest.mark.parametrize("claims", CLAIMS.values(), ids=CLAIMS.keys())
def test_capsules_that_no_array_has(session: Session, claims: dict[str, Any]) -> None:
    class Strange(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            capsule = super().__dlpack__(**options)
            for name, value in claims.items():
                setattr(dlpack._tensor(capsule), name, value)
            return capsule

    for shape in ((), (4,)):
        with pytest.raises(InvalidArgumentError, match="Strange cannot be taken"):
            session.to_device(Strange(np.zeros(shape, np.float16)))


def test_offsets_that_wrap_in_machine_code() -> None:
    """The place would be before the one that the capsule states."""

    class Before(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            capsule = super().__dlpack__(**options)
            dlpack._tensor(capsule).byte_offset = (1 << 64) - 4
            return capsule

    values = np.arange(5, dtype=np.float32)
    with Session("local-sync") as session:
        module = session.load(ARITHMETIC)
        for _ in range(2):
            assert np.array_equal(module.add(Producer(values[1:]), values[1:]), values[1:] * 2)
            with pytest.raises(InvalidArgumentError, match="Before cannot be taken: no memory is"):
                module.add(Before(values[1:]), values[1:])


@pytest.mark.parametrize("sizes", [(-1, 1, 1), (0, 1 << 62, 1 << 62), (1 << 32, 1 << 32, 4)])
def test_shapes_that_no_array_has(session: Session, sizes: tuple[int, ...]) -> None:
    class Strange(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            capsule = super().__dlpack__(**options)
            for axis, size in enumerate(sizes):
                dlpack._tensor(capsule).shape[axis] = size
            return capsule

    with pytest.raises(InvalidArgumentError, match="Strange cannot be taken"):
        session.to_device(Strange(np.zeros((1, 1, 1), np.float32)))


@pytest.mark.parametrize(("is_deleted", "why"), [(True, "it has been deleted or donated"), (False, "no len")])
def test_arrays_that_their_library_has_deleted(session: Session, is_deleted: bool, why: str) -> None:
    """jax's fail somewhere inside then."""

    class Deleted(Producer):
        def __dlpack_device__(self) -> Any:
            raise TypeError("object of type 'NoneType' has no len()")

    Deleted.is_deleted = lambda self: is_deleted  # type: ignore[attr-defined]
    with pytest.raises(InvalidArgumentError, match=f"Deleted cannot be taken: .*{why}"):
        session.to_device(Deleted(np.zeros(4, np.float32)))


@pytest.mark.parametrize("is_deleted", [True, False])
def test_arrays_that_are_deleted_after_their_device_is_known(session: Session, is_deleted: bool) -> None:
    class Deleted(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            raise TypeError("nothing is left of it")

    Deleted.is_deleted = lambda self: is_deleted  # type: ignore[attr-defined]
    expected = InvalidArgumentError if is_deleted else TypeError
    with pytest.raises(expected, match="deleted or donated" if is_deleted else "nothing is left"):
        session.to_device(Deleted(np.zeros(4, np.float32)))


@pytest.mark.parametrize("device", [None, (), 1])
def test_devices_that_are_none(session: Session, device: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="Producer cannot be taken"):
        session.to_device(Producer(np.zeros(2), device))


def test_read_only_arrays() -> None:
    frozen = np.zeros(2, ml_dtypes.bfloat16)
    frozen.setflags(write=False)
    assert not dlpack.import_array(Producer(frozen)).flags.writeable


def test_copies_on_request(session: Session) -> None:
    array = session.to_device(np.zeros(4, ml_dtypes.bfloat16))

    class Copying(Producer):
        def __dlpack__(self, **options: Any) -> Any:
            return array.__dlpack__(**{**options, "copy": True})

    taken = dlpack.import_array(Copying(np.empty(0)))
    taken[0] = 1
    assert float(array[0]) == 0


def test_empty_and_rank_zero(session: Session) -> None:
    for shape in ((), (0,), (2, 0, 3)):
        array = session.to_device(np.ones(shape, ml_dtypes.bfloat16))
        assert dlpack.import_array(array).shape == shape
