"""``vm.buffer``: contents, ranges, permissions."""

from __future__ import annotations

import struct

import pytest

from jitree.errors import (
    InvalidArgumentError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StatusError,
)
from jitree.regs.buffer import VmBuffer
from tests.assembler import Assembler
from tests.base.rows import each_row
from tests.dispatch.harness import Thing, Vm, load

CONTENTS = bytes(range(0x80, 0x98))

LOADS = {
    "i8.u": ("i", "B", 1), "i8.s": ("i", "b", 1), "i16.u": ("i", "<H", 2), "i16.s": ("i", "<h", 2),
    "i32": ("i", "<i", 4), "i64": ("I", "<q", 8), "f32": ("f", "<f", 4), "f64": ("F", "<d", 8),
}  # fmt: skip
STORES = {
    "i8": ("i", "<i", 1), "i16": ("i", "<i", 2), "i32": ("i", "<i", 4),
    "i64": ("I", "<q", 8), "f32": ("f", "<f", 4), "f64": ("F", "<d", 8),
}  # fmt: skip
SAMPLES = {"i": -0x12345678, "I": -0x123456789ABCDEF0, "f": -1.25, "F": 1e300}


def _module() -> Assembler:
    module = Assembler("b")
    for kind, (letter, _, _) in LOADS.items():
        result = "%i2:3" if letter in "IF" else "%i2"
        module.function(
            f"load.{kind}", f"0rI_{letter}", f"%i2 = buffer.load.{kind} %r0, %i0\nreturn [{result}]"
        )
    for kind, (letter, _, _) in STORES.items():
        module.function(f"store.{kind}", f"0rI{letter}_v", f"buffer.store.{kind} %r0, %i0, %i2\nreturn []")
        module.function(
            f"fill.{kind}", f"0rII{letter}_v", f"buffer.fill.{kind} %r0, %i0, %i2, %i4\nreturn []"
        )
    module.function("alloc", "0Ii_r", "%r0 = buffer.alloc %i0, %i2\nreturn [%R0]")
    module.function("clone", "0rIIi_r", "%r1 = buffer.clone %r0, %i0, %i2, %i4\nreturn [%R1]")
    module.function("length", "0r_I", "%i0 = buffer.length %r0\nreturn [%i0:1]")
    module.function("copy", "0rIrII_v", "buffer.copy %r0, %i0, %r1, %i2, %i4\nreturn []")
    module.function("compare", "0rIrII_i", "%i6 = buffer.compare %r0, %i0, %r1, %i2, %i4\nreturn [%i6]")
    module.function("hash", "0rII_I", "%i4 = buffer.hash %r0, %i0, %i2\nreturn [%i4:5]")
    return module


MODULE = load(_module())


@pytest.fixture
def buffers(vm: Vm) -> Vm:
    return vm.add(MODULE)


def filled(data: bytes = CONTENTS) -> VmBuffer:
    buffer = VmBuffer(len(data))
    buffer.view[:] = data
    return buffer


@pytest.mark.parametrize("kind", LOADS)
def test_load_counts_elements(buffers: Vm, kind: str) -> None:
    _, code, width = LOADS[kind]
    buffer = filled()
    for index in (0, 1, len(CONTENTS) // width - 1):
        assert buffers.call(f"load.{kind}", buffer, index) == [
            struct.unpack_from(code, CONTENTS, index * width)[0]
        ]


@pytest.mark.parametrize("kind", LOADS)
def test_load_outside(buffers: Vm, kind: str) -> None:
    width = LOADS[kind][2]

    def check(offset: int) -> None:
        with pytest.raises(OutOfRangeError):
            buffers.call(f"load.{kind}", filled(), offset)

    first = 24 // width
    each_row({first, max(3, first + 1), 2**61, 2**63 - 1, -1, -(2**63)}, check)


def test_load_of_a_length_that_is_no_multiple(buffers: Vm) -> None:
    with pytest.raises(OutOfRangeError):
        buffers.call("load.i32", filled(b"1234567"), 1)
    assert buffers.call("load.i8.u", filled(b"1234567"), 6) == [ord("7")]


@pytest.mark.parametrize("kind", STORES)
def test_store(buffers: Vm, kind: str) -> None:
    letter, code, width = STORES[kind]
    buffer = filled()
    buffers.call(f"store.{kind}", buffer, 1, SAMPLES[letter])
    expected = CONTENTS[:width] + struct.pack(code, SAMPLES[letter])[:width] + CONTENTS[2 * width :]
    assert bytes(buffer) == expected
    for offset in (24 // width, -1, 2**62):
        with pytest.raises(OutOfRangeError):
            buffers.call(f"store.{kind}", buffer, offset, 0)
    assert bytes(buffer) == expected


@pytest.mark.parametrize("kind", STORES)
def test_fill(buffers: Vm, kind: str) -> None:
    letter, code, width = STORES[kind]
    buffer = filled()
    buffers.call(f"fill.{kind}", buffer, 1, 2, SAMPLES[letter])
    expected = CONTENTS[:width] + struct.pack(code, SAMPLES[letter])[:width] * 2 + CONTENTS[3 * width :]
    assert bytes(buffer) == expected
    buffers.call(f"fill.{kind}", buffer, 24 // width, 0, SAMPLES[letter])
    for offset, count in ((1, 24 // width), (24 // width + 1, 0), (0, -1), (2**62, 2**62)):
        with pytest.raises(OutOfRangeError):
            buffers.call(f"fill.{kind}", buffer, offset, count, 0)
    assert bytes(buffer) == expected


@pytest.mark.parametrize("call", [("store.i8", 0, 1), ("store.f64", 0, 1.0), ("fill.i32", 0, 1, 1)])
def test_read_only_buffers_are_not_written(buffers: Vm, call: tuple[str, int, int]) -> None:
    constant = VmBuffer.alias(CONTENTS)
    with pytest.raises(PermissionDeniedError):
        buffers.call(call[0], constant, *call[1:])
    with pytest.raises(PermissionDeniedError):
        buffers.call("copy", filled(), 0, constant, 0, 1)
    with pytest.raises(OutOfRangeError):  # as iree.runtime, which looks at the source first
        buffers.call("copy", filled(), len(CONTENTS), constant, 0, 1)
    assert buffers.call("load.i8.u", constant, 0) == [0x80]


@pytest.mark.parametrize("length", [0, 1, 63, 4096])
def test_alloc_is_zero_and_aligned(buffers: Vm, length: int) -> None:
    [buffer] = buffers.call("alloc", length, 64)
    assert (buffer.length, bytes(buffer)) == (length, bytes(length))
    assert length == 0 or buffer.address % 64 == 0
    assert buffers.call("length", buffer) == [length]


def test_alignment_must_be_a_power_of_two(buffers: Vm) -> None:
    for alignment in (0, 1, 16, 4096):
        [buffer] = buffers.call("alloc", 10, alignment)
        assert buffer.address % max(alignment, 16) == 0
    for alignment in (3, 17, 48, -1, -(2**31)):
        with pytest.raises(InvalidArgumentError, match="power of two"):
            buffers.call("alloc", 10, alignment)
        with pytest.raises(InvalidArgumentError, match="power of two"):
            buffers.call("clone", filled(), 0, 1, alignment)


@pytest.mark.parametrize("length", [-1, 2**62, -(2**63)])
def test_absurd_lengths(buffers: Vm, length: int) -> None:
    with pytest.raises(ResourceExhaustedError):
        buffers.call("alloc", length, 16)


def test_clone_is_independent_and_writable(buffers: Vm) -> None:
    source = VmBuffer.alias(CONTENTS)
    [copy] = buffers.call("clone", source, 3, 5, 16)
    assert bytes(copy) == CONTENTS[3:8]
    buffers.call("store.i8", copy, 0, 1)
    assert bytes(source) == CONTENTS
    with pytest.raises(OutOfRangeError):
        buffers.call("clone", source, 20, 5, 16)


def test_copy(buffers: Vm) -> None:
    target = filled(bytes(24))
    buffers.call("copy", filled(), 2, target, 10, 7)
    assert bytes(target) == bytes(10) + CONTENTS[2:9] + bytes(7)
    buffers.call("copy", filled(), 24, target, 24, 0)
    for arguments in ((20, 0, 5), (0, 20, 5), (25, 0, 0), (0, 25, 0), (-1, 0, 1), (0, 0, -1)):
        with pytest.raises(OutOfRangeError):
            buffers.call("copy", filled(), arguments[0], target, arguments[1], arguments[2])


@pytest.mark.parametrize(("source", "target"), [(0, 3), (3, 0)])
def test_copy_within_a_buffer_is_like_through_a_temporary(buffers: Vm, source: int, target: int) -> None:
    buffer = filled()
    buffers.call("copy", buffer, source, buffer, target, 10)
    expected = bytearray(CONTENTS)
    expected[target : target + 10] = CONTENTS[source : source + 10]
    assert bytes(buffer) == bytes(expected)


def test_compare(buffers: Vm) -> None:
    other = filled(b"xy" + CONTENTS)
    assert buffers.call("compare", filled(), 0, other, 2, 24) == [1]
    assert buffers.call("compare", filled(), 0, other, 1, 23) == [0]
    assert buffers.call("compare", filled(), 24, other, 26, 0) == [1]
    with pytest.raises(OutOfRangeError):
        buffers.call("compare", filled(), 0, other, 0, 25)


@pytest.mark.parametrize(
    ("length", "expected"),
    # From the reference vectors of SipHash-2-4: key 00…0F, message 00 01 … of each length.
    [(0, 0x726FDB47DD0E0E31), (1, 0x74F839C593DC67FD), (8, 0x93F5F5799A932462), (15, 0xA129CA6149BE45E5)],
)
def test_hash(buffers: Vm, length: int, expected: int) -> None:
    [value] = buffers.call("hash", filled(b"?" + bytes(range(length))), 1, length)
    assert value & (2**64 - 1) == expected


@pytest.mark.parametrize("wrong", [None, Thing()], ids=["null", "another type"])
@pytest.mark.parametrize(
    "call",
    [
        ("load.i32", 0),
        ("store.i64", 0, 0),
        ("fill.i8", 0, 0, 0),
        ("length",),
        ("hash", 0, 0),
        ("clone", 0, 0, 16),
    ],
    ids=lambda call: call[0],
)
def test_what_is_no_buffer_is_refused(buffers: Vm, wrong: Thing | None, call: tuple[str, int]) -> None:
    expected = "null" if wrong is None else "expected vm.buffer but have test.thing"
    with pytest.raises(InvalidArgumentError, match=expected):
        buffers.call(call[0], wrong, *call[1:])
    with pytest.raises(StatusError, match=expected):
        buffers.call("copy", filled(), 0, wrong, 0, 0)


def test_rodata_is_one_buffer_over_the_archive(vm: Vm) -> None:
    module = Assembler("m")
    segment = module.rodata(CONTENTS, external=True)
    other = module.rodata(b"abc")
    text = f"""
        %r0 = const.ref.rodata {segment}
        %r1 = const.ref.rodata {segment}
        %r2 = const.ref.rodata {other}
        %i0 = cmp.eq.ref %r0, %r1
        %i1 = cmp.eq.ref %r0, %r2
        return [%R0, %R2, %i0, %i1]
    """
    vm.add(module.function("f", "0v_rrii", text))
    first, second, same, different = vm.call("f")
    assert (bytes(first), bytes(second), same, different) == (CONTENTS, b"abc", 1, 0)
    assert not first.writable
