"""The way from compiled functions into Python."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

from jitree.dispatch.native.engine import _steps


class _Machine:
    """Whose instructions fail."""

    def __init__(self) -> None:
        self.state = defaultdict[int, int](int)

    def adopt(self) -> int:
        raise ValueError


def test_what_an_instruction_raises_is_kept() -> None:
    """And the next one is executed."""
    machine = _Machine()
    kept: list[BaseException | None] = [None]
    steps = _steps(cast(Any, lambda: machine), kept)
    next(steps)
    for _ in range(2):
        steps.send(0)
        assert isinstance(kept[0], ValueError)
        kept[0] = None
