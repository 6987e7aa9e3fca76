"""Memory of the caller that programs compute in between in (``iree.abi.transients``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jitree import Array, Session
from jitree.api.function import Function
from jitree.api.module import Module
from jitree.errors import InvalidArgumentError, NotFoundError, OutOfRangeError, StatusError
from jitree.hal.buffer import BufferView
from jitree.hal.fence import Fence
from jitree.types import BY_NAME, ENCODING_DENSE
from tests.api.direct import direct, needs_machine_code
from tests.api.programs import CACHES, PAGED, WORKSPACES
from tests.api.test_large_arrays import python_calls

X = np.arange(64, dtype=np.float32)
Y = 4 * X * X + 2 * X


@pytest.fixture
def module(session: Session) -> Module:
    """On the fast tier machine code makes calls from the third one on."""
    return session.load(CACHES)


def scratch(session: Session, size: int) -> Any:
    return session.empty(size, np.uint8)


@pytest.mark.parametrize("name", ["scratch", "scratch_later"])
def test_one_size_for_all_calls(module: Module, session: Session, name: str) -> None:
    function = module[name]
    size = function.workspace_size((64,))
    assert size == function.workspace_size() == 512
    workspace = scratch(session, size)
    used = []
    for _ in range(5):
        before = session.device_allocator.statistics.device.allocated
        assert np.array_equal(function(X, workspace=workspace), Y)
        used.append(session.device_allocator.statistics.device.allocated - before)
    assert set(used[3:]) == {512}, "the argument and the result"
    assert np.array_equal(function(X, workspace.buffer_view.buffer), Y), "by position, and as a buffer"
    assert function.is_direct == (session.tier == "fast")


@needs_machine_code
def test_machine_code_passes_the_buffer_of_a_device_array() -> None:
    """Python gives it a handle once; memory that is too small, or that the argument lies in, is refused."""
    session = Session("local-sync", tier="fast")
    function = session.load(CACHES).scratch
    x, workspace, small = session.to_device(X), scratch(session, 512), scratch(session, 511)
    direct(function, x, workspace)
    function(x, workspace)
    makers: tuple[Callable[[], Any], ...] = (
        lambda: function(x, workspace), lambda: function(x, workspace=workspace),
    )  # fmt: skip
    for make in makers:
        assert not python_calls(make)
        assert np.array_equal(make(), Y)
    for _ in range(3):
        with pytest.raises(InvalidArgumentError, match="needs 512 bytes but got 511"):
            function(x, workspace=small)


def test_a_size_of_nothing(session: Session) -> None:
    """The compiler says 0, which is not the same as saying nothing."""
    function = session.load(WORKSPACES).no_bytes
    assert function.reflection["iree.abi.transients.size.constant"] == "0"
    assert function.workspace_size() == function.workspace_size((64,)) == 0
    for size in (0, 64) * 3:
        assert np.array_equal(function(X, workspace=scratch(session, size)), X + X)
    assert function.is_direct == (session.tier == "fast")


def test_a_size_that_depends_on_the_shape(module: Module, session: Session) -> None:
    function = module.scratch_of_shape
    sizes = []
    for count in (3, 64, 7, 64):
        x = np.arange(count, dtype=np.float32)
        target = session.empty(count)
        size = function.workspace_size((count,), 1, out=(count,))
        assert size == function.workspace_size(x, 1, target) == function.workspace_size(x, input1=1, out=x)
        result = function(x, 1, out=target, workspace=scratch(session, size))
        assert np.array_equal(result, 4 * x * x + 2 * x)
        with pytest.raises(InvalidArgumentError, match=f"needs {size} bytes but got {size - 1}"):
            function(x, 1, out=target, workspace=scratch(session, size - 1))
        sizes.append(size)
    assert sizes[1] == sizes[3] > sizes[0]


def test_machine_code_knows_sizes_that_calls_were_measured_to_need(session: Session) -> None:
    """Each has its own session: which function is called first does not matter."""
    function = session.load(WORKSPACES).of_shape
    most = scratch(session, function.workspace_size((600,), 0.0))
    counts = [3, 64, 3, 7, *range(300, 600), 64, 3]  # more kinds than are remembered
    for number, count in enumerate(counts):
        x = np.arange(count, dtype=np.float32)
        size = function.workspace_size((count,), 0.0)
        for value in (1.5, number):
            for memory in (most, scratch(session, size)):
                assert np.array_equal(function(x, value, workspace=memory), 2 * x * x + np.float32(value))
            with pytest.raises(InvalidArgumentError, match=f"needs {size} bytes but got {size - 1}"):
                function(x, value, workspace=scratch(session, size - 1))
    assert function.is_direct == (session.tier == "fast")


def test_a_size_that_depends_on_a_number(session: Session) -> None:
    function = session.load(WORKSPACES).of_number
    x = session.to_device(X[:4])
    for rows in (4, 9, 4, 64, 9, 64, 5) * 3:
        size = function.workspace_size(x, rows)
        assert np.array_equal(function(x, rows, workspace=scratch(session, size)), [2 * X[:4]] * rows)
        with pytest.raises(InvalidArgumentError, match=f"needs {size} bytes"):
            function(x, rows, workspace=scratch(session, size - 1))
    assert function.is_direct == (session.tier == "fast")


@needs_machine_code
def test_known_sizes_are_measured_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """And machine code makes the calls then: Python packs none of their arguments."""
    function = session.load(WORKSPACES).of_shape
    memory = scratch(session, function.workspace_size((64,), 0.0))
    for _ in range(4):
        for x in (X, X[:9]):
            function(x, -0.5, workspace=memory)
    packed: list[object] = []
    pack = Function._pack

    def seen(self: Function, arguments: tuple[Any, ...], *rest: Any) -> list[object]:
        packed.append(arguments)
        return pack(self, arguments, *rest)

    monkeypatch.setattr(Function, "_pack", seen)
    for x in (X, X[:9]):
        assert np.array_equal(function(x, -0.5, workspace=memory), 2 * x * x - 0.5)
    assert len(packed) == (0 if session.tier == "fast" else 2)
    function(X[:8], -0.5, workspace=memory)
    assert len(packed) == (1 if session.tier == "fast" else 3)


def test_pairs_of_the_torch_front_end(session: Session) -> None:
    """`decode_bs2`, as sharktank exports it: mutable pages, scratch memory, no declaration."""
    decode = session.load(PAGED).decode_bs2
    assert decode.workspace_size() == 64
    cache, expected = session.to_device(np.zeros((8, 4), np.float32)), np.zeros((8, 4), np.float32)
    workspace = scratch(session, 64)
    for step in range(4):
        token, pages = np.full((2, 4), step + 1, np.float32), np.array([step, step + 4])
        call = decode.submit if step % 2 else decode
        result = call(token, pages, cache, workspace=workspace)
        expected[pages] = token
        assert np.array_equal(result, token @ expected.T @ expected) and np.array_equal(cache, expected)
        with pytest.raises(InvalidArgumentError, match="needs 64 bytes but got 63"):
            call(token, pages, cache, workspace=scratch(session, 63))


def test_calls_that_share_a_workspace_take_turns(module: Module, session: Session) -> None:
    workspace = scratch(session, 512)
    for _ in range(4):
        gate = Fence.create(session.device)
        arguments = [session.to_device(X * factor) for factor in (1, 2)]
        first = type(arguments[0])(arguments[0].buffer_view, session.device, gate)
        results = [module.scratch_later.submit(x, workspace=workspace) for x in (first, arguments[1])]
        assert not results[0].ready and not results[1].ready
        gate.signal()
        assert np.array_equal(results[0], Y) and np.array_equal(results[1], 16 * X * X + 4 * X)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda m, s: m.scratch(X, workspace=scratch(s, 511)), InvalidArgumentError, "needs 512 bytes"),
        (lambda m, s: m.scratch(X, workspace=scratch(s, 0)), InvalidArgumentError, "needs 512 bytes"),
        (lambda m, s: m.scratch(X, workspace=None), InvalidArgumentError, "but got None"),
        (lambda m, s: m.scratch(X, workspace=3), InvalidArgumentError, "workspace: expected memory .* got 3"),
        (lambda m, s: m.scratch(X), InvalidArgumentError, "needs memory .* pass workspace="),
        (lambda m, s: m.scratch(input0=X), InvalidArgumentError, "pass workspace="),
        (lambda m, s: m.scratch(X, X, workspace=X), InvalidArgumentError, "and workspace but passed 2"),
        (lambda m, s: m.into(X, workspace=X), InvalidArgumentError, "takes no memory for what it computes"),
        (lambda m, s: m.scratch_of_shape.workspace_size((3,)), InvalidArgumentError, "input1 is missing"),
        (lambda m, s: m.scratch_of_shape.workspace_size((3,), 1), InvalidArgumentError, "shape of input2"),
        (lambda m, s: m.scratch_of_shape.workspace_size(3, 1), InvalidArgumentError, "expected a shape"),
        (lambda m, s: m.scratch_of_shape.workspace_size((3, 4), 1, (3,)), InvalidArgumentError, "a tensor"),
        (lambda m, s: m.scratch_of_shape.workspace_size((3,), 1, (3,), 4), InvalidArgumentError, "4 shapes"),
        (lambda m, s: m.scratch_of_shape.workspace_size((3,), 1, (3,), input0=(4,)), InvalidArgumentError,
         "'input0' is given twice"),
        (lambda m, s: m.scratch_of_shape.workspace_size(q=(3,)), InvalidArgumentError, "'q' is unknown"),
        (lambda m, s: m.scratch_of_shape.workspace_size((-3,), 1, (3,)), OutOfRangeError, "negative"),
        (lambda m, s: m.scratch_of_shape.workspace_size((1 << 62,), 1, (3,)), OutOfRangeError, "overflows"),
    ],
)  # fmt: skip
def test_what_is_refused(
    module: Module,
    session: Session,
    call: Callable[[Module, Session], Any],
    error: type[StatusError],
    text: str,
) -> None:
    assert module.into.workspace_size() == 0
    for _ in range(4):
        with pytest.raises(error, match=text):
            call(module, session)


def test_memory_that_another_argument_lies_in(module: Module, session: Session) -> None:
    """The program would overwrite it before it has read it."""
    memory = scratch(session, 1024).buffer_view.buffer
    x = Array(
        BufferView(memory.subspan(256, 256), (64,), BY_NAME["f32"].code, ENCODING_DENSE), session.device
    )
    x[:] = X
    for _ in range(4):
        for function in (module.scratch, module.scratch_later):
            for start in (0, 255, 256, 511):
                with pytest.raises(
                    InvalidArgumentError, match="workspace: its memory is also that of input0"
                ):
                    function(x, workspace=memory.subspan(start, 512))
            assert np.array_equal(function(x, workspace=memory.subspan(512, 512)), Y)
        assert np.array_equal(x, X)


def test_storage_is_no_workspace(module: Module, session: Session) -> None:
    x = session.to_device(X)
    size = module.scratch_of_shape.workspace_size(x, 1, x)
    memory = scratch(session, size).buffer_view.buffer
    target = BufferView(memory.subspan(0, x.nbytes), (64,), BY_NAME["f32"].code, ENCODING_DENSE)
    for _ in range(4):
        with pytest.raises(InvalidArgumentError, match="workspace: its memory is also that of input2"):
            module.scratch_of_shape(x, 1, out=Array(target, session.device), workspace=memory)


def test_a_program_that_does_not_say_it(module: Module) -> None:
    function = module.scratch_of_shape
    function.signature = function.signature._replace(measure=None)
    with pytest.raises(NotFoundError, match="does not say how much memory"):
        function.workspace_size((3,), 1, (3,))
