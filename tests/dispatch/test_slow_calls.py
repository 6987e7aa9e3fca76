"""The way from compiled functions into Python."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

from jitree.dispatch.native.slow_calls import _steps


class _Machine:
    """Fails, and is interrupted as it is told."""

    def __init__(self) -> None:
        self.kept: list[BaseException] = []
        self.interrupts = [KeyboardInterrupt()]
        self.state = defaultdict[int, int](int)

    def adopt(self) -> int:
        raise ValueError

    @property
    def failure(self) -> BaseException:
        return self.kept[-1]

    @failure.setter
    def failure(self, error: BaseException) -> None:
        if self.interrupts:
            raise self.interrupts.pop()
        self.kept.append(error)


def test_an_interrupt_while_a_failure_is_kept_becomes_the_failure() -> None:
    """And the next instruction is executed."""
    machine = _Machine()
    steps = _steps(cast(Any, lambda: machine))
    next(steps)
    steps.send(0)
    steps.send(0)
    assert [type(error) for error in machine.kept] == [KeyboardInterrupt, ValueError]
