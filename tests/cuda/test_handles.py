"""Nothing that the driver has made is lost, wherever Ctrl-C comes; it needs no GPU."""

from __future__ import annotations

import dis
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any

import numpy as np
import pytest

from jitree.base.finalizers import Finalizer, has_guard
from jitree.cuda import kernels, ptx, stream_share
from jitree.cuda.channel import GroupWatch
from jitree.cuda.completion import CompletionThread, InboxThread
from jitree.cuda.context import CudaContext
from jitree.cuda.device import CudaDevice
from jitree.cuda.kernels import Kernels
from jitree.cuda.nccl import _share
from jitree.cuda.ptx import _compile
from jitree.cuda.steps import _Timer
from jitree.cuda.stream import Stream
from jitree.cuda.stream_share import StreamShare
from jitree.cuda.suballocator import DeviceRegions, PinnedRegions
from jitree.errors import FailedPreconditionError, StatusError
from jitree.hal.groups.channel import GroupTransport
from jitree.hal.objects import KnownChannels
from jitree.hal.profiling import Profiler
from tests.base.interruption import PACKAGE
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_results import CUresult
from tests.cuda.ordering import TIMEOUT
from tests.hal.groups.processes import SocketTransport

_ENDS = ("_unregister", "end", "close")
"""What is called by ends, which are begun again when they were interrupted."""
_LOOKS = ("RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD")
"""Instructions in which Python looks for signals."""


class Interruption:
    """Raises KeyboardInterrupt once, in a function of the package, where Python may do so."""

    def __init__(self, place: int, folder: str) -> None:
        self.left = place
        self._folder = folder
        self.last: dict[FrameType, str] = {}

    @property
    def came(self) -> bool:
        return self.left <= 0

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if self._folder not in code.co_filename or code.co_name in _ENDS:
            return None
        frame.f_trace_opcodes = True
        return self._look

    def _look(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            before, name = self.last.get(frame), dis.opname[frame.f_code.co_code[frame.f_lasti]]
            self.last[frame] = name
            is_place = before in _LOOKS and name != "PUSH_EXC_INFO"  # there the call has raised
            self.left -= is_place
            if is_place and self.left == 0:
                self.last.clear()
                sys.settrace(None)
                raise KeyboardInterrupt
        elif event == "return":
            self.last.pop(frame, None)
        return self._look

    def during(self, action: Callable[[], object]) -> None:
        before, enter = sys.gettrace(), self._enter  # kept, as in `tests.base.interruption`
        sys._getframe().f_trace_opcodes = True  # Python 3.12 traces none that is asked for only later
        sys.settrace(enter)
        try:
            action()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)


def interruptions(folder: str = "/jitree/cuda/") -> Iterator[Interruption]:
    """At each place, up to the first that does not come."""
    place = 0
    while True:
        place += 1
        interruption = Interruption(place, folder)
        yield interruption
        if not interruption.came:
            assert place > 2, "the action is interrupted"
            return


def made(fake: FakeDriver) -> dict[str, int]:
    """How much there is of what the driver makes."""
    tables = ("events", "streams", "links", "modules", "graphs", "executables", "allocations")
    return {name: len(getattr(fake, name)) for name in tables} | {"contexts": sum(fake.contexts)}


def take_events(device: CudaDevice) -> None:
    stream = device.stream
    events = [stream.events.acquire() for _ in range(2)]
    events[0].release()
    stream.mark().release()
    stream.events.acquire()


def make_stream(device: CudaDevice) -> None:
    Stream(device.context, CompletionThread("test"), Profiler())


def share(device: CudaDevice) -> None:
    class Library:
        def share(self, *arguments: object) -> None: ...

    _share(Library(), device.stream, 1, 0)  # type: ignore[arg-type]


def measure(device: CudaDevice) -> None:
    timer = _Timer(device.stream)
    timer._events.append((object(), timer._record(), timer._record()))  # type: ignore[arg-type]
    timer._events.clear()
    timer.finish()


def reserve(device: CudaDevice) -> None:
    for regions in (DeviceRegions(device.context), PinnedRegions(device.context)):
        regions.free(regions.allocate(4096))
        regions.allocate(4096)


def compile_one(device: CudaDevice) -> None:
    _compile(device.context, ptx.split(kernels._TEXT.read_bytes())[0])


def load(device: CudaDevice) -> None:
    Kernels(device.context)


def pin(device: CudaDevice) -> None:
    array = np.zeros(4096, np.uint8)
    allocator = device.device_allocator
    allocator.import_host(array.data, 0x46, 0)


@pytest.mark.parametrize(
    "action", [take_events, make_stream, share, measure, reserve, compile_one, load, pin]
)
def test_an_interrupt_loses_nothing_that_the_driver_has_made(
    fake: FakeDriver, device: CudaDevice, action: Callable[[CudaDevice], None]
) -> None:
    def settle() -> dict[str, int]:
        gc.collect()
        device.context.enter()
        device.stream.finish()
        device.context.release_discarded()
        return made(fake)

    action(device)
    before = settle()
    for interruption in interruptions():
        interruption.during(lambda: action(device))
        assert settle() == before


def ask(stream: Stream) -> None:
    with stream.lock:
        stream.begin()
        stream.end()
    stream.poll()
    stream.finish()


def test_a_thread_that_is_interrupted_as_it_asks_is_no_user_of_the_stream(
    fake: FakeDriver, device: CudaDevice
) -> None:
    """The stream was never destroyed (turns:33721, 36209)."""
    before = made(fake)["streams"]
    for interruption in interruptions():
        stream = Stream(device.context, CompletionThread("test"), Profiler())
        interruption.during(partial(ask, stream))
        stream.close()
        assert made(fake)["streams"] == before


def test_an_interrupt_loses_no_context(fake: FakeDriver) -> None:
    for interruption in interruptions():
        interruption.during(lambda: CudaContext(fake, 0))
        assert not sum(fake.contexts)


def test_what_dies_after_its_device_is_given_back(fake: FakeDriver) -> None:
    """Others may have the context, too, with which all of that would end (turns:33838, 34203, 36369)."""
    before = made(fake)
    context = CudaContext(fake, 0)
    context.enter()
    regions = [source.allocate(4096) for source in (DeviceRegions(context), PinnedRegions(context))]
    event = context.make("cuEventCreate", (0,), "cuEventDestroy")
    held = [event, context, *regions]
    del context, event, regions
    fake.cuCtxSetCurrent(0x101)  # of another device
    while held:
        assert fake.contexts == [1]
        del held[0]
        gc.collect()
    assert made(fake) == before and fake.current() == 1
    assert fake.names()[-1] == "cuDevicePrimaryCtxRelease"


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")  # no interrupt is lost
def test_an_interrupt_as_the_last_of_a_context_ends(fake: FakeDriver) -> None:
    """All is given back, and what was current on the thread is so still."""
    before = made(fake)
    for interruption in interruptions(PACKAGE):  # a checkout may have its name, with the tests in it
        context = CudaContext(fake, 0)
        context.enter()
        held = [context, context.make("cuEventCreate", (0,), "cuEventDestroy"), DeviceRegions(context)]
        held.append(held[2].allocate(64))  # type: ignore[attr-defined]
        del context
        fake.cuCtxSetCurrent(0x101)  # of another device
        interruption.during(held.clear)
        gc.collect()
        assert made(fake) == before and fake.current() == 1


def test_a_call_that_raises_keeps_no_other_from_its_turn(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the last of a context ends, or at the next release; the bindings raise where the library is gone."""
    destroy, chosen = fake.cuEventDestroy, list[int]()

    def refuse(event: Any) -> Any:
        if int(event) in chosen:
            raise RuntimeError("the library is gone")
        return destroy(event)

    monkeypatch.setattr(fake, "cuEventDestroy", refuse)
    before, context = made(fake), CudaContext(fake, 0)
    context.enter()
    held: list[Any] = [context.make("cuEventCreate", (0,), "cuEventDestroy") for _ in range(4)]
    chosen += [int(held[0]), int(held[2])]
    del held[:2]
    with pytest.raises(RuntimeError, match="gone"):
        context.release_discarded()
    context.release_discarded()
    assert made(fake)["events"] == before["events"] + 3
    held.append(context)
    del context, held[:2]
    held.clear()
    assert made(fake) == before | {"events": before["events"] + 2}


def test_what_the_driver_refuses_is_not_given_back(fake: FakeDriver, device: CudaDevice) -> None:
    context = device.context
    context.enter()
    calls = [
        ("cuEventCreate", (0,), "cuEventDestroy", ()),
        ("cuMemHostRegister", (4096, 64, 0), "cuMemHostUnregister", (4096,)),
    ]
    for name, arguments, give_back, known in calls:
        fake.fail_next(name, CUresult.CUDA_ERROR_OUT_OF_MEMORY)
        with pytest.raises(StatusError, match=name):
            context.make(name, arguments, give_back, known)
        context.release_discarded()
        assert not fake.count(give_back)


def test_what_is_kept_until_something_was_given_back(fake: FakeDriver, device: CudaDevice) -> None:
    context, seen = device.context, list[int]()
    context.enter()
    kept = Finalizer(lambda: seen.append(fake.count("cuEventDestroy")))
    owned = context.make("cuEventCreate", (0,), "cuEventDestroy", kept=kept)
    del kept
    assert int(owned) in fake.events
    del owned
    assert not fake.count("cuEventDestroy") and not seen
    context.release_discarded()
    assert seen == [1]
    owned = context.make("cuEventCreate", (0,), "cuEventDestroy")
    owned.close()
    owned.close()
    del owned
    context.release_discarded()
    assert fake.count("cuEventDestroy") == 2


def test_a_stream_that_machine_code_is_in_outlives_its_device(
    fake: FakeDriver, device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_share, "_QUERY_SECONDS", 0.0)
    stream = Stream(device.context, CompletionThread("test"), Profiler())
    asked, number = monkeypatch.context(), int(stream.handle)
    with asked as patch:
        patch.setattr(StreamShare, "is_asked", True)
        stream.close()
        entered = stream.users
        del stream
        gc.collect()
        device.context.release_discarded()
        assert number in fake.streams
    entered.ask(bool)
    assert number not in fake.streams and entered not in stream_share._ended


# -- threads -----------------------------------------------------------------------------------------------


def test_a_thread_whose_start_was_interrupted_is_started_again() -> None:
    """Once: items are taken in order, and nothing is left."""
    before = set(threading.enumerate())
    for interruption in interruptions():
        taken = list[int]()

        def run(inbox: SimpleQueue[int | None], taken: list[int] = taken) -> None:
            while (item := inbox.get()) is not None:
                taken.append(item)

        thread = InboxThread[int]("test", run)
        interruption.during(thread.start)
        for number in range(3):
            thread.start()
            thread.give(number)
        thread.close()
        assert taken == [0, 1, 2]
    for one in set(threading.enumerate()) - before:
        one.join(TIMEOUT)
    assert not set(threading.enumerate()) - before


class Member:
    """A communicator whose members are all there."""

    def failure(self) -> None: ...
    def abort(self, reason: str) -> None: ...


def test_collectives_are_watched_wherever_others_were_interrupted(
    fake: FakeDriver, device: CudaDevice
) -> None:
    """And the device waits as usual when they are done."""
    members: Any = frozenset((Member(),))
    stream, shared = device.stream, device.stream.share
    refused = list[int]()
    shared.refuse_waits = lambda: refused.append(1)  # type: ignore[method-assign]
    shared.allow_waits = refused.clear  # type: ignore[method-assign]
    for interruption in interruptions():
        watch = GroupWatch(stream)
        watch.fail = lambda error: None  # type: ignore[method-assign]

        def submit(watch: GroupWatch = watch) -> None:
            with stream.lock, watch.watched(members):
                pass

        stream.context.enter()
        interruption.during(submit)
        watch._flights = type(watch._flights)(one for one in watch._flights if one.end is not None)
        submit()
        for thread in threading.enumerate():
            if thread.name.endswith(" groups"):
                thread.join(TIMEOUT)
        assert not watch._flights and not watch._is_watching and not refused


def test_an_interrupt_leaves_no_lock_of_channels() -> None:
    """Others make and use them."""
    for interruption in interruptions("/jitree/hal/groups/"):
        known, ended = KnownChannels[object](), list[object]()
        transport = GroupTransport(SocketTransport(0, [None], TIMEOUT))

        def use(
            known: KnownChannels[object] = known, transport: GroupTransport = transport, name: str = "one"
        ) -> None:
            known.get(name, object)
            with suppress(FailedPreconditionError):  # an earlier collective was ended
                transport.exchange((0, 0, 0), [], [])

        def use_others(use: Callable[..., None] = use, ended: list[object] = ended) -> None:
            use(name="another")
            ended.append("used")

        interruption.during(use)
        thread = threading.Thread(target=use_others, daemon=True)
        thread.start()
        thread.join(TIMEOUT)
        assert ended


@pytest.mark.parametrize("work", ["wait", "trim"])
def test_an_interrupt_leaves_no_lock_that_was_waited_for(device: CudaDevice, work: str) -> None:
    """Neither that of the stream nor that of its memory."""
    stream, allocator = device.stream, device._own_allocator
    action = partial(stream._wait_a_moment, None) if work == "wait" else allocator.trim
    for interruption in interruptions():
        interruption.during(action)
        assert not has_guard()
        stream.wait(stream.tick)
