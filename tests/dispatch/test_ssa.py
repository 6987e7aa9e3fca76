"""The analysis structure of the native tier: registers to values, ownership of references, loops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.dispatch.native import source as native_source
from jitree.dispatch.native.build import Refusal, build
from jitree.dispatch.native.reading import Move, net_moves
from jitree.dispatch.native.ssa import ARGUMENT, ENTRY_PC, PHI, RESUMED, ZERO, SsaFunction, SsaInstruction
from jitree.vmfb.words import TAG_VALUE32, TAG_VALUE64
from tests.assembler import Assembler
from tests.dispatch.harness import load

SLOTS = 8


def function(cconv: str, text: str, resumed: bool = False) -> SsaFunction:
    """The function that an assembled text is; or what is reachable from its loops' headers."""
    module = load(Assembler("m", globals_size=8, ref_global_count=2).function("f", cconv, text))
    code = native_source.from_program(module.program)
    whole = build(code, 0)
    return build(code, 0, [loop.header.pc for loop in whole.all_loops()]) if resumed else whole


def instructions(found: SsaFunction) -> list[SsaInstruction]:
    return [instruction for block in found.blocks for instruction in block.instructions]


MOVES = st.one_of(
    st.builds(Move, st.just(TAG_VALUE32), st.integers(0, SLOTS - 1), st.integers(0, SLOTS - 1)),
    st.builds(
        lambda one, other: Move(TAG_VALUE64, 2 * one, 2 * other),
        st.integers(0, SLOTS // 2 - 1),
        st.integers(0, SLOTS // 2 - 1),
    ),
)


@given(st.lists(MOVES, max_size=8))
def test_net_moves_at_once_equal_the_list_in_order(moves: list[Move]) -> None:
    in_order = list(range(SLOTS))
    for tag, one, other in moves:
        width = 2 if tag == TAG_VALUE64 else 1
        in_order[other : other + width] = in_order[one : one + width]
    before, at_once = list(range(SLOTS)), list(range(SLOTS))
    for tag, one, other in net_moves(moves):
        width = 2 if tag == TAG_VALUE64 else 1
        at_once[other : other + width] = before[one : one + width]
    assert at_once == in_order


def test_a_cycle_of_pairs_through_a_scratch_slot_is_two_moves_of_pairs() -> None:
    halves = [(0, 4), (2, 0), (4, 2), (1, 4), (3, 1), (4, 3)]
    moves = [Move(TAG_VALUE32, one, other) for one, other in halves]
    pairs = [move for move in net_moves(moves) if move.destination < 4]
    assert pairs == [Move(TAG_VALUE64, 2, 0), Move(TAG_VALUE64, 0, 2)]


LOOP = """
    %i2 = const.i64 1
    br ^head
    ^head:
    %i1 = cmp.lt.i64.s %i4, %i6
    cond_br %i1, ^body, ^end
    ^body:
    %i4 = add.i64 %i4, %i2
    br ^head
    ^end:
    return [%i4:5]
"""


def test_a_counted_loop_has_one_parameter() -> None:
    found = function("0iIII_I", LOOP)
    (loop,) = found.loops
    (counter,) = loop.header.parameters
    first, following = counter.operands
    assert (counter.operation, counter.type) == (PHI, "i64")
    assert first.operation == ARGUMENT
    assert (following.operation, following.operands[0]) == ("add.i64", counter)
    assert len(loop.exits) == 1
    assert loop.header.dominates(loop.exits[0][1])


def nest(depth: int) -> str:
    """So many loops, one inside the other."""
    heads = [f"br ^head{loop}\n^head{loop}:" for loop in range(depth)]
    ends = [f"cond_br %i0, ^head{loop}, ^end{loop}\n^end{loop}:" for loop in reversed(range(depth))]
    return "\n".join([*heads, *ends, "return [%i0]"])


def test_loops_know_those_inside_them() -> None:
    found = function("0i_i", nest(20))
    chain = list(found.all_loops())
    assert len(chain) == 20 and sorted(len(loop.children) for loop in chain) == [0, *[1] * 19]
    assert all(
        child.parent is loop and child.blocks < loop.blocks for loop in chain for child in loop.children
    )
    one, other = (
        nest(1).replace("return [%i0]", ""),
        nest(1).replace("head0", "head1").replace("end0", "end1"),
    )
    first, second = function("0i_i", one + other).loops
    assert first.parent is second.parent is None and not first.blocks & second.blocks


def test_loops_in_hundreds_of_others_are_refused() -> None:
    """What they change is looked at block by block: it took minutes to show a module of 10,000."""
    with pytest.raises(Refusal, match="inside one another"):
        function("0i_i", nest(300))


def test_hundreds_of_loops_one_after_the_other_are_built() -> None:
    """Whose bodies come after all that follows them in reverse postorder."""
    loops = [
        f"br ^head{loop}\n^head{loop}:\ncond_br %i0, ^body{loop}, ^end{loop}\n"
        f"^body{loop}:\nbr ^head{loop}\n^end{loop}:"
        for loop in range(300)
    ]
    assert len(function("0i_i", "\n".join([*loops, "return [%i0]"])).loops) == 300


def test_registers_that_were_never_written_are_zero() -> None:
    found = function("0v_iF", "return [%i0, %i2:3]")
    (returned,) = [item for item in instructions(found) if item.mnemonic == "return"]
    assert [(value.operation, value.type) for value in returned.operands] == [(ZERO, "i32"), (ZERO, "f64")]


@pytest.mark.parametrize(
    ("cconv", "text"),
    [
        ("0i_f", "return [%i0]"),
        ("0I_i", "return [%i0]"),
        ("0ii_I", "return [%i0:1]"),
        ("0i_i", "%i2 = const.f32 1\ncond_br %i0, ^a, ^b\n^a:\n%i2 = const.i32 1\nbr ^b\n^b:\nreturn [%i2]"),
    ],
    ids=["float of an integer", "half of a pair", "pair of halves", "on one of two ways"],
)
def test_registers_read_as_another_type_are_refused(cconv: str, text: str) -> None:
    with pytest.raises(Refusal, match="another type"):
        function(cconv, text)


def test_ownership_of_references() -> None:
    """A copy takes a count, what is overwritten loses one, a move does neither; a return drops the rest."""
    text = "%r2 = assign.ref %r0\n%r2 = assign.ref %R1\ndiscard.refs [%R2]\nreturn [%r0]"
    found = function("0rr_r", text)
    copy, move, discard, returned = instructions(found)[1:]
    first, second = found.arguments
    assert (copy.retained, copy.dropped[0].operation) == ((first,), ZERO)
    assert (move.retained, move.dropped) == ((), (copy.results[0],))
    assert discard.dropped == (move.results[0],)
    assert move.operands == (second,)
    assert returned.retained == (first,)
    assert [value for value in returned.dropped if value.operation != ZERO] == [first]


def test_resuming_reads_the_registers_from_the_frame() -> None:
    found = function("0iIII_I", LOOP, resumed=True)
    entry = found.entry
    assert (entry.pc, entry.terminator.mnemonic) == (ENTRY_PC, "resume")
    assert {value.operation for value in entry.entry.values()} == {RESUMED}
    assert [target.pc for target in entry.successors] == list(entry.terminator.literals)


def test_variables_are_live_until_their_last_use() -> None:
    found = function("0ii_i", "%i2 = add.i32 %i0, %i1\n%i3 = add.i32 %i2, %i0\nreturn [%i3]")
    first, second, returned = instructions(found)[1:]
    live = [{variable.slot for variable in found.variables(item.live)} for item in (first, second, returned)]
    assert live == [{0, 1}, {0, 2}, {3}]


def test_a_source_survives_being_written_down() -> None:
    text = "[%i1] = call @n.get [%i0, %r0]\nreturn [%i1]"
    module = load(Assembler("m").import_function("n.get", "0ir_i").function("f", "0ir_i", text))
    source = native_source.from_program(module.program)
    assert native_source.decode(native_source.encode(source)) == source


def test_calls_of_an_import_with_as_many_arguments_share_their_types() -> None:
    text = """
        call.variadic @n.f [2, 0xFFFF] [%i0, %i1, %r0]
        call.variadic @n.f [1, 0xFFFF] [%i0, %r0]
        call.variadic @n.f [2, 0xFFFF] [%i1, %i1, %r1]
        [%i0] = call @n.g [%i0]
        return []
    """
    program = Assembler("m").import_function("n.f", "0CiDr_v").import_function("n.g", "0i_i")
    sites = native_source.from_program(load(program.function("f", "0iirr_v", text)).program).sites
    assert [site.arguments for site in sites] == [
        ("i32", "i32", "ref"), ("i32", "ref"), ("i32", "i32", "ref"), ("i32",)
    ]  # fmt: skip
    assert sites[0] is sites[2]
