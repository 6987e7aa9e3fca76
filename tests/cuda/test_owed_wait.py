"""Memory that the host sees, of a call whose last wait the host makes itself: other calls look at it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from jitree import Session
from jitree.api.module import Module
from jitree.cuda.device import CudaDevice
from tests.assembler import Assembler
from tests.cuda.fake import FakeDriver
from tests.cuda.test_lending import warm
from tests.modules.hal_programs import ROWS, USAGE

pytestmark = pytest.mark.usefixtures("machine_code")

_PINNED = 0x46
_NAMES = (
    "devices.get", "fence.create", "fence.await", "device.queue.alloca", "device.queue.fill", "buffer.store",
    "buffer.load",
)  # fmt: skip
_FILL = f"""
    %i20 = const.i32 0
    [%r10] = call @hal.devices.get [%i20]
    %i22:23 = const.i64 0
    %i24:25 = const.i64 -1
    [%r11] = call @hal.fence.create [%r10, %i22:23]
    %i26 = const.i32 {_PINNED}
    %i27 = const.i32 {USAGE}
    %i28:29 = const.i64 32
    [%r12] = call @hal.device.queue.alloca [%r10, %i24:25, %r19, %r19, %i22:23, %i26, %i27, %i28:29, %i22:23]
    %i30:31 = ext.i32.i64.u %i0
    %i32 = const.i32 4
    call @hal.device.queue.fill \
[%r10, %i24:25, %r19, %r11, %r12, %i22:23, %i28:29, %i30:31, %i32, %i22:23]
    global.store.ref 0, !hal.buffer, %r12
    %i34 = const.i32 -1
    [%i35] = call.variadic @hal.fence.await [0xFFFF, 0xFFFF, 1] [%i34, %i22:23, %r11]
    return []
"""
_KEPT = """
    %r13 = global.load.ref 0, !hal.buffer
    %i22:23 = const.i64 0
    %i34 = const.i32 4
"""
_LOOK = f"{_KEPT}[%i1] = call @hal.buffer.load [%r13, %i22:23, %i34]\nreturn [%i1]"
_PUT = f"{_KEPT}call @hal.buffer.store [%i0, %r13, %i22:23, %i34]\nreturn []"


def program() -> bytes:
    assembler = Assembler("pinned", ref_global_count=1)
    for name in _NAMES:
        assembler.import_function(f"hal.{name}", ROWS[name])
    for name, cconv, declared, text in (
        ("fill", "0i_v", "(%i: i32) -> ()", _FILL),
        ("look", "0v_i", "() -> (%r: i32)", _LOOK),
        ("put", "0i_v", "(%i: i32) -> ()", _PUT),
    ):
        attrs = {"iree.abi.declaration": f"sync func @{name}{declared}"}
        assembler.function(name, cconv, text, attrs=attrs)
    return assembler.build()


@pytest.fixture(params=["fast", "plain"])
def session(request: pytest.FixtureRequest, device: CudaDevice) -> Iterator[Session]:
    with Session(device=device, tier=request.param) as session:
        yield session


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def pinned(session: Session) -> Module:
    """The program, called often enough that machine code makes its calls where the tier has any."""
    pinned = session.load(program())
    pinned.fill(1)
    if session.tier == "fast":
        for function, arguments in ((pinned.fill, (1,)), (pinned.look, ()), (pinned.put, (1,))):
            warm(function, *arguments)
    return pinned


def begin_filling(fake: FakeDriver, pool: ThreadPoolExecutor, pinned: Module, number: int) -> Future[None]:
    """A call of another thread that has left its last wait, in machine code or in Python; the device is done
    a moment later."""
    threading.Timer(0.1, fake.release).start()
    fake.hold()
    before = len(fake.calls)
    filling = pool.submit(pinned.fill, number)
    while "cuStreamQuery" not in fake.names()[before:]:
        pass
    return filling


def test_another_call_looks_at_what_is_still_written(
    fake: FakeDriver, pinned: Module, pool: ThreadPoolExecutor
) -> None:
    for number in range(2, 6):
        filling = begin_filling(fake, pool, pinned, number)
        assert pinned.look() == number
        filling.result()


def test_another_call_writes_to_what_is_still_written(
    fake: FakeDriver, pinned: Module, pool: ThreadPoolExecutor
) -> None:
    for number in range(2, 6):
        filling = begin_filling(fake, pool, pinned, number)
        pinned.put(100 + number)
        filling.result()
        assert pinned.look() == 100 + number


def test_a_call_that_is_made_again_is_over_at_its_end(fake: FakeDriver, pinned: Module) -> None:
    """The program has waited, and looks in its next call at what it has filled."""
    fake.be_lazy()
    for number in (2, 3) * 4:
        pinned.fill(number)
        assert pinned.look() == number
