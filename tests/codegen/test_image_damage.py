"""Files of the cache that are no images, whatever is wrong with them: each is a miss, and is replaced."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from jitree.base import private_files
from jitree.codegen import image
from jitree.codegen.image import cache
from jitree.codegen.image.flat import (
    DIGEST_SIZE,
    KEY_SIZE,
    FlatImage,
    decode,
    encode,
    hashed,
    title_of,
)
from jitree.codegen.image.keys import key_of
from tests.codegen.test_image import KEY, SAMPLE, recipe, twice


def _long(path: Path) -> None:
    path.touch(mode=0o600)
    os.truncate(path, 64 << 30)


def _longer_than_it_says(path: Path) -> None:
    path.touch(mode=0o600)
    path.write_bytes(SAMPLE)
    os.truncate(path, 8 << 30)


def _folder(path: Path) -> None:
    (path / "something").mkdir(parents=True)


def _pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _nothing_behind(path: Path) -> None:
    path.symlink_to(path.with_name("nothing"))


def _unreadable(path: Path) -> None:
    path.touch(mode=0o000)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


BAD = [_long, _longer_than_it_says, _folder, _pipe, _loop, _nothing_behind, _unreadable, _device]


@pytest.mark.parametrize("plant", BAD)
@pytest.mark.parametrize("suffix", [cache.LOG_SUFFIX, ".image"])
def test_whatever_has_the_name_of_a_file_is_built_anew(
    folder: Path, plant: Callable[[Path], None], suffix: str
) -> None:
    sample = recipe("texts")
    path = cache.path_of(sample, key_of(sample)).with_suffix(suffix)
    plant(path)
    assert cache.load(sample, key_of(sample)) is None
    assert cache.read(path.name) in (None, b"")
    assert twice(image.wait(sample), 4) == 8
    assert cache.load(sample, key_of(sample)) is not None


def test_a_file_that_grows_while_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cache.store(recipe("texts"), KEY, FlatImage(b"x" * 8, b"", {}))
    status = path.stat()
    os.truncate(path, 64 << 30)
    monkeypatch.setattr(os, "fstat", lambda file: status)
    monkeypatch.setattr(private_files, "opened", lambda path: nullcontext(os.open(path, os.O_RDONLY)))
    assert cache.load(recipe("texts"), KEY) is not None, "no more is read than there was"


def test_images_that_are_too_long_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_files, "LARGEST", 300)
    cache.store(recipe("texts"), KEY, FlatImage(b"x" * 8, b"", {}))
    with pytest.raises(OSError, match="more than a file may have"):
        cache.store(recipe("texts"), KEY, FlatImage(b"x" * 300, b"", {}))


@pytest.mark.parametrize(
    ("rebase", "entries"),
    [
        (struct.pack("<I", 40), {}),
        (struct.pack("<2I", 0, 0xFFFFFFF8), {}),
        (b"123", {}),
        (b"", {"end": 41}),
        (b"", {"a": 0, "far": 0xFFFFFFFF}),
    ],
)
def test_places_outside_of_an_image_are_a_miss(rebase: bytes, entries: dict[str, int]) -> None:
    code = b"x" * 40
    assert decode(encode(FlatImage(code, struct.pack("<I", 32), {"end": 40}), KEY, "t"), KEY) is not None
    assert decode(encode(FlatImage(code, rebase, entries), KEY, "t"), KEY) is None


def test_lying_lengths_are_a_miss() -> None:
    """Each number of the header and of the names becomes others; the digest is that of what is there."""
    whole = encode(FlatImage(b"x" * 40, struct.pack("<I", 8), {"a": 3, "\u00e9": 0}, b"notes"), KEY, "title")
    expected = decode(whole, KEY)
    assert expected is not None
    for place in range(DIGEST_SIZE + 8 + KEY_SIZE, len(whole) - 40):
        for value in (0, 1, 0x7F, 0xFF, whole[place] + 1 & 0xFF):
            body = bytearray(whole[DIGEST_SIZE:])
            body[place - DIGEST_SIZE] = value
            lying = hashed((bytes(body),)) + bytes(body)
            read = decode(lying, KEY)
            assert read is None or set(read.entries.values()) <= set(range(41))
            assert title_of(lying) is not None or read is None
