"""``io_parameters``: loading, gathering and scattering, their order, and everything that can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from jitree import Session
from jitree.errors import StatusCode, StatusError
from jitree.hal.buffer import Buffer
from jitree.hal.fence import Fence
from jitree.loaders.vmvx.packed import stable_memory
from jitree.modules.io_parameters import IoParametersModule
from jitree.params import ParameterIndex, ParameterProvider, open_providers, splat_entry
from jitree.params.irpa import plan, write
from jitree.regs.buffer import VmBuffer

IMMUTABLE = 0x80C03
DEFAULT_USAGE = 0xC03
DEVICE_LOCAL = 0x30
W = np.arange(64, dtype=np.uint8)
SAVED = np.zeros(16, np.uint8)
PATTERN = bytes(range(1, 17))

Span = tuple[str, int, int, int]
"""key, parameter offset, buffer offset, length"""


class Calls:
    """The functions, called as a program would."""

    def __init__(self, uri: str, providers: list[Any]) -> None:
        self.session = Session(uri, tier="plain")
        self.device = self.session.device
        self.session.append_module(IoParametersModule(providers))

    def __call__(self, name: str, spans: list[Span], *middle: Any, **options: Any) -> Any:
        """``middle``: what stands between the fences and the tables."""
        keys = "".join(span[0] for span in spans)
        table, offset = b"", 0
        for key, *_ in spans:
            table += struct.pack("<II", offset, len(key))
            offset += len(key)
        rows = b"".join(struct.pack("<QQQ", *span[1:]) for span in spans)
        tables = [
            options.get("table", table), options.get("keys", keys.encode()), options.get("rows", rows)
        ]  # fmt: skip
        arguments = [options.get("wait"), options.get("signal"), *middle, *map(VmBuffer.alias, tables)]
        results = self.session.call_direct(f"io_parameters.{name}", self.device, -1, *arguments)
        return results[0] if results else None

    def load(
        self, *spans: Span, scope: str | None = "s", usage: int = IMMUTABLE, **options: Any
    ) -> list[bytes]:
        return [bytes(item.host_view()) for item in self.buffers(*spans, scope=scope, usage=usage, **options)]

    def buffers(
        self, *spans: Span, scope: str | None = "s", usage: int = IMMUTABLE, **options: Any
    ) -> list[Buffer]:
        name = None if scope is None else VmBuffer.alias(scope.encode())
        done = Fence.create(self.device)
        loaded = self("load", list(spans), name, -1, DEVICE_LOCAL, usage, **{"signal": done, **options})
        if "signal" not in options:
            done.wait(10)
        return list(loaded)

    def gather(self, target: Buffer, *spans: Span, **options: Any) -> None:
        done = Fence.create(self.device)
        self("gather", list(spans), VmBuffer.alias(b"s"), target, **{"signal": done, **options})
        if "signal" not in options:
            done.wait(10)

    def scatter(self, source: Buffer, *spans: Span) -> None:
        done = Fence.create(self.device)
        self("scatter", list(spans), source, VmBuffer.alias(b"s"), signal=done)
        done.wait(10)

    def buffer(self, content: bytes) -> Buffer:
        buffer = self.session.device_allocator.allocate(DEVICE_LOCAL, DEFAULT_USAGE, len(content))
        buffer.host_view()[:] = content
        return buffer


@pytest.fixture(params=["local-sync", "local-task"])
def calls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Calls]:
    """Scope s: w of 64 bytes in a file, splats of 1, 4 and 16 bytes, ``saved`` in memory; none: ``plain``."""
    from jitree.params.provider import array_entry

    path = tmp_path / "w.irpa"
    write(path, plan([array_entry("w", W)]))
    index = ParameterIndex()
    index.load(path)
    for size in (1, 4, 16):
        index.add(splat_entry(f"splat{size}", PATTERN[:size], 64))
    index.add(array_entry("saved", SAVED.copy()))
    first = ParameterProvider("s", index)
    calls = Calls(request.param, [first, *open_providers([{"plain": W[:8], "s": {"w": W[::-1]}}])])
    yield calls
    calls.session.close()


def test_load(calls: Calls) -> None:
    assert calls.load(("w", 0, 0, 64), ("saved", 4, 0, 8), ("splat4", 0, 0, 8)) == [
        W.tobytes(), bytes(8), PATTERN[:4] * 2,
    ]  # fmt: skip
    assert calls.load() == []
    assert calls.load(("w", 64, 0, 0)) == [b""]


@pytest.mark.parametrize("scope", [None, ""])
def test_no_scope_and_the_empty_one_are_the_same(calls: Calls, scope: str | None) -> None:
    assert calls.load(("plain", 0, 0, 8), scope=scope) == [W[:8].tobytes()]


def test_files_are_used_in_place(calls: Calls) -> None:
    first, second = calls.buffers(("w", 0, 0, 64), ("w", 0, 0, 64))
    assert first.address == second.address and first.host_view().readonly
    (inner,) = calls.buffers(("w", 7, 0, 5))
    assert bytes(inner.host_view()) == W[7:12].tobytes() and inner.address % 64 == 0


def test_executables_learn_of_parameters_that_stay_as_they_are(calls: Calls) -> None:
    """Those of which the program has a copy are its own."""
    executable = Mock()
    calls.device.executables.add(executable)
    calls.load(("w", 0, 0, 64))
    calls.buffers(("w", 0, 0, 64), usage=DEFAULT_USAGE)
    calls.load(("splat4", 0, 0, 8))
    (told,) = executable.add_constants.call_args_list
    (source,) = told.args
    assert source.readonly and bytes(source) == W.tobytes() and stable_memory(source) is not None


def test_what_a_program_may_change_is_its_own(calls: Calls) -> None:
    (buffer,) = calls.buffers(("w", 0, 0, 64), usage=DEFAULT_USAGE)
    buffer.host_view()[:] = bytes(64)
    assert calls.load(("w", 0, 0, 64)) == [W.tobytes()]


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize(("start", "offset", "length"), [(0, 0, 64), (3, 5, 40), (1, 2, 1), (4, 8, 12)])
def test_splats(calls: Calls, size: int, start: int, offset: int, length: int) -> None:
    target = calls.buffer(b"\xff" * 64)
    calls.gather(target, (f"splat{size}", start, offset, length))
    expected = (PATTERN[:size] * 64)[start : start + length]
    assert bytes(target.host_view()) == b"\xff" * offset + expected + b"\xff" * (64 - offset - length)


def test_gather(calls: Calls) -> None:
    target = calls.buffer(bytes(32))
    calls.gather(target, ("w", 1, 0, 3), ("splat1", 0, 8, 4), ("w", 60, 28, 4), ("w", 0, 0, 0))
    assert bytes(target.host_view()) == b"\1\2\3" + bytes(5) + b"\1\1\1\1" + bytes(16) + b"<=>?"


def test_scatter(calls: Calls) -> None:
    calls.scatter(calls.buffer(b"abcdefgh"), ("saved", 2, 4, 3), ("saved", 15, 0, 1))
    assert calls.load(("saved", 0, 0, 16)) == [b"\0\0efg" + bytes(10) + b"a"]


def test_order_of_the_queue(calls: Calls) -> None:
    """Nothing happens before the wait fence, and the signal fence comes last."""
    wait, done = Fence.create(calls.device), Fence.create(calls.device)
    target = calls.buffer(bytes(4))
    calls.gather(target, ("w", 1, 0, 2), ("splat1", 0, 2, 2), wait=wait, signal=done)
    assert done.query() == StatusCode.DEFERRED and bytes(target.host_view()) == bytes(4)
    wait.signal()
    done.wait(10)
    assert bytes(target.host_view()) == b"\1\2\1\1"


def test_a_failed_wait_fails_the_signal(calls: Calls) -> None:
    wait, done = Fence.create(calls.device), Fence.create(calls.device)
    calls.gather(calls.buffer(bytes(4)), ("w", 0, 0, 2), ("w", 2, 2, 2), wait=wait, signal=done)
    wait.fail(StatusError("stop"))
    with pytest.raises(StatusError, match="stop"):
        done.wait(10)


CODE = StatusCode


@pytest.mark.parametrize(
    ("spans", "options", "code", "says"),
    [
        ([("w", 0, 0, 65)], {}, CODE.OUT_OF_RANGE, "parameter 's::w'.* bytes 0 to 65.* has 64"),
        ([("w", 1 << 63, 0, 1 << 63)], {}, CODE.OUT_OF_RANGE, "parameter 's::w'"),
        ([("splat1", 60, 0, 8)], {}, CODE.OUT_OF_RANGE, "parameter 's::splat1'"),
        ([("w", 0, 8, 8)], {}, CODE.INVALID_ARGUMENT, "parameter 'w' is loaded into a separate buffer"),
        ([("ww", 0, 0, 8)], {}, CODE.NOT_FOUND, r"key 'ww' in scope 's'; searched .*w\.irpa.*nearest: 'w'"),
        ([("w", 0, 0, 8)], {"scope": "t"}, CODE.NOT_FOUND, "scope 't'; there are: 's', <global>, 's'"),
        ([("w", 0, 0, 8)], {"rows": bytes(25)}, CODE.INVALID_ARGUMENT, "spans has 25 bytes"),
        ([("w", 0, 0, 8)], {"table": bytes(7)}, CODE.INVALID_ARGUMENT, "key table of 7 bytes.* it needs 8"),
        ([("w", 0, 0, 8)], {"keys": b""}, CODE.OUT_OF_RANGE, "key 0 is bytes 0 to 1 of key data that has 0"),
    ],
)  # fmt: skip
def test_bad_requests(
    calls: Calls, spans: list[Span], options: dict[str, Any], code: StatusCode, says: str
) -> None:
    """The call fails, and so does the fence that others wait for."""
    done = Fence.create(calls.device)
    with pytest.raises(StatusError, match=says) as failure:
        calls.load(*spans, signal=done, **options)
    assert failure.value.code == code and done.query() == code


def test_bad_targets(calls: Calls) -> None:
    small = calls.buffer(bytes(4))
    for spans, code in (
        ((("saved", 0, 1, 4),), CODE.OUT_OF_RANGE),
        ((("saved", 0, 0, 4), ("w", 0, 0, 4)), CODE.PERMISSION_DENIED),
        ((("splat1", 0, 0, 4),), CODE.FAILED_PRECONDITION),
    ):
        with pytest.raises(StatusError) as failure:
            calls.scatter(small, *spans)
        assert failure.value.code == code
    with pytest.raises(StatusError, match="outside a buffer of 4 bytes"):
        calls.gather(small, ("w", 0, 1, 4))
    assert calls.load(("saved", 0, 0, 16)) == [bytes(16)]


def test_null_arguments(calls: Calls) -> None:
    with pytest.raises(
        StatusError, match=r"ref is null; io_parameters\.gather needs a hal\.buffer as target"
    ):
        calls("gather", [], None, None)


# -- programs ------------------------------------------------------------------------------------------

PROGRAM = Path(__file__).parent.parent / "data" / "programs" / "parameters.vmfb"
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) / 4
BIAS = np.array([10, 20, 30], np.float32)
SCALE = np.array([1, 2, 3], np.float32)
INPUT = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.mark.parametrize("uri", ["local-sync", "local-task"])
def test_a_program_with_parameters(uri: str) -> None:
    saved = np.zeros(5, np.float32)
    bias = BIAS.copy()
    model = {"w": WEIGHT, "b": bias, "saved": saved}
    with Session(uri, parameters=[{"model": model, "scale": SCALE}]) as session:
        program = session.load(PROGRAM)
        assert np.allclose(program.linear(INPUT), (INPUT @ WEIGHT + BIAS) * SCALE)
        program.set_state(SCALE)
        assert np.allclose(program.linear(INPUT), (INPUT @ WEIGHT + SCALE) * SCALE)
        assert np.array_equal(bias, BIAS)
        assert np.array_equal(program.save(BIAS), 2 * BIAS)
        assert saved.tolist() == [0, 20, 40, 60, 0]


def test_a_program_without_its_parameters(tmp_path: Path) -> None:
    with (
        Session("local-sync") as session,
        pytest.raises(
            StatusError, match="no provider of parameters for scope 'model'; there are none at all"
        ),
    ):
        session.load(PROGRAM)
    with Session(
        "local-sync", parameters=[{"model": {"w": WEIGHT[:2], "b": BIAS}, "scale": SCALE}]
    ) as session:
        with pytest.raises(StatusError, match=r"parameter 'model::w'.*has 24"):
            session.load(PROGRAM)
        assert session.modules == {}
