"""What interpreting the rest of a list takes, and what machine code saves of it: numbers alone."""

from __future__ import annotations

import numpy as np
import pytest

from jitree.codegen.record import size_of
from jitree.hal.command_layout import List
from jitree.hal.command_list import CommandList
from jitree.loaders.vmvx import policy as vmvx_policy
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION
from jitree.loaders.vmvx.policy import ALL, LATER, NOTHING, LeftToDo, ListedDispatch
from tests.assembler import Assembler
from tests.hal.native_kernels import aligned, whole
from tests.loaders.vmvx.programs import COUNT, load

GROUPS = 60


@pytest.mark.parametrize(
    ("kernel", "build", "is_first", "share"),
    [
        (0.1, 4.0, True, ALL),
        (0.1, 4.0, False, LATER),
        (4.5, 4.0, True, ALL),  # guesses err by more than what a wait would save
        (4.7, 4.0, True, NOTHING),
        (10.0, 4.0, True, NOTHING),
        (10.0, 4.0, False, NOTHING),
        (0.0, 0.0, True, NOTHING),
    ],
)
def test_the_sooner_way_is_taken(kernel: float, build: float, is_first: bool, share: float) -> None:
    assert vmvx_policy.share_of(kernel, build, is_first) == share


def test_a_build_has_had_what_the_program_has_left() -> None:
    assert vmvx_policy.left(4.0, passed=1.0, interpreted=0.25) == 3.25
    assert vmvx_policy.left(4.0, passed=1.0, interpreted=1.5) == 4.0
    assert vmvx_policy.left(4.0, passed=100.0, interpreted=0.0) == 25.0, "it has not ended"


DISPATCHES = [
    ListedDispatch(0, 10, False),
    ListedDispatch(1, 100, True),
    ListedDispatch(2, 7, False),
    ListedDispatch(1, 100, False),
]


def _sizes(*sizes: float) -> vmvx_policy.Sizes:
    return lambda kernel: sizes[kernel]


def test_what_is_left_of_a_list() -> None:
    rest = vmvx_policy.estimate(DISPATCHES, {0: 0.1, 1: 0.04, 2: 0.2}, 50.0, 2)
    assert rest[:3] == pytest.approx((2.0 + 4.0, 2.0 + 1.4 + 4.0, 2))
    assert rest.of_kernels == pytest.approx({1: 6.0, 2: 1.4})
    one = vmvx_policy.estimate(DISPATCHES[1:2], {1: 0.04}, 1.0, 2)
    assert one == LeftToDo(0.04, 0.04, 1, {1: 0.04}), "one is no work for two"
    assert vmvx_policy.estimate([], {}, 0.0, 2) == LeftToDo(0.0, 0.0, 1, {})


@pytest.mark.parametrize(
    ("spent", "again"),
    [
        pytest.param({0: 1.0, 1: 2.0}, {}, id="this list has taken it"),
        pytest.param({0: 1.5, 1: 3.0}, {}, id="estimates err"),
        pytest.param({0: 2.5, 1: 6.5}, {0: 1.5, 1: 4.5}, id="lists before have taken most"),
        pytest.param({3: 0.25}, {3: 0.25}, id="this list has not such a kernel"),
    ],
)
def test_what_lists_before_have_taken_comes_again(spent: dict[int, float], again: dict[int, float]) -> None:
    """Programs with loops submit a list each time around."""
    costs = {0: 0.1, 1: 0.04, 2: 0.2}
    one = vmvx_policy.estimate(DISPATCHES, costs, 50.0, 2)
    rest = vmvx_policy.estimate(DISPATCHES, costs, 50.0, 2, spent)
    kernels = one.of_kernels.keys() | again.keys()
    assert rest.of_kernels == pytest.approx(
        {kernel: one.of_kernels.get(kernel, 0.0) + again.get(kernel, 0.0) for kernel in kernels}
    )
    assert rest.everything == pytest.approx(one.everything + sum(again.values()))
    assert rest.kernel == pytest.approx(one.kernel + again.get(1, 0.0)) and rest.threads == one.threads
    assert vmvx_policy.estimate([], {}, 0.0, 2, spent) == LeftToDo(0.0, 0.0, 1, {}), "of what is known"


def test_a_kernel_that_has_not_run_has_the_pace_of_those_that_have() -> None:
    guessed = vmvx_policy._guessed(DISPATCHES, {0: 0.1, 1: 0.04}, _sizes(1000.0, 400.0, 5000.0))
    assert guessed == pytest.approx({0: 0.1, 1: 0.04, 2: 0.5})
    first = vmvx_policy._guessed(DISPATCHES, {}, _sizes(1e6, 4e8, 0.0))
    assert first == pytest.approx({0: 1e-3, 1: 0.4, 2: 0.0}), "none has run yet"


def test_what_saves_most_is_first() -> None:
    rest = LeftToDo(0.0, 5.0, 2, {3: 0.2, 0: 4.0, 1: 0.8})
    gains = vmvx_policy.saved(rest, [0.5, 0.1, 9.0, 0.3])
    assert list(gains) == [0, 1, 3]
    assert gains == pytest.approx({0: 1.5, 1: 0.3, 3: -0.2})


def test_indirect_dispatches_and_those_of_other_executables_are_left_out() -> None:
    block = aligned(np.zeros(GROUPS, np.int32))
    program = Assembler("own").function("f", ENTRY_CONVENTION, COUNT)
    own, other = load(program, "fast"), load(program, "fast")
    commands = CommandList()
    for executable in (other, own, own):
        commands.dispatch(executable, 0, (GROUPS, 1, 1), [], [whole(block)])
    record = vmvx_policy._words(commands.address(), size_of(List))
    found = vmvx_policy._dispatches(record, 1, 0, own._entries, ())
    assert found == [ListedDispatch(0, GROUPS, True), ListedDispatch(0, GROUPS, False)]
    assert vmvx_policy._dispatches(record, 1, 0, own._entries, {0}) == []
