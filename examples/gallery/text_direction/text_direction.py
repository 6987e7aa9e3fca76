"""Tells which lines of text are upside down, by a model in f32 and by the same one in int8.

    python examples/gallery/text_direction/text_direction.py
    python examples/gallery/text_direction/text_direction.py lines.pgm --device=cuda --target=cuda

The image is a binary PGM file with lines of 192 x 48 pixels below each other. The model is the classifier of
PP-OCR; `prepare.py` quantises it by onnxruntime.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import jitree

HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT = 192, 48


def read(path: Path) -> np.ndarray:
    """Grey lines as the model takes them: [line, 48, 192, 3 colours]."""
    try:
        pixels = np.frombuffer(path.read_bytes(), np.uint8)
    except OSError as error:
        raise SystemExit(f"{path} cannot be read: {error.strerror}") from None
    if pixels.size < WIDTH * HEIGHT:
        raise SystemExit(f"{path} is no image of lines, each {WIDTH}x{HEIGHT} grey pixels")
    lines = pixels[-(pixels.size // (WIDTH * HEIGHT)) * WIDTH * HEIGHT :].reshape(-1, HEIGHT, WIDTH, 1)
    return np.repeat(lines, 3, axis=-1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("image", type=Path, nargs="?", default=HERE / "lines.pgm")
    parser.add_argument("--device", default="local-task")
    parser.add_argument("--target", default="vmvx", help="vmvx, llvm-cpu or cuda")
    options = parser.parse_args()
    with jitree.Session(options.device) as session:
        names = ("direction", "direction_int8")
        models = session.link(*(HERE / f"{name}.{options.target}.vmfb" for name in names))
        for number, line in enumerate(read(options.image), 1):
            exact, quantised = (float(np.asarray(model.main(line))[0, 1]) for model in models)
            answer = "upside down" if exact > 0.5 else "upright"
            print(f"line {number} is {answer} (turned: f32 {exact:.1%}, int8 {quantised:.1%})")
