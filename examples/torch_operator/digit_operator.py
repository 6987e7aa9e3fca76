"""A compiled function as an operator of PyTorch: programs call it as they call torch's own, and torch.compile
keeps it as one node."""

from __future__ import annotations

from pathlib import Path

import torch

import jitree

DIGITS = Path(__file__).resolve().parent.parent / "digits"
_probabilities = jitree.load(DIGITS / "digits.llvm-cpu.vmfb", device="local-sync").classify.to("torch")


@torch.library.custom_op("examples::digit_probabilities", mutates_args=())
def digit_probabilities(image: torch.Tensor) -> torch.Tensor:
    """The probability of each digit, of an image of 8x8 pixels."""
    result: torch.Tensor = _probabilities(image.detach())
    return result


@digit_probabilities.register_fake
def _(image: torch.Tensor) -> torch.Tensor:
    """What torch has to know of the result without calling the function."""
    return image.new_empty(10)


def main() -> int:
    """The digit of the image of a seven."""
    text = (DIGITS / "images" / "7.pgm").read_text().split("\n", 3)[3]
    image = torch.tensor([float(word) for word in text.split()]).reshape(8, 8) / 16
    return int(torch.ops.examples.digit_probabilities(image).argmax())


if __name__ == "__main__":
    print(main())
