"""The way from compiled functions into Python."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

import pytest

from jitree.dispatch.native.engine import _steps


class _Machine:
    """Whose instructions fail."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.state = defaultdict[int, int](int)
        self._kind = kind

    def adopt(self) -> int:
        raise self._kind


@pytest.mark.parametrize("kind", [ValueError, GeneratorExit])
def test_what_an_instruction_raises_is_kept(kind: type[BaseException]) -> None:
    """And the next one is executed."""
    machine = _Machine(kind)
    kept: list[BaseException | None] = [None]
    steps = _steps(cast(Any, lambda: machine), kept)
    next(steps)
    for _ in range(2):
        steps.send(0)
        assert isinstance(kept[0], kind)
        kept[0] = None
