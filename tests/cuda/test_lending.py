"""Calls by machine code with arrays of other libraries, and of programs that write to their arguments."""

from __future__ import annotations

import ctypes
import gc
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from jitree import Array, Session, donate
from jitree.base import dlpack, dlpack_names
from jitree.base.dlpack import DLTensor
from jitree.cuda import interop
from jitree.cuda.device import CudaDevice
from jitree.errors import FailedPreconditionError, InternalError, InvalidArgumentError, StatusError
from tests.api import producers
from tests.api.test_large_arrays import python_calls
from tests.assembler import Assembler
from tests.cuda import native_kernels
from tests.cuda.fake import FakeDriver
from tests.cuda.ordering import release_after
from tests.cuda.programs import LENDING, LENDING_ASYNC
from tests.cuda.test_exchange import Producer

pytestmark = pytest.mark.usefixtures("machine_code")

Vector = npt.NDArray[np.float32]
X = np.arange(8, dtype=np.float32)
SUBMITS = {"cuCtxSetCurrent", "cuLaunchKernelEx", "cuMemcpyHtoDAsync", "cuStreamQuery"}
"""What machine code calls."""


class Tensor(Producer):
    """An array of a library with DLPack's functions in C; ``overrides`` are fields of what it says there."""

    stream: int | None = None
    found = 0  # times that the library was asked for it
    requires_grad = False

    def __init__(self, array: Array, **overrides: Any) -> None:
        super().__init__(array)
        self.overrides = overrides
        self.described = 0
        self.kept: object = None


def _describe(value: Tensor, out: Any) -> int:
    tensor: DLTensor = out.contents
    fields = (
        producers.write_tensor(np.empty(value.array.shape, value.array.dtype), tensor, {}),
        value.overrides,
    )
    value.kept, overrides = fields
    value.described += 1
    tensor.data, tensor.device_kind, tensor.device_number = value.array.buffer_view.buffer.address, 2, 0
    for name, number in overrides.items():
        setattr(tensor, name, number)
    return 0


def _give(value: Tensor, out: int) -> int:
    capsule = value.array.__dlpack__(stream=-1, max_version=(1, 0))
    ctypes.c_void_p.from_address(out).value = dlpack.pointer(id(capsule), dlpack_names.VERSIONED_NAME)
    interop._set_name(id(capsule), interop._USED_VERSIONED)
    return 0


def _find_stream(kind: int, number: int, out: int) -> int:
    Tensor.found += 1
    ctypes.c_void_p.from_address(out).value = Tensor.stream
    return 0


_GIVE, _FIND, _DESCRIBE = dlpack._Take(_give), dlpack._StreamOf(_find_stream), producers.Describe(_describe)
INTERFACE = producers.interface(_DESCRIBE)
INTERFACE.managed_of_object, INTERFACE.current_work_stream = map(producers.address_of, (_GIVE, _FIND))
setattr(Tensor, dlpack.EXCHANGE_ATTRIBUTE, producers.capsule(INTERFACE))


def warm(function: Any, *arguments: Any, **named: Any) -> None:
    """Calls are prepared in parts that go by time: a busy machine takes many calls for all of them."""
    for _ in range(200):
        function(*arguments, **named)
    assert function.is_direct


# -- arrays of other libraries ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "asked"), [(Tensor, set()), (Producer, {"cuEventRecord", "cuStreamWaitEvent"})]
)
def test_arrays_of_others_are_arguments_as_they_are(
    fake: FakeDriver, session: Session, kind: type[Producer], asked: set[str]
) -> None:
    """The same one twice, and two over the same memory."""
    add = session.load(LENDING).add
    array = session.to_device(X)
    first, second = kind(array), kind(array)
    warm(add, first, first)
    entries = session.context.table.live_count
    for pair in ((first, first), (first, second)):
        add(*pair)
        fake.calls.clear()
        result = add(*pair)
        assert set(fake.names()) <= SUBMITS | asked and asked <= set(fake.names())
        assert np.array_equal(np.asarray(result), 2 * X)
    del result
    add(first, first)
    assert session.context.table.live_count <= entries + 1, "what was lent goes back when the call ends"


def test_a_call_comes_after_what_the_library_has_submitted(
    fake: FakeDriver, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = session.load(LENDING).add
    tensor = Tensor(session.to_device(X))
    warm(add, tensor, tensor)
    monkeypatch.setattr(Tensor, "stream", 2)
    fake.hold()
    fake.enqueue(2, lambda: None)
    fake.calls.clear()
    found = Tensor.found
    releasing = release_after(fake, "cuStreamWaitEvent")
    add(tensor, tensor)
    releasing.join()
    assert Tensor.found == found + 1
    asked = [name for name, arguments in fake.calls if 2 in arguments and "Current" not in name]
    assert asked == ["cuStreamQuery", "cuEventRecord"], "once for both"
    assert "cuStreamWaitEvent" in fake.names()
    assert next(int(arguments[1]) for name, arguments in fake.calls if name == "cuEventRecord") == 2


def test_memory_is_kept_as_long_as_the_program_or_a_result_uses_it(session: Session) -> None:
    module = session.load(LENDING)
    exported = len(interop._exported)
    tensor = Tensor(session.to_device(X))
    warm(module.same, tensor)
    warm(module.keep, tensor)
    warm(module.largest, X)
    result = module.same(Tensor(session.to_device(3 * X)))
    module.keep(Tensor(session.to_device(5 * X)))
    gc.collect()
    assert len(interop._exported) > exported
    for _ in range(3):
        session.to_device(np.zeros(8, np.float32))  # would get memory that came back
    assert np.array_equal(np.asarray(result), 3 * X)
    assert np.array_equal(np.asarray(module.largest(X)), 5 * X)
    module.keep(X)
    del result
    module.largest(X)
    gc.collect()
    device: Any = session.device
    device.trim()
    assert len(interop._exported) == exported


def test_what_others_write_to_lent_memory_is_seen(session: Session) -> None:
    same = session.load(LENDING).same
    array = session.to_device(X)
    warm(same, Tensor(array))
    result = same(Tensor(array))
    for value in (1, 2):
        array[:] = np.full(8, value, np.float32)
        assert (np.asarray(result) == value).all()


def test_an_unfinished_call_keeps_what_was_lent(fake: FakeDriver, session: Session) -> None:
    add = session.load(LENDING_ASYNC).add
    x = session.to_device(X)
    warm(add, Tensor(x), x)
    exported = len(interop._exported)
    tensor = Tensor(session.to_device(7 * X))
    fake.hold()
    result = add.submit(tensor, x)
    del tensor
    gc.collect()
    assert len(interop._exported) == exported + 1
    fake.release()
    assert np.array_equal(np.asarray(result), 8 * X)
    device: Any = session.device
    device.trim()
    assert len(interop._exported) == exported


@pytest.mark.parametrize(
    "overrides",
    [
        {"device_number": 1}, {"data": None}, {"code": 0}, {"bits": 16}, {"lanes": 2}, {"device_kind": 13},
        {"byte_offset": 4}, {"rank": 2},
    ],
)  # fmt: skip
def test_what_a_tensor_says_is_compared(session: Session, overrides: dict[str, Any]) -> None:
    """Python takes, or refuses, those that are not as usual: here it finds nothing wrong with them."""
    add = session.load(LENDING).add
    array = session.to_device(X)
    warm(add, Tensor(array), array)
    odd = Tensor(array, **overrides)
    assert np.array_equal(np.asarray(add(odd, array)), 2 * X)
    assert odd.described == 1


def test_tensors_of_the_host_are_copied(fake: FakeDriver, session: Session) -> None:
    kind = producers.new_type()
    add = session.load(LENDING).add
    array = session.to_device(X)
    warm(add, kind(X), array)
    tensor = kind(X.copy())
    fake.calls.clear()
    result = add(tensor, array)
    assert set(fake.names()) <= SUBMITS
    tensor.array[:] = 0
    assert np.array_equal(np.asarray(result), 2 * X)
    odd = kind(X, data=None)
    assert np.array_equal(np.asarray(add(odd, array)), 2 * X), "Python finds nothing wrong with it"
    assert odd.described


def test_a_wrong_shape_of_a_lent_array_is_named(session: Session) -> None:
    add = session.load(LENDING).add
    array = session.to_device(X)
    warm(add, Tensor(array), array)
    for _ in range(3):
        with pytest.raises(InvalidArgumentError, match="shape"):
            add(Tensor(session.to_device(np.zeros(7, np.float32))), array)
        assert np.array_equal(np.asarray(add(Tensor(array), array)), 2 * X)


# -- arrays of sessions that have a device of their own ----------------------------------------------------


@pytest.fixture
def neighbour(fake: FakeDriver, session: Session) -> Iterator[Session]:
    """A session on another device object of the same GPU."""
    with CudaDevice(fake, 0) as device, Session(device=device) as neighbour:
        yield neighbour


@pytest.mark.parametrize("is_known", [False, True], ids=["made by Python", "made by machine code"])
def test_an_array_of_a_neighbour_is_an_argument_as_it_is(
    fake: FakeDriver, session: Session, neighbour: Session, is_known: bool
) -> None:
    """Also after it was written to, there and here."""
    add, far_add = session.load(LENDING).add, neighbour.load(LENDING).add
    x, far = session.to_device(X), neighbour.to_device(X)
    if is_known:
        warm(far_add, far, far)
        far = far_add(neighbour.to_device(0 * X), far)
    warm(add, x, far)
    entries = session.context.table.live_count
    for value in (2, 3):
        far[:] = value * X
        fake.calls.clear()
        result = add(x, far)
        assert set(fake.names()) <= SUBMITS
        assert np.array_equal(np.asarray(result), (1 + value) * X)
        assert np.array_equal(np.asarray(far), value * X)
    del result
    add(x, far)
    assert session.context.table.live_count <= entries + 1, "what was lent goes back when the call ends"


def test_an_array_of_a_neighbour_may_have_another_sign(session: Session, neighbour: Session) -> None:
    tensor = "tensor<8xi32>"
    attrs = {"iree.abi.declaration": f"sync func @f(%x: {tensor}, %y: {tensor}) -> (%z: {tensor})"}
    program = Assembler("signs").function("f", "0rr_r", "return [%R1]", attrs=attrs).build()
    neighbour.load(LENDING)
    add, function = session.load(LENDING).add, session.load(program).f
    floats = session.to_device(X), neighbour.to_device(X)
    warm(add, *floats)
    x = session.to_device(X.astype(np.int32))
    for given in (np.int32, np.uint32):
        far = neighbour.to_device(X.astype(given))
        warm(function, far, x)
        add(*floats)
        assert not python_calls(function, far, x)


def test_a_call_comes_after_what_a_neighbour_has_submitted(
    fake: FakeDriver, session: Session, neighbour: Session
) -> None:
    add = session.load(LENDING).add
    x, far = session.to_device(X), neighbour.to_device(X)
    warm(add, x, far)
    device: Any = neighbour.device
    fake.hold()
    far[:] = 2 * X
    fake.calls.clear()
    releasing = release_after(fake, "cuStreamWaitEvent")
    result = add(x, far)
    releasing.join()
    recorded = [int(arguments[1]) for name, arguments in fake.calls if name == "cuEventRecord"]
    assert recorded[0] == int(device.stream.handle) and "cuStreamWaitEvent" in fake.names()
    assert np.array_equal(np.asarray(result), 3 * X)


def test_memory_of_a_neighbour_is_kept_until_the_call_has_used_it(
    fake: FakeDriver, session: Session, neighbour: Session
) -> None:
    add, far_add = session.load(LENDING_ASYNC).add, neighbour.load(LENDING).add
    x, zero = session.to_device(X), neighbour.to_device(0 * X)
    warm(far_add, zero, zero)
    warm(add, x, far_add(zero, neighbour.to_device(X)))
    far = far_add(zero, neighbour.to_device(7 * X))
    fake.hold()
    result = add.submit(x, far)
    del far
    gc.collect()
    others = [neighbour.to_device(9 * X) for _ in range(3)]  # would get memory that came back
    fake.release()
    assert np.array_equal(np.asarray(result), 8 * X) and len(others) == 3


def test_an_array_of_a_neighbour_is_not_donated_nor_written_to(session: Session, neighbour: Session) -> None:
    """Python copies it, or says what is wrong."""
    module = session.load(LENDING)
    x, far = session.to_device(X), neighbour.to_device(3 * X)
    warm(module.subtract_from, x, x)
    for _ in range(3):
        assert np.array_equal(np.asarray(module.subtract_from(far, x)), 2 * X)
        assert np.array_equal(np.asarray(far), 3 * X)


def test_an_array_of_a_neighbour_that_was_closed(fake: FakeDriver, session: Session) -> None:
    add = session.load(LENDING).add
    x = session.to_device(X)
    with CudaDevice(fake, 0) as device, Session(device=device) as neighbour:
        far = neighbour.to_device(X)
        warm(add, x, far)
    stream = int(cast(Any, device).stream.handle)
    fake.calls.clear()
    with suppress(StatusError):
        add(x, far)
    assert stream not in [int(arguments[0]) for name, arguments in fake.calls if name == "cuStreamQuery"]


# -- programs that write to their arguments --------------------------------------------------------------


@pytest.mark.parametrize("program", [LENDING, LENDING_ASYNC])
def test_storage_of_results_takes_no_python(fake: FakeDriver, session: Session, program: Any) -> None:
    square = session.load(program).multiply_into
    x, out = session.to_device(X), session.empty((8,))
    warm(square, x, out=out)
    fake.calls.clear()
    square(x, out=out)
    assert set(fake.names()) <= SUBMITS
    for turn in range(4):  # what the host has read is old, also of other arrays over the memory
        values = X + turn
        x[:] = values
        result = square(x, out=out)
        for array in (result, out):
            assert np.array_equal(np.asarray(array), values * values)


@pytest.mark.parametrize("program", [LENDING, LENDING_ASYNC])
def test_donated_and_kept_arrays_take_no_python(fake: FakeDriver, session: Session, program: Any) -> None:
    module = session.load(program)
    x, y = session.to_device(3 * X), session.to_device(X)
    warm(module.add, x, y)
    warm(module.subtract_from, x, y)
    module.subtract_from(x, y)
    fake.calls.clear()
    difference = module.subtract_from(x, y)
    if program is LENDING:
        assert set(fake.names()) <= SUBMITS
    assert np.array_equal(np.asarray(difference), 2 * X) and np.array_equal(np.asarray(x), 3 * X)
    for _ in range(4):
        given = module.add(x, y)
        fake.calls.clear()
        difference = module.subtract_from(donate(given), y)
        assert set(fake.names()) <= SUBMITS
        assert np.array_equal(np.asarray(difference), 3 * X) and given.is_donated
        with pytest.raises(FailedPreconditionError, match="donated"):
            module.add(given, y)


def test_unfinished_results_are_arguments_without_python(fake: FakeDriver, session: Session) -> None:
    module = session.load(LENDING_ASYNC)
    x = session.to_device(X)
    warm(module.add, x, x)
    for _ in range(6):
        module.add.submit(module.add.submit(x, x), x)
    with fake.busy():
        fake.calls.clear()
        first = module.add.submit(x, x)
        second = module.add.submit(first, x)
        third = module.add.submit(second, first)
        assert set(fake.names()) <= SUBMITS and not third.ready
    assert np.array_equal(np.asarray(third), 5 * X)
    assert first.ready and second.ready


def test_a_lost_device_fails_the_call_that_waits(fake: FakeDriver, session: Session) -> None:
    add = session.load(LENDING_ASYNC).add
    x = session.to_device(X)
    warm(add, x, x)
    fake.be_lazy()
    fake.kernels["add_dispatch_0_elementwise_8_f32"] = native_kernels.FAULT
    for _ in range(2):
        with pytest.raises(InternalError, match="is lost"):
            add(x, x)


def test_a_part_of_a_small_result_is_read_without_python(fake: FakeDriver, session: Session) -> None:
    add = session.load(LENDING).add
    x = session.to_device(X)
    warm(add, x, x)
    for turn in range(4):
        result = add(x, x)
        fake.calls.clear()
        assert result[3] == 6 and np.array_equal(result[2:4], [4, 6])
        names = fake.names()
        assert turn < 2 or not names, "the call had it copied"
        with pytest.raises(IndexError):
            result[8]


# -- all of it, at random --------------------------------------------------------------------------------


@pytest.fixture(params=["fake", "gpu"])
def any_session(request: pytest.FixtureRequest) -> Iterator[tuple[Session, tuple[Callable[..., Any], ...]]]:
    """A session, and what makes another library's array of a vector."""
    kinds: tuple[Callable[..., Any], ...]
    if request.param == "fake":
        session = cast(Session, request.getfixturevalue("session"))
        kinds = tuple(
            lambda values, kind=kind: kind(session.to_device(values)) for kind in (Tensor, Producer)
        )
        yield session, kinds
        return
    torch = pytest.importorskip("torch")
    cupy = pytest.importorskip("cupy")
    with Session(device=request.getfixturevalue("gpu")) as session:
        yield session, (lambda values: torch.from_numpy(values.copy()).cuda(), cupy.asarray)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("program", [LENDING, LENDING_ASYNC])
def test_random_calls(any_session: tuple[Session, Any], program: Any, seed: int) -> None:
    """Each array and its elements as they should be; many calls are not waited for."""
    session, kinds = any_session
    module, choose = session.load(program), random.Random(seed)
    numbers = np.random.default_rng(seed)

    def vector() -> Vector:
        return numbers.standard_normal(8).astype(np.float32)

    pool: list[tuple[Any, Vector]] = []
    largest = vector()
    module.keep(largest)
    for turn in range(150):
        while len(pool) < 6:
            values = vector()
            make = choose.choice((*kinds, session.to_device, np.copy))
            pool.append((make(values), values))
        (a, x), (b, y) = choose.choice(pool), choose.choice(pool)
        call = (
            (lambda name: module[name].submit)
            if program is LENDING_ASYNC and turn % 3
            else module.__getitem__
        )
        action = choose.randrange(7)
        if action == 0:
            pool.append((call("add")(a, b), x + y))
        elif action == 1:
            pool.append((call("subtract_from")(a, b), x - y))
        elif action == 2:
            given = call("add")(a, b)
            pool.append((call("subtract_from")(donate(given), a), (x + y) - x))
        elif action == 3:
            out = session.empty((8,))
            pool.append((call("multiply_into")(a, out=out), x * x))
            assert choose.random() < 0.5 or np.array_equal(np.asarray(out), x * x)
            pool.append((call("multiply_into")(b, out=out), y * y))
            del pool[-2]
        elif action == 4:
            largest = x.copy()
            module.keep(np.copy(x) if type(a) is np.ndarray else a)
        elif action == 5:
            pool.append((call("largest")(a), np.maximum(x, largest)))
        else:
            pool.append((call("same")(a), x))
        if type(pool[-1][0]) is Array and choose.random() < 0.4:
            assert np.asarray(pool[-1][0]).tobytes() == pool[-1][1].tobytes(), (turn, action)
        while len(pool) > 9:
            del pool[choose.randrange(len(pool))]
    for array, values in pool:
        if type(array) is Array:
            assert np.asarray(array).tobytes() == values.tobytes()
    assert module.add.is_direct and module.subtract_from.is_direct
