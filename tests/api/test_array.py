"""``jitree.Array``: numpy, buffer and Python protocols."""

from __future__ import annotations

import copy
import operator
import pickle
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jitree import Array, Session
from jitree.errors import (
    CancelledError,
    DataLossError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    UnimplementedError,
)
from jitree.hal.buffer import Allocation, Buffer, BufferView
from jitree.hal.device import Device
from jitree.hal.fence import Fence
from tests.api.programs import ARITHMETIC, ECHO


@pytest.fixture(scope="module")
def session() -> Session:
    return Session("local-sync", tier="plain")


@pytest.fixture
def matrix(session: Session) -> Array:
    return session.to_device(np.arange(6, dtype=np.float32).reshape(2, 3))


def address(array: Any) -> int:
    pointer: int = np.asarray(array).__array_interface__["data"][0]
    return pointer


def test_a_view_is_an_argument_as_its_array_is(matrix: Array, session: Session) -> None:
    placed = session.to_device(matrix.buffer_view)
    assert placed.buffer_view is matrix.buffer_view and np.array_equal(placed, matrix)
    with Session("local-sync", tier="plain") as own:
        row, add = own.to_device(np.arange(4, dtype=np.float32)), own.load(ARITHMETIC).add
        assert np.array_equal(add(row.buffer_view, row), add(row, row))


def test_attributes(matrix: Array, session: Session) -> None:
    assert (matrix.shape, matrix.ndim, matrix.size, matrix.nbytes, len(matrix)) == ((2, 3), 2, 6, 24, 2)
    assert matrix.dtype == np.float32 and matrix.device is session.device and matrix.ready
    assert matrix.T.shape == (3, 2)
    assert repr(matrix) == "jitree.Array(2x3 float32 on local-sync:\n[[0., 1., 2.],\n [3., 4., 5.]])"


def test_bits_are_seen_as_another_type(matrix: Array, session: Session) -> None:
    values = np.asarray(matrix).copy()
    for dtype in (np.int32, "uint8", np.float16, bool, ml_dtypes.bfloat16, "V4", "f4"):
        seen = matrix.view(dtype)
        assert isinstance(seen, Array) and seen.buffer_view.buffer is matrix.buffer_view.buffer
        assert (
            seen.dtype == dtype
            and seen.tobytes() == values.tobytes()
            and seen.shape == values.view(dtype).shape
        )
    one = session.to_device(np.float32(1.5))
    assert one.view(np.int32).item() == 0x3FC00000 and matrix.view("u2").view("f4")[1, 2] == 5
    matrix.view(np.int32)[0, 0] = 0x3FC00000
    assert matrix[0, 0] == 1.5 and np.asarray(matrix.view(np.int32))[0, 0] == 0x3FC00000
    packed = Array(BufferView(one.buffer_view.buffer, (8,), 0x10000004), session.device)
    for array, dtype, error in (
        (matrix, "f8", InvalidArgumentError), (one, "u1", InvalidArgumentError),
        (packed, "u1", UnimplementedError), (matrix, "int4", UnimplementedError),
        (matrix, "U3", InvalidArgumentError), (matrix, ">i4", InvalidArgumentError),
        (matrix, [("a", "i4")], InvalidArgumentError),
    ):  # fmt: skip
        with pytest.raises(error, match="view: "):
            array.view(dtype)


def test_numpy_shares_the_memory(matrix: Array) -> None:
    host = np.asarray(matrix)
    assert address(matrix) == matrix.buffer_view.buffer.host_address == address(host)
    host[0, 0] = 9
    assert matrix[0, 0] == 9
    assert np.asarray(matrix, np.float64).dtype == np.float64
    assert address(np.array(matrix)) != address(matrix)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="numpy 1 copies where it has to")
def test_numpy_is_told_when_it_must_not_copy(matrix: Array) -> None:
    assert address(np.asarray(matrix, copy=False)) == address(matrix)
    with pytest.raises(ValueError, match="copy"):
        np.asarray(matrix, np.float64, copy=False)


def test_the_buffer_protocol(matrix: Array, session: Session) -> None:
    view = matrix.__buffer__(0)
    assert (view.shape, view.format, view[1, 2]) == ((2, 3), "f", 5.0)
    with pytest.raises(BufferError, match="bfloat16"):
        session.to_device(np.zeros(2, ml_dtypes.bfloat16)).__buffer__(0)
    if sys.version_info >= (3, 12):  # before, Python asks only types written in C
        assert memoryview(matrix).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_memory_outlives_everything_else() -> None:
    with Session("local-task", tier="plain") as session:
        module = session.load(ARITHMETIC)
        result = module.large(np.full(65536, 2, np.float32))
        host = np.asarray(result)
    del result, module, session
    assert host.sum() == 65536 * 4


def test_python_protocols(matrix: Array, session: Session) -> None:
    assert [row.tolist() for row in matrix] == [[0, 1, 2], [3, 4, 5]] == matrix.tolist()
    assert matrix[1].tolist() == [3, 4, 5] and matrix[..., -1].tolist() == [2, 5] and 4 in matrix
    one = session.to_device(np.int64(7))
    assert (float(one), int(one), complex(one), bool(one), one.item()) == (7.0, 7, 7 + 0j, True, 7)
    assert operator.index(one) == 7 and list(range(9))[one] == 7
    assert matrix.item(1, 2) == 5.0
    flags = np.array([True, False])
    assert (session.to_device(flags) ** 2).dtype == (flags**2).dtype and (matrix**2).dtype == np.float32
    assert session.empty((2,), "bfloat16").dtype == ml_dtypes.bfloat16
    for bad in (float, int, bool):
        with pytest.raises((TypeError, ValueError)):
            bad(matrix)
    with pytest.raises(TypeError, match="rank 0"):
        len(one)
    with pytest.raises(TypeError):
        hash(matrix)


def test_arithmetic_gives_numpy_arrays(matrix: Array) -> None:
    values = np.asarray(matrix)
    for result, expected in (
        (matrix + 1, values + 1), (2 * matrix, 2 * values), (matrix @ matrix.T, values @ values.T),
        (-matrix, -values), (matrix == values, values == values), (matrix + matrix, values * 2),
        (np.exp(matrix), np.exp(values)), (np.add.reduce(matrix, axis=0), values.sum(axis=0)),
        (np.concatenate([matrix, matrix]), np.concatenate([values, values])),
        (values - matrix, values - values),
        (matrix.reshape(3, 2), values.reshape(3, 2)), (matrix.astype(int), values.astype(int)),
    ):  # fmt: skip
        assert isinstance(result, np.ndarray) and np.array_equal(result, expected)
    target = np.zeros((2, 3), np.float32)
    assert np.add(matrix, 1, out=target) is target and target[0, 0] == 1


def test_what_is_written_stays_on_the_device(matrix: Array, session: Session) -> None:
    expected = np.asarray(matrix).copy()
    summed: Any = matrix
    summed += 1
    summed *= matrix
    assert summed is matrix and np.array_equal(matrix, (expected + 1) ** 2)
    total: Any = session.empty((3,))
    assert np.sum(matrix, axis=0, out=total) is total and np.array_equal(total, ((expected + 1) ** 2).sum(0))
    assert np.add(matrix, 1, out=matrix, where=np.eye(2, 3, dtype=bool)) is matrix and matrix[0, 0] == 2
    np.add.at(matrix, ([0, 0], [0, 0]), 1)
    assert matrix[0, 0] == 4
    places: Any = (matrix, None)
    halves, rest = np.divmod(matrix, 2, out=places)
    assert halves is matrix and rest[0, 0] == 0 and matrix[0, 0] == 2
    with pytest.raises(TypeError, match="same_kind"):
        summed += 1j
    for row in (np.array([7, 8, 9], np.int16), session.to_device(np.array([7, 8, 9], np.float16))):
        matrix[1] = 0
        matrix[1] = row
        assert matrix[1].tolist() == [7, 8, 9], "of a type whose every value this one has"
    fixed = session.load(ECHO).e1_i4(np.zeros(3, ml_dtypes.int4))
    with pytest.raises(UnimplementedError, match=r"session\.to_device"):
        fixed += 1


METHODS = (
    ("all",), ("any", 0), ("argmax", 1), ("argmin",), ("argsort",), ("clip", 1, 3), ("conj",), ("cumprod",),
    ("cumsum", 1), ("diagonal",), ("dot", [1, 2, 3]), ("flatten",), ("max", 0), ("mean",), ("min",),
    ("nonzero",), ("prod",), ("ravel",), ("repeat", 2), ("reshape", -1), ("reshape", (3, 2)), ("round",),
    ("squeeze",), ("std",), ("sum",), ("sum", 1, np.float64), ("swapaxes", 0, 1), ("take", [0, 5]),
    ("tobytes",), ("tolist",), ("trace",), ("transpose",), ("transpose", 1, 0), ("var",), ("item", 3),
    ("astype", "int8"),
)  # fmt: skip


@pytest.mark.parametrize("row", METHODS, ids=str)
def test_methods_of_numpy(matrix: Array, row: tuple[Any, ...]) -> None:
    name, *arguments = row
    found = getattr(matrix, name)(*arguments)
    expected = getattr(np.asarray(matrix), name)(*arguments)
    assert type(found) is type(expected) and np.array_equal(found, expected)
    assert name in ("item", "astype") or getattr(Array, name).__name__ == name


def test_attributes_of_numpy(matrix: Array, session: Session) -> None:
    values = np.asarray(matrix)
    for name in ("strides", "itemsize", "nbytes", "ndim", "size", "shape", "dtype"):
        assert getattr(matrix, name) == getattr(values, name)
    assert np.array_equal(matrix.mT, values.T) and bytes(matrix) == values.tobytes()
    with pytest.raises(ValueError, match="ndim < 2"):
        _ = matrix[0], session.to_device([1]).mT
    with pytest.raises(ValueError, match=r"a\.any\(\) or a\.all\(\)"):
        bool(matrix)
    assert matrix.any() and not matrix.all()
    assert (np.shape(matrix), np.ndim(matrix), np.size(matrix, 1)) == ((2, 3), 2, 3)
    assert np.array_equal(np.stack([matrix, matrix]), np.stack([values, values]))
    assert np.array_equal(np.where(matrix > 2, matrix, 0), np.where(values > 2, values, 0))


IN_THE_STANDARD: dict[str, Any] = {
    "sum": lambda space, x: space.sum(x, axis=1),
    "mean": lambda space, x: space.mean(x, keepdims=True),
    "argmax": lambda space, x: space.argmax(x),
    "all": lambda space, x: space.all(x > 2, axis=0),
    "exp": lambda space, x: space.exp(x),
    "matrix_transpose": lambda space, x: space.matrix_transpose(x),
    "permute_dims": lambda space, x: space.permute_dims(x, (1, 0)),
    "expand_dims": lambda space, x: space.expand_dims(x, axis=1),
    "sort": lambda space, x: (
        space.sort(x, descending=True) if space is not np else np.flip(np.sort(x), axis=-1)
    ),
    "cumulative_sum": lambda space, x: space.cumulative_sum(x, axis=1),
    "unique_values": lambda space, x: space.unique_values(x),
    "astype": lambda space, x: space.astype(x, space.int64),
    "concat": lambda space, x: space.concat([x, x]),
    "stack": lambda space, x: space.stack([x, x], axis=1),
    "matmul": lambda space, x: x @ space.matrix_transpose(x),
    "where": lambda space, x: space.where(x > 2, x, -x),
    "vecdot": lambda space, x: space.vecdot(x, x),
    "vector_norm": lambda space, x: space.linalg.vector_norm(x, axis=0),
    "full_like": lambda space, x: space.full_like(x, 3),
    "mT": lambda space, x: x.mT,
    "index": lambda space, x: x[1, ::2],
}


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="the standard is in NumPy 2")
@pytest.mark.parametrize("name", IN_THE_STANDARD)
def test_the_namespace_is_that_of_the_standard(matrix: Array, name: str) -> None:
    strict = pytest.importorskip("array_api_strict")
    compute = IN_THE_STANDARD[name]
    found = compute(matrix.__array_namespace__(), matrix)
    expected = np.asarray(compute(strict, strict.asarray(np.asarray(matrix))))
    assert np.array_equal(found, expected) and found.dtype == expected.dtype


def test_copies_are_arrays_of_a_device(matrix: Array) -> None:
    """A pickle's is one of the process, with the same URI."""
    for other in (copy.copy(matrix), copy.deepcopy(matrix), matrix.copy()):
        assert other.device is matrix.device and np.array_equal(other, matrix)
        assert address(other) != address(matrix)
    one, other = (pickle.loads(pickle.dumps(matrix)) for _ in range(2))
    assert one.device is other.device and one.device.uri == matrix.device.uri and np.array_equal(one, matrix)
    moved = matrix.to_device(one.device)
    assert moved.device is one.device and np.array_equal(moved, matrix)
    assert matrix.to_device(matrix.device) is matrix and isinstance(matrix.to_device("cpu"), np.ndarray)
    with pytest.raises(InvalidArgumentError, match=r"to_device: expected a jitree.Device .* but got 'gpu'"):
        matrix.to_device("gpu")
    lost = pickle.dumps(matrix).replace(b"local-sync", b"local-sink")
    with pytest.raises(NotFoundError, match="unpickling an array of the device local-sink"):
        pickle.loads(lost)


def test_what_becomes_an_array(session: Session) -> None:
    for value, dtype, shape in (
        (3, np.int64, ()), ([1.0, 2.0], np.float64, (2,)), (np.float16(1), np.float16, ()),
        (np.zeros((0, 3), np.int8), np.int8, (0, 3)), (memoryview(b"abc"), np.uint8, (3,)),
        (np.ones(3, ">i2"), np.int16, (3,)), (np.ones((2, 3), order="F"), np.float64, (2, 3)),
        (np.zeros(2, ml_dtypes.bfloat16), ml_dtypes.bfloat16, (2,)),
    ):  # fmt: skip
        array = session.to_device(value)
        assert (array.dtype, array.shape) == (np.dtype(dtype), shape)
        assert np.array_equal(np.asarray(array).astype(float), np.asarray(value).astype(float))
    array = session.to_device([1, 2])
    assert session.to_device(array) is array
    for bad in ("text", object(), [1, "a"], np.zeros(2, np.longdouble), None, {"a": 1}):
        with pytest.raises(ValueError, match="INVALID_ARGUMENT; to_device: no device array can hold"):
            session.to_device(bad)
    with pytest.raises(InvalidArgumentError, match=r"to_device: .* inhomogeneous"):
        session.to_device([[1, 2], [3]])


def test_an_array_that_is_still_computed(session: Session) -> None:
    fence = Fence.create(session.device)
    array = Array(session.to_device([1, 2, 3]).buffer_view, session.device, fence)
    was_ready = array.ready
    assert not was_ready and "being computed" in repr(array)
    fence.signal()
    assert array.ready and array.tolist() == [1, 2, 3] and array.fence is None


def test_an_array_that_failed(session: Session) -> None:
    fence = Fence.create(session.device)
    array = Array(session.to_device([1, 2, 3]).buffer_view, session.device, fence)
    fence.fail(DataLossError("lost"))
    assert array.ready and "DATA_LOSS; lost" in repr(array)
    for _ in range(2):
        with pytest.raises(DataLossError, match="lost"):
            np.asarray(array)
    with pytest.raises(DataLossError, match="lost"):
        session.load(ARITHMETIC).add(array, array)
    fence = Fence.create(session.device)
    array = Array(session.to_device([1, 2, 3]).buffer_view, session.device, fence)
    fence.fail(OutOfRangeError("outside of a table"))
    with pytest.raises(OutOfRangeError, match="outside of a table"):  # an IndexError, and none of this index
        array[2**70]


def test_a_device_that_closes_cancels_what_waits() -> None:
    session = Session("local-sync", tier="plain")
    never, done = Fence.create(session.device), Fence.create(session.device)
    session.device.queue_barrier(-1, never, done)
    array = Array(session.to_device([1]).buffer_view, session.device, done)
    session.close()
    with pytest.raises(CancelledError):
        array.wait()


def test_a_view_that_its_buffer_cannot_hold(session: Session) -> None:
    view = session.to_device(np.zeros(4, np.float32)).buffer_view
    with pytest.raises(OutOfRangeError, match="16 bytes cannot be viewed as `5xf32`, which has 20"):
        BufferView(view.buffer, (5,), view.element_type, 1)
    with pytest.raises(InternalError, match="16 bytes"):  # of other encodings only who reads them knows
        Array(BufferView(view.buffer, (5,), view.element_type, 0), session.device).to_host()


class OpaqueMemory:
    """A device whose memory the host cannot see, in the few operations that arrays need."""

    write_buffer: Any = Device.write_buffer
    read_buffer: Any = Device.read_buffer
    array_exchange = None

    def __init__(self, session: Session) -> None:
        self.device = session.device
        self.device_allocator = self
        self.create_semaphore = session.device.create_semaphore
        self.import_file = session.device.import_file
        self.copies = 0

    def allocate(self, memory_type: int, usage: int, size: int, *, alignment: int = 64) -> Buffer:
        buffer = self.device.device_allocator.allocate(memory_type, usage, size)
        if memory_type & 0x2:
            return buffer
        hidden = Allocation(
            buffer.address, size, memory_type, usage, 7, host_address=None, source=buffer.allocation
        )
        return Buffer(hidden)

    def import_host(self, *arguments: object) -> None:
        return None

    def queue_read(
        self, affinity: int, wait: Any, signal: Fence, file: Any, start: int, target: Any, *rest: int
    ) -> None:
        file.read_into(start, _memory(target))
        self.copies += 1
        signal.signal()

    def queue_copy(
        self, affinity: int, wait: Any, signal: Fence, source: Any, start: int, target: Any, *rest: int
    ) -> None:
        target.host_view()[:] = _memory(source)
        self.copies += 1
        signal.signal()


def _memory(buffer: Buffer) -> memoryview:
    return Buffer(buffer.allocation.source).host_view()  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.int4])
def test_memory_that_the_host_cannot_see(session: Session, dtype: Any) -> None:
    from jitree.api.calls.transfers import copy_to_device
    from jitree.types import element_type_of

    device: Any = OpaqueMemory(session)
    values = (np.arange(1 << 15) % 7).astype(dtype)
    row = element_type_of(values.dtype)
    assert row is not None
    array = Array(copy_to_device(values, row, device), device)
    with pytest.raises(PermissionDeniedError):
        array.buffer_view.buffer.host_view()
    assert np.array_equal(np.asarray(array), values)
    assert device.copies == 2


def test_shapes_that_numpy_does_not_have(session: Session) -> None:
    """As damaged programs make them."""
    array = Array(
        BufferView(session.to_device(np.zeros(4, np.int8)).buffer_view.buffer, (1,) * 65, 0x10000008),
        session.device,
    )
    for look in (np.asarray, Array.tolist, np.array, lambda array: array[...]):
        with pytest.raises(InternalError, match=r"no numpy array can show: shape \(.*element type i8"):
            look(array)
    assert "cannot be shown: INTERNAL" in repr(array)


@pytest.mark.parametrize("code", [0, 0x1000000C, 0x100000FF, 0x130000FF, 0x2100000A])
def test_unknown_element_types(session: Session, code: int) -> None:
    view = session.to_device(np.zeros(64, np.int8)).buffer_view
    with pytest.raises(InternalError, match=f"no numpy array can show: .*0x{code:08x}"):
        np.asarray(Array(BufferView(view.buffer, (1,), code), session.device))
