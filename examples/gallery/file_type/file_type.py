"""Tells what files are by their content.

    python examples/gallery/file_type/file_type.py FILE ...
    python examples/gallery/file_type/file_type.py FILE ... --module=file_type.vmvx.vmfb

The model is Google's magika. The module that is shipped multiplies in bf16, with half of the bytes;
``python examples/gallery/prepare.py file_type`` makes the one in f32.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import jitree

HERE = Path(__file__).resolve().parent
NOTHING = 256  # stands where a file has no byte
SIDE = 1024  # bytes of each end that the model sees
FEWEST = 8  # bytes that tell the model something


def features(content: bytes) -> np.ndarray:
    """Both ends of a file, without blanks."""
    first, last = content[:4096].lstrip()[:SIDE], content[-4096:].rstrip()[-SIDE:]
    both = np.full(2 * SIDE, NOTHING, np.int32)
    both[: len(first)] = list(first)
    both[2 * SIDE - len(last) :] = list(last)
    return both[None]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--device", default="local-task")
    parser.add_argument("--module", default="file_type_bf16.llvm-cpu.vmfb", help="one of those in the folder")
    options = parser.parse_args()
    labels = (HERE / "labels.txt").read_text().split()
    model = jitree.load(HERE / options.module, device=options.device)
    for path in options.files:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise SystemExit(f"{path} cannot be read: {error.strerror}") from None
        if len(content.strip()) < FEWEST:
            print(f"{path}: {'too short to tell' if content else 'empty'}")
            continue
        probabilities = np.asarray(model.main(features(content)))[0]
        best = int(probabilities.argmax())
        print(f"{path}: {labels[best]} ({probabilities[best]:.0%})")
