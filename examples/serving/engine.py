"""The decoder of the example beside, as an engine of steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import jitree
from jitree.errors import InvalidArgumentError

sys.path.insert(0, str(Path(__file__).parent.parent / "decoder"))
from decode import Decoder, Request
from model import BATCH, LENGTH, LETTERS

MOST_STOPS = 4


class Asked(NamedTuple):
    """A text to write on at, how many letters at most, and texts before which it ends."""

    text: str
    letters: int
    stops: tuple[str, ...] = ()


class Part(NamedTuple):
    """Letters that are sure to stay, and why they are the last ones."""

    letters: str
    finish_reason: str = ""
    """As OpenAI's API names it: ``length`` or ``stop``; empty while there is more to come."""


class Written:
    """The end of a text that grows. What may be the beginning of a stop is held back."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def add(self, letter: str, is_last: bool) -> Part:
        self._held += letter
        places = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if places:
            return Part(self._held[: min(places)], "stop")
        if is_last:
            return Part(self._held, "length")
        kept = max((_common(self._held, stop) for stop in self._stops), default=0)
        sure, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return Part(sure)


def _common(text: str, stop: str) -> int:
    """How many letters at the end of a text a stop may begin with."""
    return next((size for size in range(len(stop) - 1, 0, -1) if text.endswith(stop[:size])), 0)


class DecoderEngine:
    """Four texts share a step; each gets a letter of it, as soon as its own have been read."""

    size = BATCH

    def __init__(self, session: jitree.Session) -> None:
        self._decoder = Decoder(session)
        self._written = [Written(())] * BATCH

    def start(self, slot: int, asked: Asked) -> None:
        if not asked.text or set(asked.text) - set(LETTERS) or len(asked.text) >= LENGTH:
            raise InvalidArgumentError(f"expected 1 to {LENGTH - 1} of the letters {LETTERS[1:]!r}")
        if asked.letters < 1:
            raise InvalidArgumentError(f"letters: expected one or more, not {asked.letters}")
        if len(asked.stops) > MOST_STOPS or not all(asked.stops):
            raise InvalidArgumentError(f"stop: expected up to {MOST_STOPS} texts of a letter or more")
        self._decoder.slots[slot] = Request(slot, asked.text, asked.letters)
        self._written[slot] = Written(asked.stops)

    def step(self) -> list[tuple[int, Part, bool]]:
        made = []
        for slot, letter in list(self._decoder.next_letters()):
            part = self._written[slot].add(letter, is_last=self._decoder.slots[slot] is None)
            if part.finish_reason:
                self.stop(slot)
            made.append((slot, part, bool(part.finish_reason)))
        return made

    def stop(self, slot: int) -> None:
        self._decoder.stop(slot)
