"""What a profile knows of a GPU: CUPTI's records, here of a fake; events where there is no CUPTI; both on a
GPU."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from itertools import count
from time import perf_counter_ns

import numpy as np
import pytest

from jitree import Session
from jitree.cuda import timings
from jitree.cuda.device import CudaDevice
from jitree.cuda.timings import DRIVER, KERNEL, MEMCPY, Tracer
from jitree.errors import StatusError
from tests.api.direct import CALLS
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_cupti import CLOCK, FakeCupti
from tests.cuda.fake_results import CUresult
from tests.cuda.programs import STATELESS

pytestmark = pytest.mark.usefixtures("machine_code")

X = np.arange(8, dtype=np.float32)
FIRST, SECOND = "scale_dispatch_0_elementwise_8_f32", "scale_dispatch_1_elementwise_8_f32"


@pytest.fixture
def library(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeCupti:
    library = FakeCupti()
    tracer = Tracer(library)
    monkeypatch.setattr(timings, "tracer", lambda: tracer)
    return library


@pytest.fixture
def session(session: Session) -> Session:
    session.load(STATELESS)
    return session


def test_kernels_come_from_the_records(library: FakeCupti, fake: FakeDriver, session: Session) -> None:
    scale = session["module.scale"]
    for _ in range(CALLS + 3):  # direct calls, and a graph of what they launch
        scale(X, X)
    launches = fake.count("cuLaunchKernel")
    with session.profile() as profile:
        scale(X, X)
        begun = perf_counter_ns() + CLOCK
        library.add(DRIVER, begun, begun + 5, threading.get_ident() & 0xFFFFFFFF, 7)
        library.add(KERNEL, begun + 1000, begun + 3000, 0, 1, 1, 1, 1, 7, name=FIRST)
        library.add(KERNEL, begun + 3500, begun + 4000, 0, 1, 1, 1, 1, 7, name=SECOND)
        library.add(MEMCPY, 64, begun + 5000, begun + 6000, 0, 1, 8)
        library.add(KERNEL, begun + 5000, begun + 9000, 1, 1, 1, 1, 1, 9, name="of another GPU")
        library.add(KERNEL, begun - 10**10, begun, 0, 1, 1, 1, 1, 9, name="before the profile")
        assert library.enabled
    assert not library.enabled and fake.count("cuLaunchKernel") == launches, "graphs and machine code remain"
    rows = {row.name: (row.calls, round(row.total * 1e9)) for row in profile.rows}
    assert rows == {FIRST: (1, 2000), SECOND: (1, 500), "copy": (1, 1000)}
    assert "CUPTI" in profile.rows.note
    moved = {row.name: (row.bytes, row.gigabytes_per_second) for row in profile.rows}
    assert moved[FIRST] == (64, 64 / 2000) and moved[SECOND] == (96, 96 / 500), "the bytes of their bindings"
    operations = {row.name: row for row in profile.table("device operation")}
    execute = operations["execute"]
    assert round(execute.total * 1e9) == 3000 and round((execute.gaps or 0) * 1e9) == 500
    assert 0 < (execute.waited or 0) < 1e-5 and set(operations) == {"execute", "copy"}
    with session.profile() as empty:
        scale(X, X)
    assert not len(empty.rows)


def test_kernels_of_other_grids_have_no_bytes(library: FakeCupti, session: Session) -> None:
    """They were bound by lists that Python has not seen."""
    with session.profile() as profile:
        session["module.scale"](X, X)
        begun = perf_counter_ns() + CLOCK
        library.add(KERNEL, begun, begun + 2000, 0, 1, 2, 1, 1, 7, name=FIRST)
    assert profile.rows[0].gigabytes_per_second is None


def test_work_of_a_thread_that_has_ended_belongs_to_its_calls(
    library: FakeCupti, fake: FakeDriver, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, numbers = fake.cuLaunchKernel, count(1)

    def launched(*arguments: int) -> object:
        number, begun = next(numbers), perf_counter_ns() + CLOCK
        library.add(DRIVER, begun, begun + 5, threading.get_ident() & 0xFFFFFFFF, number)
        library.add(KERNEL, begun + 1, begun + 4, 0, 1, 1, 1, 1, number, name=FIRST)
        return launch(*arguments)

    monkeypatch.setattr(fake, "cuLaunchKernel", launched)
    with session.profile() as profile:
        thread = threading.Thread(target=session["module.scale"], args=(X, X))
        thread.start()
        thread.join()
    (row,) = profile.table("function")
    assert round((row.device or 0) * 1e9) == 3 * (next(numbers) - 1) > 0
    assert {measured.thread for _, measured in profile.measurements} == {profile.calls[0].thread}


def test_two_devices_and_two_profiles(library: FakeCupti, fake: FakeDriver, session: Session) -> None:
    with CudaDevice(fake, 0) as other_device, Session(device=other_device) as other:
        other.load(STATELESS)
        with session.profile() as outer:
            with other.profile() as inner:
                begun = perf_counter_ns() + CLOCK
                library.add(KERNEL, begun, begun + 10, 0, 1, 1, 1, 1, 1, name=FIRST)
            begun = perf_counter_ns() + CLOCK
            library.add(KERNEL, begun, begun + 10, 0, 1, 1, 1, 1, 2, name=SECOND)
    assert [row.name for row in inner.rows] == [FIRST]
    assert {row.name for row in outer.rows} == {FIRST, SECOND}


def test_a_clock_of_another_unit(library: FakeCupti, session: Session) -> None:
    """torch.profiler gives CUPTI the processor's counter for good: profiles after it had no kernels."""
    library.ticks = 3.0
    with session.profile() as profile:
        session["module.scale"](X, X)
        time.sleep(0.01)  # else what the readings are off by is seen
        begun = perf_counter_ns() * 3 + CLOCK
        library.add(KERNEL, begun, begun + 6000, 0, 1, 1, 1, 1, 7, name=FIRST)
    (row,) = profile.rows
    assert row.name == FIRST and row.total * 1e9 == pytest.approx(2000, rel=0.01)
    (begins,) = {measured.start for _, measured in profile.measurements if measured.kind == "dispatch"}
    assert begins == pytest.approx((begun - CLOCK) // 3, abs=100_000)


def test_a_clock_that_is_slow(library: FakeCupti, session: Session) -> None:
    """In a minute two clocks are a millisecond apart, so work belonged to other calls."""
    library.ticks = 0.999
    with session.profile() as profile:
        begun = int(perf_counter_ns() * 0.999) + CLOCK
        library.add(KERNEL, begun, begun + 6000, 0, 1, 1, 1, 1, 7, name=FIRST)
        time.sleep(0.2)
    (begins,) = {measured.start for _, measured in profile.measurements if measured.kind == "dispatch"}
    assert begins == pytest.approx((begun - CLOCK) / 0.999, abs=50_000)


@pytest.mark.parametrize("ending", [SystemExit, StatusError])
def test_whatever_ends_the_wait_cupti_records_nothing_after_it(
    library: FakeCupti, fake: FakeDriver, session: Session, monkeypatch: pytest.MonkeyPatch, ending: type
) -> None:
    entered = fake.cuCtxSetCurrent

    def failing(context: int) -> object:
        if ending is SystemExit:  # as a handler of a signal may raise
            raise SystemExit
        return (CUresult.CUDA_ERROR_DEINITIALIZED,)

    profile = session.profile()
    session["module.scale"](X, X)
    monkeypatch.setattr(fake, "cuCtxSetCurrent", failing)
    with suppress(SystemExit):
        session.device.profiler.timings.pause()  # type: ignore[union-attr]
    assert not library.enabled
    monkeypatch.setattr(fake, "cuCtxSetCurrent", entered)
    profile.stop()


def test_records_are_taken_between_submissions(
    library: FakeCupti, fake: FakeDriver, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUPTI keeps those of kernels that run while it is flushed; their ends are those of the next flush."""
    disable, running = library.cuptiActivityDisable, list[int]()
    entered, others = threading.Event(), threading.Thread(target=session["module.scale"], args=(X, X))

    def disabled(kind: int) -> int:
        if not entered.is_set():
            entered.set()
            launched = fake.count("cuLaunchKernel")
            others.start()
            others.join(0.2)
            running.append(fake.count("cuLaunchKernel") - launched)
        return disable(kind)

    monkeypatch.setattr(library, "cuptiActivityDisable", disabled)
    with session.profile():
        session["module.scale"](X, X)
    others.join()
    assert running == [0] and fake.count("cuLaunchKernel")


@pytest.mark.parametrize("is_there", [False, True])
def test_events_where_records_cannot_be_had(
    library: FakeCupti, session: Session, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    library.refuses = True
    if not is_there:
        monkeypatch.setattr(timings, "tracer", lambda: None)
    with session.profile() as profile:
        session["module.scale"](X, X)
    moved = {row.name: row.bytes for row in profile.rows}
    assert moved[FIRST] == 64 and moved[SECOND] == 96
    assert "nvidia-cuda-cupti" in profile.rows.note


def test_on_a_gpu(gpu: CudaDevice) -> None:
    with Session(device=gpu) as session:
        scale = session.load(STATELESS).scale
        for _ in range(10):
            plain = [np.asarray(result).tobytes() for result in scale(X, X)]
        with session.profile() as profile:
            for _ in range(10):
                assert [np.asarray(result).tobytes() for result in scale(X, X)] == plain
        calls = {row.name: row.calls for row in profile.rows}
        assert calls[FIRST] == calls[SECOND] == 10
        assert {row.name: row.bytes for row in profile.rows}[SECOND] == 10 * 96
        assert 0 < sum(row.total for row in profile.rows) < profile.total
