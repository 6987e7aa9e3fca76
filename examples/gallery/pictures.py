"""Draws the pictures of the READMEs from what the examples compute.

    python examples/gallery/pictures.py

It needs PIL, the packages of `similar`, and the modules that ``prepare.py --target=vmvx`` makes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from inputs import font
from PIL import Image, ImageDraw

HERE = Path(__file__).resolve().parent
GREEN, ORANGE, GREY, INK = "#2a9d6f", "#e08a1e", "#b8c0c8", "#20303c"


def printed(example: str, *arguments: str) -> list[str]:
    """What an example prints."""
    command = [sys.executable, str(HERE / example / f"{example}.py"), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE).stdout.splitlines()


def drawing(path: str, width: int, height: int, parts: Sequence[str]) -> None:
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
    )
    ground = '<rect width="100%" height="100%" fill="white"/>'
    (HERE / path).write_text("\n".join([f'{opening} font-size="13">', ground, *parts, "</svg>"]) + "\n")


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def words(x: float, y: float, text: str, colour: str = INK, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'


def voice() -> None:
    sys.path.insert(0, str(HERE / "voice"))
    import voice

    samples = voice.read(HERE / "voice" / "speech.wav")
    spans = [(float(line.split()[3]), float(line.split()[6])) for line in printed("voice")]
    scale = 640 / len(samples)
    parts = [box(a * voice.RATE * scale, 0, (b - a) * voice.RATE * scale, 120, "#d8f0e4") for a, b in spans]
    for x, piece in enumerate(np.array_split(samples, 640)):
        parts.append(box(x, 60 - 80 * piece.max(), 1, 1 + 80 * (piece.max() - piece.min()), INK))
    parts += [words(second * voice.RATE * scale, 136, f"{second} s") for second in range(7)]
    drawing("voice/voice.svg", 640, 144, parts)


def notes() -> None:
    parts = [words(40 + 290 * second, 178, f"{second} s") for second in (0, 0.5, 1, 1.5, 2)]
    played = [line.split() for line in printed("notes")]
    names = list(
        dict.fromkeys(sorted((name for name, *_ in played), key=lambda name: (name[-1], name), reverse=True))
    )
    for name, _, start, _, _, end, _ in played:
        y = 10 + 150 / len(names) * names.index(name)
        parts.append(box(40 + 290 * float(start), y, 290 * (float(end) - float(start)), 22, GREEN))
        parts.append(words(8, y + 16, name))
    drawing("notes/notes.svg", 640, 188, parts)


def similar() -> None:
    parts = []
    for number, line in enumerate(printed("similar")):
        sentence, rest = line[:40].rstrip(), line[40:].strip()
        share, other = rest.split("  ", 1)
        y = 12 + 30 * number
        parts += [words(8, y + 14, sentence), box(300, y, 160 * max(float(share), 0), 20, GREEN)]
        parts += [words(304, y + 15, share), words(470, y + 14, other, ORANGE)]
    drawing("similar/similar.svg", 740, 162, parts)


def writer() -> None:
    lines = printed("writer", "How to", "--seed=7", "--temperature=0.4")
    parts = [box(0, 0, 740, 30 * len(lines) + 14, INK)]
    for number, line in enumerate(lines):
        parts += [words(12, 28 + 30 * number, line[:6], GREY), words(58, 28 + 30 * number, line[6:], "white")]
    drawing("writer/writer.svg", 740, 30 * len(lines) + 14, parts)


def file_type() -> None:
    files = [
        "faces/astronaut.jpg",
        "voice/speech.wav",
        "run.py",
        "similar/similar.mlir",
        "writer/letters.json",
    ]
    parts = []
    for number, line in enumerate(printed("file_type", *files)):
        path, label, share = line.replace(":", "").split()
        y = 12 + 30 * number
        parts += [words(8, y + 15, path), box(190, y, 2.6 * float(share.strip("()%")), 20, GREEN)]
        parts.append(words(460, y + 15, f"{label} {share}"))
    drawing("file_type/file_type.svg", 560, 12 + 30 * len(files), parts)


def text_direction() -> None:
    image = Image.open(HERE / "text_direction" / "lines.pgm").convert("RGB")
    shown = Image.new("RGB", (640, image.height), "white")
    shown.paste(image)
    for number, line in enumerate(printed("text_direction")):
        colour = ORANGE if "upside down" in line else GREEN
        ImageDraw.Draw(shown).text((204, 48 * number + 16), line, fill=colour, font=font(12, "DejaVuSans"))
    shown.save(HERE / "text_direction" / "text_direction.png", optimize=True)


def main() -> None:
    for draw in (voice, notes, similar, writer, file_type, text_direction):
        draw()
    for example in ("text_in_photo", "faces"):
        printed(example, f"--save={HERE / example / 'found.jpg'}")


if __name__ == "__main__":
    main()
