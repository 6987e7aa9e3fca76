"""Results that are copied ahead, of memory that something writes to that enters no stream."""

from __future__ import annotations

import numpy as np
import pytest

from jitree import Session
from jitree.cuda.device import CudaDevice
from jitree.modules.hal.native.handle_pool import HandlePool
from tests.assembler import Assembler
from tests.cuda.fake import FakeDriver
from tests.cuda.programs import LENDING
from tests.cuda.test_exchange import Producer
from tests.cuda.test_known import exported
from tests.cuda.test_lending import Tensor, warm
from tests.modules.hal_programs import DEVICE_LOCAL, F32, ROWS, USAGE

pytestmark = pytest.mark.usefixtures("machine_code")

X = np.arange(8, dtype=np.float32)
_PINNED = 0x46
_NAMES = (
    "devices.get", "fence.create", "fence.await", "device.queue.alloca", "device.queue.fill", "buffer.store",
    "buffer.load", "buffer_view.create",
)  # fmt: skip


def _works(memory_type: int, start: int, size: int = 32) -> str:
    """Fills new memory, %r12, and waits for that."""
    return f"""
    %i20 = const.i32 0
    [%r10] = call @hal.devices.get [%i20]
    %i22:23 = const.i64 0
    %i24:25 = const.i64 -1
    [%r11] = call @hal.fence.create [%r10, %i22:23]
    %i26 = const.i32 {memory_type}
    %i27 = const.i32 {USAGE}
    %i28:29 = const.i64 {size}
    [%r12] = call @hal.device.queue.alloca [%r10, %i24:25, %r19, %r19, %i22:23, %i26, %i27, %i28:29, %i22:23]
    %i30:31 = const.i64 {start}
    %i32 = const.i32 1
    call @hal.device.queue.fill \
[%r10, %i24:25, %r19, %r11, %r12, %i22:23, %i28:29, %i30:31, %i32, %i22:23]
    %i34 = const.i32 -1
    [%i35] = call.variadic @hal.fence.await [0xFFFF, 0xFFFF, 1] [%i34, %i22:23, %r11]
"""


def _view(count: int, buffer: str = "%r13", to: str = "%r14") -> str:
    """Of the first elements of a buffer."""
    return f"""
    %i36 = const.i32 {F32}
    %i38:39 = const.i64 {count}
    %i40:41 = const.i64 {4 * count}
    [{to}] = call.variadic @hal.buffer_view.create [0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 1] \
[{buffer}, %i22:23, %i40:41, %i36, %i32, %i38:39]
"""


def program() -> bytes:
    assembler = Assembler("others", ref_global_count=1)
    for name in _NAMES:
        assembler.import_function(f"hal.{name}", ROWS[name])
    array = "tensor<8xf32>"
    works, kept = _works(DEVICE_LOCAL, 1), "%r13 = global.load.ref 0, !hal.buffer\n"
    keep = "global.store.ref 0, !hal.buffer, %r12\nreturn []"
    for name, cconv, declared, text in (
        ("pin", "0v_v", "() -> ()", f"{_works(_PINNED, 0)}{keep}"),
        ("hold", "0v_v", "() -> ()", f"{_works(DEVICE_LOCAL, 0)}{keep}"),
        ("same", "0r_r", f"(%a: {array}) -> (%r: {array})", f"{works}return [%r0]"),
        ("get", "0v_r", f"() -> (%r: {array})", f"{works}{kept}{_view(8)}return [%r14]"),
        ("part", "0v_r", "() -> (%r: tensor<7xf32>)", f"{works}{kept}{_view(7)}return [%r14]"),
        (
            "two", "0v_rr", f"() -> (%r: {array}, %s: tensor<1000xf32>)",
            f"{_works(DEVICE_LOCAL, 1, 4000)}{kept}{_view(8)}{_view(1000, '%r12', '%r15')}"
            "return [%r14, %r15]",
        ),
        (
            "put", "0i_v", "(%i: i32) -> ()",
            f"{kept}%i22:23 = const.i64 0\n%i34 = const.i32 4\n"
            "call @hal.buffer.store [%i0, %r13, %i22:23, %i34]\nreturn []",
        ),
    ):  # fmt: skip
        attrs = {"iree.abi.declaration": f"sync func @{name}{declared}"}
        assembler.function(name, cconv, text, attrs=attrs)
    return assembler.build()


def test_memory_that_a_program_writes_to_by_itself(session: Session) -> None:
    """``hal.buffer.store`` to memory that the host sees."""
    others = session.load(program())
    warm(others.pin)
    warm(others.put, 0)
    warm(others.get)
    for number in range(8):
        assert np.asarray(others.get())[0] == np.int32(max(0, number - 1)).view(np.float32)
        result = others.get()
        others.put(number)
        assert np.asarray(result)[0] == np.int32(number).view(np.float32)


@pytest.mark.parametrize("kind", [Tensor, Producer])
def test_memory_of_another_library(
    fake: FakeDriver, device: CudaDevice, session: Session, kind: type[Producer]
) -> None:
    """A program returns an argument, to which its owner goes on to write."""
    same, array = session.load(program()).same, session.to_device(X)
    place = array.buffer_view.buffer.address
    warm(same, kind(array))
    for number in range(8):
        np.asarray(same(kind(array)))
        result = same(kind(array))
        device.stream.synchronize()
        fake.bytes_at(place, 32).view("<f4")[:] = number
        assert np.array_equal(np.asarray(result), np.full(8, number))


def test_memory_that_another_library_has(fake: FakeDriver, device: CudaDevice, session: Session) -> None:
    """As ``__dlpack__`` gives it, of another array that lies there."""
    others = session.load(program())
    others.hold()
    for function in (others.part, others.get, others.hold):  # the last one in memory of the pools
        warm(function)
    tensor, kept = exported(others.part(), None)
    for number in range(8):
        np.asarray(others.get())
        result = others.get()
        device.stream.synchronize()
        fake.bytes_at(tensor.data, 28).view("<f4")[:] = number
        assert np.asarray(result)[0] == number
    del kept


def test_memory_of_an_argument_that_another_library_has(
    fake: FakeDriver, device: CudaDevice, session: Session
) -> None:
    square, x, out = session.load(LENDING).multiply_into, session.to_device(X), session.to_device(X)
    tensor, kept = exported(out, None)
    warm(square, x, out=out)
    for number in range(8):
        np.asarray(square(x, out=out))
        result = square(x, out=out)
        device.stream.synchronize()
        fake.bytes_at(tensor.data, 32).view("<f4")[:] = number
        assert np.array_equal(np.asarray(result), np.full(8, number))
    del kept


def test_what_the_host_has_seen_of_memory_that_another_library_gets(
    fake: FakeDriver, device: CudaDevice, session: Session
) -> None:
    """By another array than the one that is given."""
    same, array = session.load(LENDING).same, session.to_device(X)
    warm(same, array)
    result = same(array)
    assert np.array_equal(np.asarray(result), X)
    tensor, kept = exported(array, None)
    fake.bytes_at(tensor.data, 32).view("<f4")[:] = 5
    assert np.array_equal(np.asarray(result), np.full(8, 5))
    del kept


def test_what_another_session_writes_while_a_result_is_read(
    device: CudaDevice, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its work enters the stream between the call and the copy of another result of that call."""
    others = session.load(program())
    others.hold()
    for function in (others.part, others.two, others.hold):
        warm(function)
    memory = others.part().buffer_view.buffer
    supply = HandlePool.supply_argument

    def write(pool: HandlePool, size: int) -> None:
        written.append(size)
        device.write_buffer(memory, np.full(7, len(written), np.float32))
        supply(pool, size)

    written: list[int] = []
    monkeypatch.setattr(HandlePool, "supply_argument", write)
    np.asarray(others.two()[0])
    first, second = others.two()
    np.asarray(second)
    assert written[-1] == 4000
    assert np.asarray(first)[0] == len(written)
