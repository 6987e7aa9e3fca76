"""Damaged archives of parameters are refused, or every parameter has as many bytes as it says."""

from __future__ import annotations

import io
import os
import random
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from jitree.errors import StatusError
from tests.fuzz.campaign import CASES, Campaign, Result
from tests.fuzz.mutations import edges, fewer_changes
from tests.params.archives import content, gguf, gguf_string, gguf_tensor, load, safetensors, write_irpa

MOST: Final = 1 << 20
"""Bytes of a parameter that are read: one without storage may say that it has any number."""
_W: Final = np.arange(6, dtype=np.float32).reshape(2, 3)
_ARRAYS: Final[dict[str, Any]] = {
    "w": _W,
    "column_major": np.asfortranarray(_W),
    "big_endian": _W.astype(">f4"),
    "scalar": np.float64(2.5),
    "empty": np.zeros((0, 4), "i4"),
}


class Case(NamedTuple):
    kind: str
    data: bytes


@cache
def wholes() -> dict[str, bytes]:
    """An archive of each kind by the end of its name."""
    values = [
        gguf_string("general.alignment") + struct.pack("<II", 4, 32),
        gguf_string("a.words") + struct.pack("<IIQ", 9, 8, 2) + gguf_string("one") + gguf_string(""),
        gguf_string("a.numbers") + struct.pack("<IIQ3H", 9, 2, 3, 1, 2, 3),
    ]
    tensors = [gguf_tensor("w", (3, 2), 0, 0), gguf_tensor("q", (32, 2), 2, 32)]
    header = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "half": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]},
        "packed": {"dtype": "F4", "shape": [4], "data_offsets": [26, 28]},
    }
    with tempfile.TemporaryDirectory() as folder:
        mixed = {"w": _W, "s": b"\1\2\3\4", "bytes": np.arange(40, dtype=np.uint8)}
        irpa = write_irpa(Path(folder) / "a.irpa", mixed).read_bytes()
    found = {
        ".irpa": irpa,
        ".gguf": gguf(values, tensors, _W.tobytes() + bytes(8) + bytes(range(36))),
        ".safetensors": safetensors(header, _W.tobytes() + bytes(4)),
    }
    saved = io.BytesIO()
    np.save(saved, np.asfortranarray(_W))
    found[".npy"] = saved.getvalue()
    for name, save in (("stored.npz", np.savez), ("packed.npz", np.savez_compressed)):
        saved = io.BytesIO()
        save(saved, **_ARRAYS)
        found[name] = saved.getvalue()
    return found


def generate(number: int) -> Case:
    chance = random.Random(f"archive {number}")
    kind = list(wholes())[number % len(wholes())]
    damaged = bytearray(wholes()[kind])
    shape = chance.random()
    if shape < 0.2:  # what is text: names, shapes, types
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.choice(b"0123456789-,:[]{}()\"'<>FLUTrue \0\xff")
    elif shape < 0.3:
        at, source, length = *(chance.randrange(len(damaged)) for _ in range(2)), chance.randint(1, 64)
        damaged[at : at + length] = damaged[source : source + length]
    else:
        edges(damaged, range(len(damaged)), chance)
    if chance.random() < 0.05:
        del damaged[chance.randrange(len(damaged)) :]
    return Case(kind, bytes(damaged))


def smaller(case: Case) -> Iterator[Case]:
    for data in fewer_changes(wholes()[case.kind], case.data):
        yield case._replace(data=data)


def run(case: Case) -> Result:
    counts = Counter({CASES: 1})
    found: list[str] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        path = Path(folder) / f"a{case.kind}"
        path.write_bytes(case.data)
        try:
            for key, entry in load(path).items():
                if entry.length <= MOST and len(content(entry)) != entry.length:
                    found.append(f"{key!r} has not the {entry.length} bytes that it says")
            counts[f"{case.kind}: loaded"] += 1
        except StatusError as error:
            counts[f"{case.kind}: {error.code.name}"] += 1
            if str(path) not in str(error):
                found.append(f"no file is named: {error}")
    return found, counts


CAMPAIGN: Final = Campaign("damaged archives", generate, run, smaller, lambda case: case.data, 500, 20)
