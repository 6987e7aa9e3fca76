"""What is read from PTX texts."""

from __future__ import annotations

import ctypes

import pytest

from jitree.cuda import ptx
from jitree.cuda.device import CudaDevice
from jitree.cuda.ptx import KernelSignature
from tests.cuda.fake import FakeDriver
from tests.cuda.fake_results import CUjitInputType
from tests.cuda.programs import DATA

HEADER = b".version 7.6\n.target sm_80\n.extern .shared .align 16 .b8 memory[];\n"
A = (
    b".visible .entry a(\n\t.param .u64 .ptr .global .align 16 a_0, // a pointer .param .f64\n"
    b"\t.param .u32 a_1\n)\n{ ret; }\n"
)
B = b".visible .entry b\n{ .param .b32 local; ret; }\n"
C = b".entry c(.param .b64 c_0, .param .align 8 .b8 c_1[16]) { ret; }\n"


def test_signatures() -> None:
    assert ptx.signatures(HEADER + A + B + C) == {
        "a": KernelSignature(1, 1),
        "b": KernelSignature(0, 0),
        "c": None,
    }


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("", KernelSignature(0, 0)),
        (".param .u64 p0, .param .u64 p1", KernelSignature(2, 0)),
        (".param .u32 p0, .param .f32 p1", KernelSignature(0, 2)),
        (".param .u64 p0, .param .u16 p1", None),
        (".param .u32 p0, .param .u64 p1", None),
        (".param .u64 p0, .param .pred p1", None),
    ],
)
def test_parameters(parameters: str, expected: KernelSignature | None) -> None:
    assert ptx.signatures(f".visible .entry k({parameters}) {{ ret; }}".encode()) == {"k": expected}


def test_parts_have_the_header_and_one_kernel() -> None:
    parts = ptx.split(HEADER + A + B + C)
    assert parts == [HEADER + A, HEADER + B, HEADER + C]
    assert ptx.split(HEADER + A) == [HEADER + A]


def test_shared_functions_keep_a_text_whole() -> None:
    text = HEADER + A + b".func helper() { ret; }\n" + B
    assert ptx.split(text) == [text]
    in_front = HEADER + b".func helper() { ret; }\n"
    assert ptx.split(in_front + A + B) == [in_front + A, in_front + B]


def test_no_kernel() -> None:
    assert ptx.split(HEADER) == [HEADER] and ptx.signatures(HEADER) == {}


def test_machine_code() -> None:
    assert ptx.is_cubin(b"\x7fELF...") and not ptx.is_cubin((DATA / "mul-3.13.0.fb").read_bytes())


def test_kernels_that_wait() -> None:
    text = HEADER.replace(b"7.6", b"7.0") + A.replace(b"{", b".maxntid 4, 1, 1\n{") + B
    waiting = ptx.with_waits(text)
    assert waiting is not None and waiting.count(b"{\n\tgriddepcontrol.wait;") == 2
    assert b".version 7.8" in waiting and b".target sm_90" in waiting
    assert ptx.signatures(waiting) == ptx.signatures(text)
    newer = ptx.with_waits(text.replace(b"7.0", b"8.10").replace(b"sm_80", b"sm_100a"))
    assert newer is not None and b".version 8.10" in newer and b".target sm_100a" in newer
    assert ptx.with_waits(text + b".entry c();\n") is None and ptx.with_waits(b".version 8.0") is None


def test_what_one_text_became_stays_while_another_is_compiled(device: CudaDevice, fake: FakeDriver) -> None:
    """Of the driver that tests have: threads compile the texts of an image."""
    made = []
    for text in (HEADER + A + b"\0", HEADER + B + b"\0"):
        _, link = fake.cuLinkCreate(0, [], [bytearray()])
        fake.cuLinkAddData(link, CUjitInputType.CU_JIT_INPUT_PTX, text, len(text), b"", 0, [], [])
        made.append((text, link, *fake.cuLinkComplete(link)[1:]))
    others = [ctypes.create_string_buffer(size) for *_, size in made for _ in range(16)]
    for text, link, address, size in made:
        assert ctypes.string_at(address, size).endswith(text), len(others)
        fake.cuLinkDestroy(link)
