"""Random nests: when the guard holds, memory is what the instructions leave; when an access is out of range,
it does not hold; when everything is in range and apart, it does."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jitree.dispatch.native.nests import writer
from jitree.dispatch.native.ssa import SsaFunction, Value
from tests.dispatch.native.nests.harness import Bytes, Compiled
from tests.dispatch.native.nests.interpreter import TooLong, interpret
from tests.dispatch.native.nests.programs import (
    Bound,
    Level,
    Text,
    argument,
    digits,
    merged,
    only_nest,
    program,
)

LARGEST = 3000
"""Iterations."""
ROOM = 6000
"""Elements of a buffer that everything fits into."""


@dataclass(frozen=True)
class Index:
    """Of an access: base and a factor for each loop."""

    base: int
    factors: tuple[int, ...]

    def reach(self, counts: tuple[int, ...]) -> tuple[int, int]:
        """Least and greatest element."""
        spans = [f * (n - 1) for f, n in zip(self.factors, counts, strict=True)]
        return self.base + sum(min(s, 0) for s in spans), self.base + sum(max(s, 0) for s in spans)


@dataclass(frozen=True)
class Case:
    counts: tuple[int, ...]
    dynamic: tuple[bool, ...]
    """Whose bounds are arguments."""
    store: Index
    loads: tuple[Index, ...]
    merged: bool
    """All loops are one."""
    accumulates: bool
    shared: int
    """Elements from the stored buffer to the first load's, in one allocation; 0: buffers of their own."""
    shortened: int
    """Bytes that the first load's buffer lacks after its last element."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    depth = draw(st.integers(1, 3))
    count = st.one_of(st.integers(1, 5), st.sampled_from([16, 17, 33, 50]))
    counts = tuple(draw(count) for _ in range(depth))
    while prod(counts) > LARGEST:
        counts = tuple(max(1, n // 2) for n in counts)
    accumulates = draw(st.booleans())
    stored = draw(st.permutations(range(depth)))
    stored = stored[: draw(st.integers(0, depth))] if accumulates else stored
    factors, step = [0] * depth, draw(st.sampled_from([1, 1, 1, 2]))
    for loop in stored:  # injective: rows of rows, with gaps
        factors[loop] = step
        step *= counts[loop] + draw(st.sampled_from([0, 0, 1, 3]))
    factor = st.one_of(st.sampled_from([0, 1]), st.integers(-3, 40))
    loads = tuple(
        Index(draw(st.integers(130, 140)), tuple(draw(factor) for _ in counts))
        for _ in range(draw(st.integers(1, 2)))
    )
    return Case(
        counts,
        tuple(draw(st.booleans()) for _ in counts),
        Index(draw(st.integers(0, 3)), tuple(factors)),
        loads,
        draw(st.booleans()),
        accumulates,
        draw(st.sampled_from([0, 0, 0, 1, 5, 40, 2000])),
        draw(st.sampled_from([0, 0, 1, 4])),
    )


ROWS_THAT_TILES_DO_NOT_SHARE = Case(
    counts=(1, 1, 1),
    dynamic=(True, True, True),
    store=Index(0, (1, 1, 0)),
    loads=(Index(130, (-1, 1, 1)), Index(130, (1, 0, 0))),
    merged=False,
    accumulates=True,
    shared=0,
    shortened=0,
)
"""What lies along the reduction moves with both parallel loops, so it is no panel's; the other is shared."""


def _function(case: Case) -> SsaFunction:
    bounds: list[Bound] = [
        argument(number) if dynamic else count
        for number, (count, dynamic) in enumerate(zip(case.counts, case.dynamic, strict=True))
    ]

    def body(text: Text, at: list[str]) -> None:
        if case.merged:
            at = digits(text, at[0], bounds)

        def index(of: Index) -> str:
            return text.index(of.base, *zip(at, of.factors, strict=True))

        values = [text.load("f32", number + 1, index(load)) for number, load in enumerate(case.loads)]
        result = text.op("mul.f32", values[0], values[-1])
        out = index(case.store)
        if case.accumulates:
            result = text.op("sub.f32", text.load("f32", 0, out), result)
        text.store("f32", 0, out, result)

    levels = [Level(merged(bounds))] if case.merged else [Level(bound) for bound in bounds]
    return program(levels, body)


def _buffers(case: Case) -> list[Bytes]:
    """What the references are: the stored buffer, then the loaded ones."""
    numbers = np.random.default_rng(7).normal(0, 1, 3 * ROOM).astype(np.float32)
    memory = numbers.view(np.uint8)
    used = 4 * (case.loads[0].reach(case.counts)[1] + 1)
    first = memory[4 * case.shared :] if case.shared else memory[4 * ROOM :]
    return [memory[: 4 * ROOM], first[: max(used - case.shortened, 0)], memory[8 * ROOM :]]


@pytest.mark.parametrize("work", [writer.WORK, 7], ids=["in one", "in parts"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(case=ROWS_THAT_TILES_DO_NOT_SHARE)
@given(case=cases())
def test_random_nests(work: int, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """With looks after signals in between, or without."""
    monkeypatch.setattr(writer, "WORK", work)
    function = _function(case)
    nest = only_nest(function)
    refs = [value for value in function.arguments if value.type == "ref"]
    numbers = [value for value in function.arguments if value.type == "i64"]
    sizes = [count if dynamic else 0 for count, dynamic in zip(case.counts, case.dynamic, strict=True)]

    def values(buffers: list[Bytes]) -> dict[Value, float | Bytes]:
        named: dict[Value, float | Bytes] = dict(zip(numbers, [*sizes, 0, 0, 0, 0], strict=False))
        return named | dict(zip(refs, [*buffers, buffers[-1]], strict=False))

    expected, actual = _buffers(case), _buffers(case)
    left = Compiled(nest).run(values(actual))
    try:
        right: int | None = interpret(nest.loop, values(expected), 20 * LARGEST)
    except IndexError:
        right = None
    except TooLong:
        raise AssertionError("a test nest runs too long") from None
    if left is None:
        for one, other in zip(actual, _buffers(case), strict=True):
            assert (one == other).all()
        assert right is None or case.shared or case.loads[0].reach(case.counts)[0] < 0
    else:
        assert left == right
        for one, other in zip(actual, expected, strict=True):
            assert (one.view(np.uint32) == other.view(np.uint32)).all()
