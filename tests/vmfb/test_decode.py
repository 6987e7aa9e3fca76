"""Decoded words of each kind of instruction, read back by their documented layout."""

from __future__ import annotations

from typing import Any

import pytest

from jitree.vmfb.program import DecodedModule
from jitree.vmfb.words import TAG_REF_COPY, TAG_REF_MOVE, TAG_VALUE32, TAG_VALUE64
from tests.assembler import Assembler
from tests.vmfb.modules import decode
from tests.vmfb.words_reader import Decoded, read_function

V32, V64, COPY, MOVE = TAG_VALUE32, TAG_VALUE64, TAG_REF_COPY, TAG_REF_MOVE


def sample(text: str, bytecode: int = 17, cconv: str = "0") -> DecodedModule:
    module = Assembler("m", bytecode, globals_size=16, ref_global_count=2)
    module.import_function("x.plain", "0irI_rI").import_function("x.spans", "0iCiID_i")
    module.rodata(b"zero")
    module.rodata(b"one")
    module.type("i32")
    module.type("!vm.buffer")
    module.function("f", cconv, text)
    module.function("callee", "0irI_rI", "return [%R0, %i2]")
    return decode(module)


def instructions(text: str, bytecode: int = 17, cconv: str = "0") -> list[Decoded]:
    program = sample(text, bytecode, cconv)
    return list(read_function(program, program.functions[0]))


def first(text: str, bytecode: int = 17) -> tuple[str, list[Any]]:
    decoded = instructions(f"{text}\nreturn", bytecode)[0]
    return decoded.name, decoded.operands


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("%i3 = add.i32 %i1, %i2", [1, 2, 3]),
        ("%i4:5 = add.i64 %i0:1, %i2:3", [0, 2, 4]),
        ("%i0 = const.i32 -2", [-2, 0]),
        ("%i0:1 = const.i64 -2", [2**64 - 2, 0]),
        ("%i0:1 = const.i64 0x123456789", [0x123456789, 0]),
        ("%i1 = const.f32 1.0", [0x3F800000, 1]),
        ("%i2:3 = const.f64 -1.0", [0xBFF0000000000000, 2]),
        ("%i0 = global.load.i32 12", [12, 0]),
        ("global.store.f64 8, %i2:3", [8, 2]),
        ("%r1 = global.load.ref 1, !vm.buffer", [1, 1, 1]),
        ("%r2 = const.ref.rodata 1", [1, 2]),
        ("list.set.i32 %r3, %i1, %i2", [3, 1, 2]),
        ("%i2 = cmp.eq.ref %r3, %r1", [3, 1, 2]),
        ("buffer.fill.f64 %r0, %i0:1, %i2:3, %i4:5", [0, 0, 2, 4]),
        ("%i5 = switch.i32 %i0, %i1, [%i2, %i3]", [0, 1, [2, 3], 5]),
        ("%i6:7 = switch.f64 %i0, %i2:3, [%i4:5]", [0, 2, [4], 6]),
        ("%i0 = switch.i32 %i0, %i1, []", [0, 1, [], 0]),
        ("%i2 = import.resolved @x.spans", [1, 2]),
        ("list.resize %r0, %i1", [0, 1]),
    ],
)
@pytest.mark.parametrize("bytecode", [15, 16, 17])
def test_operands_in_table_order(text: str, operands: list[Any], bytecode: int) -> None:
    assert first(text, bytecode)[1] == operands


@pytest.mark.parametrize(
    ("text", "from_16", "in_15"),
    [
        ("global.store.ref 0, !vm.buffer, %R1", [0, 1, (1, 1)], [0, 1, (1, 0)]),
        ("global.store.ref 0, !vm.buffer, %r1", [0, 1, (1, 0)], [0, 1, (1, 0)]),
        ("list.set.ref %r0, %i0, %R1", [0, 0, (1, 1)], [0, 0, (1, 0)]),
        (
            "%r3 = select.ref %i0, !vm.buffer, %R1, %r2",
            [0, 1, (1, 1), (2, 0), 3],
            [0, 1, (1, 0), (2, 0), 3],
        ),
        (
            "%r3 = switch.ref %i0, !vm.buffer, %R0, [%R1, %r2]",
            [0, 1, (0, 1), [(1, 1), (2, 0)], 3],
            [0, 1, (0, 0), [(1, 1), (2, 0)], 3],
        ),
        ("%r3 = cast.any.ref %R2, !vm.buffer", [(2, 1), 1, 3], [(2, 0), 1, 3]),
    ],
)
def test_move_flags_of_single_operands_count_from_16(text: str, from_16: list[Any], in_15: list[Any]) -> None:
    assert first(text, 17)[1] == first(text, 16)[1] == from_16
    assert first(text, 15)[1] == in_15


def test_a_flag_on_a_result_is_ignored() -> None:
    assert first("%R3 = const.ref.zero") == ("const.ref.zero", [3])


def test_instructions_of_16() -> None:
    assert first("discard.refs [%R1, %r2]") == ("discard.refs", [[(1, 1), (2, 0)]])
    assert first("%r1 = assign.ref %R2") == ("assign.ref", [(2, 1), 1])


def test_messages() -> None:
    program = sample('trace "one" [%i1, %R2]\nprint "two" []\ntrace "one" []\nreturn', 15)
    decoded = list(read_function(program, program.functions[0]))
    assert [row.operands[1] for row in decoded[:3]] == [[(V32, 1), (MOVE, 2)], [], []]
    assert [program.string(row.operands[0]) for row in decoded[:3]] == ["one", "two", "one"]


def test_fail_falls_through_to_the_next_block() -> None:
    """A status of zero goes on with the bytes after it."""
    decoded = instructions('fail %i1, "bad"\n^a:\nfail %i2, ""')
    assert [row.operands[::2] for row in decoded] == [[1, decoded[1].index], [2, decoded[1].index]]


def test_branches_without_moves() -> None:
    decoded = instructions(
        "br ^b\n^a:\ncond_br %i0, ^a, ^b\n^b:\nbr_table %i1, ^c, [^a, ^b]\n^c:\nyield ^d\n^d:\nbreak ^e\n"
        "^e:\ncond_break %i2, ^f\n^f:\nreturn"
    )
    at = {row.name: row.index for row in decoded}
    assert [(row.name, row.operands) for row in decoded] == [
        ("br.bare", [at["br_table"]]),
        ("cond_br", [0, at["cond_br"], at["br_table"]]),
        ("br_table", [1, at["yield"], [at["cond_br"], at["br_table"]]]),
        ("yield", [at["break"], []]),
        ("break", [at["cond_break"], []]),
        ("cond_break", [2, at["return"], at["return"]]),
        ("return", [[]]),
    ]


def moves(text: str, bytecode: int = 17) -> list[tuple[int, ...]]:
    branch = instructions(f"br ^a {{{text}}}\n^a:\nreturn", bytecode)[0]
    return branch.operands[1] if branch.name == "br" else []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%i0->%i1", [(V32, 0, 1)]),
        ("%i1->%i0, %i2->%i1", [(V32, 1, 0), (V32, 2, 1)]),
        ("%i0->%i2, %i1->%i3", [(V64, 0, 2)]),
        ("%i0->%i2, %i1->%i3, %i4->%i6, %i5->%i7", [(V64, 0, 2), (V64, 4, 6)]),
        ("%i1->%i3, %i2->%i4", [(V32, 1, 3), (V32, 2, 4)]),  # not a pair: odd slots first
        ("%i0->%i3, %i1->%i4", [(V32, 0, 3), (V32, 1, 4)]),
        ("%i1->%i3, %i0->%i2", [(V32, 1, 3), (V32, 0, 2)]),
        ("%i0->%i2, %i1->%i4", [(V32, 0, 2), (V32, 1, 4)]),
        ("%i0->%i2, %r0->%r1, %i1->%i3", [(V32, 0, 2), (COPY, 0, 1), (V32, 1, 3)]),
        ("%i1->%i1", []),
        ("%i2->%i2, %i3->%i3", []),
        ("%R1->%r1, %r2->%R2", []),
        ("%R0->%r1, %r2->%R3", [(MOVE, 0, 1), (COPY, 2, 3)]),
    ],
)
def test_moves_in_order(text: str, expected: list[tuple[int, ...]]) -> None:
    assert moves(text) == expected


def test_moves_of_refs_copy_in_15() -> None:
    assert moves("%R0->%r1", 15) == [(COPY, 0, 1)]
    assert moves("%R0->%r1", 16) == [(MOVE, 0, 1)]


def test_moves_of_conditional_branches_become_stubs_after_the_function() -> None:
    program = sample("cond_br %i0, ^a {%i0->%i1}, ^a\n^a:\nbr_table %i1, ^a, [^b {%i2->%i3}]\n^b:\nreturn")
    function = program.functions[0]
    condition, table, leave, first_stub, second_stub = read_function(program, function)
    assert condition.operands == [0, first_stub.index, table.index]
    assert table.operands == [1, table.index, [second_stub.index]]
    assert (first_stub.name, first_stub.operands) == ("br", [table.index, [(V32, 0, 1)]])
    assert (second_stub.name, second_stub.operands) == ("br", [leave.index, [(V32, 2, 3)]])
    assert second_stub.end == function.end
    # A stub belongs to its branch.
    assert program.location(first_stub.index) == program.location(condition.index) == (0, 1)
    assert program.location(second_stub.index) == program.location(table.index)


@pytest.mark.parametrize(("bytecode", "tag"), [(15, COPY), (16, MOVE), (17, MOVE)])
def test_import_calls(bytecode: int, tag: int) -> None:
    program = sample("[%r3, %i6:7] = call @x.plain [%i1, %R2, %i4:5]\nreturn", bytecode)
    call = next(read_function(program, program.functions[0]))
    assert call.operands == [0, 0, [(V32, 1), (tag, 2), (V64, 4)], [(COPY, 3), (V64, 6)]]
    assert program.site_count == 1
    site = program.site(0)
    assert (site.index, site.word, site.import_ordinal, site.segments) == (0, call.index, 0, None)
    assert site.arguments == ((V32, 1), (tag, 2), (V64, 4))
    assert site.results == ((COPY, 3), (V64, 6))


def test_variadic_calls_are_flattened() -> None:
    program = sample("%i9 = call.variadic @x.spans [0xFFFF, 2] [%i0, %i1, %i2:3, %i4, %i6:7]\nreturn")
    call = next(read_function(program, program.functions[0]))
    arguments = [(V32, 0), (V32, 1), (V64, 2), (V32, 4), (V64, 6)]
    assert call.operands == [0, 1, arguments, [(V32, 9)]]
    assert program.site(0).segments == (0xFFFF, 2)


def test_call_sites_are_numbered_across_functions() -> None:
    module = Assembler("m").import_function("x.y", "0i_v")
    module.function("f", "0i", "%i1 = const.i32 2\ncall @x.y [%i0]\nbr ^a\n^a:\ncall @x.y [%i1]\nreturn")
    module.function("g", "0i", "call.yieldable @x.y [%i0], ^a\n^a:\nreturn")
    program = decode(module)
    calls = [
        (row.operands[0], row.index)
        for function in program.functions
        for row in read_function(program, function)
        if row.name == "call.import"
    ]
    assert calls == [(index, program.site(index).word) for index in range(program.site_count)]
    assert [index for index, _ in calls] == [0, 1, 2]


@pytest.mark.parametrize("bytecode", [15, 17])
def test_internal_calls_name_the_callees_registers(bytecode: int) -> None:
    call = instructions("[%r3, %i6:7] = call @callee [%i1, %R2, %i4:5]\nreturn", bytecode)[0]
    assert call.name == "call.internal"
    assert call.operands == [1, [(V32, 1, 0), (MOVE, 2, 0), (V64, 4, 2)], [(COPY, 3), (V64, 6)]]


def test_internal_calls_follow_the_rule_of_the_modules_compiler() -> None:
    module = Assembler("m", 15).function("f", "0", "%i9 = call @g [%i1, %i2:3, %i4]\nreturn")
    module.function("g", "0iIi_i", "return [%i1]")
    program = decode(module)
    call = next(read_function(program, program.functions[0]))
    assert call.operands[1] == [(V32, 1, 0), (V64, 2, 2), (V32, 4, 1)]
    assert program.functions[1].argument_slots == ((V32, 0), (V64, 2), (V32, 1))


def test_yieldable_calls_branch_to_their_resume_block() -> None:
    decoded = instructions(
        "[%r3, %i6:7] = call.yieldable @callee [%i1, %r2, %i4:5], ^b\n^a:\nreturn\n^b:\n"
        "%i0 = call.variadic.yieldable @x.spans [0xFFFF, 0] [%i1], ^a"
    )
    internal, first_branch, leave, imported, second_branch = decoded
    assert [row.name for row in decoded] == [
        "call.internal", "br.bare", "return", "call.import", "br.bare",
    ]  # fmt: skip
    assert first_branch.operands == [imported.index]
    assert second_branch.operands == [leave.index]
    assert internal.operands[2] == [(COPY, 3), (V64, 6)]
    assert imported.operands == [0, 1, [(V32, 1)], [(V32, 0)]]


@pytest.mark.parametrize("bytecode", [15, 16, 17])
def test_return(bytecode: int) -> None:
    (leave,) = instructions("return [%i1, %i2:3, %R4, %r5]", bytecode, "0_iIrr")
    assert leave.operands == [[(V32, 1), (V64, 2), (MOVE, 4), (COPY, 5)]]


def test_functions_tell_their_frames() -> None:
    program = sample("%i8 = const.i32 1\n%r4 = const.ref.zero\nreturn")
    function, callee = program.functions
    assert (function.value_count, function.ref_count) == (10, 5)
    assert (function.start, function.end) == (0, callee.start)
    assert callee.end == len(program.words)
    assert callee.argument_slots == ((V32, 0), (COPY, 0), (V64, 2))
    assert callee.result_tags == (COPY, V64)
    assert callee.cconv.text == "0irI_rI"


def test_words_are_aligned_32_bit_integers() -> None:
    words = sample("return").words
    assert words.dtype == "int32" and words.flags.c_contiguous and words.ctypes.data % 8 == 0


def test_words_begin_in_the_middle_of_a_cache_line() -> None:
    """Wherever numpy has memory: what a loop costs depends on where its words are."""
    modules = [decode(Assembler("m").function("f", "0v_v", "return")) for _ in range(40)]
    assert {module.words.ctypes.data % 64 for module in modules} == {32}


def test_locations_of_words() -> None:
    program = sample("%i0 = const.i32 1\n%i1:2 = const.i64 2\nbr ^a\n^a:\nreturn".replace("%i1:2", "%i2:3"))
    at = [(row.index, row.end) for row in read_function(program, program.functions[0])]
    assert [program.location(start) for start, _ in at] == [(0, 1), (0, 8), (0, 19), (0, 27)]
    assert [program.location(end - 1) for _, end in at] == [(0, 1), (0, 8), (0, 19), (0, 27)]
    assert program.location(program.functions[1].start) == (1, 1)


def test_bodies_may_lie_at_odd_offsets() -> None:
    """Alignment of lists counts from the start of the function."""
    module = Assembler("m").function("f", "0", ".bytes 00 79 5A 00 00", offset=1, length=4, block_count=1)
    assert decode(module).functions[0].end == 2
