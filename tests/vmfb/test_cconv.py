"""Calling conventions and the two rules that place arguments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError
from jitree.vmfb.cconv import Span, ascending_slots, first_fit_slots, parse, register_counts
from jitree.vmfb.words import TAG_REF_COPY, TAG_VALUE64


def test_both_sides_are_read() -> None:
    cconv = parse("0riCiDCiirIID_fI")
    assert cconv.arguments == ("r", "i", Span("i"), Span("iirII"))
    assert cconv.results == "fI"
    assert cconv.argument_tags is None
    assert cconv.result_tags == (0, 1)
    assert str(cconv) == (
        "(!vm.ref<?>, i32, tuple<i32>..., tuple<i32, i32, !vm.ref<?>, i64, i64>...) -> (f32, i64)"
    )


@pytest.mark.parametrize("text", ["", "0", "0v", "0v_v", "0_"])
def test_empty_sides(text: str) -> None:
    cconv = parse(text)
    assert (cconv.arguments, cconv.results, cconv.argument_tags) == ((), "", ())


@pytest.mark.parametrize("text", ["0x", "0i_x", "0Ci", "0CD", "0CCiDD", "0i_CiD", "0i_i_i", "0D"])
def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="calling convention"):
        parse(text)


def test_other_versions_are_unimplemented() -> None:
    with pytest.raises(UnimplementedError):
        parse("1i_i")


def test_tags_of_a_variadic_call() -> None:
    cconv = parse("0rCiID_v")
    assert cconv.flat_tags([0xFFFF, 2], 5) == (2, 0, 1, 0, 1)
    assert cconv.flat_tags([0xFFFF, 0], 1) == (2,)
    with pytest.raises(OutOfRangeError, match="argument list has 4 entries"):
        cconv.flat_tags([0xFFFF, 2], 4)
    with pytest.raises(OutOfRangeError, match="segment list has 1 entries"):
        cconv.flat_tags([2], 4)


def test_huge_segment_counts_are_refused_without_allocating() -> None:
    with pytest.raises(OutOfRangeError):
        parse("0" + "CiiiiiiiiD" * 60000).flat_tags([0xFFFF] * 60000, 4)


def slots(text: str, rule: object) -> list[int]:
    tags = parse(text).argument_tags
    assert callable(rule) and tags is not None
    return [slot for _, slot in rule(tags)]


@pytest.mark.parametrize(
    ("text", "ascending", "first_fit"),
    [
        ("0iIi", [0, 2, 4], [0, 2, 1]),
        ("0iIiiIfrI", [0, 2, 4, 5, 6, 8, 0, 10], [0, 2, 1, 4, 6, 5, 0, 8]),
        ("0rIrf", [0, 0, 1, 2], [0, 0, 1, 2]),
    ],
)
def test_rules_place_arguments(text: str, ascending: list[int], first_fit: list[int]) -> None:
    assert slots(text, ascending_slots) == ascending
    assert slots(text, first_fit_slots) == first_fit


@given(st.text("iIfFr", max_size=20))
def test_no_two_arguments_share_a_register(characters: str) -> None:
    tags = parse("0" + characters).argument_tags
    assert tags is not None
    for rule in (ascending_slots, first_fit_slots):
        placed = rule(tags)
        used: set[tuple[str, int]] = set()
        for tag, slot in placed:
            registers = {("ref" if tag == TAG_REF_COPY else "value", slot)}
            if tag == TAG_VALUE64:
                assert slot % 2 == 0
                registers.add(("value", slot + 1))
            assert not used & registers
            used |= registers
        values, refs = register_counts(placed)
        assert max((slot + 1 for bank, slot in used if bank == "value"), default=0) == values
        assert sum(bank == "ref" for bank, _ in used) == refs
    assert register_counts(first_fit_slots(tags))[0] <= register_counts(ascending_slots(tags))[0]
