"""Builds small archives, whole or damaged, from their documented layouts."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from jitree.params import ParameterEntry, ParameterIndex, splat_entry
from jitree.params.irpa import plan, write
from jitree.params.provider import array_entry

ALIGNMENT = 64


def write_irpa(path: Path, arrays: dict[str, Any], alignment: int = ALIGNMENT) -> Path:
    """An archive of arrays; bytes as values are patterns of 64 bytes of parameters without storage."""
    entries = [
        splat_entry(key, value, 64) if isinstance(value, bytes) else array_entry(key, value)
        for key, value in arrays.items()
    ]
    write(path, plan(entries, alignment=alignment))
    return path


def safetensors(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text)) + text + data


def gguf_string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_tensor(name: str, dimensions: tuple[int, ...], kind: int, offset: int) -> bytes:
    """``dimensions`` innermost first, as in the file."""
    return (
        gguf_string(name)
        + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        + struct.pack("<IQ", kind, offset)
    )


def gguf(
    values: list[bytes], tensors: list[bytes], data: bytes, version: int = 3, alignment: int = 32
) -> bytes:
    """``values`` are keys with type and value."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values)) + b"".join(values + tensors)
    return head + bytes(-len(head) % alignment) + data


def load(path: Path, **options: Any) -> dict[str, ParameterEntry]:
    index = ParameterIndex()
    index.load(path, **options)
    return {entry.key: entry for entry in index}


def content(entry: ParameterEntry) -> bytes:
    return b"".join(bytes(chunk) for chunk in entry.chunks())


def address(entry: ParameterEntry) -> int:
    """Where the bytes are in memory."""
    return int(np.frombuffer(entry.contents(), np.uint8).ctypes.data)
