"""Nothing is concluded from a polynomial that may wrap: all tiers end alike, and touch the same memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.dispatch.native.nests.structure import (
    Interval,
    Polynomial,
    interval_of,
    is_narrow,
    known_interval,
)
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


_OPERATIONS: dict[str, Callable[..., int]] = {
    "add.i64": lambda a, b: a + b,
    "sub.i64": lambda a, b: a - b,
    "mul.i64": lambda a, b: a * b,
    "fma.i64": lambda a, b, c: a * b + c,
    "min.i64.s": min,
    "max.i64.s": max,
    "and.i64": lambda a, b: a & b,
}
_SIGNED = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), -1, 0, 1, 64, 2**62, 2**63 - 1])
_NUMBERS = itertools.count(1)


def _value(operation: str, operands: tuple[Value, ...] = (), literals: tuple[int, ...] = ()) -> Value:
    return Value(next(_NUMBERS), "i64", operation, list(operands), literals, 0, object())  # type: ignore[arg-type]


def _constant(number: int) -> tuple[Value, int]:
    return _value("const.i64", (), (number,)), number


def _made(operation: str, operands: list[tuple[Value, int]]) -> tuple[Value, int]:
    chosen = operands[: 3 if operation == "fma.i64" else 2]
    number = _OPERATIONS[operation](*(number for _, number in chosen))
    return _value(operation, tuple(value for value, _ in chosen)), (number + 2**63) % 2**64 - 2**63


_LEAVES = (
    _SIGNED.map(_constant)
    | _SIGNED.map(lambda number: (_value("argument", (), (0,)), number))
    | st.integers(-(2**31), 2**31 - 1).map(lambda number: (_value("ext.i32.i64.s"), number))
    | st.integers(0, 2**32 - 1).map(lambda number: (_value("ext.i32.i64.u"), number))
)
_COMPUTED = st.recursive(
    _LEAVES,
    lambda inner: st.builds(_made, st.sampled_from([*_OPERATIONS]), st.lists(inner, min_size=3, max_size=3)),
    max_leaves=12,
)


@given(_COMPUTED, st.integers(-(2**20), 2**20))
def test_what_is_known_of_a_number_holds_modulo_2_64(made: tuple[Value, int], factor: int) -> None:
    value, number = made
    known = known_interval(Polynomial.symbol(value) * Polynomial.constant(factor))
    assert known.low <= factor * number <= known.high


def test_a_workgroups_share_of_rows_is_known() -> None:
    """As compilers write it: ``min(144 - 64 * workgroup, 64)``. Without the extension it is any number."""
    for kind, expected in {"ext.i32.i64.s": True, "argument": False}.items():
        rest = _value("fma.i64", (_value(kind, (), (0,)), _constant(-64)[0], _constant(144)[0]))
        rows = _value("min.i64.s", (rest, _constant(64)[0]))
        known = known_interval(Polynomial.symbol(rows) * Polynomial.constant(3136))
        assert known.is_signed is expected and known.high == 64 * 3136


def test_a_long_chain_is_any_number() -> None:
    value = _value("ext.i32.i64.s")
    for _ in range(100_000):
        value = _value("add.i64", (value, value))
    assert not known_interval(Polynomial.symbol(value) * Polynomial.constant(2)).is_signed
