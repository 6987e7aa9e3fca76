"""Channels and collectives: what NCCL is asked for, and what is refused before."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from jitree.cuda import nccl
from jitree.cuda.channel import CudaChannel, GroupWatch, create_channel
from jitree.cuda.device import CudaDevice
from jitree.errors import (
    AbortedError,
    FailedPreconditionError,
    InvalidArgumentError,
    OutOfRangeError,
    StatusError,
    UnavailableError,
    UnimplementedError,
)
from jitree.hal.buffer import Buffer
from jitree.hal.fence import Fence
from jitree.hal.groups.rendezvous import FixedProvider
from tests.cuda.fake import FakeDriver, FakeKernel
from tests.cuda.fake_nccl import FakeNccl
from tests.cuda.test_handles import interruptions
from tests.hal.test_observing import Recorder

IDENTIFIER = bytes(range(128))
F32, SI16, UI16, BF16, SI32 = 9, 2, 3, 11, 4
SUM, PRODUCT = 1, 2
ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BROADCAST, REDUCE, REDUCE_SCATTER, SEND, RECEIVE, SEND_RECEIVE = range(9)
BYTES, FLOAT, BFLOAT16 = 0, 7, 9


@pytest.fixture
def library(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    library = FakeNccl(fake)
    monkeypatch.setattr(nccl, "library", lambda: library)
    return library


class Group:
    """A member of a group of ``count``, with two buffers of 96 bytes."""

    def __init__(self, device: CudaDevice, library: FakeNccl, count: int, rank: int = 0) -> None:
        self.device = device
        self.library = library
        self.channel = cast(CudaChannel, device.create_channel(-1, IDENTIFIER, None, rank, count))
        self.send, self.receive = (device.device_allocator.allocate(0x30, 0, 96) for _ in range(2))

    def run(
        self,
        kind: int,
        element_type: int,
        count: int,
        *,
        reduction: int = 0,
        parameter: int = 0,
        send: int | None = 96,
        receive: int | None = 96,
    ) -> list[tuple[str, tuple[Any, ...]]]:
        """The calls between the start and the end of the NCCL group; ``send`` and ``receive`` are lengths."""
        commands = self.device.create_command_buffer(0, 1)
        commands.collective(
            self.channel,
            kind | reduction << 8 | element_type << 16,
            parameter,
            None if send is None else (0, self.send, 0, send),
            None if receive is None else (0, self.receive, 0, receive),
            count,
        )
        commands.finalize()
        done = Fence.create(self.device)
        self.library.calls.clear()
        self.device.queue_execute(-1, None, done, commands)
        done.wait()
        names = [name for name, _ in self.library.calls]
        assert names[0] == "ncclGroupStart" and names[-1] == "ncclGroupEnd"
        stream = int(self.device.stream.handle)
        calls = self.library.calls[1:-1]
        assert all(arguments[-2:] == (self.channel.joined.handle, stream) for _, arguments in calls)
        return [(name, arguments[:-2]) for name, arguments in calls]


@pytest.fixture
def group(device: CudaDevice, library: FakeNccl) -> Group:
    return Group(device, library, 4, rank=1)


def test_what_nccl_is_asked_for(group: Group) -> None:
    s, r = group.send.address, group.receive.address
    assert group.run(ALL_REDUCE, F32, 24, reduction=SUM) == [("ncclAllReduce", (s, r, 24, FLOAT, 0))]
    assert group.run(ALL_REDUCE, BF16, 48, reduction=3) == [("ncclAllReduce", (s, r, 48, BFLOAT16, 3))]
    assert group.run(REDUCE, F32, 2, reduction=5, parameter=3) == [("ncclReduce", (s, r, 2, FLOAT, 4, 3))]
    assert group.run(BROADCAST, SI16, 5, parameter=2) == [("ncclBroadcast", (s, r, 10, BYTES, 2))]
    assert group.run(SEND, F32, 3, parameter=2, receive=None) == [("ncclSend", (s, 12, BYTES, 2))]
    assert group.run(RECEIVE, F32, 3, parameter=0, send=None) == [("ncclRecv", (r, 12, BYTES, 0))]
    assert group.run(SEND_RECEIVE, F32, 3, parameter=2 | 3 << 16) == [
        ("ncclSend", (s, 12, BYTES, 2)),
        ("ncclRecv", (r, 12, BYTES, 3)),
    ]
    assert group.run(ALL_TO_ALL, F32, 8) == [
        call
        for member in range(4)
        for call in (
            ("ncclSend", (s + 8 * member, 8, BYTES, member)),
            ("ncclRecv", (r + 8 * member, 8, BYTES, member)),
        )
    ]


@pytest.mark.parametrize("stated", [6, 24])
def test_counts_of_either_side(group: Group, stated: int) -> None:
    s, r = group.send.address, group.receive.address
    assert group.run(ALL_GATHER, F32, stated, send=24) == [("ncclAllGather", (s, r, 24, BYTES))]
    assert group.run(REDUCE_SCATTER, F32, stated, reduction=SUM, receive=24) == [
        ("ncclReduceScatter", (s, r, 6, FLOAT, 0))
    ]


def test_receiving_from_no_member_gives_zeros(group: Group) -> None:
    group.device.write_buffer(group.receive, np.full(96, 0xEE, np.uint8))
    calls = group.run(SEND_RECEIVE, F32, 3, parameter=2 | 0xFFFF << 16)
    assert calls == [("ncclSend", (group.send.address, 12, BYTES, 2))]
    assert bytes(np.asarray(group.device.read_buffer(group.receive))) == bytes(12) + b"\xee" * 84
    assert group.run(SEND_RECEIVE, F32, 3, parameter=0xFFFFFFFF) == []


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"kind": ALL_REDUCE, "count": 25, "reduction": SUM},
            OutOfRangeError,
            "sends 25 elements of 4 bytes",
        ),
        ({"kind": ALL_REDUCE, "count": 24, "reduction": SUM, "receive": 92}, OutOfRangeError, "receives 24"),
        ({"kind": ALL_REDUCE, "count": 1, "reduction": 9}, InvalidArgumentError, "reduction 9"),
        ({"kind": ALL_GATHER, "count": 7}, InvalidArgumentError, "all_gather of 7 elements"),
        ({"kind": ALL_GATHER, "count": 24}, OutOfRangeError, "receives 96"),
        ({"kind": REDUCE_SCATTER, "count": 7, "reduction": SUM}, InvalidArgumentError, "reduce_scatter of 7"),
        ({"kind": ALL_TO_ALL, "count": 7}, InvalidArgumentError, "all_to_all of 7"),
        ({"kind": BROADCAST, "count": 1, "parameter": 4}, OutOfRangeError, "root 4 of a collective among 4"),
        ({"kind": SEND, "count": 1, "parameter": 9, "receive": None}, OutOfRangeError, "target 9"),
        ({"kind": 40, "count": 1}, InvalidArgumentError, "kind 40"),
        ({"kind": BROADCAST, "count": 1, "element_type": 77}, UnimplementedError, "element type 77"),
        (
            {"kind": ALL_REDUCE, "count": 1, "element_type": 12, "reduction": SUM},
            UnimplementedError,
            "reduce",
        ),
    ],
)
def test_refused(group: Group, arguments: dict[str, Any], error: type[StatusError], message: str) -> None:
    with pytest.raises(error, match=message):
        group.run(**{"element_type": F32, **arguments})
    assert not group.library.calls


def test_a_lost_member_is_told(group: Group) -> None:
    group.library.failure = AbortedError("remote process exited")
    with pytest.raises(AbortedError, match="remote process exited"):
        group.run(ALL_REDUCE, F32, 1, reduction=SUM)


def _widen(driver: FakeDriver, words: list[int], grid: Sequence[int], block: Sequence[int]) -> None:
    dtype = "<i2" if words[3] & 0xFFFFFFFF else "<u2"
    source = driver.bytes_at(words[1], 2 * words[2]).view(dtype)
    driver.bytes_at(words[0], 4 * words[2]).view("<i4")[:] = source


def _narrow(driver: FakeDriver, words: list[int], grid: Sequence[int], block: Sequence[int]) -> None:
    source = driver.bytes_at(words[1], 4 * words[2]).view("<u4")
    driver.bytes_at(words[0], 2 * words[2]).view("<u2")[:] = source & 0xFFFF


@pytest.mark.parametrize(("element_type", "dtype"), [(SI16, "<i2"), (UI16, "<u2")])
def test_sixteen_bits_are_reduced_as_thirty_two(
    fake: FakeDriver, device: CudaDevice, library: FakeNccl, element_type: int, dtype: str
) -> None:
    fake.kernels |= {"jitree_widen": FakeKernel(4, _widen), "jitree_narrow": FakeKernel(3, _narrow)}
    group = Group(device, library, 1)
    data = np.arange(48).astype(dtype) * np.array(-3).astype(dtype)
    device.write_buffer(group.send, data.view(np.uint8))
    device.write_buffer(group.receive, np.full(96, 0xEE, np.uint8))
    ((name, arguments),) = group.run(ALL_REDUCE, element_type, 40, reduction=PRODUCT)
    assert name == "ncclAllReduce" and arguments[2:] == (40, 2 if element_type == SI16 else 3, 1)
    result = np.asarray(device.read_buffer(group.receive)).view(dtype)
    assert np.array_equal(result[:40], data[:40]) and (result[40:].view("<u2") == 0xEEEE).all()


@pytest.mark.parametrize("is_observed", [False, True])
def test_collectives_between_dispatches_run_in_order(
    device: CudaDevice, library: FakeNccl, is_observed: bool
) -> None:
    group = Group(device, library, 1)
    recorder = Recorder()
    if is_observed:
        device.listen(recorder)
    commands = device.create_command_buffer(1, 3)
    reference = (0, group.send, 0, 96), (0, group.receive, 0, 96)
    commands.fill_buffer(reference[0], 7, 1)
    commands.execution_barrier(28, 13)
    commands.collective(group.channel, ALL_REDUCE | SUM << 8 | SI32 << 16, 0, *reference, 24)
    commands.execution_barrier(28, 13)
    commands.fill_buffer((0, group.receive, 0, 4), 1, 1)
    commands.copy_buffer((0, group.receive, 8, 4), (0, group.receive, 4, 4))
    commands.finalize()
    done = Fence.create(device)
    device.queue_execute(-1, None, done, commands)
    done.wait()
    assert bytes(np.asarray(device.read_buffer(group.receive))) == b"\1" * 4 + b"\7" * 92
    if is_observed:
        assert [name for name, _, _ in recorder.steps] == ["fill", "collective", "fill", "copy"]
        assert recorder.steps[1][2] == [b"\7" * 96] * 2


def test_members_and_parts(device: CudaDevice, library: FakeNccl) -> None:
    channel = device.create_channel(-1, IDENTIFIER, None, 2, 3)
    assert (channel.rank, channel.count) == (2, 3)
    part = channel.split(5, 0)
    assert part is not None and (part.rank, part.count) == (0, 1)
    assert channel.split(-1, 0) is None
    del part
    gc.collect()
    nccl.release_abandoned()
    assert library.destroyed == [2]


def test_an_interrupt_loses_no_communicator(device: CudaDevice, library: FakeNccl) -> None:
    """One that comes in this package, where channels are made, split and given back."""
    watch = GroupWatch(device.stream)

    def join() -> None:
        channel = create_channel(device.context, watch, -1, IDENTIFIER, None, 0, 1, 0, None)
        channel.split(0, 0)
        del channel
        gc.collect()
        nccl.release_abandoned()

    for interruption in interruptions():
        interruption.during(join)
        gc.collect()
        nccl.release_abandoned()
        assert sorted(library.destroyed + library.aborted) == list(library.members)
        assert not nccl.ABANDONED
    assert library.members


def test_a_part_that_is_made_too_late_is_given_back(device: CudaDevice, library: FakeNccl) -> None:
    """The call has been interrupted; nobody has it."""
    channel = create_channel(device.context, GroupWatch(device.stream), -1, IDENTIFIER, None, 0, 1, 0, None)
    go_on, split, looks = threading.Event(), library.split, iter((True, False))

    def look() -> None:
        if not next(looks):
            raise KeyboardInterrupt

    def wait(*arguments: Any) -> None:
        assert go_on.wait(60)
        split(*arguments)

    library.split = wait  # type: ignore[method-assign, assignment]
    channel.joined.require_members = look  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        channel.split(0, 0)
    assert not library.aborted
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "jitree waits for a group":
            thread.join(60)
    assert library.aborted == [2]


def test_what_is_not_stated_comes_from_the_provider(device: CudaDevice, library: FakeNccl) -> None:
    device.replace_channel_provider(FixedProvider(1, 2, IDENTIFIER))
    channel = device.create_channel(-1, None, None, -1, -1)
    assert (channel.rank, channel.count) == (1, 2)
    with pytest.raises(InvalidArgumentError, match="member 5 of 2"):
        device.create_channel(-1, None, None, 5, -1)
    with pytest.raises(InvalidArgumentError, match="3 bytes; ids of NCCL have 128"):
        device.create_channel(-1, b"abc", None, 0, 1)


def test_without_launcher(device: CudaDevice, library: FakeNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(FailedPreconditionError, match="torchrun"):
        device.create_channel(-1, None, None, -1, -1)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert device.create_channel(-1, None, None, -1, -1).count == 1


def test_channels_belong_to_their_device(device: CudaDevice, library: FakeNccl, fake: FakeDriver) -> None:
    channel = device.create_channel(-1, IDENTIFIER, None, 0, 1)
    with CudaDevice(fake, 0) as other:
        commands = other.create_command_buffer(0, 1)
        reference: tuple[int, Buffer, int, int] = (0, other.device_allocator.allocate(0x30, 0, 4), 0, 4)
        with pytest.raises(FailedPreconditionError, match="was used by device"):
            commands.collective(channel, ALL_REDUCE | SUM << 8 | F32 << 16, 0, reference, reference, 1)


def test_missing_library(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "_packaged", lambda: [])
    monkeypatch.setattr(nccl, "_SONAME", "libnccl_that_is_not_there.so.2")
    nccl.library.cache_clear()
    with pytest.raises(UnavailableError, match="pip install"):
        device.create_channel(-1, IDENTIFIER, None, 0, 1)
    nccl.library.cache_clear()


def test_one_member_on_the_gpu(gpu: CudaDevice) -> None:
    try:
        library = nccl.library()
    except UnavailableError as error:
        pytest.skip(str(error))
    channel = gpu.create_channel(-1, library.new_identifier(), None, 0, 1)
    data = np.arange(24, dtype=np.int16) - 12
    send, receive = (gpu.device_allocator.allocate(0x30, 0, data.nbytes) for _ in range(2))
    gpu.write_buffer(send, data.view(np.uint8))
    for element_type, count in ((SI16, 24), (SI32, 12)):
        commands = gpu.create_command_buffer(1, 1)
        commands.collective(
            channel,
            ALL_REDUCE | SUM << 8 | element_type << 16,
            0,
            (0, send, 0, -1),
            (0, receive, 0, -1),
            count,
        )
        commands.finalize()
        done = Fence.create(gpu)
        gpu.queue_execute(-1, None, done, commands)
        assert np.array_equal(np.asarray(gpu.read_buffer(receive, done)).view(np.int16), data)
