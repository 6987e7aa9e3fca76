"""IREE parameter archives: what is written is read again, the real tools write the same, what is damaged is
refused."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    OutOfRangeError,
    StatusError,
    UnavailableError,
)
from jitree.params import Mode, ParameterIndex, irpa, splat_entry
from jitree.params.irpa import plan, write
from jitree.params.provider import array_entry
from tests.params.archives import address, content, load, write_irpa

DATA = Path(__file__).parent.parent / "data" / "parameters"
W = np.arange(12, dtype=np.float32).reshape(4, 3)
B = np.array([1, 2, 3], np.int8)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Keys s (pattern in the table), w, b; the table begins at 96."""
    return write_irpa(tmp_path / "a.irpa", {"s": b"\1\2\3\4", "w": W, "b": B})


@pytest.mark.parametrize("mode", Mode)
def test_written_archives_are_read_again(archive: Path, mode: Mode) -> None:
    entries = load(archive, mode=mode)
    assert list(entries) == ["s", "w", "b"]
    assert content(entries["s"]) == b"\1\2\3\4" * 16
    assert content(entries["w"]) == W.tobytes() and content(entries["b"]) == B.tobytes()
    assert all(address(entries[key]) % 64 == 0 for key in ("w", "b"))
    assert not entries["w"].writable and entries["w"].contents().readonly


def test_archives_of_the_real_tool() -> None:
    entries = load(DATA / "mixed.irpa")
    assert {key: entry.length for key, entry in entries.items()} == {"s": 16, "t": 8, "d0": 16, "d1": 3}
    assert entries["s"].pattern == struct.pack("<f", 1.5) and content(entries["t"]) == b"\3" * 8
    assert content(entries["d0"]) == bytes(16)


def test_files_are_those_of_the_real_tool(tmp_path: Path) -> None:
    splats = [splat_entry("s", struct.pack("<f", 1.5), 16), splat_entry("t", b"\3", 8)]
    data = [array_entry("d0", np.zeros(4, "f4")), array_entry("d1", np.zeros(3, "i1"))]
    write(tmp_path / "a.irpa", plan(splats + data))
    assert (tmp_path / "a.irpa").read_bytes() == (DATA / "mixed.irpa").read_bytes()


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=9), st.binary(max_size=200), max_size=6
    ),
    st.sampled_from([1, 16, 64, 256]),
)
def test_any_contents(
    tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes], alignment: int
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.irpa"
    write(path, plan([array_entry(key, value) for key, value in contents.items()], alignment=alignment))
    entries = load(path)
    assert {key: content(entry) for key, entry in entries.items()} == contents
    assert all((entry.file_offset or 0) % alignment == 0 for entry in entries.values() if entry.length)


def test_linked_archives(tmp_path: Path) -> None:
    first = bytearray(write_irpa(tmp_path / "1.irpa", {"a": W}).read_bytes())
    second = write_irpa(tmp_path / "2.irpa", {"b": B, "c": b"\7"}).read_bytes()
    struct.pack_into("<Q", first, 16, len(first))
    both = tmp_path / "both.irpa"
    both.write_bytes(first + second)
    entries = load(both)
    assert list(entries) == ["a", "b", "c"] and content(entries["b"]) == B.tobytes()


def test_an_archive_is_rewritten_from_itself(archive: Path) -> None:
    write(archive, plan(list(load(archive).values())))
    assert content(load(archive)["w"]) == W.tobytes()
    assert [path.name for path in archive.parent.iterdir()] == ["a.irpa"]


Damage = Callable[[bytearray], None]


def put(layout: str, position: int, *values: int) -> Damage:
    return lambda data: struct.pack_into(layout, data, position, *values)


def cut(length: int) -> Damage:
    def damage(data: bytearray) -> None:
        del data[length:]

    return damage


ENTRY = 96
"""Of s, 85 bytes; w is at 192 (name at +20, alignment at +52, range at +60), b at 272."""
W_ENTRY = 192


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (cut(0), "not enough bytes"),
        (cut(31), "not enough bytes"),
        (cut(60), "archive header"),
        (cut(100), "entry table"),
        (cut(420), "storage segment"),
        (put("<I", 0, 7), "must begin with 'IRPA'"),
        (put("<H", 4, 1), "version 1.0"),
        (put("<H", 6, 1), "version 0.1"),
        (put("<Q", 8, 80), "claims 80 bytes"),
        (put("<Q", 16, 8), "not aligned to 16"),
        (put("<Q", 16, 1 << 40), "not enough bytes for an archive header at"),
        (put("<Q", 32, 1 << 60), "claims 1152921504606846976 entries"),
        (put("<Q", 32, 4), "ends in entry 3 of 4"),
        (put("<Q", 40, 1 << 63), "entry table"),
        (put("<Q", 56, 1 << 40), "metadata segment"),
        (put("<Q", 80, 1 << 62), "storage segment"),
        (put("<Q", ENTRY, 40), "entry 0 claims 40 bytes"),
        (put("<Q", ENTRY, 60), "parameter 's' has 60 bytes; it needs 85"),
        (put("<Q", ENTRY, 1 << 40), "entry 0 claims"),
        (put("<I", ENTRY + 8, 3), "parameter 's' is in another file"),
        (put("<I", ENTRY + 8, 9), "parameter 's' has type 9"),
        (put("<Q", ENTRY + 20, 1 << 40), "name of entry 0"),
        (put("<QQ", ENTRY + 36, 2, 1 << 40), "metadata of parameter 's'"),
        (put("<B", ENTRY + 84, 3), "parameter 's': a repeated pattern of 3 bytes"),
        (put("<B", ENTRY + 84, 200), "parameter 's' claims a pattern of 200 bytes"),
        (put("<Q", ENTRY + 60, 63), "parameter 's': a pattern of 4 bytes cannot fill 63"),
        (put("<Q", W_ENTRY + 60, 1), "parameter 'w' is misaligned"),
        (put("<Q", W_ENTRY + 68, 1 << 50), "parameter 'w' in the storage segment"),
        (put("<Q", W_ENTRY + 60, (1 << 64) - 64), "parameter 'w' in the storage segment"),
        (put("<Q", W_ENTRY + 52, 48), "parameter 'w' wants alignment 48"),
        (put("<Q", W_ENTRY + 20, 0), "parameter 's' is twice in"),
    ],
)  # fmt: skip
def test_damaged_archives_are_refused(archive: Path, damage: Damage, says: str) -> None:
    data = bytearray(archive.read_bytes())
    damage(data)
    archive.write_bytes(data)
    with pytest.raises(StatusError) as failure:
        load(archive)
    assert says in str(failure.value) and str(archive) in str(failure.value)


def many(tables: int, entries: int, text: int) -> bytes:
    """So many headers with one table of so many patterns, all of which have the same metadata."""
    size = irpa.ENTRY.size + irpa.SPLAT.size
    step, first = size + -size % 16, 112 * tables
    names = first + step * entries
    table = b"".join(
        irpa.ENTRY.pack(size, irpa.SPLAT_TYPE, 0, 8 * number, 8, 0, text, 0)
        + irpa.SPLAT.pack(4, b"abcd".ljust(16, b"\0"), 4).ljust(step - irpa.ENTRY.size, b"\0")
        for number in range(entries)
    )
    headers = b"".join(
        irpa.HEADER.pack(
            irpa.MAGIC, 0, 0, irpa.HEADER.size, 112 if at < first - 112 else 0, 0,
            entries, first - at, len(table), names - at, max(8 * entries, text), 0, 0,
        ).ljust(112, b"\0")
        for at in range(0, first, 112)
    )  # fmt: skip
    keys = b"".join(b"%08d" % number for number in range(entries))
    return headers + table + keys.ljust(text, b"x")


@pytest.mark.parametrize("numbers", [(40, 40, 0), (1, 60, 1 << 16), (60, 1, 1 << 16)])
def test_small_files_that_claim_much(tmp_path: Path, numbers: tuple[int, int, int]) -> None:
    """Tables and texts that are said many times made an archive of a megabyte take gigabytes."""
    path = tmp_path / "a.irpa"
    path.write_bytes(many(*numbers))
    with pytest.raises(OutOfRangeError, match="claim more than 16 times the"):
        load(path)
    path.write_bytes(many(1, 40, 100))
    assert [entry.metadata for entry in load(path).values()] == 40 * [path.read_bytes()[-320:][:100]]


@pytest.mark.parametrize("numbers", [(1, 1, 0), (1, 2, 600)])
def test_sparse_texts(numbers: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of some kB on the disk may have texts of any length: they were kept."""
    path = tmp_path / "a.irpa"
    path.write_bytes(many(*numbers))
    assert len(load(path)) == numbers[1]
    claimed = 8 if numbers[2] == 0 else 8 + 600
    monkeypatch.setattr("jitree.params.irpa._MOST_TEXT", claimed - 1)
    with pytest.raises(InvalidArgumentError, match=f"names and metadata claim {claimed} bytes; at most"):
        load(path)


@pytest.mark.parametrize("text", ['{"shape": [1e999]', '{"shape": [1]'])
@pytest.mark.parametrize("element", ["f32", "(2f4,f4", "f4,(2", "V-1", "\0"])
def test_metadata_that_numpy_or_python_cannot_read(tmp_path: Path, text: str, element: str) -> None:
    """They say nothing about the elements, and the archive is read."""
    described = f'TENSORv0:{text}, "type": "Tensor", "dtype": {json.dumps(element)}}}'.encode()
    write(tmp_path / "a.irpa", plan([splat_entry("s", b"\1", 4, described)]))
    entry = load(tmp_path / "a.irpa")["s"]
    assert content(entry) == 4 * b"\1" and (entry.tensor is None) is ("e999" in text)


def test_a_type_whose_name_is_a_megabyte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy reads it as Python: it took 477 MB."""
    monkeypatch.setattr("jitree.params.entry.np.dtype", Mock(side_effect=AssertionError))
    element = "(" + "2," * 500_000 + ")f4"
    described = f'TENSORv0:{{"shape": [1], "type": "Tensor", "dtype": "{element}"}}'.encode()
    write(tmp_path / "a.irpa", plan([splat_entry("s", b"\1", 4, described)]))
    tensor = load(tmp_path / "a.irpa")["s"].tensor
    assert tensor is not None and tensor.element == element


def test_names_that_are_no_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'\\ud800': archives have names of UTF-8 only"):
        plan([splat_entry("\ud800", b"\1", 4)])


def test_paths_of_bytes(archive: Path) -> None:
    assert list(load(os.fsencode(archive))) == ["s", "w", "b"]  # type: ignore[arg-type]


@given(st.data())
def test_random_damage_is_never_worse_than_an_error(
    tmp_path_factory: pytest.TempPathFactory, choice: st.DataObject
) -> None:
    data = bytearray((DATA / "mixed.irpa").read_bytes()[:600])
    for _ in range(choice.draw(st.integers(1, 4))):
        data[choice.draw(st.integers(0, 0x1C1))] = choice.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "a.irpa"
    path.write_bytes(data)
    try:
        entries = load(path)
    except StatusError:
        return
    for entry in entries.values():
        if entry.pattern is None:
            assert len(entry.contents()) == entry.length


def test_plans_that_cannot_be_written() -> None:
    with pytest.raises(InvalidArgumentError, match="alignment 48 is no power of two"):
        plan([], alignment=48)
    with pytest.raises(InvalidArgumentError, match="'a' occurs twice"):
        plan([array_entry("a", W)], [array_entry("a", W)])


def test_an_archive_begins_anywhere_in_its_file(tmp_path: Path) -> None:
    path = tmp_path / "a.irpa"
    write(path, plan([array_entry("a", W)]))
    alone = path.read_bytes()
    write(path, plan([array_entry("a", W)]), 4096)
    assert path.read_bytes() == bytes(4096) + alone


def test_one_key_in_two_archives(archive: Path, tmp_path: Path) -> None:
    index = ParameterIndex()
    index.load(archive)
    other = write_irpa(tmp_path / "other.irpa", {"w": W})
    with pytest.raises(AlreadyExistsError, match=r"parameter 'w' is in '.*a\.irpa' and in '.*other\.irpa'"):
        index.load(other)


def test_an_archive_is_not_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of many users, another user could guess the name that it has until it is complete."""
    monkeypatch.setattr(irpa, "unique", lambda: "guessed")
    monkeypatch.setattr(os, "getpid", lambda: "guessed")
    (tmp_path / "victim").write_bytes(b"precious")
    for name in (".a.irpa.guessed", "a.irpa"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    with pytest.raises(UnavailableError, match="File exists"):
        write_irpa(tmp_path / "a.irpa", {"w": W})
    assert (tmp_path / ".a.irpa.guessed").is_symlink()
    (tmp_path / ".a.irpa.guessed").unlink()
    write_irpa(tmp_path / "a.irpa", {"w": W})
    assert not (tmp_path / "a.irpa").is_symlink()
    assert (tmp_path / "victim").read_bytes() == b"precious"
