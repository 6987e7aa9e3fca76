"""Writes down the notes that are played in a recording.

    python examples/gallery/notes/notes.py
    python examples/gallery/notes/notes.py recording.wav --device=cuda --target=cuda

Without a recording it plucks a tune. WAV files have 22,050 samples a second of 16 bits; two seconds count.
The model is Spotify's basic-pitch.
"""

from __future__ import annotations

import argparse
import wave
from pathlib import Path

import numpy as np

import jitree

HERE = Path(__file__).resolve().parent
RATE, WINDOW, FRAME = 22_050, 43_844, 256  # samples: of a second, a call, a frame of the result
NAMES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")
TUNE = ((60, 0.1), (64, 0.5), (67, 0.9), (72, 1.3), (48, 1.3))  # keys as MIDI numbers them, seconds


def pluck(key: int, start: float) -> np.ndarray:
    """A string that fades; the high tones in it fade sooner."""
    times = np.arange(WINDOW) / RATE - start
    turns = 440 * 2 ** ((key - 69) / 12) * times
    tones = [np.sin(2 * np.pi * n * turns) * np.exp(-2 * n * times) / n for n in range(1, 8)]
    return np.where(times > 0, sum(tones) * (1 - np.exp(-60 * times.clip(0))), 0) / 6


def read(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        samples = np.frombuffer(file.readframes(WINDOW), "<i2")[:: file.getnchannels()] / 32768
    return np.pad(samples, (0, WINDOW - len(samples)))


def notes(sounding: np.ndarray, begins: np.ndarray) -> list[tuple[int, float, float]]:
    """Keys with their beginning and end in seconds: where one begins, and as long as it sounds."""
    found = []
    for frame, key in zip(*np.nonzero(begins > 0.5), strict=True):
        end = frame + 3 + np.argmin([*(sounding[frame + 3 :, key] > 0.3), False])
        if begins[frame, key] == begins[max(frame - 3, 0) : frame + 4, key].max() and end > frame + 11:
            found.append((int(key) + 21, frame * FRAME / RATE, end * FRAME / RATE))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("recording", type=Path, nargs="?")
    parser.add_argument("--device", default="local-task")
    parser.add_argument("--target", default="vmvx", help="vmvx, llvm-cpu or cuda")
    options = parser.parse_args()
    sound = read(options.recording) if options.recording else sum(pluck(*note) for note in TUNE)
    model = jitree.load(HERE / f"notes.{options.target}.vmfb", device=options.device)
    begins, sounding, _ = map(np.asarray, model.main(sound.astype(np.float32)[None, :, None]))
    for key, start, end in notes(sounding[0], begins[0]):
        print(f"{NAMES[key % 12]}{key // 12 - 1:<2} from {start:.2f} s to {end:.2f} s")
