"""The decoder of the example beside, as an engine of steps."""

from __future__ import annotations

import sys
from pathlib import Path

import jitree
from jitree.errors import InvalidArgumentError

sys.path.insert(0, str(Path(__file__).parent.parent / "decoder"))
from decode import Decoder, Request
from model import BATCH, LENGTH, LETTERS


class DecoderEngine:
    """Four texts share a step; each gets a letter of it, as soon as its own have been read."""

    size = BATCH

    def __init__(self, session: jitree.Session) -> None:
        self._decoder = Decoder(session)

    def start(self, slot: int, request: tuple[str, int]) -> None:
        text, letters = request
        if not text or set(text) - set(LETTERS) or len(text) >= LENGTH:
            raise InvalidArgumentError(f"expected 1 to {LENGTH - 1} of the letters {LETTERS[1:]!r}")
        if letters < 1:
            raise InvalidArgumentError(f"letters: expected one or more, not {letters}")
        self._decoder.slots[slot] = Request(slot, text, letters)

    def step(self) -> list[tuple[int, str, bool]]:
        written = list(self._decoder.next_letters())
        return [(slot, letter, self._decoder.slots[slot] is None) for slot, letter in written]

    def stop(self, slot: int) -> None:
        self._decoder.stop(slot)
