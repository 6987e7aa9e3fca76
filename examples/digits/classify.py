"""Classifies a handwritten digit and draws it beside the probabilities.

    python examples/digits/classify.py examples/digits/images/7.pgm

Images are 8x8 PGM files (plain or binary). The module runs on the CPU: compiled machine code on x86-64
and aarch64, portable bytecode elsewhere; ``--module`` takes another one.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from itertools import zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import jitree

HERE = Path(__file__).resolve().parent
SIDE = 8
SHADES = " ░▒▓█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR_WIDTH = 30
PGM_HEADER = re.compile(rb"(P[25])\s+" + rb"(?:#.*\s+)*(\d+)\s+" * 2 + rb"(?:#.*\s+)*(\d+)\s")


def default_module() -> Path:
    native = platform.machine().lower() in ("x86_64", "amd64", "aarch64", "arm64")
    return HERE / ("digits.llvm-cpu.vmfb" if native else "digits.vmvx.vmfb")


def read_pgm(path: Path) -> NDArray[np.float32]:
    """The image as [8, 8] grey levels in 0..1."""
    content = path.read_bytes()
    header = PGM_HEADER.match(content)
    if header is None:
        raise ValueError(f"{path} is not a PGM file")
    width, height, maximum = (int(number) for number in header.groups()[1:])
    if (width, height) != (SIDE, SIDE) or not 0 < maximum < 256:
        raise ValueError(f"{path} has {width}x{height} pixels of 0..{maximum}; {SIDE}x{SIDE} are expected")
    data = content[header.end() :]
    levels = list(data) if header[1] == b"P5" else [int(field) for field in data.split() if field.isdigit()]
    if len(levels) != SIDE * SIDE or max(levels) > maximum:
        raise ValueError(f"{path} is damaged: {len(levels)} pixels up to {max(levels, default=0)}")
    pixels = np.array(levels, np.float32)
    return pixels.reshape(SIDE, SIDE) / np.float32(maximum)


def draw_image(image: NDArray[np.float32]) -> list[str]:
    """One line a row, each pixel two characters of a shade, framed."""
    levels = np.rint(image * (len(SHADES) - 1)).astype(int).tolist()
    rows = ["".join(SHADES[level] * 2 for level in row) for row in levels]
    edge = "─" * (2 * SIDE)
    return [f"┌{edge}┐", *(f"│{row}│" for row in rows), f"└{edge}┘"]


def draw_bar(fraction: float) -> str:
    full, eighths = divmod(round(fraction * BAR_WIDTH * 8), 8)
    return ("█" * full + EIGHTHS[eighths]).rstrip().ljust(BAR_WIDTH)


def draw_probabilities(probabilities: list[float]) -> list[str]:
    return [f"{digit}  {draw_bar(value)} {value:6.1%}" for digit, value in enumerate(probabilities)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Classifies a handwritten digit.")
    parser.add_argument("image", type=Path, help="an 8x8 PGM file")
    parser.add_argument("--module", type=Path, default=default_module())
    parser.add_argument("--device", default="local-sync", help="as in jitree run (default: %(default)s)")
    arguments = parser.parse_args()
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]

    try:
        image = read_pgm(arguments.image)
        classifier = jitree.load(arguments.module, device=arguments.device)
        probabilities = np.asarray(classifier.classify(image)).tolist()
    except (OSError, ValueError, jitree.errors.StatusError) as error:
        sys.exit(f"error: {error}")

    for left, right in zip_longest(draw_image(image), draw_probabilities(probabilities), fillvalue=""):
        print(f"  {left}   {right}")
    best = max(range(10), key=probabilities.__getitem__)
    print(f"\n  This is a {best} ({probabilities[best]:.1%} sure). Ran {arguments.module.name}.")


if __name__ == "__main__":
    main()
