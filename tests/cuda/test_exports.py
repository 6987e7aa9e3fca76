"""Arrays of a CUDA device that machine code gives to other libraries."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from jitree import Session
from jitree.base import dlpack
from jitree.base.dlpack import Versioned
from jitree.base.dlpack_names import VERSIONED_NAME
from jitree.cuda.device import CudaDevice
from tests.api import producers
from tests.api.test_exported import Consumer, delete
from tests.cuda.fake import FakeDriver
from tests.cuda.programs import LENDING, PROGRAM_KERNELS
from tests.cuda.test_direct_calls import functions_of
from tests.cuda.test_lending import warm

pytestmark = pytest.mark.usefixtures("machine_code")

X = np.arange(8, dtype=np.float32)
_Make = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_Delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_retain = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("Py_IncRef", ctypes.pythonapi))


class Tensor:
    """An array of a library with DLPack's functions in C, over memory that it was given."""

    stream: int | None = None
    """What the library submits to."""
    given_by_method = 0

    def __init__(self, managed: Versioned, keeper: object) -> None:
        self._managed = managed
        self._keeper = keeper

    @property
    def tensor(self) -> dlpack.DLTensor:
        tensor: dlpack.DLTensor = self._managed.tensor
        return tensor

    def write(self, fake: FakeDriver, value: float) -> None:
        """As a kernel of the library would."""
        size = 4 * self.tensor.shape[0]
        fake.bytes_at(self.tensor.data, size).view("<f4")[:] = value

    def __del__(self) -> None:
        if self._keeper is None:
            _Delete(self._managed.deleter)(ctypes.addressof(self._managed))


def _make(managed: int, out: int) -> int:
    tensor = Tensor(Versioned.from_address(managed), None)
    _retain(tensor)
    ctypes.c_void_p.from_address(out).value = id(tensor)
    return 0


def _find_stream(kind: int, number: int, out: int) -> int:
    ctypes.c_void_p.from_address(out).value = Tensor.stream
    return 0


def _from_dlpack(array: Any) -> Tensor:
    Tensor.given_by_method += 1
    capsule = array.__dlpack__(stream=Tensor.stream or 1, max_version=(1, 0))
    address = dlpack.pointer(id(capsule), VERSIONED_NAME)
    return Tensor(Versioned.from_address(address), capsule)


_MAKE, _FIND = _Make(_make), dlpack._StreamOf(_find_stream)
INTERFACE = producers.interface(None)
INTERFACE.object_of_managed, INTERFACE.current_work_stream = map(producers.address_of, (_MAKE, _FIND))
setattr(Tensor, dlpack.EXCHANGE_ATTRIBUTE, producers.capsule(INTERFACE))


@pytest.fixture
def session(fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    library = ModuleType("torch")
    library.from_dlpack = _from_dlpack  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", library)
    monkeypatch.setattr(Tensor, "stream", None)
    fake.kernels.update(PROGRAM_KERNELS)
    with Session(device=device) as session:
        yield session


@pytest.fixture
def add(session: Session) -> Callable[..., Tensor]:
    function, x = session.load(LENDING).add, session.to_device(X)
    warm(function, x, x)
    to_torch: Callable[..., Tensor] = function.to("torch")
    for _ in range(3):
        to_torch(x, x)
    return to_torch


def values(fake: FakeDriver, tensor: Tensor) -> list[float]:
    found = tensor.tensor
    assert (found.device_kind, found.device_number, found.rank, found.code, found.bits) == (2, 0, 1, 2, 32)
    elements: list[float] = fake.bytes_at(found.data, 4 * found.shape[0]).view("<f4").tolist()
    return elements


def test_results_are_given_without_python(
    fake: FakeDriver, session: Session, add: Callable[..., Tensor]
) -> None:
    x, before = session.to_device(X), Tensor.given_by_method
    add(x, x)
    fake.calls.clear()
    result, called = functions_of(lambda: add(x, x))
    assert Tensor.given_by_method == before
    assert {name.partition(".")[0] for name in called} <= {"ConvertingFunction", "folded"}
    assert not {"cuEventRecord", "cuStreamWaitEvent"} & set(fake.names())
    assert values(fake, result) == (2 * X).tolist()
    addresses = {add(x, x).tensor.data for _ in range(50)}
    assert len(addresses) <= 2, "memory that comes back is used again"


def test_streams_are_blocking(fake: FakeDriver, session: Session) -> None:
    """The driver has their work come after what is on the legacy default stream, and the other way round."""
    created = [arguments for name, arguments in fake.calls if name == "cuStreamCreate"]
    assert created and all(flags == 0 for (flags,) in created)


@pytest.mark.parametrize("by_code", [True, False])
def test_memory_is_used_again_without_a_word_to_the_driver(
    fake: FakeDriver, session: Session, add: Callable[..., Tensor], by_code: bool
) -> None:
    x, plain, large = session.to_device(X), session["lending.add"], np.zeros(1 << 20, np.float32)
    for _ in range(2):
        add(x, x)  # comes back at once
        fake.calls.clear()
        if by_code:
            plain(x, x)
        else:
            session.to_device(large)
        assert not {"cuEventRecord", "cuStreamWaitEvent"} & set(fake.names())


def test_what_the_library_writes_is_seen(
    fake: FakeDriver, session: Session, add: Callable[..., Tensor]
) -> None:
    array = session["lending.add"](session.to_device(X), session.to_device(X))
    assert np.array_equal(np.asarray(array), 2 * X)
    converted: Any = add._converted(array)  # type: ignore[attr-defined]
    for value in (3.0, 5.0):
        converted.write(fake, value)
        assert np.asarray(array).tolist() == [value] * 8
    del converted
    gc.collect()
    assert array.buffer_view is not None
    assert np.asarray(array).tolist() == [5.0] * 8


def test_libraries_on_other_streams_are_given_capsules(
    fake: FakeDriver, session: Session, add: Callable[..., Tensor]
) -> None:
    x, before = session.to_device(X), Tensor.given_by_method
    Tensor.stream = int(fake.cuStreamCreate(0)[1])
    result = add(x, x)
    assert Tensor.given_by_method == before + 1 and values(fake, result) == (2 * X).tolist()


def test_a_tensor_outlives_the_session(
    fake: FakeDriver, session: Session, add: Callable[..., Tensor]
) -> None:
    result = add(session.to_device(X), session.to_device(X))
    session.close()
    assert values(fake, result) == (2 * X).tolist()
    del result
    gc.collect()


def test_consumers_in_c_are_given_arrays_without_python(fake: FakeDriver, session: Session) -> None:
    consumer, add, x = Consumer(), session.load(LENDING).add, session.to_device(X)
    warm(add, x, x)
    array = add(x, x)
    managed, called = functions_of(partial(consumer.export, array))
    tensor, also_called = functions_of(partial(consumer.describe, array))
    assert not called and not also_called
    for found in (managed.contents.tensor, tensor):
        assert (found.device_kind, found.device_number, found.shape[0], found.strides[0]) == (2, 0, 8, 1)
        assert fake.bytes_at(found.data, 32).view("<f4").tolist() == (2 * X).tolist()
    address = tensor.data
    del array
    add(x, x)
    assert fake.bytes_at(address, 32).view("<f4").tolist() == (2 * X).tolist()
    delete(managed)
    taken = consumer.take(consumer.export(add(x, x)))
    assert np.array_equal(np.asarray(taken), 2 * X) and taken.device is session.device
