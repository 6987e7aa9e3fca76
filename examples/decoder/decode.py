"""Writes on at several texts at once, letter by letter.

    python examples/decoder/decode.py --device=local-task "hello" "one, two" "a b c" "yes" "no" "what?"

Up to four requests share a step (`decode_bs4`); when one ends, the next one takes its slot. Their keys and
values lie in pages of one cache, which the program updates where it lies. The table that says where each
token lies is on the device, too: a request that gets a slot or a page writes its row, `rows[slot] = ...`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import jitree
from jitree.errors import StatusError

sys.path.insert(0, str(Path(__file__).parent))
from model import BATCH, GROUPS, LAYERS, LENGTH, LETTERS, PAGE, PAGES, SIZE, encode, weights

HERE = Path(__file__).parent


class Request:
    """A text that grows."""

    def __init__(self, number: int, text: str, letters: int) -> None:
        self.number = number
        self.tokens = encode(text)
        self.end = min(LENGTH, len(self.tokens) + letters)
        self.position = 0
        """Of the token that goes into the cache next."""
        self.pages: list[int] = []

    def rows(self) -> np.ndarray:
        """Where the tokens lie in the cache."""
        found = np.zeros(LENGTH, np.int32)
        for index, page in enumerate(self.pages):
            found[index * PAGE : (index + 1) * PAGE] = np.arange(page * PAGE, (page + 1) * PAGE)
        return found


class Decoder:
    """The model on a device, and the requests that it works on."""

    def __init__(self, session: jitree.Session) -> None:
        target = "cuda" if session.device.id == "cuda" else "llvm-cpu"
        module = session.load(HERE / f"decoder.{target}.vmfb")
        self.step = module[f"decode_bs{BATCH}"]
        self.weights = [session.to_device(value) for value in weights().values()]
        shape = (PAGES * PAGE, LAYERS, 2, GROUPS * SIZE)
        self.cache = session.to_device(np.zeros(shape, np.float32))
        self.rows = session.to_device(np.zeros((BATCH, LENGTH), np.int32))
        self.free = list(range(PAGES - 1, 0, -1))
        self.slots: list[Request | None] = [None] * BATCH

    def generate(self, texts: list[str], letters: int) -> Iterator[tuple[int, str]]:
        """(number of the text, letter) as soon as it is there."""
        waiting = [Request(number, text, letters) for number, text in enumerate(texts)]
        while waiting or any(self.slots):
            for slot, request in enumerate(self.slots):
                if request is None and waiting:
                    self.slots[slot] = waiting.pop(0)
            yield from self.next_letters()

    def next_letters(self) -> Iterator[tuple[int, str]]:
        """A step: every request puts its next token into the cache. Those that have no more get a letter."""
        tokens, positions, places = np.zeros(BATCH, np.int32), np.zeros(BATCH, np.int32), [0] * BATCH
        for slot, request in enumerate(self.slots):
            if request is None:
                continue
            if request.position == len(request.pages) * PAGE:
                request.pages.append(self.free.pop())
                self.rows[slot] = request.rows()
            tokens[slot], positions[slot] = request.tokens[request.position], request.position
            places[slot] = request.pages[request.position // PAGE] * PAGE + request.position % PAGE
        scores, self.cache = self.step(tokens, positions, self.rows, *places, *self.weights, out=self.cache)
        for slot, request in enumerate(self.slots):
            if request is None:
                continue
            request.position += 1
            if request.position == len(request.tokens):
                request.tokens.append(int(np.argmax(scores[slot])))  # reads one row from the device
                yield request.number, LETTERS[request.tokens[-1]]
            if len(request.tokens) >= request.end:
                self.stop(slot)

    def stop(self, slot: int) -> None:
        """The request of a slot is over: its pages are for others."""
        request = self.slots[slot]
        if request is not None:
            self.free += request.pages
            self.slots[slot] = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("texts", nargs="+", help=f"what to write on at, made of {LETTERS[1:]!r}")
    parser.add_argument("--device", default="local-task", help="local-sync, local-task, cuda …")
    parser.add_argument("--letters", type=int, default=12, help="how many letters to write for each text")
    parser.add_argument("--explain", action="store_true", help="say what a step does with memory")
    options = parser.parse_args()
    for text in options.texts:
        if not text or set(text) - set(LETTERS) or len(text) >= LENGTH:
            print(f"{text!r}: expected 1 to {LENGTH - 1} of the letters {LETTERS[1:]!r}", file=sys.stderr)
            return 1
    try:
        with jitree.Session(options.device) as session:
            decoder = Decoder(session)
            explanation = session.explain(decoder.step) if options.explain else None
            written = list(options.texts)
            for number, letter in decoder.generate(options.texts, options.letters):
                written[number] += letter
                print(f"{number}: {written[number]!r}", flush=True)
            if explanation is not None:
                print(explanation)
    except StatusError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
