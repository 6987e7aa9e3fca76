"""Calls that come again: the same results, errors and state each time, whatever is launched as one."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

from jitree import Array, Module, Session, donate
from jitree.cuda.allocator import CudaAllocator
from jitree.cuda.device import CudaDevice
from jitree.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError, StatusError
from jitree.hal.buffer import BufferView
from jitree.hal.profiling import ProfilingMode
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_results import CUresult
from tests.cuda.programs import PROGRAM_KERNELS, STATEFUL, STATELESS, STORAGE

Vector = npt.NDArray[np.float32]


pytestmark = pytest.mark.usefixtures("machine_code")


@pytest.fixture(params=["fake", "gpu"])
def any_device(request: pytest.FixtureRequest) -> CudaDevice:
    if request.param == "fake":
        cast(FakeDriver, request.getfixturevalue("fake")).kernels.update(PROGRAM_KERNELS)
        return cast(CudaDevice, request.getfixturevalue("device"))
    return cast(CudaDevice, request.getfixturevalue("gpu"))


@pytest.fixture
def session(any_device: CudaDevice) -> Iterator[Session]:
    with Session(device=any_device) as session:
        yield session


@pytest.fixture
def fake_session(fake: FakeDriver, device: CudaDevice) -> Iterator[Session]:
    fake.kernels.update(PROGRAM_KERNELS)
    with Session(device=device) as session:
        yield session


def vector(seed: int) -> Vector:
    return np.random.default_rng(seed).standard_normal(8).astype(np.float32)


def test_results_of_every_call(session: Session) -> None:
    scale = session.load(STATELESS).scale
    kept = []
    for call in range(8):
        x, y = vector(call), vector(call + 100)
        doubled, total = scale(x, y)
        kept.append((doubled, total, 2 * x, 2 * x + y))
    for doubled, total, expected_doubled, expected_total in kept:  # no memory was used again
        assert np.array_equal(np.asarray(doubled), expected_doubled)
        assert np.array_equal(np.asarray(total), expected_total)


def test_results_are_arguments_of_further_calls(session: Session) -> None:
    scale = session.load(STATELESS).scale
    x, zeros = session.to_device(np.ones(8, np.float32)), session.to_device(np.zeros(8, np.float32))
    for _ in range(10):
        x, _ = scale(x, zeros)
    assert np.array_equal(np.asarray(x), np.full(8, 2.0**10, np.float32))


def test_constants_of_a_program_stay_where_they_are(session: Session) -> None:
    shift = session.load(STATELESS).shift
    for call in range(6):
        expected = vector(call) + np.arange(1, 9, dtype=np.float32)
        assert np.array_equal(np.asarray(shift(vector(call))), expected)


def test_one_array_twice(session: Session) -> None:
    scale = session.load(STATELESS).scale
    x = session.to_device(np.arange(8, dtype=np.float32))
    for _ in range(4):
        assert np.array_equal(np.asarray(scale(x, x)[1]), 3 * np.arange(8))


def test_host_reads_decide_how_a_call_goes(session: Session) -> None:
    repeat = session.load(STATELESS).repeat
    x = vector(1)
    for steps in (3, 3, 3, 3, 0, 3, 5, 3, 5, 5, 3, 1):
        result = np.asarray(repeat(x, np.array(steps, np.int32)))
        assert np.array_equal(result, x * np.float32(0.5) ** steps)


def test_ways_that_take_turns_need_no_new_graphs(fake: FakeDriver, fake_session: Session) -> None:
    repeat = fake_session.load(STATELESS).repeat
    x = fake_session.to_device(vector(1))
    steps = [fake_session.to_device(np.array(n, np.int32)) for n in (2, 5)]
    for call in range(6):
        repeat(x, steps[call % 2])
    fake.calls.clear()
    for number, count in ((0, 2), (0, 2), (1, 5), (1, 5)):
        assert np.array_equal(np.asarray(repeat(x, steps[number])), vector(1) * np.float32(0.5) ** count)
    assert not fake.count("cuGraphInstantiate")


def test_calls_that_keep_changing_their_way(session: Session) -> None:
    repeat = session.load(STATELESS).repeat
    x = np.ones(8, np.float32)
    for steps in range(20):
        assert np.asarray(repeat(x, np.array(steps, np.int32)))[0] == 0.5**steps


def test_variables_are_kept(session: Session) -> None:
    module = session.load(STATEFUL)
    total = np.zeros(8, np.float32)
    results = []
    for call in range(40):
        x = vector(call)
        step = call % 7
        if step == 3:
            module.set(x)
            total = x
        elif step == 5:
            assert np.array_equal(np.asarray(module.peek()), total)
        elif step == 6:
            assert np.array_equal(np.asarray(module.twice(x)), 2 * x)
        else:
            total = total + x
            results.append((module.accumulate(x), total))
    for result, expected in results:  # no variable lies where a result does
        assert np.array_equal(np.asarray(result), expected)


def test_variables_of_threads(session: Session) -> None:
    module = session.load(STATEFUL)
    ones = np.ones(8, np.float32)

    def work() -> None:
        for _ in range(50):
            module.accumulate(ones)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(np.asarray(module.peek()), np.full(8, 200, np.float32))


def test_sessions_have_their_own_variables(any_device: CudaDevice) -> None:
    with Session(device=any_device) as first, Session(device=any_device) as second:
        modules = [first.load(STATEFUL), second.load(STATEFUL)]
        for call in range(12):
            modules[call % 2].accumulate(np.full(8, 1 + call % 2, np.float32))
        assert [float(np.asarray(module.peek())[0]) for module in modules] == [6, 12]


def test_results_that_become_arguments_of_a_program_with_variables(session: Session) -> None:
    module = session.load(STATEFUL)
    x = session.to_device(np.ones(8, np.float32))
    for _ in range(6):
        x = module.accumulate(x)  # 1, 2, 4, …
    assert float(np.asarray(x)[0]) == 32 and float(np.asarray(module.peek())[0]) == 32


def test_wrong_arguments_are_refused_as_before(session: Session) -> None:
    scale = session.load(STATELESS).scale
    for _ in range(4):
        scale(vector(0), vector(1))
    with pytest.raises(InvalidArgumentError, match="shape dimension 0 mismatch"):
        scale(np.zeros(7, np.float32), vector(1))
    with pytest.raises(InvalidArgumentError, match="element type mismatch"):
        scale(np.zeros(8, np.int32), vector(1))
    assert np.array_equal(np.asarray(scale(vector(2), vector(3))[0]), 2 * vector(2))


def test_threads(session: Session) -> None:
    module = session.load(STATELESS)
    failures: list[tuple[int, ...]] = []

    def work(seed: int) -> None:
        for call in range(30):
            x = vector(1000 * seed + call)
            if not np.array_equal(np.asarray(module.scale(x, vector(seed))[1]), 2 * x + vector(seed)):
                failures.append((seed, call))
            steps = call % 3
            if not np.array_equal(np.asarray(module.repeat(x, np.array(2, np.int32))), x / 4):
                failures.append((seed, call, steps))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_borrowed_memory_is_free_when_the_call_returns(
    fake: FakeDriver, device: CudaDevice, fake_session: Session
) -> None:
    scale = fake_session.load(STATELESS).scale
    owner = fake_session.to_device(vector(0))
    allocator = device.device_allocator
    assert isinstance(allocator, CudaAllocator)
    lent = allocator.import_device(owner.buffer_view.buffer.address, 32, owner)
    x = Array(BufferView(lent, (8,), owner.buffer_view.element_type), device)
    for _ in range(6):
        results = scale(x, fake_session.to_device(vector(1)))
        assert device.stream.completed == device.stream.tick
    assert np.array_equal(np.asarray(results[0]), 2 * vector(0))


def test_same_arrays_in_another_state(session: Session) -> None:
    scale = session.load(STATELESS).scale
    x, y = session.to_device(vector(0)), session.to_device(vector(1))
    for _ in range(5):
        scale(x, y)
    device = cast(CudaDevice, session.device)
    device.write_buffer(x.buffer_view.buffer, vector(7).view(np.uint8))
    assert np.array_equal(np.asarray(scale(x, y)[1]), 2 * vector(7) + vector(1))
    device.profiling_begin(ProfilingMode.DISPATCH_COUNTERS)
    assert np.array_equal(np.asarray(scale(x, y)[1]), 2 * vector(7) + vector(1))
    device.profiling_end()
    names = [measurement.name for measurement in device.profiler.measurements]
    assert sum("scale_dispatch" in name for name in names) == 2
    session.close()
    with pytest.raises(StatusError, match="closed"):
        scale(x, y)


def test_profiles_see_every_dispatch(session: Session) -> None:
    scale = session.load(STATELESS).scale
    for _ in range(4):
        np.asarray(scale(vector(0), vector(1))[0])  # has ended when the profile begins
    device = cast(CudaDevice, session.device)
    device.profiling_begin(ProfilingMode.DISPATCH_COUNTERS)
    assert np.array_equal(np.asarray(scale(vector(2), vector(3))[0]), 2 * vector(2))
    device.profiling_end()
    names = [measurement.name for measurement in device.profiler.measurements]
    assert sum("scale_dispatch" in name for name in names) == 2


def test_a_lost_device_says_so(fake: FakeDriver, fake_session: Session) -> None:
    scale = fake_session.load(STATELESS).scale
    for _ in range(4):
        scale(vector(0), vector(1))
    for name in ("cuGraphLaunch", "cuLaunchKernelEx", "cuLaunchKernel", "cuStreamQuery"):
        for _ in range(3):
            fake.fail_next(name, CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)
    with pytest.raises(StatusError, match="lost"):
        scale(vector(0), vector(1))
    with pytest.raises(StatusError, match="lost"):
        scale(vector(0), vector(1))


def test_calls_keep_no_results(device: CudaDevice, fake_session: Session) -> None:
    scale = fake_session.load(STATELESS).scale
    x, y = fake_session.to_device(vector(0)), fake_session.to_device(vector(1))
    live = []
    for _ in range(6):
        scale(x, y)
        live.append(device.device_allocator.statistics.device.live)
    assert len(set(live[2:])) == 1


def test_trim_drops_graphs(fake: FakeDriver, fake_session: Session) -> None:
    scale = fake_session.load(STATELESS).scale
    x, y = fake_session.to_device(vector(0)), fake_session.to_device(vector(1))
    for _ in range(24):
        scale(x, y)
    fake_session.trim()
    gc.collect()
    assert np.array_equal(np.asarray(scale(vector(0), vector(1))[0]), 2 * vector(0))


def test_a_trimmed_device_makes_graphs_anew(
    fake: FakeDriver, device: CudaDevice, fake_session: Session
) -> None:
    scale = fake_session.load(STATELESS).scale
    for _ in range(4):
        scale(vector(0), vector(1))
    device.trim()
    assert not fake.executables
    for call in range(5):
        assert np.array_equal(np.asarray(scale(vector(call), vector(1))[0]), 2 * vector(call))


def test_no_growth(fake: FakeDriver, fake_session: Session) -> None:
    module, stateful = fake_session.load(STATELESS), fake_session.load(STATEFUL)
    steps = np.array(2, np.int32)

    def run(count: int) -> tuple[int, ...]:
        for call in range(count):
            np.asarray(module.scale(vector(call), vector(1))[0])
            np.asarray(module.repeat(vector(call), steps))
            stateful.accumulate(vector(call))
        stateful.peek().wait()
        np.asarray(module.scale(vector(0), vector(1))[0])  # hands back what arrays have left
        handles = fake_session.context.table.live_count
        return fake.live_bytes, len(fake.graphs), len(fake.executables), handles

    for _ in range(4):  # each time the addresses go round in another way, up to the graphs that are kept
        before = run(100)
    assert run(100) == before


def test_storage_of_the_caller_is_read_anew(session: Session) -> None:
    double_into = session.load(STORAGE).double_into
    out = session.empty((8,), np.float32)
    for call in range(6):
        x = session.to_device(vector(call))
        result = double_into(x, out=out) if call % 2 else double_into(x, out)
        assert np.array_equal(np.asarray(out), 2 * vector(call))
        assert np.array_equal(np.asarray(result), 2 * vector(call))
    x = session.to_device(vector(9))
    for _ in range(4):  # the same arrays again
        double_into(x, out)
        assert np.array_equal(np.asarray(out), 2 * vector(9))
        session.device.write_buffer(out.buffer_view.buffer, np.zeros(32, np.uint8))


def test_a_donated_array_is_not_used_again(fake_session: Session) -> None:
    scale = fake_session.load(STATELESS).scale
    x, y = fake_session.to_device(vector(0)), fake_session.to_device(vector(1))
    for _ in range(5):
        scale(x, y)
    scale(donate(x), y)
    with pytest.raises(FailedPreconditionError, match="donated"):
        scale(x, y)


def lend(device: CudaDevice, owner: Array) -> Array:
    """What another library gives that uses the owner's memory."""
    buffer = owner.buffer_view.buffer
    allocator = device.device_allocator
    assert isinstance(allocator, CudaAllocator)
    lent = allocator.import_device(buffer.address, buffer.byte_length, owner)
    return Array(BufferView(lent, owner.buffer_view.shape, owner.buffer_view.element_type), device)


def test_memory_that_is_lent_twice(device: CudaDevice, fake_session: Session) -> None:
    scale = fake_session.load(STATELESS).scale
    x, y = fake_session.to_device(vector(0)), fake_session.to_device(vector(1))
    for _ in range(3):
        results = scale(lend(device, x), lend(device, x))
        assert np.array_equal(np.asarray(results[1]), 3 * vector(0))
    for _ in range(3):
        results = scale(lend(device, x), lend(device, y))
        assert np.array_equal(np.asarray(results[1]), 2 * vector(0) + vector(1))
    assert np.array_equal(np.asarray(scale(lend(device, x), lend(device, x))[1]), 3 * vector(0))


def test_a_variable_that_is_lent(device: CudaDevice, fake_session: Session) -> None:
    module = fake_session.load(STATEFUL)
    module.set(np.ones(8, np.float32))
    total = module.peek()
    for call in range(5):
        total = module.accumulate(lend(device, total))
        assert float(np.asarray(total)[0]) == 2 ** (call + 1)
    x = fake_session.to_device(np.ones(8, np.float32))
    for call in range(5):
        assert float(np.asarray(module.accumulate(lend(device, x)))[0]) == 33 + call


def test_arguments_that_dispatches_refuse(device: CudaDevice, fake_session: Session) -> None:
    scale = fake_session.load(STATELESS).scale
    x, y = fake_session.to_device(vector(0)), fake_session.to_device(vector(1))
    for _ in range(4):
        scale(x, y)
    whole = fake_session.to_device(np.zeros(16, np.float32)).buffer_view
    shifted = BufferView(whole.buffer.subspan(4, 32), (8,), whole.element_type)
    with pytest.raises(InvalidArgumentError, match="not a multiple of 64"):
        scale(shifted, y)


def test_calls_go_on_when_memory_has_run_out(
    fake: FakeDriver, device: CudaDevice, fake_session: Session
) -> None:
    scale = fake_session.load(STATELESS).scale
    for _ in range(4):
        scale(vector(0), vector(1))
    with pytest.raises(ResourceExhaustedError):
        device.device_allocator.allocate(0x30, 0, fake.memory)
    gc.collect()
    device.trim()
    assert not fake.executables
    assert np.array_equal(np.asarray(scale(vector(2), vector(1))[0]), 2 * vector(2))


def test_threads_of_two_sessions_while_memory_is_trimmed(fake: FakeDriver, device: CudaDevice) -> None:
    """On a device that lags behind; the fake refuses every address that is not allocated."""
    fake.kernels.update(PROGRAM_KERNELS)
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def lag() -> None:
        while not stop.wait(0.002):
            fake.release()
            fake.hold()
        fake.release()

    def trim() -> None:
        while not stop.wait(0.01):
            device.trim()

    def call(session: Session, module: Module, seed: int) -> None:
        for number in range(30):
            x = vector(1000 * seed + number)
            doubled, total = module.scale(x, vector(seed))
            if number % 3 == 0:
                assert np.array_equal(np.asarray(total), 2 * x + vector(seed))
            repeated = module.repeat(x, np.array(number % 4, np.int32))
            assert np.array_equal(np.asarray(repeated), x * np.float32(0.5) ** (number % 4))
            session.to_device(lend(device, doubled))

    with Session(device=device) as first, Session(device=device) as second:
        modules = [(session, session.load(STATELESS)) for session in (first, second)]
        fake.hold()
        others = [guarded(lag), guarded(trim)]
        callers = [guarded(partial(call, *modules[seed % 2], seed)) for seed in range(4)]
        for thread in callers:
            thread.join()
        stop.set()
        for thread in others:
            thread.join()
    assert not failures and fake.lost is None
