"""Each check of function bodies: what is refused, with which status, and what just passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jitree.errors import StatusCode, StatusError
from jitree.vmfb.archive import Archive
from jitree.vmfb.decode import decode_module
from jitree.vmfb.instructions import read_instructions
from jitree.vmfb.module import read_module, read_signatures
from jitree.vmfb.refusals import require_sound
from jitree.vmfb.schema import ModuleTables
from tests.assembler import Assembler
from tests.base.rows import each_row
from tests.vmfb.modules import decode, read

INVALID_ARGUMENT = StatusCode.INVALID_ARGUMENT
OUT_OF_RANGE = StatusCode.OUT_OF_RANGE


def sample(text: str, bytecode: int = 17, cconv: str = "0", **overrides: int) -> Assembler:
    module = Assembler("m", bytecode, globals_size=12, ref_global_count=2)
    module.import_function("x.plain", "0iI_r").import_function("x.spans", "0iCiD_v")
    module.import_function("x.odd", "0q_v").import_function("x.last", "0CiDi_v")
    module.rodata(b"data")
    module.type("!vm.buffer")
    module.function("f", cconv, text, exported=True, attrs=None, **overrides)
    return module.function("pair", "0I_I", "return [%i0]")


def status(module: Assembler) -> StatusCode:
    """The status of verifying, OK if it passes; decoding must agree."""
    return status_of(read(module))


def verify_module(module: ModuleTables) -> None:
    signatures = read_signatures(module)
    for function in module.functions:
        require_sound(module, function, signatures)


def status_of(module: ModuleTables) -> StatusCode:
    try:
        verify_module(module)
    except StatusError as error:
        with pytest.raises(type(error)):
            decode_module(module)
        assert "function 'f'" in str(error)
        return error.code
    decode_module(module)
    return StatusCode.OK


def hostile() -> Iterator[Assembler]:
    """The modules of the tables below, most of which are refused."""
    for text in (*SOUND, *(text for text, _ in (*OPERANDS, *LATER)), *MOVE_OF_A_KEPT_REF):
        yield sample(f"{text}\nreturn", 17, requirements=3, value_count=3, ref_count=3)
    for cconv, text, _ in RETURNS:
        yield sample(text, cconv=cconv, value_count=3, ref_count=1)
    for code, bytecode, _ in CODES:
        yield sample(f".bytes 79 {code}", bytecode, requirements=3, block_count=1)
    for code in MARKERS:
        yield sample(f".bytes {code}", block_count=1, value_count=1)
    for text in FULL_BODIES:
        yield from (sample(text, length=length) for length in range(1, whole_length(text) + 1))


def test_a_sound_module_passes() -> None:
    assert status(sample("%i0 = const.i32 1\nreturn")) is StatusCode.OK


@pytest.mark.parametrize(
    ("bytecode", "requirements", "expected"),
    [
        (17, 0xF, StatusCode.OK),
        (17, 0x10, INVALID_ARGUMENT),
        (16, 0x4, INVALID_ARGUMENT),
        (15, 0x3, StatusCode.OK),
    ],
)
def test_15_unknown_requirements(bytecode: int, requirements: int, expected: StatusCode) -> None:
    data = sample("return", bytecode, requirements=requirements).build(requirements=0)
    assert status_of(read_module(Archive.open(data))) is expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"value_count": 0x4000}, StatusCode.OK),
        ({"value_count": 0x4001}, StatusCode.RESOURCE_EXHAUSTED),
        ({"value_count": 0x7FFF}, StatusCode.RESOURCE_EXHAUSTED),
        ({"ref_count": 0x2000}, StatusCode.OK),
        ({"ref_count": 0x2001}, StatusCode.RESOURCE_EXHAUSTED),
        ({"ref_count": -1}, StatusCode.OK),
        ({"value_count": 0}, StatusCode.OK),
        ({"value_count": -1}, StatusCode.OK),
    ],
)
def test_16_register_counts_rounded_up(overrides: dict[str, int], expected: StatusCode) -> None:
    assert status(sample("return", 17, "0", **overrides)) is expected


def test_17_convention_version() -> None:
    assert status(sample("return", cconv="1")) is StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("cconv", ["0x", "0CiD", "0i_x"])
def test_18_convention_characters(cconv: str) -> None:
    assert status(sample("return", cconv=cconv, value_count=4)) is INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("cconv", "overrides", "expected"),
    [
        ("0iii", {"value_count": 2}, INVALID_ARGUMENT),
        ("0iii", {"value_count": 3}, StatusCode.OK),
        ("0iiii", {"value_count": 3}, INVALID_ARGUMENT),
        ("0i", {"value_count": 0}, INVALID_ARGUMENT),
        ("0iI", {"value_count": 3}, INVALID_ARGUMENT),
        ("0iI", {"value_count": 4}, StatusCode.OK),
        ("0rr", {"ref_count": 1}, INVALID_ARGUMENT),
        ("0rrrr", {"ref_count": 3}, INVALID_ARGUMENT),
        ("0rrrr", {"ref_count": 4}, StatusCode.OK),
        ("0r", {"ref_count": 0}, INVALID_ARGUMENT),
        ("0r", {"ref_count": -1}, INVALID_ARGUMENT),
    ],
)
def test_19_arguments_fit(cconv: str, overrides: dict[str, int], expected: StatusCode) -> None:
    assert status(sample("return", cconv=cconv, **overrides)) is expected


FULL_BODIES = [
    "%i0 = add.i32 %i0, %i1\nreturn",
    "%i0:1 = const.i64 5\nreturn",
    "%i0 = const.f32 1.0\nreturn",
    "br ^a {%i0->%i1, %i2->%i3}\n^a:\nreturn",
    "cond_br %i0, ^a {%i0->%i1}, ^a\n^a:\nreturn",
    "br_table %i0, ^a, [^a, ^a {%i0->%i1}]\n^a:\nreturn",
    "%r0 = call @x.plain [%i0, %i2:3]\nreturn",
    "call.variadic @x.spans [0xFFFF, 2] [%i0, %i1, %i2]\nreturn",
    "call.variadic.yieldable @x.spans [0xFFFF, 1] [%i0, %i1], ^a\n^a:\nreturn",
    'fail %i0, "message"',
    'trace "message" [%i0, %r0]\nreturn',
    "%r0 = switch.ref %i0, !vm.buffer, %r0, [%r1, %r2]\nreturn",
    "discard.refs [%R0, %R1]\nreturn",
    "%i0 = import.resolved @x.plain\nreturn",
    "cond_break %i0, ^a\n^a:\nreturn",
]


@pytest.mark.parametrize("text", FULL_BODIES)
def test_20_every_truncation_is_refused(text: str) -> None:
    """Cut anywhere, a body ends inside an instruction, or its last block has no exit or a target is gone."""
    whole = whole_length(text)
    for length in range(1, whole):
        found = status(sample(text, length=length))
        assert found in (OUT_OF_RANGE, INVALID_ARGUMENT)
    last = instruction_offsets(text)[-1]
    assert all(status(sample(text, length=cut)) is OUT_OF_RANGE for cut in range(last + 1, whole))


def whole_length(text: str) -> int:
    return read(sample(text)).functions[0].length


def instruction_offsets(text: str) -> list[int]:
    parsed = read(sample(text))
    return [record.offset for record in read_instructions(bytes(parsed.body(parsed.functions[0])), 17)]


CODES = [
    ("DF", 17, INVALID_ARGUMENT),
    ("85 00 00", 15, INVALID_ARGUMENT),
    ("87", 16, INVALID_ARGUMENT),
    ("E0 3F", 17, INVALID_ARGUMENT),
    ("E1 41", 17, INVALID_ARGUMENT),
    ("E2", 17, INVALID_ARGUMENT),
    ("E0", 17, OUT_OF_RANGE),
]


@pytest.mark.parametrize(("code", "bytecode", "expected"), CODES)
def test_21_unknown_opcodes(code: str, bytecode: int, expected: StatusCode) -> None:
    requirements = 3
    assert status(sample(f".bytes 79 {code}", bytecode, requirements=requirements, block_count=1)) is expected


@pytest.mark.parametrize(("instruction", "feature"), [("const.f32.zero", 1), ("const.f64.zero", 2)])
def test_22_extensions_need_their_feature(instruction: str, feature: int) -> None:
    text = f"%i0 = {instruction}\nreturn"
    assert status(sample(text, requirements=feature)) is StatusCode.OK
    assert status(sample(text, requirements=3 - feature)) is INVALID_ARGUMENT


MARKERS = [
    "5A 00 00 00",  # no marker in front
    "79 79 5A 00 00 00",  # a marker inside a block
    "79 0C 00 00 79 5A 00 00 00",
    "79 5A 00 00 5A 00 00",  # no marker after a terminator
    "79 5A 00 00 00",  # one stray byte after the last terminator
]


@pytest.mark.parametrize("code", MARKERS)
def test_23_markers(code: str) -> None:
    assert status(sample(f".bytes {code}", block_count=1, value_count=1)) is INVALID_ARGUMENT


@pytest.mark.parametrize("code", ["79", "79 0C 00 00", "79 5A 00 00 79"])
def test_24_last_block_needs_a_terminator(code: str) -> None:
    blocks = code.count("79")
    assert status(sample(f".bytes {code}", block_count=blocks, value_count=1)) is INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("target", "expected"), [(0xFFFFFE, INVALID_ARGUMENT), (0xFFFFFF, OUT_OF_RANGE), (1 << 31, OUT_OF_RANGE)]
)
def test_25_target_limit(target: int, expected: StatusCode) -> None:
    assert status(sample(f"br {target}")) is expected


@pytest.mark.parametrize("count", [1, 3, 0x7FFF])
def test_26_block_count(count: int) -> None:
    assert status(sample("br ^a\n^a:\nreturn", block_count=count)) is INVALID_ARGUMENT


@pytest.mark.parametrize("text", ["br 1", "cond_br %i0, 0, 2", "br_table %i0, 0, [3]", "yield 5"])
def test_26_targets_are_markers(text: str) -> None:
    assert status(sample(text)) is INVALID_ARGUMENT


OPERANDS = [
    # 27, 28, 29: value operands
    ("%r0 = not.i32 %i0", INVALID_ARGUMENT),
    ("%i0 = not.i32 %r0", INVALID_ARGUMENT),
    ("%i2 = not.i32 %i0", StatusCode.OK),
    ("%i3 = not.i32 %i0", OUT_OF_RANGE),
    ("%i4 = not.i32 %i0", OUT_OF_RANGE),
    ("%i0 = not.i32 %i4", OUT_OF_RANGE),
    ("%i0 = not.i64 %i0", StatusCode.OK),
    ("%i2 = not.i64 %i0", OUT_OF_RANGE),  # its second slot
    ("%i4 = not.i64 %i0", OUT_OF_RANGE),
    ("%i1 = not.i64 %i0", INVALID_ARGUMENT),
    ("%r0 = not.i64 %i0", INVALID_ARGUMENT),
    ("%i4 = const.f32.zero", OUT_OF_RANGE),
    ("%i3 = const.f64.zero", OUT_OF_RANGE),  # its second slot is out of range, before parity is looked at
    # 30: refs
    ("%i0 = const.ref.zero", INVALID_ARGUMENT),
    ("%r2 = const.ref.zero", StatusCode.OK),
    ("%r3 = const.ref.zero", OUT_OF_RANGE),
    ("%r4 = const.ref.zero", OUT_OF_RANGE),
    ("list.resize %i0, %i1", INVALID_ARGUMENT),
    ("list.resize %R4, %i1", OUT_OF_RANGE),
    # 31, 33, 34: ordinals
    ("%r0 = list.alloc 0, %i0", StatusCode.OK),
    ("%r0 = list.alloc 1, %i0", OUT_OF_RANGE),
    ("%r0 = list.alloc 0xFFFFFFFF, %i0", OUT_OF_RANGE),
    ("%r0 = const.ref.rodata 0", StatusCode.OK),
    ("%r0 = const.ref.rodata 1", OUT_OF_RANGE),
    ("%i0 = global.load.i32 8", StatusCode.OK),
    ("%i0 = global.load.i32 9", OUT_OF_RANGE),
    ("%i0 = global.load.i32 2", INVALID_ARGUMENT),
    ("global.store.i32 1, %i0", INVALID_ARGUMENT),
    ("global.store.f32 7, %i0", INVALID_ARGUMENT),
    ("%i0 = global.load.i64 0", StatusCode.OK),
    ("%i0 = global.load.i64 2", INVALID_ARGUMENT),
    ("%i0 = global.load.i64 4", INVALID_ARGUMENT),
    ("global.store.f64 4, %i0", INVALID_ARGUMENT),
    ("%i0 = global.load.i64 5", OUT_OF_RANGE),
    ("%i0 = global.load.i64 8", OUT_OF_RANGE),
    ("global.store.i32 0xFFFFFFFC, %i0", OUT_OF_RANGE),
    ("global.store.f64 0xFFFFFFFC, %i0", OUT_OF_RANGE),
    ("%i0 = global.load.f32 8", StatusCode.OK),
    ("global.store.ref 1, 0, %r0", StatusCode.OK),
    ("global.store.ref 2, 0, %r0", OUT_OF_RANGE),
    # 32: lists and remaps
    ("%i0 = switch.i32 %i0, %i0, [%i1, %i2]", StatusCode.OK),
    ("%i0 = switch.i32 %i0, %i0, [%i1, %i3]", OUT_OF_RANGE),
    ("%i0 = switch.i32 %i0, %i0, [%i1, %i4]", OUT_OF_RANGE),
    ("%i0 = switch.i64 %i0, %i0, [%i2, %i4]", OUT_OF_RANGE),
    ("%i0 = switch.i64 %i0, %i0, [%i1]", INVALID_ARGUMENT),
    ("%i0 = switch.i32 %i0, %i0, [%r0]", INVALID_ARGUMENT),
    ("%r0 = switch.ref %i0, 0, %r0, [%r4]", OUT_OF_RANGE),
    ("%r0 = switch.ref %i0, 1, %r0, [%r1]", OUT_OF_RANGE),
    ('trace "x" [%i2, %r2]', StatusCode.OK),
    ('trace "x" [%i3]', OUT_OF_RANGE),
    ('trace "x" [%r3]', OUT_OF_RANGE),
    ('trace "x" [%i4]', OUT_OF_RANGE),
    ('print "x" [%R4]', OUT_OF_RANGE),
    ("br ^a {%i2->%i0, %r2->%r0}\n^a:", StatusCode.OK),
    ("br ^a {%i0->%i0}\n^a:", StatusCode.OK),
    ("yield ^a\n^a:", StatusCode.OK),
    ("yield 0x1000000\n^a:", OUT_OF_RANGE),
    ("br ^a {%i3->%i0}\n^a:", OUT_OF_RANGE),
    ("br ^a {%r0->%r3}\n^a:", OUT_OF_RANGE),
    ("br ^a {%i4->%i0}\n^a:", OUT_OF_RANGE),
    ("br ^a {%i0->%i4}\n^a:", OUT_OF_RANGE),
    ("br ^a {%r4->%r0}\n^a:", OUT_OF_RANGE),
    ("br ^a {%r0->%r4}\n^a:", OUT_OF_RANGE),
    ("br ^a {%r0->%i0}\n^a:", INVALID_ARGUMENT),
    ("br ^a {%i0->%r0}\n^a:", INVALID_ARGUMENT),
    ("cond_br %i4, ^a, ^a\n^a:", OUT_OF_RANGE),
    ("cond_br %i0, ^a, ^a {%i4->%i0}\n^a:", OUT_OF_RANGE),
    ("br_table %i0, ^a, [^a {%i0->%i4}]\n^a:", OUT_OF_RANGE),
    ("br_table %i4, ^a, [^a]\n^a:", OUT_OF_RANGE),
    # 35, 36: callees
    ("%r0 = call 0x80000000 [%i2, %i0]", StatusCode.OK),
    ("%r0 = call 0x80000004 [%i0, %i2]", INVALID_ARGUMENT),
    ("call @x.odd [%i0]", INVALID_ARGUMENT),
    ("%i0 = import.resolved 0x80000001", StatusCode.OK),
    ("%i0 = import.resolved 0x80000004", INVALID_ARGUMENT),
    ("%i0 = import.resolved 0", INVALID_ARGUMENT),
    ("%i0 = call 1 [%i0]", StatusCode.OK),
    ("%i0 = call 2 [%i0]", INVALID_ARGUMENT),
    ("%i0 = call 0x7FFFFFFF [%i0]", INVALID_ARGUMENT),
    # 37, 38: call lists
    ("%r0 = call @x.plain [%i0]", OUT_OF_RANGE),
    ("%r0 = call @x.plain [%i0, %i2, %i3]", OUT_OF_RANGE),
    ("call @x.plain [%i0, %i2]", OUT_OF_RANGE),
    ("%r0 = call @x.plain [%i0, %i1]", INVALID_ARGUMENT),
    ("%r0 = call @x.plain [%r0, %i2]", INVALID_ARGUMENT),
    ("%i0 = call @x.plain [%i2, %i0]", INVALID_ARGUMENT),
    ("%r4 = call @x.plain [%i0, %i2]", OUT_OF_RANGE),
    ("%r0 = call @x.plain [%i0, %i4]", OUT_OF_RANGE),
    ("%i0 = call @pair [%i1]", INVALID_ARGUMENT),
    ("%i0 = call @pair [%i0, %i1]", OUT_OF_RANGE),
    ("call @pair [%i0]", OUT_OF_RANGE),
    ("%i1 = call @pair [%i0]", INVALID_ARGUMENT),
    ("call @pair [%i2]", OUT_OF_RANGE),
    # 39, 40: variadic calls
    ("call @x.spans [%i0]", INVALID_ARGUMENT),
    ("call.variadic @x.spans [0xFFFF, 0] [%i0]", StatusCode.OK),
    ("call.variadic @x.spans [0xFFFF] [%i0]", OUT_OF_RANGE),
    ("call.variadic @x.spans [0xFFFF, 0, 0] [%i0]", OUT_OF_RANGE),
    ("call.variadic @x.spans [0xFFFF, 2] [%i0, %i1]", OUT_OF_RANGE),
    ("call.variadic @x.spans [0xFFFF, 1] [%i0, %i1, %i2]", OUT_OF_RANGE),
    ("call.variadic @x.spans [0xFFFF, 1] [%i0, %r1]", INVALID_ARGUMENT),
    ("%i0 = call.variadic 1 [1] [%i0]", StatusCode.FAILED_PRECONDITION),
    ("call.variadic 0x80000004 [] []", INVALID_ARGUMENT),
    ("call.variadic @x.spans [0xFFFF, 0xFFFF] [%i0]", OUT_OF_RANGE),
    ("call.variadic @x.last [0xFFFF, 0xFFFF] [%i0]", OUT_OF_RANGE),
]  # fmt: skip


@pytest.mark.parametrize("bytecode", [15, 16, 17])
def test_27_to_40_operands(bytecode: int) -> None:
    def check(row: tuple[str, StatusCode]) -> None:
        text, expected = row
        module = sample(f"{text}\nreturn", bytecode, requirements=3, value_count=3, ref_count=3)
        assert status(module) is expected

    each_row(OPERANDS, check)


LATER = [
    ("discard.refs [%R4]", OUT_OF_RANGE),
    ("discard.refs [%i0]", INVALID_ARGUMENT),
    ("%r4 = assign.ref %r0", OUT_OF_RANGE),
    ("%i0 = call.yieldable @pair [%i0], ^a\n^a:", StatusCode.OK),
    ("%i0 = call.yieldable @pair [%i1], ^a\n^a:", INVALID_ARGUMENT),
    ("%i0 = call.yieldable @pair [%i0], 3\n^a:", INVALID_ARGUMENT),
    ("call.variadic.yieldable @x.spans [0xFFFF, 1] [%i0, %i1], ^a\n^a:", StatusCode.OK),
    ("call.variadic.yieldable @x.spans [0xFFFF] [%i0], ^a\n^a:", OUT_OF_RANGE),
    ("call.variadic.yieldable 1 [1] [%i0], ^a\n^a:", StatusCode.FAILED_PRECONDITION),
]


@pytest.mark.parametrize(("text", "expected"), LATER)
def test_later_instructions(text: str, expected: StatusCode) -> None:
    assert status(sample(f"{text}\nreturn", 17, value_count=3, ref_count=3)) is expected


RETURNS = [
    ("0_iI", "return [%i2, %i0]", StatusCode.OK),
    ("0_iI", "return [%i1, %i2]", OUT_OF_RANGE),
    ("0_iI", "return [%i1]", OUT_OF_RANGE),
    ("0_iI", "return [%i1, %i2, %i3]", OUT_OF_RANGE),
    ("0_iI", "return [%i1, %i1]", INVALID_ARGUMENT),
    ("0_r", "return [%i0]", INVALID_ARGUMENT),
    ("0_i", "return [%R0]", INVALID_ARGUMENT),
    ("0_i", "return [%i4]", OUT_OF_RANGE),
    ("0", "return", StatusCode.OK),
]


@pytest.mark.parametrize(("cconv", "text", "expected"), RETURNS)
def test_37_38_return(cconv: str, text: str, expected: StatusCode) -> None:
    assert status(sample(text, cconv=cconv, value_count=3, ref_count=1)) is expected


def test_frames_are_as_large_as_recorded() -> None:
    text = "%i2 = not.i32 %i0\n%r2 = const.ref.zero\nreturn"
    function = decode(sample(text, value_count=3, ref_count=3)).functions[0]
    assert (function.value_count, function.ref_count) == (4, 3)
    function = decode(sample(text, value_count=33, ref_count=33)).functions[0]
    assert (function.value_count, function.ref_count) == (34, 33)


SOUND = [
    # a comparison that a branch does not carry: more follows it
    "br ^a\n^a:\n%i0 = cmp.lt.i32.s %i1, %i2\n%i0 = not.i32 %i0\ncond_br %i0, ^a, ^b\n^b:",
    *(
        f"br ^b\n^a:\n%i0 = add.i32 %i0, %i1\n{count} = add.i32 %i1, %i1\nbr ^b {{%i0->%i2}}\n"
        "^b:\n%i0 = cmp.lt.i32.s %i1, %i2\ncond_br %i0, ^a, ^c\n^c:"
        for count in ("%i1", "%i0")  # which overwrites the sum that is moved
    ),
]
"""Bodies that pass, and come near to what is run as one."""


@pytest.mark.parametrize("text", SOUND)
def test_bodies_near_superinstructions(text: str) -> None:
    assert status(sample(f"{text}\nreturn", value_count=3)) is StatusCode.OK


MOVE_OF_A_KEPT_REF = [
    "%i0 = buffer.load.i32 %R0, %i0:1",
    "buffer.store.i8 %R0, %i0:1, %i0",
    "%i0 = buffer.length %R0",
    "buffer.copy %r0, %i0:1, %R0, %i0:1, %i0:1",
    "%i0 = buffer.compare %R0, %i0:1, %r0, %i0:1, %i0:1",
    "%r0 = buffer.clone %R0, %i0:1, %i0:1, %i0",
    "buffer.fill.f64 %R0, %i0:1, %i0:1, %i0:1",
    "%i0 = list.size %R0",
    "%r0 = list.get.ref %R0, %i0, 0",
    "list.set.ref %R0, %i0, %r0",
    "%i0 = cmp.nz.ref %R0",
    "%i0 = cmp.eq.ref %r0, %R0",
]


@pytest.mark.parametrize("text", MOVE_OF_A_KEPT_REF)
@pytest.mark.parametrize(
    ("bytecode", "expected"), [(15, StatusCode.OK), (16, INVALID_ARGUMENT), (17, INVALID_ARGUMENT)]
)
def test_refs_that_instructions_cannot_take(text: str, bytecode: int, expected: StatusCode) -> None:
    """Compilers of bytecode 15 mark the last use of every ref."""
    assert status(sample(f"{text}\nreturn", bytecode, value_count=2, ref_count=1)) is expected
    assert status(sample(f"{text.replace('R', 'r')}\nreturn", bytecode, value_count=2)) is StatusCode.OK


def test_a_conditional_break_as_compilers_write_it_is_refused() -> None:
    """They leave out the condition, so the bytes are misread."""
    assert status(sample(".bytes 79 60 08 00 00 00 00 00 79 5A 00 00 00", value_count=1, block_count=2)) in (
        OUT_OF_RANGE,
        INVALID_ARGUMENT,
    )


def test_message_says_where() -> None:
    module = read(sample("%i0 = const.i32 1\n%i0 = add.i32 %i0, %i9\nreturn", value_count=2))
    with pytest.raises(StatusError) as caught:
        verify_module(module)
    assert str(caught.value) == (
        "OUT_OF_RANGE; value register 9 out of range; the function has 2 slots; at byte offset 8 (add.i32); "
        "function 'f'"
    )
