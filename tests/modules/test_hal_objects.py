"""Devices, allocators, buffers, buffer views, executables, channels and files of module ``hal``."""

from __future__ import annotations

import struct
import sys
from io import StringIO

import numpy as np
import pytest

from jitree import Session
from jitree.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StatusCode,
    UnimplementedError,
)
from jitree.hal.buffer import BufferView
from jitree.modules.hal import HalModule
from jitree.regs.buffer import VmBuffer
from tests.modules.helpers import ANY, DEFAULT_USAGE, DEVICE_LOCAL, Hal, content, text

F32, I32, UI32, I8, BOOL = 0x21000020, 0x10000020, 0x12000020, 0x10000008, 0x13000008
OPAQUE_32 = 0x20


def test_devices(hal: Hal) -> None:
    assert hal("devices.count") == 1
    assert hal("devices.get", 0) is hal.device
    assert hal("devices.get", 1) is None
    assert hal("devices.get", -1) is None
    assert hal("device.allocator", hal.device) is hal.allocator


def test_several_devices_in_order() -> None:
    with Session(["local-sync", "null", "local-sync"], tier="plain") as session:
        assert session.call_direct("hal.devices.count") == [3]
        devices = [session.call_direct("hal.devices.get", index)[0] for index in range(3)]
        assert tuple(devices) == session.devices


@pytest.mark.parametrize(
    ("category", "key", "expected"),
    [
        ("hal.device.id", "local*", (1, 1)),
        ("hal.device.id", "cuda", (1, 0)),
        ("hal.executable.format", "cuda-nvptx-fb", (1, 0)),
        ("hal.device", "concurrency", (1, 1)),
        ("hal.nonsense", "key", (0, 0)),
        ("hal.cpu", "no-such-feature", (0, 0)),
    ],
)
def test_queries(hal: Hal, category: str, key: str, expected: tuple[int, int]) -> None:
    assert hal("device.query.i64", hal.device, text(category), text(key)) == expected


def test_a_query_that_fails_is_no_answer(hal: Hal, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(category: str, key: str) -> tuple[bool, int]:
        raise UnimplementedError("no such query")

    monkeypatch.setattr(hal.device, "query_i64", fail)
    assert hal("device.query.i64", hal.device, text("a"), text("b")) == (0, 0)


def test_import_shares_memory_and_checks(hal: Hal) -> None:
    source = VmBuffer(256)
    source.view[:] = bytes(range(256))
    arguments = (hal.allocator, 1, ANY, DEVICE_LOCAL, DEFAULT_USAGE, source)
    buffer = hal("allocator.import", *arguments, 64, -1)
    assert content(buffer) == bytes(range(64, 256))
    source.view[64] = 7
    assert content(buffer)[0] == 7
    assert hal("allocator.import", *arguments, 1, 8) is None  # not aligned
    with pytest.raises(PermissionDeniedError):
        hal("allocator.import", hal.allocator, 0, ANY, DEVICE_LOCAL, DEFAULT_USAGE, source, 1, 8)
    for offset, length in ((0, 257), (257, -1), (-1, 4), (8, -2)):
        with pytest.raises(InvalidArgumentError):
            hal("allocator.import", *arguments, offset, length)


def test_constants_are_imported_for_reading(hal: Hal) -> None:
    constant = VmBuffer.alias(VmBuffer(64).view.toreadonly())
    with pytest.raises(PermissionDeniedError, match="SHARING_IMMUTABLE"):
        hal("allocator.import", hal.allocator, 1, ANY, DEVICE_LOCAL, DEFAULT_USAGE, constant, 0, -1)
    buffer = hal("allocator.import", hal.allocator, 1, ANY, DEVICE_LOCAL, 0x80C03, constant, 0, -1)
    with pytest.raises(PermissionDeniedError):
        hal("buffer.store", 1, buffer, 0, 4)


def test_select(hal: Hal) -> None:
    pairs = [(hal.device, 5), (hal.device, 6)]
    assert hal("allocator.select", 0x30, 3, 0, pairs) == (hal.device, 5)
    with pytest.raises(InvalidArgumentError):
        hal("allocator.select", 0x30, 3, 0, [])


def test_select_by_policy(hal: Hal) -> None:
    module = HalModule([hal.device], placement=lambda candidates, memory, usage: candidates[-1])
    with Session(hal.device, builtin_modules=(), tier="plain") as session:
        session.append_module(module)
        pairs = [(hal.device, index) for index in range(64)]
        assert session.call_direct("hal.allocator.select", 0x30, 3, 0, pairs) == [hal.device, 63]
        with pytest.raises(ResourceExhaustedError):
            session.call_direct("hal.allocator.select", 0x30, 3, 0, [*pairs, pairs[0]])


def test_buffer_assert(hal: Hal) -> None:
    buffer = hal.buffer(bytes(16))
    arguments = (buffer, text("input0"), hal.allocator)
    hal("buffer.assert", *arguments, 16, 0x10, DEFAULT_USAGE)
    with pytest.raises(InvalidArgumentError, match=r"^INVALID_ARGUMENT; input0 .*at least 17 but have 16"):
        hal("buffer.assert", *arguments, 17, 0x10, DEFAULT_USAGE)
    with pytest.raises(
        PermissionDeniedError, match=r"^PERMISSION_DENIED; input0 buffer memory type .*HOST_LOCAL"
    ):
        hal("buffer.assert", *arguments, 16, 0x46, DEFAULT_USAGE)
    with pytest.raises(
        PermissionDeniedError, match=r"^PERMISSION_DENIED; input0 buffer usage .*SHARING_EXPORT"
    ):
        hal("buffer.assert", *arguments, 16, 0x10, 0x10000)


def test_subspans(hal: Hal) -> None:
    buffer = hal.buffer(bytes(range(32)))
    assert hal("buffer.subspan", buffer, 0, 32) is buffer
    span = hal("buffer.subspan", buffer, 8, -1)
    assert hal("buffer.length", span) == 24
    assert content(hal("buffer.subspan", span, 4, 4)) == bytes((12, 13, 14, 15))
    assert hal("buffer.length", hal("buffer.subspan", buffer, 32, 0)) == 0
    for offset, length in ((0, 33), (33, 0), (-1, 4), (30, 4)):
        with pytest.raises(OutOfRangeError):
            hal("buffer.subspan", buffer, offset, length)


def test_load_and_store(hal: Hal) -> None:
    buffer = hal.buffer(b"\xff\xfe\xfd\xfc\x7f")
    assert [hal("buffer.load", buffer, 0, length) for length in (1, 2, 3)] == [0xFF, 0xFEFF, 0xFDFEFF]
    assert hal("buffer.load", buffer, 0, 4) == struct.unpack("<i", b"\xff\xfe\xfd\xfc")[0]
    hal("buffer.store", -2, buffer, 1, 2)
    assert content(buffer) == b"\xff\xfe\xff\xfc\x7f"
    for length in (5, -1):
        with pytest.raises(InvalidArgumentError):
            hal("buffer.load", buffer, 0, length)
    for offset in (-1, 2, 1 << 62):
        with pytest.raises(OutOfRangeError):
            hal("buffer.load", buffer, offset, 4)


def test_allocation_owners(hal: Hal) -> None:
    buffer = hal.buffer(bytes(8))
    span = hal("buffer.subspan", buffer, 0, 4)
    assert hal("buffer.allocation.is_terminal", buffer) == 1
    hal("buffer.allocation.preserve", span)
    assert hal("buffer.allocation.is_terminal", buffer) == 0
    assert hal("buffer.allocation.discard", buffer) == 0
    assert hal("buffer.allocation.discard", span) == 1


def test_buffer_view_accessors(hal: Hal) -> None:
    buffer = hal.buffer(bytes(64))
    view = hal("buffer_view.create", buffer, 16, 32, F32, 1, [2, 4])
    assert hal("buffer.length", hal("buffer_view.buffer", view)) == 32
    assert hal("buffer_view.element_type", view) == F32
    assert hal("buffer_view.encoding_type", view) == 1
    assert hal("buffer_view.rank", view) == 2
    assert [hal("buffer_view.dim", view, index) for index in (0, 1, 2, 3, -1)] == [2, 4, 0, 0, 0]
    whole = hal("buffer_view.create", buffer, 0, 64, F32, 1, [])
    assert hal("buffer_view.buffer", whole) is buffer
    with pytest.raises(OutOfRangeError):
        hal("buffer_view.create", buffer, 32, 64, F32, 1, [16])
    with pytest.raises(InvalidArgumentError):
        hal("buffer_view.create", buffer, 0, 64, F32, 1, [1] * 129)


IMPOSSIBLE = (
    [-1], [-1, -1], [-(2**63)], [-4, -4, 1], [0, -1], [17], [2, 9], [2**62], [2**62 + 16], [2**63 - 1],
    [2**32, 2**32], [2**32, 2**32, 0], [0, 2**62], [16, 1, 2], [2**31, 2**31, 4], [2**31 + 1, 2**33],
)  # fmt: skip


@pytest.mark.parametrize("shape", IMPOSSIBLE, ids=str)
def test_views_have_their_elements(hal: Hal, shape: list[int]) -> None:
    """Sizes that programs compute may wrap: 2**62 f32 elements take 0 bytes then."""
    buffer = hal.buffer(bytes(64))
    with pytest.raises(OutOfRangeError, match=f"`{'x'.join(map(str, shape))}xf32`"):
        hal("buffer_view.create", buffer, 0, 64, F32, 1, shape)


@pytest.mark.parametrize("shape", [[], [16], [2, 8], [0], [3, 0, 7], [1] * 128], ids=str)
def test_views_may_be_shorter_than_their_buffer(hal: Hal, shape: list[int]) -> None:
    view = hal("buffer_view.create", hal.buffer(bytes(64)), 0, 64, F32, 1, shape)
    assert [hal("buffer_view.dim", view, index) for index in range(len(shape))] == shape


@pytest.mark.parametrize(
    ("element_type", "encoding", "shape", "expected"),
    [
        (F32, 2, [2, 3], "x encoding mismatch; expected 00000002 but have 00000001"),
        (I32, 1, [2, 3], "x element type mismatch; expected i32 (10000020) but have f32 (21000020)"),
        (F32, 1, [6], "x shape rank mismatch; expected 1 but have 2; expected shape `6`, actual shape `2x3`"),
        (
            F32, 1, [],
            "x shape rank mismatch; expected 0 (scalar) but have 2; expected shape ``, actual shape `2x3`",
        ),
        (
            F32, 1, [2, 4],
            "x shape dimension 1 mismatch; expected 4 but have 3; expected shape `2x4`, actual shape `2x3`",
        ),
        (I32, 2, [6], "x encoding mismatch; expected 00000002 but have 00000001"),
        (I32, 1, [6], "x element type mismatch; expected i32 (10000020) but have f32 (21000020)"),
    ],
)  # fmt: skip
def test_buffer_view_assert_texts(
    hal: Hal, element_type: int, encoding: int, shape: list[int], expected: str
) -> None:
    view = BufferView(hal.buffer(bytes(24)), (2, 3), F32, 1)
    hal("buffer_view.assert", view, text("x"), F32, 1, [2, 3])
    with pytest.raises(InvalidArgumentError) as raised:
        hal("buffer_view.assert", view, text("x"), element_type, encoding, shape)
    assert str(raised.value).startswith(f"INVALID_ARGUMENT; {expected}; invoking function")


@pytest.mark.parametrize(
    ("actual", "expected", "passes"),
    [
        (I32, UI32, True), (UI32, I32, True), (BOOL, I8, True), (I8, BOOL, True), (OPAQUE_32, F32, True),
        (I8, I32, False), (F32, I32, False), (F32, OPAQUE_32, False),
    ],
)  # fmt: skip
def test_interchangeable_element_types(hal: Hal, actual: int, expected: int, passes: bool) -> None:
    view = BufferView(hal.buffer(bytes(4)), (1,), actual, 1)
    if passes:
        hal("buffer_view.assert", view, text("x"), expected, 1, [1])
    else:
        with pytest.raises(InvalidArgumentError, match="element type mismatch"):
            hal("buffer_view.assert", view, text("x"), expected, 1, [1])


def test_an_opaque_encoding_passes(hal: Hal) -> None:
    hal("buffer_view.assert", BufferView(hal.buffer(bytes(4)), (1,), F32, 0), text("x"), F32, 1, [1])


def test_trace_prints(hal: Hal, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    values = np.array([[1, 2], [3, 4.5]], np.float32)
    view = BufferView(hal.buffer(values.tobytes()), (2, 2), F32, 1)
    hal("buffer_view.trace", text("key"), [view, BufferView(hal.buffer(b"\x01"), (1,), I8, 1)])
    assert stream.getvalue() == "=== key ===\n2x2xf32=[1 2][3 4.5]\n1xi8=1\n\n"
    with pytest.raises(ResourceExhaustedError):
        hal("buffer_view.trace", text("key"), [view] * 129)


def test_trace_prints_elements_without_bits(hal: Hal, capsys: pytest.CaptureFixture[str]) -> None:
    hal("buffer_view.trace", text("key"), [BufferView(hal.buffer(b"\x01"), (2,), 0)])
    assert "2x*0= \n" in capsys.readouterr().err


def test_executables(hal: Hal) -> None:
    arguments = (hal.device, ANY, text("no-such-format"), VmBuffer(64))
    with pytest.raises(NotFoundError, match="no-such-format"):
        hal("executable.create", *arguments, None)
    with pytest.raises(InvalidArgumentError, match="32-bit words"):
        hal("executable.create", *arguments, VmBuffer(6))
    with Session("local-sync", tier="plain") as other, pytest.raises(NotFoundError, match="devices"):
        other.call_direct("hal.executable.create", hal.device, ANY, text("x"), VmBuffer(64), None)


def test_executables_get_their_constants_and_know_their_functions() -> None:
    hal = Hal("null")
    executable = hal("executable.create", hal.device, ANY, text("any"), VmBuffer(64), VmBuffer(8))
    assert hal("executable.lookup.function", executable, text("a")) == 0
    assert hal("executable.lookup.function", executable, text("b")) == 1
    assert hal("executable.lookup.function", executable, text("a")) == 0
    hal.session.close()


def test_channels_need_a_launcher(hal: Hal) -> None:
    with pytest.raises(FailedPreconditionError, match="start the program by torchrun"):
        hal("channel.create", hal.device, ANY, 0, None, None, -1, -1)


def test_files_over_memory(hal: Hal) -> None:
    source = VmBuffer.alias(bytes(range(64)))
    file = hal("ex.file.from_memory", hal.device, ANY, 1, source, 8, 32, 0)
    target, done = hal.buffer(bytes(16)), hal.fence()
    hal("device.queue.read", hal.device, ANY, None, done, file, 4, target, 2, 8, 0)
    assert hal("fence.await", -1, 0, [done]) == StatusCode.OK
    assert content(target) == bytes(2) + bytes(range(12, 20)) + bytes(6)
    for access in (2, 3, 0):
        with pytest.raises(PermissionDeniedError):
            hal("ex.file.from_memory", hal.device, ANY, access, source, 0, 64, 0)
    with pytest.raises(PermissionDeniedError):
        hal("device.queue.write", hal.device, ANY, None, hal.fence(), target, 0, file, 0, 4, 0)
    with pytest.raises(OutOfRangeError):
        hal("ex.file.from_memory", hal.device, ANY, 1, source, 60, 8, 0)
    with pytest.raises(OutOfRangeError):
        hal("device.queue.read", hal.device, ANY, None, hal.fence(), file, 30, target, 0, 8, 0)


def test_low_memory_trims_the_devices(hal: Hal) -> None:
    hal.buffer(bytes(1 << 16))
    hal.session.trim()
    assert hal.allocator.statistics.device.live == 0
    assert getattr(hal.allocator, "kept_bytes") == 0  # noqa: B009 - of the heap allocator only


def test_functions_of_a_closed_session(hal: Hal) -> None:
    hal.session.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        hal("devices.count")
