"""Nothing is concluded from a polynomial that may wrap: all tiers end alike, and touch the same memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jitree.dispatch.native.nests.structure import Interval, Polynomial, interval_of, is_narrow
from jitree.dispatch.native.ssa import PHI, Value
from jitree.vmfb.decode import BytecodeModule
from tests.dispatch.harness import compile_here
from tests.dispatch.native.nests.programs import Body, Level, Text, argument, module
from tests.fuzz.nests import LENGTH, TIERS, outcome


def _store(text: Text, place: str) -> None:
    text.store("i32", 0, place, text.constant(7, "i32"))


def _store_where(text: Text, place: str, compare: str, compared: str, limit: int) -> None:
    inside, end = text.label(), text.label()
    condition = text.op(compare, compared, text.constant(limit))
    text.lines += [f"cond_br {condition}, {inside}, {end}", f"{inside}:"]
    _store(text, place)
    text.lines += [f"br {end}", f"{end}:"]


def _negative_below_a_limit(text: Text, at: list[str]) -> None:
    """The third iteration's product is -32, which is less than 4."""
    place = text.op("mul.i64", at[0], text.constant(2**63 - 16))
    _store_where(text, place, "cmp.lt.i64.s", place, 4)


def _limit_whose_multiple_wraps(text: Text, at: list[str]) -> None:
    place = text.op("mul.i64", at[0], text.constant(4))
    _store_where(text, place, "cmp.lt.i64.u", at[0], 2**62 + 1)


def _quotient(operation: str) -> Body:
    def body(text: Text, at: list[str]) -> None:
        number, divisor = text.op("mul.i64", at[0], text.constant(2**61)), text.constant(2**61)
        _store(text, text.op("add.i64", text.op(operation, number, divisor), text.constant(4)))

    return body


def _choice(number: Callable[[Text, str], str]) -> Body:
    def body(text: Text, at: list[str]) -> None:
        condition = text.op("cmp.lt.i64.s", number(text, at[0]), text.constant(0))
        _store(text, text.op("select.i64", condition, text.constant(3), at[0]))

    return body


def _times(text: Text, counter: str) -> str:
    return text.op("mul.i64", counter, text.constant(2**63 - 8))


def _shifted(text: Text, counter: str) -> str:
    return text.op("shl.i64", counter, text.constant(62, "i32"))


def _order_of_sums(text: Text, at: list[str]) -> None:
    """``size < size + 1`` does not hold of the greatest number."""
    size = argument(0)
    condition = text.op("cmp.lt.i64.s", size, text.op("add.i64", size, text.constant(1)))
    _store(text, text.op("select.i64", condition, at[0], text.constant(9)))


def _stride_of_data(text: Text, at: list[str]) -> None:
    """A counter as data, times a size and a number."""
    number = text.op("mul.i64", text.op("mul.i64", at[0], argument(0)), text.constant(3))
    text.store("i64", 0, at[0], number)


_CASES = {
    "negative below a limit": (4, _negative_below_a_limit, 0),
    "limit whose multiple wraps": (LENGTH, _limit_whose_multiple_wraps, 0),
    "div.i64.s": (8, _quotient("div.i64.s"), 0),
    "rem.i64.s": (8, _quotient("rem.i64.s"), 0),
    "choice by a product": (8, _choice(_times), 0),
    "choice by a shift": (8, _choice(_shifted), 0),
    "order of sums": (8, _order_of_sums, 2**63 - 1),
    "order of sums of a size": (8, _order_of_sums, 5),
    "stride of data": (17, _stride_of_data, 5),
}


@pytest.mark.parametrize("name", _CASES)
def test_all_tiers_agree(name: str) -> None:
    count, body, size = _CASES[name]
    loaded = BytecodeModule.load(module([Level(count)], body).build())
    assert compile_here(loaded).refusals == {}
    ends = [outcome(loaded, tier, (size, 0, 0, 0)) for tier in TIERS]
    assert ends[1:] == ends[:1] * 2


def test_the_interval_is_of_unbounded_integers() -> None:
    block = object()
    counter = Value(1, "i64", PHI, [], (), 0, block)  # type: ignore[arg-type]
    product = Polynomial.symbol(counter) * Polynomial.constant(2**62)
    assert interval_of(product, lambda symbol: 3) == Interval(0, 3 * 2**62)
    assert not interval_of(product, lambda symbol: 2).is_signed
    assert interval_of(product, lambda symbol: 1).is_signed
    assert interval_of(product.times(-2), lambda symbol: 1) == Interval(-(2**63), 0)
    assert interval_of(product.times(-2), lambda symbol: 1).is_signed
    assert product.distance(product.times(-3)) == product.times(4), "no coefficient wraps"
    assert not is_narrow(product) and is_narrow(Polynomial.symbol(counter))
