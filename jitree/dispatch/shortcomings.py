"""What host functions found wrong in a call that goes on."""

from __future__ import annotations

from typing import Final

from jitree.errors import FailedPreconditionError

_MOST: Final = 1 << 20
"""Characters that are kept: a program can fail any number of expectations."""


class Shortcomings:
    """Texts, of which the first are kept and all are counted; true when there are any."""

    __slots__ = ("_count", "_size", "_texts")

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._texts: list[str] = []
        self._size = self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, text: str) -> None:
        self._count += 1
        self._size += len(text) + 1
        if self._size <= _MOST:
            self._texts.append(text)

    def take(self) -> FailedPreconditionError:
        """The error that says all of them, of which there are none then."""
        texts, count = self._texts, self._count
        self._clear()
        head = f"{count} expectations" if count > 1 else "an expectation"
        left_out = count - len(texts)
        rest = [f"and {left_out} others"] if left_out else []
        return FailedPreconditionError("\n".join([f"{head} of the program failed:", *texts, *rest]))
