"""Writes headlines, letter by letter, with a network that has read those of Reddit.

    python examples/gallery/writer/writer.py
    python examples/gallery/writer/writer.py "My cat" --temperature=0.3 --seed=4

The model is textgenrnn. One file has the weights for all targets; they are put on the device once.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import jitree

HERE = Path(__file__).resolve().parent
SEEN, END, LONGEST = 40, "<s>", 100  # letters that the network sees, what begins and ends a text, its length


class Writer:
    def __init__(self, device: str, target: str) -> None:
        session = jitree.Session(device)
        self.model = session.load(HERE / f"writer.{target}.vmfb")
        with np.load(HERE / "weights.npz") as file:
            self.weights = [session.to_device(file[name]) for name in sorted(file)]
        self.numbers = json.loads((HERE / "letters.json").read_text(encoding="utf-8"))
        self.letters = {number: letter for letter, number in self.numbers.items()}

    def likely(self, text: list[str]) -> np.ndarray:
        """How likely each letter is to be the next one."""
        seen = [self.numbers.get(letter, 0) for letter in text[-SEEN:]]
        padded = np.array([0] * (SEEN - len(seen)) + seen, np.int32)
        return np.asarray(self.model.main(*self.weights, padded))

    def write(self, beginning: str, temperature: float, seed: int) -> str:
        text, random = [END, *beginning], np.random.default_rng(seed)
        while len(text) <= LONGEST:
            weighed = np.log(self.likely(text).astype(np.float64) + 1e-7) / temperature
            shares = np.exp(weighed - weighed.max())
            letter = self.letters.get(int(random.choice(len(shares), p=shares / shares.sum())), END)
            if letter == END:
                break
            text.append(letter)
        return "".join(text[1:]).strip()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("beginning", nargs="?", default="")
    parser.add_argument("--temperature", type=float, default=0.5, help="lower: likelier letters")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="local-task")
    parser.add_argument("--target", default="vmvx", help="vmvx, llvm-cpu or cuda")
    options = parser.parse_args()
    writer = Writer(options.device, options.target)
    for number in range(3):
        print(writer.write(options.beginning, options.temperature, options.seed + number))
