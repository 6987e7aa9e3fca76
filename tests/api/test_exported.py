"""DLPack's C exchange interface of device arrays, as a consumer written in C sees it."""

from __future__ import annotations

import ctypes
import gc
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jitree import Array, Session, donate
from jitree.api.calls.native import RECIPE
from jitree.base import dlpack, dlpack_names
from jitree.base import memory as process_memory
from jitree.base.dlpack import DLTensor, Versioned
from jitree.codegen import image
from jitree.errors import FailedPreconditionError
from tests.api.direct import X, direct, live, needs_machine_code
from tests.api.programs import ARITHMETIC, ECHO, OUTPUTS

pytestmark = needs_machine_code

_EXPORT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.POINTER(Versioned)))
_DESCRIBE = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
_IMPORT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.py_object))
_STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
_ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(DLTensor),
    ctypes.POINTER(ctypes.POINTER(Versioned)),
    ctypes.c_void_p,
    _ERROR,
)
_DELETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
"""Without the GIL, as any thread of a library may."""
TYPES = {
    "f32": np.float32, "f64": np.float64, "i8": np.int8, "i32": np.int32, "i64": np.int64, "f16": np.float16,
    "bf16": ml_dtypes.bfloat16, "f8E5M2": ml_dtypes.float8_e5m2, "i1": np.bool_, "ui8": np.uint8,
    "complex_f32": np.complex64,
}  # fmt: skip


class Consumer:
    """The functions of the interface."""

    def __init__(self) -> None:
        interface = dlpack.exchange_interface(Array.__dlpack_c_exchange_api__)
        assert interface is not None and (interface.major, interface.previous) == (1, None)
        self._export = _EXPORT(interface.managed_of_object)
        self._import = _IMPORT(interface.object_of_managed)
        self._allocate = _ALLOCATE(interface.allocate)
        self._describe = _DESCRIBE(interface.tensor_of_object)
        self.stream = _STREAM(interface.current_work_stream)

    def export(self, value: Any) -> Any:
        made = ctypes.POINTER(Versioned)()
        assert self._export(value, ctypes.byref(made)) == 0
        return made

    def describe(self, value: Any) -> DLTensor:
        tensor = DLTensor()
        assert self._describe(value, ctypes.byref(tensor)) == 0
        return tensor

    def take(self, managed: Any) -> Any:
        made = ctypes.py_object()
        assert self._import(managed, ctypes.byref(made)) == 0
        value = made.value
        ctypes.pythonapi.Py_DecRef(made)
        return value

    def allocate(self, **fields: Any) -> tuple[Any, list[tuple[bytes, bytes]]]:
        shape = (ctypes.c_int64 * 2)(*fields.pop("shape", (2, 3)))
        known = {"device_kind": 1, "rank": 2, "code": 2, "bits": 32, "lanes": 1, "shape": shape} | fields
        errors: list[tuple[bytes, bytes]] = []
        error = _ERROR(lambda context, kind, text: errors.append((kind, text)))
        made = ctypes.POINTER(Versioned)()
        failed = self._allocate(ctypes.byref(DLTensor(**known)), ctypes.byref(made), None, error)
        assert (failed != 0) is (not made) is bool(errors)
        return made, errors


def delete(managed: Any) -> None:
    _DELETE(managed.contents.deleter)(ctypes.addressof(managed.contents))


def elements(tensor: DLTensor, dtype: Any) -> np.ndarray[Any, Any]:
    """A copy of them, found by what the tensor says."""
    shape, strides = tensor.shape[: tensor.rank], tensor.strides[: tensor.rank]
    itemsize = tensor.bits // 8
    assert tensor.data and itemsize == np.dtype(dtype).itemsize and tensor.lanes == 1
    size = int(np.prod(shape)) * itemsize
    memory = np.frombuffer((ctypes.c_char * size).from_address(tensor.data + tensor.byte_offset), dtype)
    dense = [int(np.prod(shape[axis + 1 :])) for axis in range(tensor.rank)]
    assert strides == dense
    return memory.reshape(shape).copy()


@pytest.fixture(scope="module")
def consumer() -> Consumer:
    image.wait(RECIPE)
    return Consumer()


@pytest.fixture
def session() -> Iterator[Session]:
    with Session("local-sync", tier="fast") as session:
        session.load(ARITHMETIC, ECHO, OUTPUTS)
        yield session


@pytest.mark.parametrize("name", TYPES)
def test_types(session: Session, consumer: Consumer, name: str) -> None:
    """The slow path and machine code say the same."""
    array = (np.arange(4) % 2).astype(TYPES[name])
    echo = session[f"module.e1_{name}"]
    for _ in range(4):
        result = echo(array)
        code = int.from_bytes(bytes(consumer.describe(result))[20:24], "little")
        assert code == dlpack_names.tensor_type(result.element_type)
        assert np.array_equal(elements(consumer.describe(result), array.dtype), array)
        managed = consumer.export(result)
        assert managed.contents.major == 1 and managed.contents.flags == 0
        assert np.array_equal(elements(managed.contents.tensor, array.dtype), array)
        delete(managed)


def test_ranks(session: Session, consumer: Consumer) -> None:
    twice = direct(session["arithmetic.twice"], np.zeros((1, 3), np.float32))
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    scalar = session.to_device(np.float32(5))
    for _ in range(5):
        for value, expected in ((twice(array), 2 * array), (scalar, np.float32(5))):
            tensors = [consumer.describe(value) for _ in range(3)]
            managed = consumer.export(value)
            for tensor in (*tensors, managed.contents.tensor):
                assert np.array_equal(elements(tensor, np.float32), expected)
            delete(managed)
    empty = consumer.export(twice(array[:0]))
    assert empty.contents.tensor.shape[:2] == [0, 3]
    delete(empty)


def test_it_is_the_same_memory(session: Session, consumer: Consumer) -> None:
    add = direct(session["arithmetic.add"], X, X)
    result = add(X, X)
    managed = consumer.export(result)
    memory = (ctypes.c_float * 4).from_address(managed.contents.tensor.data)
    memory[1] = 50
    assert np.asarray(result)[1] == 50 and np.asarray(add(result, X))[1] == 51
    delete(managed)


def test_the_tensor_keeps_the_memory(consumer: Consumer) -> None:
    """Also of a session that is closed, and a deleter may be called by any thread."""
    kept = []
    with Session("local-sync", tier="fast") as session:
        add = direct(session.load(ARITHMETIC).add, X, X)
        before = live(session)
        for number in range(20):
            kept.append(consumer.export(add(X, X + number)))
            direct(add, X, X)
        assert live(session) == before + 40  # views and buffers
        for managed in kept[10:]:
            thread = threading.Thread(target=delete, args=(managed,))
            thread.start()
            thread.join()
        assert live(session) == before + 20
    gc.collect()
    for number, managed in enumerate(kept[:10]):
        assert np.array_equal(elements(managed.contents.tensor, np.float32), X + X + number)
        delete(managed)


def test_read_only_memory_says_so(session: Session, consumer: Consumer) -> None:
    constant = np.arange(1 << 16, dtype=np.float32)
    constant.flags.writeable = False
    array = session.to_device(constant)
    managed = consumer.export(array)
    assert managed.contents.flags == int(not np.asarray(array).flags.writeable)
    assert np.array_equal(elements(managed.contents.tensor, np.float32), constant)
    delete(managed)


def test_what_cannot_be_exported(session: Session, consumer: Consumer) -> None:
    double = session["outputs.double"]
    for _ in range(3):
        donated = session.to_device(np.arange(4, dtype=np.int32))
        double(donate(donated))
        with pytest.raises(FailedPreconditionError, match="was donated"):
            consumer.export(donated)
        with pytest.raises(FailedPreconditionError, match="was donated"):
            consumer.describe(donated)
    for value in (None, 5, X):
        with pytest.raises(TypeError, match=r"expected a jitree\.Array"):
            consumer.export(value)


def test_an_interrupt_is_passed_on(
    session: Session, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = session.to_device(X)  # only Python knows it

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Array, "__dlpack_device__", interrupt)
    with pytest.raises(KeyboardInterrupt):
        consumer.export(array)


def test_other_machines_do_without(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "_BOUND", {})
    assert not hasattr(Array, dlpack.EXCHANGE_ATTRIBUTE)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_functions_with_one_more_argument(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: movabs to rdx, rcx or r8, movabs to rax, jmp; ldr to x2, x3 or x4, ldr, br."""
    expected = {
        "x86_64": [f"{move}110000000000000048b82200000000000000ffe0" for move in ("48ba", "48b9", "49b8")],
        "aarch64": [
            f"{register}000058b000005800021fd61f2003d511000000000000002200000000000000"
            for register in ("82", "83", "84")
        ],
    }
    monkeypatch.setattr(process_memory, "map_code", bytes.hex)
    monkeypatch.setattr("os.uname", lambda: SimpleNamespace(machine=machine))
    made: list[object] = [process_memory.bound(0x22, count, 0x11) for count in (2, 3, 4)]
    assert made == expected[machine]


def test_there_is_no_stream_on_the_host(consumer: Consumer) -> None:
    stream = ctypes.c_void_p(5)
    assert consumer.stream(1, 0, ctypes.byref(stream)) == 0 and stream.value is None


@pytest.mark.parametrize("dtype", [np.float32, np.int64, ml_dtypes.bfloat16])
def test_tensors_of_others_become_arrays(session: Session, consumer: Consumer, dtype: Any) -> None:
    kind = dlpack_names.CODES.get(np.dtype(dtype).name, dlpack_names.KINDS.get(np.dtype(dtype).kind))
    managed, _ = consumer.allocate(code=kind, bits=8 * np.dtype(dtype).itemsize)
    data = managed.contents.tensor.data
    assert data % 256 == 0
    values = np.arange(6).astype(dtype).reshape(2, 3)
    ctypes.memmove(data, values.tobytes(), values.nbytes)
    array = consumer.take(managed)
    assert type(array) is Array and array.dtype == dtype and np.array_equal(array, values)
    assert consumer.describe(array).data == data
    if dtype is np.float32:
        twice = session["arithmetic.twice"]
        for _ in range(4):
            assert np.array_equal(twice(array), 2 * values)


def test_imported_tensors_are_deleted(consumer: Consumer) -> None:
    """When the array dies; at once where there can be none."""
    deleted: list[int] = []
    deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleted.append)
    memory = (ctypes.c_float * 64)()
    for fields, is_taken in (({}, True), ({"device_kind": 2}, False), ({"bits": 24}, False)):
        shape = (ctypes.c_int64 * 1)(4)
        tensor = DLTensor(
            **{"data": ctypes.addressof(memory), "device_kind": 1, "rank": 1, "code": 2, "bits": 32,
               "lanes": 1, "shape": shape, "strides": (ctypes.c_int64 * 1)(1)} | fields
        )  # fmt: skip
        managed = Versioned(1, 2, None, ctypes.cast(deleter, ctypes.c_void_p), 0, tensor)
        address = ctypes.addressof(managed)
        if is_taken:
            array = consumer.take(ctypes.pointer(managed))
            del array
        else:
            with pytest.raises((BufferError, ValueError)):
                consumer.take(ctypes.pointer(managed))
        gc.collect()
        assert deleted == [address]
        deleted.clear()


def test_allocations(consumer: Consumer) -> None:
    managed, errors = consumer.allocate(shape=(0, 3))
    delete(managed)
    odd: tuple[dict[str, Any], ...] = (
        {"device_kind": 2}, {"bits": 24}, {"code": 77}, {"lanes": 2}, {"shape": (-1, 2)},
        {"shape": (1 << 62, 9)},
    )  # fmt: skip
    for fields in odd:
        managed, errors = consumer.allocate(**fields)
        assert not managed and len(errors) == 1 and errors[0][1]


def test_a_handler_raises_in_an_allocation(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is told that there is no memory; the program hears of the handler."""

    class Alarm(Exception):
        pass

    def ring(number: int, frame: object) -> None:
        raise Alarm

    told: list[Any] = []
    monkeypatch.setattr(dlpack, "dtype_of", lambda tensor: signal.raise_signal(signal.SIGALRM))
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(Alarm):
            told += consumer.allocate()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not told or not told[0]


def test_allocating_without_the_interpreter(consumer: Consumer) -> None:
    def allocate() -> None:
        for _ in range(200):
            managed, _ = consumer.allocate()
            delete(managed)

    threads = [threading.Thread(target=allocate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_torch_takes_results(session: Session) -> None:
    torch = pytest.importorskip("torch")
    add = direct(session["arithmetic.add"], X, X)
    to_torch = add.to("torch")
    for number in range(5):
        made = to_torch(X, X + number)
        assert type(made) is torch.Tensor and np.array_equal(made.numpy(), X + X + number)
    before = live(session)
    kept = [to_torch(X, X) for _ in range(10)]
    assert live(session) == before + 20
    kept.clear()
    assert live(session) == before


def test_a_library_that_takes_managed_tensors(session: Session, consumer: Consumer) -> None:
    """``to`` learns from the first result which functions in C the library has."""
    tvm_ffi = pytest.importorskip("tvm_ffi")
    add = direct(session["arithmetic.add"], X, X)
    echo = tvm_ffi.get_global_func("testing.echo")
    result = echo(add(X, X))
    assert type(result) is Array and np.array_equal(result, X + X)
