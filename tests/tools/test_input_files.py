"""Inputs by name, from JSON, safetensors, images and streams."""

from __future__ import annotations

import io
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitree.errors import StatusError
from jitree.tools.inputs import parse_values
from jitree.tools.values import HostTensor, Scalar, ValueFiles
from tests.tools.command import run_echo

KINDS = ["r", "r", "i"]
DECLARED = [("image", "tensor<2x2xf32>"), ("mask", "tensor<?xi1>"), ("count", "i32")]


def read(*texts: str) -> list[Any]:
    """What texts give the three parameters, as lists."""
    with ValueFiles() as files:
        values = parse_values(texts, KINDS, files, lambda: DECLARED)
    return [
        value.value if isinstance(value, Scalar) else value.values.reshape(value.shape).tolist()
        for value in values
        if isinstance(value, (Scalar, HostTensor))
    ]


def png(image: np.ndarray[Any, Any], colour: int, depth: int, filters: int, palette: bytes = b"") -> bytes:
    """The rows have the filters 0 to ``filters`` in turn."""
    rows = image.astype(">u2" if depth == 16 else "u1").reshape(len(image), -1)
    if depth < 8:
        bits = np.unpackbits(rows[:, :, None], axis=2)[:, :, -depth:].reshape(len(rows), -1)
        rows = np.packbits(bits, axis=1)
    data = rows.view("u1").reshape(len(image), -1).astype(int)
    step = max(1, (image.shape[2] if image.ndim == 3 else 1) * depth // 8)
    raw = b""
    for number, row in enumerate(data):
        kind = number % (filters + 1)
        up = data[number - 1] if number else np.zeros_like(row)
        left, corner = (np.concatenate([np.zeros(step, int), line[:-step]]) for line in (row, up))
        base = left + up - corner
        far = np.abs(np.stack([base - left, base - up, base - corner]))
        paeth = np.choose(np.argmin(far, axis=0), [left, up, corner])
        guess = [np.zeros_like(row), left, up, (left + up) // 2, paeth][kind]
        raw += bytes([kind]) + ((row - guess) % 256).astype("u1").tobytes()
    header = struct.pack(">IIBBBBB", image.shape[1], image.shape[0], depth, colour, 0, 0, 0)
    parts = [(b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + bytes(4)
        for kind, body in parts
        if body or kind == b"IEND"
    )


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that texts name."""
    monkeypatch.chdir(tmp_path)
    Path("in.json").write_text('{"mask": [true, false], "image": [[1, 2], [3e0, 0.1]]}\n 7')
    header = json.dumps(
        {
            "w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
            "m": {"dtype": "BOOL", "shape": [1], "data_offsets": [16, 17]},
        }
    ).encode()
    body = np.arange(4, dtype="f4").tobytes() + b"\1"
    Path("all.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + body)
    Path("a.ppm").write_bytes(b"P6 # a comment\n2 1 255\n" + bytes(range(6)))
    Path("t.pgm").write_bytes(b"P2 2 2 9 1 2 3 9")
    Path("cut.ppm").write_bytes(b"P6 2 1 255\n" + bytes(5))
    Path("cut.png").write_bytes(png(np.zeros((2, 2, 3)), 2, 8, 0)[:45])
    Path("bad.json").write_text("[1, 2")
    Path("twice.json").write_text('{"count": 1, "count": 2}')


FOUR = [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (("count=7", "mask=1xi1=1", "image=2x2xf32=1,2,3,4"), [FOUR, [1], 7]),
        (("count=7", "2x2xf32=1,2,3,4", "1xi1=1"), [FOUR, [1], 7]),
        (("2x2xf32=1,2,3,4", " mask = 1xi1=1"), [FOUR, [1]]),
        (("@in.json",), [[[1, 2], [3, np.float32(0.1)]], [1, 0], 7]),
        (("@all.safetensors",), [[[0, 1], [2, 3]], [1]]),
        (("@all.safetensors:w",), [[[0, 1], [2, 3]]]),
        (("2x2xf32=@all.safetensors:w",), [[[0, 1], [2, 3]]]),
        (("image=@all.safetensors:w",), [[[0, 1], [2, 3]]]),
        (("@a.ppm?layout=hwc",), [[[[0, 1, 2], [3, 4, 5]]]]),
        (("1x3x1x2xf32=@a.ppm?layout=nchw&scale=1/2",), [[[[[0, 1.5]], [[0.5, 2]], [[1, 2.5]]]]]),
        (("2x1x3xui8=@a.ppm?layout=whc",), [[[[0, 1, 2]], [[3, 4, 5]]]]),
        (("2x2xf32=@t.pgm?layout=hw",), [[[1, 2], [3, 9]]]),
    ],
)
def test_inputs(texts: tuple[str, ...], values: list[Any]) -> None:
    assert read(*texts) == values


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ("imag=1xf32=1",),
            "the function has no parameter 'imag'; did you mean 'image'?; it has: image, mask, count",
        ),
        (("mask=1xi1=1", "mask=1xi1=1"), "input 'mask' is given twice"),
        (("count=1",), "no value for image, mask"),
        (("count=1", "4xf32", "1xi1", "1"), "function expected fewer input values; it takes 3"),
        (("@absent.json",), "unable to open file `absent.json`: it does not exist"),
        (("@bad.json",), "`bad.json` is no JSON: "),
        (("@twice.json",), "`twice.json` is no JSON: an object has a name twice"),
        (("@all.safetensors:W2",), "no tensor `W2` in `all.safetensors`; nearest: 'w'"),
        (("2x1xf32=@all.safetensors:w",), "holds a 2x2xf32 array, not 2x1xf32"),
        (("1x2x3xf32=@a.ppm?layout=chw",), "`a.ppm?layout=chw` is 3x1x2xf32 in layout chw, not 1x2x3xf32"),
        (("1x2xf32=@a.ppm?layout=hw",), "layout hw has no c, but the image has 3 channels"),
        (("1x2x3xf32=@a.ppm?layout=hwd",), "an image states its layout, of the letters n, h, w and c"),
        (("1x2x3xf32=@a.ppm?layout=hwc&scale=x",), "scale 'x' is no number"),
        (("1x2x3xi1=@a.ppm?layout=hwc",), "an image cannot be elements of type i1"),
        (
            ("1x2x3xf32=@cut.ppm?layout=hwc",),
            "`cut.ppm` is no image that can be read: it is cut: 5 of 6 samples",
        ),
        (("2x2x3xf32=@cut.png?layout=hwc",), "`cut.png` is no image that can be read: "),
        (("2x2x3xf32=@a\0.png?layout=hwc",), "'a\\00.png' is no name of a file: embedded null byte"),
        (
            ("2x2x3xf32=@b.ppm?layout=hwc",),
            "unable to open file `b.ppm`: it does not exist; did you mean 'a.ppm'?",
        ),
    ],
)
def test_what_inputs_are_refused_for(texts: tuple[str, ...], message: str) -> None:
    with pytest.raises(StatusError) as caught:
        read(*texts)
    assert message in caught.value.message


@pytest.mark.parametrize("filters", range(5))
@pytest.mark.parametrize(
    ("colour", "depth", "channels"),
    [(0, 1, 1), (0, 4, 1), (0, 8, 1), (0, 16, 1), (2, 8, 3), (2, 16, 3), (4, 8, 2), (6, 8, 4), (3, 2, 1)],
)
def test_png_files(colour: int, depth: int, channels: int, filters: int) -> None:
    random = np.random.default_rng(depth)
    image = random.integers(0, 1 << depth, (7, 5, channels))
    palette = random.integers(0, 256, (4, 3), np.uint8)
    Path("a.png").write_bytes(png(image, colour, depth, filters, palette.tobytes() if colour == 3 else b""))
    shown = palette[image[:, :, 0]] if colour == 3 else image * (255 // ((1 << depth) - 1) or 1)
    assert read("@a.png?layout=hwc") == [shown.tolist()]


def npy(*arrays: list[float]) -> bytes:
    stream = io.BytesIO()
    for array in arrays:
        np.save(stream, np.array(array, np.float32))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("text", "given", "shown"),
    [
        ("-", b"[1, 2, 3]", "3xf32=1 2 3"),
        ("-", b'{"input0": []}', "0xf32="),
        ("-", npy([4.0, 5.0]), "2xf32=4 5"),
        ("2xf32=@-", np.array([6, 7], "f4").tobytes(), "2xf32=6 7"),
        ("input0=2xf32=@-", np.array([6, 7], "f4").tobytes(), "2xf32=6 7"),
    ],
)
def test_standard_input(text: str, given: bytes, shown: str) -> None:
    outcome = run_echo("--function=e1_f32", f"--input={text}", stdin=given)
    assert outcome.stdout.endswith(f"hal.buffer_view\n{shown}\n"), outcome.stderr
