"""safetensors, gguf and numpy files: contents, types, damage."""

from __future__ import annotations

import copy
import gc
import io
import random
import struct
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import ml_dtypes
import numpy as np
import pytest

from jitree.errors import (
    InvalidArgumentError,
    NotFoundError,
    ResourceExhaustedError,
    StatusError,
    UnimplementedError,
)
from jitree.params import ParameterIndex
from jitree.params.safetensors import _parse
from tests.params.archives import content, gguf, gguf_string, gguf_tensor, load, safetensors

W = np.arange(6, dtype=np.float32).reshape(2, 3)
DATA = W.tobytes() + b"\1\2\3\4"
TENSOR = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def refused(path: Path, data: bytes, says: str) -> None:
    path.write_bytes(data)
    with pytest.raises(StatusError) as failure:
        load(path)
    assert says in str(failure.value) and str(path) in str(failure.value)


# -- safetensors ---------------------------------------------------------------------------------------


def test_safetensors(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "w": TENSOR,
        "half": {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]},
        "none": {"dtype": "I8", "shape": [0, 5], "data_offsets": [26, 26]},
        "packed": {"dtype": "F4", "shape": [4], "data_offsets": [26, 28]},
    }
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors(header, DATA))
    entries = load(path)
    assert list(entries) == ["w", "half", "none", "packed"]
    assert content(entries["w"]) == W.tobytes() and content(entries["half"]) == b"\1\2"
    assert entries["none"].length == 0 and content(entries["packed"]) == b"\3\4"
    types = [str(entry.tensor) for entry in entries.values()]
    assert types == ["2x3xf32", "bf16", "0x5xsi8", "4xF4"]


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"{", "is not JSON"),
        (b"[1]", "no JSON object"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "the safetensors header"),
        (b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"w":1}', "has the name 'w' twice"),
        ({"w": 5}, "parameter 'w': the header must state"),
        ({"w": {**TENSOR, "data_offsets": [0]}}, "parameter 'w': the header must state"),
        ({"w": {**TENSOR, "shape": [2, -3]}}, "parameter 'w': shape and data_offsets"),
        ({"w": {**TENSOR, "shape": [True, 3]}}, "parameter 'w': shape and data_offsets"),
        ({"w": {**TENSOR, "dtype": "F31"}}, "parameter 'w' has dtype 'F31'"),
        ({"w": {**TENSOR, "shape": [2, 4]}}, "parameter 'w' claims 24 bytes but 2x4xf32 has 32"),
        ({"w": {**TENSOR, "data_offsets": [8, 32]}}, "parameter 'w' claims bytes 8 to 32"),
        ({"w": {**TENSOR, "data_offsets": [24, 0]}}, "parameter 'w' claims bytes 24 to 0"),
        ({"w": TENSOR, "v": {**TENSOR, "data_offsets": [4, 28]}}, "'w' and 'v' overlap"),
        ({"w": {**TENSOR, "shape": [10**4000, 10**4000]}}, "parameter 'w': shape and data_offsets"),
        ({"w": {**TENSOR, "data_offsets": [0, 10**4000]}}, "parameter 'w': shape and data_offsets"),
        ({"w": {**TENSOR, "shape": [10**18] * 100_000}}, "parameter 'w' claims 100000 dimensions"),
    ],
)  # fmt: skip
def test_bad_safetensors(tmp_path: Path, header: Any, says: str) -> None:
    refused(tmp_path / "a.safetensors", safetensors(header, DATA), says)


def test_headers_of_safetensors_are_nothing_for_the_garbage_collector(tmp_path: Path) -> None:
    """Of 300,000 tensors it went through a million lists and dictionaries again and again, for seconds."""
    data = safetensors({f"w{number}": TENSOR for number in range(9)}, b"")
    header = _parse(memoryview(data)[8:])
    gc.collect()
    assert len(header) == 9 and not any(gc.is_tracked(fields) for fields in header.values())


def test_safetensors_cut_short(tmp_path: Path) -> None:
    whole = safetensors({"w": TENSOR}, W.tobytes())
    for length, says in ((0, "0 bytes"), (7, "7 bytes"), (20, "header"), (len(whole) - 1, "parameter 'w'")):
        refused(tmp_path / "a.safetensors", whole[:length], says)
    refused(tmp_path / "a.safetensors", struct.pack("<Q", 1 << 62) + whole, "header claims")


# -- gguf ----------------------------------------------------------------------------------------------

VALUES = [
    gguf_string("general.name") + struct.pack("<I", 8) + gguf_string("x"),
    gguf_string("a.count") + struct.pack("<IB", 0, 3),
    gguf_string("a.words") + struct.pack("<IIQ", 9, 8, 2) + gguf_string("one") + gguf_string(""),
    gguf_string("a.numbers") + struct.pack("<IIQ3H", 9, 2, 3, 1, 2, 3),
]
BLOCKS = bytes(range(36))


@pytest.mark.parametrize("version", [2, 3])
def test_gguf(tmp_path: Path, version: int) -> None:
    path = tmp_path / "a.gguf"
    tensors = [gguf_tensor("w", (3, 2), 0, 0), gguf_tensor("q", (32, 2), 2, 32)]
    path.write_bytes(gguf(VALUES, tensors, W.tobytes() + bytes(8) + BLOCKS, version))
    entries = load(path)
    assert content(entries["w"]) == W.tobytes() and content(entries["q"]) == BLOCKS
    assert [str(entry.tensor) for entry in entries.values()] == ["2x3xf32", "2x32xQ4_0"]


@pytest.mark.parametrize(
    ("head", "refusal"),
    [
        (struct.pack("<QQ", 1 << 36, 0), "parameter '' is twice"),
        (struct.pack("<QQ", 0, 1 << 36), "key 0 is empty"),
        (
            struct.pack("<QQ", 0, 1) + gguf_string("k") + struct.pack("<IIQ", 9, 8, 1 << 36),
            "more than 1000 keys, names and strings",
        ),
    ],
    ids=["tensors", "keys", "strings"],
)
def test_gguf_of_zeros(head: bytes, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of 4 kB on the disk: each zero was read, for hours, or kept."""
    monkeypatch.setattr("jitree.params.gguf._MOST_TEXTS", 1000)
    path = tmp_path / "a.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<I", 3) + head)
        file.truncate(1 << 20)
    with pytest.raises(StatusError, match=refusal):
        load(path)


@pytest.mark.parametrize(
    ("counts", "what"), [((0, 1), "key 0"), ((1, 0), "name of tensor 0")], ids=["key", "name"]
)
def test_gguf_of_one_long_text(counts: tuple[int, int], what: str, tmp_path: Path) -> None:
    """A sparse file of 4 kB on the disk took three times what it claims, all memory."""
    path = tmp_path / "a.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQQ", 3, *counts, 1 << 26))
        file.truncate(1 << 27)
    with pytest.raises(InvalidArgumentError, match=f"{what} has {1 << 26} bytes; at most 65535"):
        load(path)


def test_gguf_alignment_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    values = [gguf_string("general.alignment") + struct.pack("<II", 4, 64)]
    path.write_bytes(gguf(values, [gguf_tensor("w", (6,), 0, 64)], bytes(64) + W.tobytes(), alignment=64))
    assert content(load(path)["w"]) == W.tobytes()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GGU", "ends within the header"),
        (b"NOPE" + bytes(20), "does not begin with 'GGUF'"),
        (gguf([], [], b"", version=1), "gguf version 1"),
        (gguf([gguf_string("k") + struct.pack("<I", 99)], [], b""), "type 99"),
        (gguf([gguf_string("k") + struct.pack("<IIQ", 9, 9, 1)], [], b""), "array of type 9"),
        (gguf([gguf_string("k") + struct.pack("<IIQ", 9, 0, 1 << 60)], [], b""), "value of 'k'"),
        (gguf([gguf_string("general.alignment") + struct.pack("<II", 4, 24)], [], b""), "no power of two"),
        (gguf([gguf_string("general.alignment") + struct.pack("<II", 5, 32)], [], b""), "must have type u32"),
        (gguf([], [struct.pack("<Q", 1 << 63)], b""), "name of tensor 0"),
        (gguf([], [gguf_tensor("w", (6,), 0, 32)], W.tobytes()), "parameter 'w' claims bytes 32 to 56"),
        (gguf([], [gguf_tensor("w", (6,), 0, 8)], DATA * 9), "parameter 'w' is misaligned"),
        (gguf([], [gguf_tensor("w", (1 << 62, 1 << 62), 0, 0)], DATA), "parameter 'w' claims bytes"),
        (gguf([], [gguf_tensor("w", (6,), 77, 0)], DATA), "ggml type 77"),
        (gguf([], [gguf_tensor("w", (33,), 2, 0)], DATA * 9), "no whole number of Q4_0 blocks"),
        (gguf([], [gguf_tensor("w", (1,) * 9, 0, 0)], DATA), "claims 9 dimensions"),
        (gguf([], [gguf_tensor("a", (6,), 0, 0), gguf_tensor("b", (6,), 0, 0)], DATA), "'a' and 'b' overlap"),
        (gguf([], [gguf_tensor("a", (6,), 0, 0), gguf_tensor("a", (1,), 0, 32)], DATA * 3), "'a' is twice"),
    ],
)  # fmt: skip
def test_bad_gguf(tmp_path: Path, data: bytes, says: str) -> None:
    refused(tmp_path / "a.gguf", data, says)


# -- numpy ---------------------------------------------------------------------------------------------

ARRAYS: dict[str, Any] = {
    "w": W,
    "column_major": np.asfortranarray(W),
    "big_endian": W.astype(">f4"),
    "scalar": np.float64(2.5),
    "empty": np.zeros((0, 4), "i4"),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path: Path, save: Any) -> None:
    path = tmp_path / "a.npz"
    save(path, **ARRAYS)
    entries = load(path)
    assert list(entries) == list(ARRAYS)
    for key, array in ARRAYS.items():
        native = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("="))
        assert content(entries[key]) == native.tobytes(), key
    assert str(entries["column_major"].tensor) == "2x3xf32"


@pytest.mark.parametrize("key", ARRAYS)
def test_npy(tmp_path: Path, key: str) -> None:
    np.save(tmp_path / "weights.npy", ARRAYS[key])
    entry = load(tmp_path / "weights.npy")["weights"]
    assert (
        content(entry)
        == np.ascontiguousarray(ARRAYS[key]).astype(ARRAYS[key].dtype.newbyteorder("=")).tobytes()
    )
    in_place = key not in ("column_major", "big_endian")
    assert (entry.file_offset is not None) == in_place


def test_bad_npy(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, W)
    whole = path.read_bytes()
    refused(path, b"", "no numpy array")
    refused(path, whole[:40], "no numpy array")
    refused(path, whole[:-1], "elements is out of range")
    refused(path, whole.replace(b"(2, 3)", b"(9, 9)"), "elements is out of range")
    refused(path, whole.replace(b"(2, 3)", b"(-2,3)"), "shape")
    refused(path, whole.replace(b"'<f4'", b"'nop'"), "no numpy array")
    nines, hexadecimal = b"9" * 4000, b"0x" + b"f" * 4000
    wide = np.lib.format.magic(2, 0) + struct.pack("<I", 9000)
    for head in (
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s, %s)}" % (nines, nines),
        b"{'descr': ('<f4', (2,)), 'fortran_order': True, 'shape': (2, 2)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (%s,)}" % hexadecimal,
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (0, %s)}" % hexadecimal,
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-%s,)}" % hexadecimal,
    ):
        refused(path, wide + head.ljust(8999) + b"\n" + bytes(99), "no numpy array")
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    refused(path, path.read_bytes(), "Python objects")


def test_bad_npz(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, w=np.arange(100_000))
    whole = path.read_bytes()
    refused(path, whole[:100], "no numpy archive")
    refused(path, b"PK" + bytes(50), "no numpy archive")
    damaged = bytearray(whole)
    damaged[-2000:-1900] = bytes(100)
    path.write_bytes(damaged)
    with pytest.raises(InvalidArgumentError, match=r"parameter 'w' of .*a\.npz' is damaged"):
        load(path)["w"].contents()


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressions_that_numpy_does_not_write(tmp_path: Path, compression: int) -> None:
    """A header of bzip2's took as much memory and time as 4 kB of its blocks become: gigabytes."""
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a.npy", b"\x93NUMPY")
    with pytest.raises(UnimplementedError, match=r"'a' is compressed in a way .* write the archive by numpy"):
        load(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_that_share_bytes(tmp_path: Path, compression: int) -> None:
    path, array = tmp_path / "a.npz", io.BytesIO()
    np.save(array, np.zeros(0))
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a.npy", array.getvalue())
        other = copy.copy(archive.filelist[0])
        other.filename = "b.npy"
        archive.filelist.append(other)
    refused(path, path.read_bytes(), "'a.npy' and 'b.npy' in the archive overlap")


def test_members_that_share_bytes_by_the_size_of_what_they_hold(tmp_path: Path) -> None:
    """Of what is stored as it is, the directory says the size twice."""
    path, array = tmp_path / "a.npz", io.BytesIO()
    np.save(array, np.zeros(8))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", array.getvalue())
        archive.filelist[0].compress_size = 0
        archive.writestr("b.npy", array.getvalue())
        archive.filelist[0].file_size *= 2
    refused(path, path.read_bytes(), "'a.npy' and 'b.npy' in the archive overlap")


def test_arrays_of_more_dimensions_than_there_can_be(tmp_path: Path) -> None:
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {(0,) * 65}}}\n".encode()
    head = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text
    refused(tmp_path / "a.npy", head, "claims 65 dimensions; at most 64")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_elements_without_bytes(tmp_path: Path, compression: int) -> None:
    """numpy writes such arrays, and makes none of no bytes."""
    file = io.BytesIO()
    np.save(file, np.asfortranarray(np.empty((2, 3), "V0")))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", compression) as archive:
        archive.writestr("a.npy", file.getvalue())
    assert content(load(tmp_path / "a.npz")["a"]) == b""


def test_memory_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*arguments: object) -> bytes:
        raise MemoryError

    np.savez_compressed(tmp_path / "a.npz", w=W)
    entry = load(tmp_path / "a.npz")["w"]
    monkeypatch.setattr(zipfile.ZipFile, "read", read)
    with pytest.raises(ResourceExhaustedError, match="reading the elements of a parameter"):
        entry.contents()


@pytest.mark.parametrize("length", [(1 << 32) - 2, 1 << 36])
def test_npz_whose_list_is_sparse(length: int, tmp_path: Path) -> None:
    """A file of 4 kB on the disk: all of a list of 64 GB was read, and a MemoryError."""
    path, is_large = tmp_path / "a.npz", length >> 32
    with path.open("wb") as file:
        file.truncate(length)
        file.seek(length)
        if is_large:
            file.write(b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, 1, 1, length, 0))
            file.write(b"PK\6\7" + struct.pack("<IQI", 0, length, 1))
        claimed = 0xFFFFFFFF if is_large else length
        file.write(b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, claimed, 0, 0))
    with pytest.raises(InvalidArgumentError, match=f"its list of members claims {length} bytes"):
        load(path)


def test_tables_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitree.params.safetensors.json", Mock(loads=Mock(side_effect=MemoryError)))
    (tmp_path / "a.safetensors").write_bytes(safetensors({}, b""))
    with pytest.raises(
        ResourceExhaustedError, match=r"its tables: there is not enough memory.*a\.safetensors"
    ):
        load(tmp_path / "a.safetensors")


def test_names_of_megabytes(tmp_path: Path) -> None:
    """An error had all of the name, and a terminal got it."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors({"first" + "k" * (1 << 20): TENSOR}, b""))
    with pytest.raises(StatusError, match=r"'firstkkk.*… \(\d+ characters\) ….*cut short") as failure:
        load(path)
    assert len(str(failure.value)) < 1 << 15


def test_npz_with_something_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(InvalidArgumentError, match=r"'readme.txt' in the archive is no numpy array"):
        load(tmp_path / "a.npz")


# -- files ---------------------------------------------------------------------------------------------


def test_files_that_are_none(tmp_path: Path) -> None:
    index = ParameterIndex()
    with pytest.raises(NotFoundError, match=r"no file '.*nothing\.irpa'"):
        index.load(tmp_path / "nothing.irpa")
    with pytest.raises(InvalidArgumentError, match="is no file"):
        index.load(tmp_path)
    (tmp_path / "a.zip").write_bytes(b"x")
    with pytest.raises(UnimplementedError, match=r"a\.zip.*'\.zip' is not known; there are \.irpa, .*\.npz"):
        index.load(tmp_path / "a.zip")


def test_bfloat16_through_numpy_files(tmp_path: Path) -> None:
    """numpy stores types that it does not know as plain bytes."""
    array = np.array([1, 2], ml_dtypes.bfloat16)
    np.save(tmp_path / "b.npy", array)
    assert content(load(tmp_path / "b.npy")["b"]) == array.tobytes()


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "bfloat16", "int4"])
def test_types_of_ml_dtypes_through_numpy_files(tmp_path: Path, name: str) -> None:
    """numpy writes types that it does not know, and reads them as bytes; it does not read float8_e5m2."""
    array = np.array([[1, 2, 3], [4, 5, 6]], getattr(ml_dtypes, name))
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "stored.npz", a=array)
    np.savez_compressed(tmp_path / "compressed.npz", a=np.asfortranarray(array))
    for file in ("a.npy", "stored.npz", "compressed.npz"):
        entry = load(tmp_path / file)["a"]
        assert content(entry) == array.tobytes() and entry.tensor is not None and entry.tensor.shape == (2, 3)


@pytest.mark.parametrize("compression", [0, 8, 12, 14])
def test_archives_damaged_anywhere(tmp_path: Path, compression: int) -> None:
    """zipfile and its decompressors raise errors of many classes; names may be no text."""
    import io
    import zipfile

    path, array, held = tmp_path / "a.npz", io.BytesIO(), random.Random(compression)
    np.save(array, np.arange(300))
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("\u00e9.npy", array.getvalue())
    whole = path.read_bytes()
    damaged = [whole.replace("\u00e9".encode(), b"\xff\xfe")]
    for _ in range(100):
        changed = bytearray(whole)
        changed[held.choice((held.randrange(len(whole)), -held.randrange(1, 100)))] = held.randrange(256)
        damaged.append(bytes(changed))
    refusals = 0
    for data in damaged:
        path.write_bytes(data)
        try:
            for entry in load(path).values():
                entry.contents()
        except StatusError:
            refusals += 1
        else:
            assert data is not damaged[0]
    assert refusals > 1
