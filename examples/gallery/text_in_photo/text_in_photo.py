"""Reads the text in a photograph: one model finds lines, one tells which are upside down, one reads them.

    python examples/gallery/prepare.py text_in_photo --target=vmvx
    python examples/gallery/text_in_photo/text_in_photo.py photograph.jpg --save=found.png

The first command makes the modules; the second needs PIL (pip install pillow). The models are PP-OCR's.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import numpy as np
from lines import lines_of
from PIL import Image, ImageDraw, ImageOps

import jitree

HERE = Path(__file__).resolve().parent
FIND, TURN, READ = (640, 384), (192, 48), (480, 48)  # width and height of what each model takes


def fitted(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The image as large as this size lets it be, with grey beside it."""
    return ImageOps.pad(image, size, color=(128, 128, 128), centering=(0, 0))


def decoded(scores: np.ndarray, characters: list[str]) -> str:
    """The likeliest character at each place; the same one twice in a row is one, and 0 is none."""
    return "".join(characters[one] for last, one in pairwise([0, *scores.argmax(-1)]) if one not in (0, last))


def main(options: argparse.Namespace) -> None:
    names = ("find_text", "../text_direction/direction", "read_text")
    modules = (HERE / f"{name}.{options.target}.vmfb" for name in names)
    find, turn, read = jitree.Session(options.device).link(*modules)
    characters = ["", *(HERE / "characters.txt").read_text(encoding="utf-8").split("\n")[:6623], " "]
    photo = fitted(Image.open(options.photo).convert("RGB"), FIND)
    for corners in lines_of(np.asarray(find.main(np.asarray(photo)))[0, 0]):
        width, height = (np.linalg.norm(corners[0] - corners[other]) for other in (3, 1))
        size = (min(round(READ[1] * width / height), READ[0]), READ[1])
        line = photo.transform(size, Image.Transform.QUAD, corners.ravel(), Image.Resampling.BICUBIC)
        narrow = fitted(line.resize((min(line.width, TURN[0]), TURN[1])), TURN)
        if upside_down := np.asarray(turn.main(np.asarray(narrow)))[0, 1] > 0.9:
            line = line.rotate(180)
        print(decoded(np.asarray(read.main(np.asarray(fitted(line, READ))))[0], characters))
        ImageDraw.Draw(photo).polygon([*map(tuple, corners)], outline="orange" if upside_down else "lime")
    if options.save:
        photo.save(options.save)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("photo", type=Path, nargs="?", default=HERE / "sign.jpg")
    for option, default in (("--save", ""), ("--device", "local-task"), ("--target", "vmvx")):
        parser.add_argument(option, default=default)
    main(parser.parse_args())
