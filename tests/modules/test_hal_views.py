"""Views that machine code makes: of all element types, encodings, empty shapes and kinds of memory."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jitree import Session
from jitree.codegen import image
from jitree.errors import OutOfRangeError
from jitree.hal.buffer import UNTOLD, Allocation, Buffer, BufferView
from jitree.hal.enums import BufferUsage, MemoryAccess, MemoryType
from jitree.hal.local import executor
from jitree.modules.hal.native import RECIPE
from jitree.modules.hal.native.views import tensor_length
from jitree.regs.buffer import VmBuffer
from jitree.regs.memory import address_of
from jitree.types import ELEMENT_TYPES, LARGEST_LENGTH, element_type
from jitree.vmfb.words import TAG_VALUE64
from tests.modules.hal_programs import BUFFERS, F32, FIRST, ROWS, TEXT, VIEWS, Program, executable

CALLS = range(4)
"""Sites are bound in the first call, machine code is known from the second one on."""
SIZES = st.sampled_from(
    (0, 1, 2, 3, 7, 8, 2**31 - 1, 2**31, 2**32, 2**60, 2**61, 2**62, LARGEST_LENGTH, -1, -(2**63))
)
CODES = st.sampled_from([row.code for row in ELEMENT_TYPES] + [0, 0x01, 0x0C, 0xFF])


@pytest.fixture(scope="module", autouse=True)
def machine_code() -> None:
    image.wait(RECIPE)
    executor.require_native_executor()


@given(code=CODES, shape=st.lists(SIZES, max_size=7))
@example(code=F32, shape=[LARGEST_LENGTH // 4])
@example(code=F32, shape=[LARGEST_LENGTH // 4 + 1])
@example(code=0x10000004, shape=[LARGEST_LENGTH])
@example(code=0x0C, shape=[0, LARGEST_LENGTH])
def test_lengths_are_those_of_tensors(code: int, shape: list[int]) -> None:
    """The rule of machine code, in Python."""
    values = array("q", (0, 0, 0, code, 0, *shape))
    words = array("i")
    for index in range(len(values)):
        words.extend((TAG_VALUE64, 2 * index))
    try:
        expected = element_type(code).byte_length(shape)
    except OutOfRangeError:
        expected = -1
    assert tensor_length(values.buffer_info()[0], words.buffer_info()[0], len(shape)) == expected


def results(session: Session, name: str, view: BufferView) -> list[Any]:
    strings = VmBuffer.alias(b"text"), VmBuffer.alias(b"multiply")
    found: list[Any] = session.call_direct(f"{name}.f", session.device, view, view, executable(), *strings)
    return found


@pytest.mark.parametrize(
    ("code", "encoding", "shape"),
    [
        (F32, 1, (0,)),
        (F32, 1, (3, 0, 2)),
        (F32, 0, (99,)),
        (F32, 2, (16,)),
        (0, 1, (2**40,)),
        (0x40, 1, (8,)),
    ],
)
def test_what_needs_no_python(
    code: int, encoding: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another view takes the place of the one that is looked at: Python sees that one alone."""
    program = Program(ROWS)
    program.call("buffer_view.buffer", FIRST, to=BUFFERS[0])
    program.call("buffer_view.create", BUFFERS[0], 0, 64, code, encoding, [[d] for d in shape], to=VIEWS[0])
    program.call("buffer_view.assert", VIEWS[0], TEXT, code, encoding, [[d] for d in shape])
    for name in ("rank", "element_type", "encoding_type"):
        program.call(f"buffer_view.{name}", VIEWS[0])
    program.call("buffer_view.create", BUFFERS[0], 0, 64, F32, 1, [[16]], to=VIEWS[0])
    made: list[tuple[int, ...]] = []
    make = BufferView.__init__

    def noting(view: BufferView, buffer: Buffer, shape: tuple[int, ...], *kind: int) -> None:
        made.append(shape)
        make(view, buffer, shape, *kind)

    with Session("local-sync", tier="fast") as session:
        session.load(program.module("m"))
        view = session.to_device(np.arange(16, dtype=np.float32)).buffer_view
        expected = results(session, "m", view)[0]
        monkeypatch.setattr(BufferView, "__init__", noting)
        for _ in CALLS:
            assert results(session, "m", view)[0] == expected
    assert made == [(16,)] * len(CALLS)


@pytest.mark.parametrize("tier", ["plain", "fast"])
def test_memory_that_python_has_to_be_asked_for(tier: str) -> None:
    """Machine code has no address of it, and makes buffers of parts all the same."""
    memory = np.arange(64, dtype=np.uint8)
    kind = int(MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE)
    usage = int(BufferUsage.DEFAULT | BufferUsage.MAPPING)
    program = Program(ROWS)
    program.call("buffer_view.buffer", FIRST, to=BUFFERS[0])
    program.call("buffer.subspan", BUFFERS[0], 8, 48, to=BUFFERS[1])
    program.call("buffer.subspan", BUFFERS[1], 4, -1, to=BUFFERS[2])
    program.call("buffer_view.create", BUFFERS[2], 12, 8, F32, 1, [[2]], to=VIEWS[0])
    with Session("local-sync", tier=tier) as session:
        session.load(program.module("m"))
        allocation = Allocation(
            address_of(memory), 64, kind, usage, int(MemoryAccess.ALL),
            address_of(memory), source=memory, place=UNTOLD,
        )  # fmt: skip
        view = BufferView(Buffer(allocation), (16,), F32)
        for _ in CALLS:
            buffers = [item for item in results(session, "m", view)[1:] if item is not None]
            *parts, made = buffers
            assert [bytes(part.host_view()) for part in parts] == [
                bytes(memory), bytes(memory[8:56]), bytes(memory[12:56])
            ]  # fmt: skip
            assert made.shape == (2,) and bytes(made.buffer.host_view()) == bytes(memory[24:32])
            assert made.buffer.allocation is allocation
