"""Makes the inputs that lie beside the examples: a photograph of a sign, lines of text, a face, speech.

    python examples/gallery/inputs.py

It needs PIL, the fonts of DejaVu, the command ``espeak-ng`` and the package scikit-image.
"""

from __future__ import annotations

import importlib.util
import subprocess
import wave
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

HERE = Path(__file__).resolve().parent
SENTENCES = ("Good morning. This module runs in Python.", "It hears when somebody speaks.")
SIGN = (("Harbour Coffee House", 40), ("fresh cake since 1987", 32), ("open until midnight", 30))
LINES = ("Platform 9", "Exit to the river", "Mind the step", "Room 204")


def font(size: int, name: str = "DejaVuSans-Bold") -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(f"{name}.ttf", size)


def wall(width: int, height: int) -> Image.Image:
    """Rough plaster in uneven light."""
    random = np.random.default_rng(7)
    noise = sum(
        np.asarray(
            Image.fromarray(random.random((height // step + 2, width // step + 2)).astype("f4")).resize(
                (width, height), Image.Resampling.BICUBIC
            )
        )
        * step
        for step in (4, 16, 64)
    )
    light = np.linspace(0.75, 1.0, width)[None, :] * (0.62 + 0.0035 * (noise - noise.mean()))
    return Image.fromarray((light[..., None] * np.array([214, 205, 190])).clip(0, 255).astype("u1"))


def sign() -> Image.Image:
    """Three lines on a board that hangs askew, and a label below it that is upside down."""
    photo = wall(640, 384)
    board = Image.new("RGBA", (540, 220), (38, 66, 74, 255))
    draw = ImageDraw.Draw(board)
    draw.rectangle((8, 8, 531, 211), outline=(226, 214, 170), width=3)
    top = 26
    for text, size in SIGN:
        draw.text((270, top), text, font=font(size), fill=(240, 232, 205), anchor="ma")
        top += size + 24
    label = Image.new("RGBA", (250, 56), (236, 232, 220, 255))
    ImageDraw.Draw(label).text((125, 28), "FRAGILE", font=font(25), fill=(150, 40, 30), anchor="mm")
    for part, angle, place in ((board, 3.5, (45, 18)), (label, 178, (200, 298))):
        turned = part.rotate(angle, Image.Resampling.BICUBIC, expand=True)
        photo.paste(turned, place, turned)
    return photo.filter(ImageFilter.GaussianBlur(0.7))


def line(text: str, turned: bool) -> Image.Image:
    """One line as it is cut out of a photograph, 48 pixels high."""
    image = Image.new("RGB", (192, 48), (224, 219, 205))
    size = 30 if len(text) < 12 else 20
    ImageDraw.Draw(image).text((96, 24), text, font=font(size), fill=(45, 50, 70), anchor="mm")
    return image.rotate(180) if turned else image


def face() -> Image.Image:
    """Eileen Collins, a photograph by NASA that anybody may use; scikit-image has it."""
    package = importlib.util.find_spec("skimage")
    assert package is not None and package.origin is not None, "pip install --no-deps scikit-image"
    photo = Image.open(Path(package.origin).parent / "data" / "astronaut.png").convert("RGB")
    return photo.resize((320, 320), Image.Resampling.LANCZOS)


def speech(path: Path) -> None:
    """Two sentences with silence around them, 16,000 samples a second."""
    silence = np.zeros(11_200, np.int16)
    parts = [silence]
    for sentence in SENTENCES:
        spoken = subprocess.run(
            ["espeak-ng", "-v", "en-us", "-s", "170", "--stdout", sentence], check=True, capture_output=True
        ).stdout
        samples = np.frombuffer(spoken[44:], "<i2").astype("f4")  # 22,050 a second
        times = np.arange(0, len(samples), 22_050 / 16_000)
        parts += [np.interp(times, np.arange(len(samples)), samples).astype(np.int16), silence]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(np.concatenate(parts).tobytes())


def main() -> None:
    sign().save(HERE / "text_in_photo" / "sign.jpg", quality=85)
    face().save(HERE / "faces" / "astronaut.jpg", quality=85)
    lines = Image.new("RGB", (192, 48 * len(LINES)))
    for index, text in enumerate(LINES):
        lines.paste(line(text, turned=index % 2 == 1), (0, 48 * index))
    lines.convert("L").save(HERE / "text_direction" / "lines.pgm")
    speech(HERE / "voice" / "speech.wav")


if __name__ == "__main__":
    main()
