"""How long a call waits for a builder that does not get on: by a clock of the test."""

from __future__ import annotations

import pytest

from jitree.hal.local import interrupts
from jitree.loaders.vmvx import policy as vmvx_policy
from jitree.loaders.vmvx.policy import ALL, LATER, NOTHING, LeftToDo, Running, WaitingPolicy
from tests.loaders.vmvx.test_policy import _Clock, _provider, clock

__all__ = ["clock"]


@pytest.mark.parametrize("is_later", [False, True])
def test_a_call_waits_no_longer_than_twice_what_interpreting_it_takes_for_a_builder_that_does_not_get_on(
    is_later: bool, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three seconds, of which one is over. While it interprets, it has the builder's processors."""
    monkeypatch.setattr(vmvx_policy, "processors", lambda: 2)
    provider, at_begin, rest = _provider(50.0), Running(0, 0, 0, 0, 1), LeftToDo(2.0, 4.0, 2)
    policy, shares = WaitingPolicy(provider, 1), list[float]()
    provider.begun = clock.now
    policy.decide(at_begin, rest, 0.5, 0.0)
    if is_later:
        interrupts.end_call(None)
    policy.spend(0, int(2e9))
    clock.now += 1.0
    for progress, passed in ((0, 5.9), (1, 0.2), (1, 5.9), (1, 0.2), (1, 0.0), (2, 0.0)):
        provider.progress = progress
        clock.now += passed
        policy.decide(at_begin, rest, 0.5, 0.0)
        shares.append(policy.share)
    assert shares == [NOTHING, NOTHING, NOTHING, ALL, ALL, NOTHING]
    provider.estimate, clock.now = 0.1, clock.now + 6.1
    policy.decide(at_begin, rest, 0.5, 0.0)
    assert policy.share == ALL, "also where nobody knows how many lists come"


@pytest.mark.parametrize("estimate", [4.0, 36_000.0])
def test_a_later_call_waits_no_longer_either_whatever_is_estimated(
    estimate: float, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten hours are a machine that was suspended, or a clock that has jumped."""
    monkeypatch.setattr(vmvx_policy, "processors", lambda: 2)
    provider, at_begin, rest = _provider(estimate), Running(0, 0, 0, 0, 1), LeftToDo(0.1, 2.0, 2)
    policy, shares = WaitingPolicy(provider, 1), list[float]()
    provider.begun = clock.now
    policy.decide(at_begin, rest, estimate, 0.0)
    interrupts.end_call(None)
    for progress, passed in ((0, 1.9), (1, 1.0), (1, 1.9), (1, 0.2), (2, 0.0)):
        provider.progress = progress
        clock.now += passed
        policy.decide(at_begin, rest, estimate, 0.0)
        shares.append(policy.share)
    assert shares == [LATER, LATER, LATER, ALL, LATER]


@pytest.mark.parametrize("is_later", [False, True])
def test_a_clock_that_jumps_ends_a_wait_until_the_builder_gets_on(
    is_later: bool, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vmvx_policy, "processors", lambda: 2)
    told = list[float]()
    provider, at_begin, rest = _provider(4.0), Running(0, 0, 0, 0, 1), LeftToDo(20.0, 20.0, 2)
    provider.tell_silence = told.append
    policy, shares = WaitingPolicy(provider, 1), list[float]()
    provider.begun = clock.now
    policy.decide(at_begin, rest, 4.0, 0.0)
    if is_later:
        interrupts.end_call(None)
    for progress, passed in ((0, 1.0), (0, 1e6), (1, 0.0), (1, 1.0)):
        provider.progress = progress
        clock.now += passed
        policy.decide(at_begin, rest, 4.0, 0.0)
        shares.append(policy.share)
    assert shares == [NOTHING, ALL, NOTHING, NOTHING]
    assert told == [1e6 + 1.0]
    policy = WaitingPolicy(provider, 1)
    policy.decide(at_begin, rest, 4.0, 0.0)
    assert policy.share == NOTHING, "what has begun before is seen for the first time"


def test_what_has_been_interpreted_for_as_long_as_a_build_takes_waits(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little each command list has: nothing says how many come."""
    monkeypatch.setattr(vmvx_policy, "processors", lambda: 2)
    policy = WaitingPolicy(_provider(4.0), 1)
    policy.spend(0, int(8e9))
    policy.decide(Running(0, 0, 0, 0, 1), LeftToDo(0.0, 0.001, 2), 4.0, 0.0)
    assert policy.share == NOTHING
