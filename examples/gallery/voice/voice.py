"""Finds where somebody speaks in a recording.

    python examples/gallery/voice/voice.py
    python examples/gallery/voice/voice.py recording.wav --device=cuda --target=cuda

Recordings are WAV files of 16,000 samples a second, 16 bits each. The model is silero-vad.
"""

from __future__ import annotations

import argparse
import wave
from pathlib import Path

import numpy as np

import jitree

HERE = Path(__file__).resolve().parent
RATE = 16_000
CHUNK, BEFORE = 512, 64  # samples: what is new in each call, and what it hears again of the last one


def read(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getsampwidth()) == (RATE, 2), f"{path}: not 16 bits at 16 kHz"
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return (samples[:: file.getnchannels()] / 32768).astype(np.float32)


def probabilities(samples: np.ndarray, session: jitree.Session, module: Path) -> np.ndarray:
    """That somebody speaks, for each chunk. The state of the network stays on the device."""
    model = session.load(module)
    state = session.to_device(np.zeros((2, 1, 128), np.float32))
    padded = np.pad(samples, (BEFORE, -len(samples) % CHUNK))
    found = []
    for start in range(0, len(padded) - BEFORE, CHUNK):
        probability, state = model.main(padded[None, start : start + BEFORE + CHUNK], state)
        found.append(probability)
    return np.array([float(np.asarray(probability)[0, 0]) for probability in found])


def spans(found: np.ndarray) -> list[tuple[float, float]]:
    """Beginnings and ends in seconds; a gap of less than a quarter of a second is none."""
    chunks = np.flatnonzero(found > 0.5)
    groups = np.split(chunks, np.flatnonzero(np.diff(chunks) > 8) + 1) if len(chunks) else []
    return [(group[0] * CHUNK / RATE, (group[-1] + 1) * CHUNK / RATE) for group in groups]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("recording", type=Path, nargs="?", default=HERE / "speech.wav")
    parser.add_argument("--device", default="local-task")
    parser.add_argument("--target", default="vmvx", help="vmvx, llvm-cpu or cuda")
    options = parser.parse_args()
    with jitree.Session(options.device) as session:
        found = probabilities(read(options.recording), session, HERE / f"voice.{options.target}.vmfb")
    for start, end in spans(found):
        print(f"somebody speaks from {start:.2f} s to {end:.2f} s")
