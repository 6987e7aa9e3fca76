"""Reads inputs of the command line from JSON, safetensors and images. Files of numpy are read elsewhere."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

from jitree.base.elements import HostTensor
from jitree.base.near_names import near_path, nearest
from jitree.errors import (
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnimplementedError,
    pass_interruption,
)
from jitree.tools.flags import whole_file
from jitree.types import BY_NAME, CLASS_BOOLEAN, ElementType, format_shaped_type, is_packed

Image = npt.NDArray[Any]
"""Height, width, channels."""

_TENSORS: Final = ".safetensors"
_IMAGES: Final = (".png", ".ppm", ".pgm", ".pnm")
_DEEPEST: Final = 64
_LARGEST: Final = 1 << 30
"""Bytes of an image's contents: some kilobytes of a file can claim more than any memory has."""


# -- JSON --------------------------------------------------------------------------------------------


class _Number(str):
    """Keeps a number as it is written, to be rounded once."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has a name twice")
    return members


_JSON: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_Number, parse_int=_Number, parse_constant=_Number
)
_BLANK: Final = re.compile(r"\s*")
_SHAPE: Final = re.compile(r".*?<(?:.*x)?([A-Za-z0-9]+)>")


def json_inputs(data: bytes | memoryview, where: str) -> list[tuple[str | None, Any]]:
    """Every value of a stream of JSON documents, an object's with their names."""
    try:
        text = bytes(data).decode()
        return [pair for document in _documents(text) for pair in _pairs(document)]
    except (ValueError, RecursionError) as error:
        pass_interruption(error)
        raise InvalidArgumentError(f"{where} is no JSON: {error}") from None


def _documents(text: str) -> Iterator[Any]:
    place = _start(text, 0)
    while place < len(text):
        document, end = _JSON.raw_decode(text, place)
        yield document
        place = _start(text, end)


def _start(text: str, place: int) -> int:
    match = _BLANK.match(text, place)
    return place if match is None else match.end()


def _pairs(document: Any) -> Sequence[tuple[str | None, Any]]:
    return list(document.items()) if isinstance(document, dict) else [(None, document)]


def json_text(value: Any, declared: str, is_scalar: bool) -> str:
    """Writes a JSON value as command lines have it."""
    if value is None:
        return "(null)"
    shape: list[int] = []
    elements = list(_elements(value, shape, 0))
    if is_scalar:
        if shape:
            raise InvalidArgumentError(f"the parameter is a scalar, the JSON value has shape {shape}")
        return elements[0]
    match = _SHAPE.fullmatch(declared)
    if match is None:
        raise InvalidArgumentError(
            f"the program does not declare an element type ({declared}); state it: `4xf32=1`"
        )
    return f"{'x'.join([*map(str, shape), match[1]])}={' '.join(elements)}"


def _elements(value: Any, shape: list[int], level: int) -> Iterator[str]:
    if not isinstance(value, list):
        if level < len(shape):
            raise InvalidArgumentError("the lists of a JSON value are of different depths")
        if not isinstance(value, (bool, _Number)):
            raise InvalidArgumentError(f"a JSON value has {value!r:.60}; numbers, true and false are taken")
        yield str(value).lower() if isinstance(value, bool) else str(value)
        return
    if level == len(shape):
        if level == _DEEPEST or (level and shape[0] < 0):
            raise InvalidArgumentError("the lists of a JSON value are of different depths")
        shape.append(len(value))
    if len(value) != shape[level]:
        raise InvalidArgumentError(f"the lists of a JSON value have {shape[level]} and {len(value)} items")
    for item in value:
        yield from _elements(item, shape, level + 1)


# -- tensors -----------------------------------------------------------------------------------------


def is_other_file(path: str) -> bool:
    """Whether a path names a file that this reads: an image has to state its layout."""
    name, _, query = path.partition("?")
    return path.endswith(_TENSORS) or f"{_TENSORS}:" in path or (bool(query) and name.endswith(_IMAGES))


def read_tensors(path: str) -> list[HostTensor]:
    """The tensors that ``all.safetensors``, ``all.safetensors:key`` or ``image.png?layout=hwc`` name."""
    name, separator, key = path.partition(f"{_TENSORS}:")
    if separator or path.endswith(_TENSORS):
        return _stored_tensors(f"{name}{_TENSORS}" if separator else path, key)
    image, wish = _image(path)
    row = BY_NAME[f"ui{image.dtype.itemsize * 8}"]
    return [_tensor(_arranged(image, wish.layout), row)]


def read_as(path: str, shape: tuple[int, ...], row: ElementType) -> HostTensor:
    """An image as a tensor of a shape and type."""
    image, wish = _image(path)
    array = _arranged(image, wish.layout)
    if array.shape != shape:
        raise InvalidArgumentError(
            f"`{path}` is {format_shaped_type(array.shape, row)} in layout {wish.layout}, "
            f"not {format_shaped_type(shape, row)}"
        )
    if is_packed(row) or row.numerical_class == CLASS_BOOLEAN or row.dtype.kind not in "iufV":
        raise InvalidArgumentError(f"an image cannot be elements of type {row.name}")
    if wish.scale is not None:
        array = array * np.float32(wish.scale)
    elif row.dtype.kind in "iu" and array.max(initial=0) > np.iinfo(row.dtype).max:
        raise InvalidArgumentError(f"`{path}` has values that do not fit {row.name}; take `&scale=1/257`")
    return _tensor(array.astype(row.dtype), row)


def _tensor(array: npt.NDArray[Any], row: ElementType) -> HostTensor:
    return HostTensor(row, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _stored_tensors(path: str, key: str) -> list[HostTensor]:
    from jitree.params.entry import Splat
    from jitree.params.provider import read_archive

    entries = {entry.key: entry for entry in read_archive(path)}
    if key and key not in entries:
        raise NotFoundError(f"no tensor `{key}` in `{path}`{nearest(key, entries)}")
    tensors = []
    for name in [key] if key else entries:
        kind, storage = entries[name].tensor, entries[name].storage
        if kind is None or not isinstance(kind.element, ElementType):
            raise UnimplementedError(f"tensor `{name}` of `{path}` has no element type that programs take")
        assert not isinstance(storage, Splat), "the format has none"
        data = np.frombuffer(storage.contents(), np.uint8)
        tensors.append(HostTensor(kind.element, tuple(kind.shape), data))
    return tensors


# -- images ------------------------------------------------------------------------------------------


class _Wish(NamedTuple):
    layout: str
    scale: float | None


def _image(path: str) -> tuple[Image, _Wish]:
    name, _, query = path.partition("?")
    wish = _wish(dict(parse_qsl(query, keep_blank_values=True)))
    try:
        data = whole_file(name)
    except FileNotFoundError:
        raise NotFoundError(f"unable to open file `{name}`: it does not exist{near_path(name)}") from None
    except OSError as error:
        pass_interruption(error)
        raise UnavailableError(f"unable to open file `{name}`: {error.strerror}") from None
    try:
        return (_png(data) if data[:8] == _PNG else _netpbm(data)), wish
    except (ValueError, IndexError, zlib.error) as error:
        pass_interruption(error)
        raise InvalidArgumentError(f"`{name}` is no image that can be read: {error}") from None


def _wish(given: Mapping[str, str]) -> _Wish:
    layout, scale = given.get("layout", "").lower(), given.get("scale")
    if set(given) - {"layout", "scale"} or sorted(layout.replace("n", "")) not in (
        ["c", "h", "w"],
        ["h", "w"],
    ):
        raise InvalidArgumentError(
            "an image states its layout, of the letters n, h, w and c: "
            "`1x3x224x224xf32=@a.png?layout=nchw&scale=1/255`"
        )
    try:
        return _Wish(layout, None if scale is None else float(Fraction(scale)))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise InvalidArgumentError(f"scale '{scale}' is no number, as `1/255` is one") from None


def _arranged(image: Image, layout: str) -> Image:
    if "c" not in layout:
        if image.shape[2] != 1:
            raise InvalidArgumentError(
                f"layout {layout} has no c, but the image has {image.shape[2]} channels"
            )
        image = image[:, :, 0]
    array = image.transpose([("hwc").index(letter) for letter in layout if letter != "n"])
    return array.reshape([1 if letter == "n" else array.shape[i] for i, letter in _numbered(layout)])


def _numbered(layout: str) -> list[tuple[int, str]]:
    """Letters with the number of the axis of a single image."""
    return [(len(layout[:place].replace("n", "")), letter) for place, letter in enumerate(layout)]


_PNG: Final = b"\x89PNG\r\n\x1a\n"
_CHANNELS: Final = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Samples of a pixel by colour type; those of type 3 are numbers of colours."""
_PALETTE: Final = 3


def _png(data: bytes) -> Image:
    parts: dict[bytes, bytes] = {}
    place = len(_PNG)
    while place + 8 <= len(data) and b"IEND" not in parts:
        length, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        parts[kind] = parts.get(kind, b"") + data[place + 8 : place + 8 + length]
        place += 12 + length
    header = parts[b"IHDR"] if len(parts.get(b"IHDR", b"")) == 13 else b""
    if not header:
        raise ValueError("it has no header")
    width, height = int.from_bytes(header[:4], "big"), int.from_bytes(header[4:8], "big")
    depth, colour, interlaced = header[8], header[9], header[12]
    if colour not in _CHANNELS or depth not in (1, 2, 4, 8, 16) or interlaced:
        raise ValueError(
            f"colour type {colour} of {depth} bits{', interlaced' * bool(interlaced)}, is not supported"
        )
    channels = _CHANNELS[colour]
    row_bytes = (width * channels * depth + 7) // 8
    if not 0 < (row_bytes + 1) * height <= _LARGEST:
        raise ValueError(f"it claims {width} x {height} pixels")
    raw = zlib.decompressobj().decompress(parts.get(b"IDAT", b""), (row_bytes + 1) * height)
    if len(raw) < (row_bytes + 1) * height:
        raise ValueError(f"it is cut: {len(raw)} of {(row_bytes + 1) * height} bytes of pixels")
    rows = _unfiltered(raw, height, row_bytes, max(1, channels * depth // 8))
    image = _samples(rows, width * channels, depth).reshape(height, width, channels)
    if colour == _PALETTE:
        palette = np.frombuffer(parts.get(b"PLTE", b""), np.uint8).reshape(-1, 3)
        return np.asarray(palette[image[:, :, 0]])
    return image if depth >= 8 else image * np.uint8(255 // ((1 << depth) - 1))


def _unfiltered(raw: bytes, height: int, row_bytes: int, step: int) -> npt.NDArray[np.uint8]:
    """Rows of bytes, which the file has as differences to those before and above."""
    rows = np.zeros((height + 1, row_bytes), np.uint8)
    lines = np.frombuffer(raw, np.uint8).reshape(height, row_bytes + 1)
    for number in range(height):
        kind, line, above = int(lines[number, 0]), lines[number, 1:], rows[number]
        match kind:
            case 0:
                rows[number + 1] = line
            case 1:
                for start in range(step):
                    rows[number + 1, start::step] = np.cumsum(line[start::step], dtype=np.uint8)
            case 2:
                rows[number + 1] = line + above
            case 3 | 4:
                rows[number + 1] = _from_neighbours(kind, line.tobytes(), above.tobytes(), step)
            case _:
                raise ValueError(f"row {number} has filter {kind}")
    return rows[1:]


def _from_neighbours(kind: int, line: bytes, above: bytes, step: int) -> npt.NDArray[np.uint8]:
    """Filters 3 (mean of left and above) and 4 (Paeth), byte by byte."""
    made = bytearray(step) + bytearray(len(line))
    corner = bytes(step) + above
    for place, (difference, up) in enumerate(zip(line, above, strict=True)):
        left = made[place]
        if kind == 3:
            guess = (left + up) >> 1
        else:
            diagonal = corner[place]
            base = left + up - diagonal
            to_left, to_up, to_diagonal = abs(base - left), abs(base - up), abs(base - diagonal)
            guess = (
                left
                if to_left <= to_up and to_left <= to_diagonal
                else up
                if to_up <= to_diagonal
                else diagonal
            )
        made[place + step] = (difference + guess) & 0xFF
    return np.frombuffer(made, np.uint8)[step:]


def _samples(rows: npt.NDArray[np.uint8], count: int, depth: int) -> npt.NDArray[Any]:
    if depth == 16:
        return rows.view(">u2").astype(np.uint16)
    if depth == 8:
        return rows
    bits = np.unpackbits(rows, axis=1).reshape(len(rows), -1, depth)[:, :count]
    return np.packbits(bits, axis=2).reshape(len(rows), -1) >> np.uint8(8 - depth)


_HEADER: Final = re.compile(rb"P([2356])" + rb"(?:\s|#[^\n]*\n)+(\d{1,9})" * 3 + rb"\s")


def _netpbm(data: bytes) -> Image:
    """PPM and PGM, of bytes or of text."""
    match = _HEADER.match(data)
    if match is None:
        raise ValueError("it is neither PNG nor PPM nor PGM")
    kind, width, height, most = (int(match[number]) for number in (1, 2, 3, 4))
    channels = 3 if kind in (3, 6) else 1
    count = width * height * channels
    if not 0 < count <= _LARGEST or not 0 < most < 1 << 16:
        raise ValueError(f"it claims {width} x {height} pixels of values to {most}")
    dtype = np.dtype(">u2" if most > 255 else "u1")
    if kind in (2, 3):
        words = data[match.end() :].split()
        samples = np.array([int(word) for word in words[:count]], np.int64)
        if samples.size and not 0 <= samples.min() <= samples.max() <= most:
            raise ValueError("it has values beyond its largest")
    else:
        samples = np.frombuffer(
            data, dtype, min(count, (len(data) - match.end()) // dtype.itemsize), match.end()
        )
    if samples.size < count:
        raise ValueError(f"it is cut: {samples.size} of {count} samples")
    return samples.astype(dtype.newbyteorder("=")).reshape(height, width, channels)
