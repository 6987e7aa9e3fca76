"""Images of machine code: linking, the file, mapping, and building by other processes."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import resource
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitree.codegen import image
from jitree.codegen.image import builder, cache, keys
from jitree.codegen.image.flat import (
    FlatImage,
    Recipe,
    decode,
    encode,
    from_json,
    map_image,
    parts_of,
    to_json,
)
from jitree.codegen.image.keys import key_of
from jitree.codegen.image.link import RELOCATIONS
from jitree.errors import NotFoundError, PermissionDeniedError, UnavailableError, UnimplementedError
from tests.codegen.images import built
from tests.hal.helpers import wait_until

_ROOT = Path(__file__).parents[2]
KEY = bytes(range(32))


def recipe(generator: str, name: str = "sample") -> Recipe:
    return Recipe(name, "a sample", f"tests.codegen.image_texts:{generator}", 1.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache folder, in a process that knows no images yet."""
    path = tmp_path / "cache"
    monkeypatch.setenv("JITREE_CACHE_DIR", str(path))
    monkeypatch.setattr(image, "_static", {})
    yield path


def twice(mapped: image.Image, value: int) -> int:
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(mapped.addresses["twice"])
    return int(function(value))


def test_built_and_mapped() -> None:
    flat = built(recipe("texts"))
    assert len(flat.rebase) == 8, "the two entries of the table"
    mapped = map_image(flat)
    assert [twice(mapped, value) for value in (20, 21)] == [40, -42]


def test_memory_is_not_writable() -> None:
    mapped = map_image(built(recipe("texts")))
    address = mapped.addresses["twice"]
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            assert line.split()[1] == "r-xp"
            return
    pytest.fail("the image is not mapped")


def test_references_must_be_inside() -> None:
    with pytest.raises(NotFoundError, match="doubled"):
        built(recipe("external_texts"))
    with pytest.raises(UnimplementedError, match="writable"):
        built(recipe("writable_texts"))


def test_entries_must_exist() -> None:
    with pytest.raises(NotFoundError, match="thrice"):
        built(recipe("missing_entry"))


# -- the file --------------------------------------------------------------------------------------------


def test_file_round_trip() -> None:
    flat = built(recipe("texts"))
    assert decode(encode(flat, KEY, "a sample"), KEY) == flat
    assert decode(encode(flat, KEY, "a sample"), bytes(32)) is None


SAMPLE = encode(FlatImage(b"code" * 9, struct.pack("<2I", 0, 8), {"a": 3, "two": 0}, b"notes"), KEY, "sample")


def test_code_of_a_file_is_not_copied() -> None:
    read = decode(SAMPLE, KEY)
    assert read is not None and isinstance(read.code, memoryview) and read.code.obj is SAMPLE


@given(st.integers(0, len(SAMPLE) - 1))
def test_short_file_is_a_miss(length: int) -> None:
    assert decode(SAMPLE[:length], KEY) is None


@given(st.integers(0, 8 * len(SAMPLE) - 1))
def test_damaged_file_is_a_miss(bit: int) -> None:
    damaged = bytearray(SAMPLE)
    damaged[bit // 8] ^= 1 << bit % 8
    assert decode(bytes(damaged), KEY) is None


def test_longer_file_is_a_miss() -> None:
    assert decode(SAMPLE + b"\0", KEY) is None


# -- the cache -------------------------------------------------------------------------------------------


def test_what_keys_depend_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = Recipe("n", "t", "m:f", 1.0)
    recipes = [
        sample,
        sample._replace(name="o"),
        sample._replace(generator="m:g"),
        sample._replace(data=(b"",)),
    ]
    found = set()
    for stamp in (b"one", b"two"):
        monkeypatch.setattr(keys, "build_stamp", lambda stamp=stamp: stamp)
        for version in (b"0.44.0", b"0.99.0", b""):
            monkeypatch.setattr(keys, "_version", lambda package, version=version: version)
            keys._versions.cache_clear()
            keys.environment.cache_clear()
            found |= {key_of(recipe) for recipe in recipes}
            assert key_of(sample._replace(title="u", seconds=2.0)) == key_of(sample)
    keys._versions.cache_clear()
    keys.environment.cache_clear()
    assert len(found) == 2 * 3 * len(recipes)


def test_recipe_survives_the_command_line() -> None:
    sample = recipe("texts")._replace(data=(b"one", b"", b"\0two"))
    samples = [sample, recipe("texts"), sample._replace(name="other", data=(b"x",))]
    parts = parts_of(samples)
    assert sorted(parts) == [b"", b"\0two", b"one", b"x"]
    assert from_json(to_json(samples, parts), io.BytesIO(b"".join(parts))) == samples


def test_store_and_load(folder: Path) -> None:
    sample = recipe("texts")
    flat = FlatImage(b"x" * 8, b"", {"twice": 0})
    assert cache.load(sample, KEY) is None
    path = cache.store(sample, KEY, flat)
    assert cache.load(sample, KEY) == flat
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.load(sample, KEY) is None
    assert list(folder.iterdir()) == [path], "no temporary file is left"


def test_file_of_another_user_is_a_miss(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = recipe("texts")
    path = cache.store(sample, KEY, FlatImage(b"x" * 8, b"", {}))
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache.load(sample, KEY) is None


# -- building in the background --------------------------------------------------------------------------


def test_get_does_not_wait(folder: Path) -> None:
    sample = recipe("texts")
    assert image.get(sample) is None
    deadline = time.monotonic() + 60
    while (mapped := image.get(sample)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert mapped is not None
    assert twice(mapped, 4) == 8
    assert image.get(sample) is mapped


def test_get_does_not_wait_for_the_start_of_a_builder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on, start = threading.Event(), threading.Event(), builder.start_builder

    def late(*arguments: Any) -> builder.Builder | None:
        reached.set()
        assert go_on.wait(60)
        return start(*arguments)

    monkeypatch.setattr(builder, "start_builder", late)
    sample = recipe("texts")
    assert image.get(sample) is None and reached.wait(60)
    assert image._static[sample.name].is_building
    assert image.get(sample) is None
    go_on.set()
    assert twice(image.wait(sample), 4) == 8


_GET = """
import os
from jitree.codegen import image
from tests.codegen.test_image import recipe
os.set_inheritable(int(os.environ["PIPE"]), True)
assert image.get(recipe("waiting_texts")) is None
"""


def test_builder_outlives_a_process_that_ends_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And does not keep open what that one had for its other processes."""
    go_on = folder.with_name("go")
    monkeypatch.setenv("JITREE_TEST_GO", str(go_on))
    reading, writing = os.pipe()
    environment = os.environ | {"PYTHONPATH": str(_ROOT), "PIPE": str(writing)}
    subprocess.run([sys.executable, "-c", _GET], env=environment, pass_fds=[writing], check=True, timeout=60)
    os.close(writing)
    assert select.select([reading], [], [], 60)[0]
    os.close(reading)
    sample = recipe("waiting_texts")
    go_on.touch()
    deadline = time.monotonic() + 60
    while image.provider(sample).find() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert twice(image.wait(sample), 21) == -42


def test_wait_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = recipe("texts")
    assert twice(image.wait(sample), 3) == -6
    assert "building a sample (about 1 s, once)" in capsys.readouterr().err
    assert image.wait(sample) is image.get(sample)
    assert capsys.readouterr().err == ""


def test_damaged_entry_is_built_again(folder: Path) -> None:
    sample = recipe("texts")
    path = cache.path_of(sample, key_of(sample))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"jitree\x00\x01 rubbish")
    assert twice(image.wait(sample), 8) == 16


def test_failed_build(folder: Path) -> None:
    sample = recipe("failing_texts")
    with pytest.raises(UnavailableError, match="no text today"):
        image.wait(sample)
    assert image.get(sample) is None


def test_failed_build_is_reported_once(folder: Path) -> None:
    sample = recipe("failing_texts")
    with pytest.warns(RuntimeWarning, match="no text today") as warned:
        wait_until(lambda: image.get(sample) is not None or image._static[sample.name].settled)
        assert image.get(sample) is None
    assert len(warned) == 1


@pytest.mark.parametrize("most", [0, 8, 100])
def test_files_that_may_not_grow_leave_a_program_interpreted(
    most: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files in memory are such files, also the one with a builder's list of work. It is said once."""
    monkeypatch.setattr(cache, "_tried", set())
    monkeypatch.setattr(image, "_told", set())
    provider, limits = image.Provider(recipe("texts")), resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.warns(RuntimeWarning, match="File too large") as warned:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
            wait_until(lambda: provider.get() is not None or provider.settled)
            assert provider.get() is None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(warned) == 1
    assert provider.failure == "the builder process cannot be started: [Errno 27] File too large"


def test_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "file"))
    monkeypatch.setattr(cache, "_TEMPORARY", (str(tmp_path / "file"),))
    monkeypatch.setattr(image, "_static", {})
    with (
        pytest.warns(RuntimeWarning, match="so nothing is compiled"),
        pytest.raises(UnavailableError, match="cannot be started"),
    ):
        image.wait(recipe("texts"))


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may change its current folder while something is built."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JITREE_CACHE_DIR", f"cache-of-{tmp_path.name}")
    folder = cache.directory()
    monkeypatch.chdir("/")
    assert cache.directory() == folder == tmp_path / f"cache-of-{tmp_path.name}"


def test_an_image_that_is_removed_before_it_is_used_is_built_again(folder: Path) -> None:
    """By ``jitree cache clear``, or since the folder is another one by now; once, and not again and again."""
    sample = recipe("texts")
    provider = image.Provider(sample)
    for _ in range(2):
        while provider._builder is None:
            provider.start()
        while not provider._builder.has_ended():
            time.sleep(0.01)
        cache.path_of(sample, key_of(sample)).unlink()
        provider.start()
    with pytest.raises(UnavailableError, match="ended with code 0: it printed nothing"):
        provider.wait()
    assert image.Provider(sample).wait()


def test_an_image_that_was_built_for_other_folders_is_built_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the folder changes while a builder is at work."""
    provider, last = image.Provider(recipe("texts")), None
    for number in range(3):
        while provider._builder is last or provider._builder is None:
            provider.start()
            assert provider.failure is None
        last = provider._builder
        while not last.has_ended():
            time.sleep(0.01)
        monkeypatch.setenv("JITREE_CACHE_DIR", str(folder / str(number)))
    assert twice(provider.wait(), 20) == 40


def test_finished_build_leaves_only_the_image(folder: Path) -> None:
    sample = recipe("texts")
    image.wait(sample)
    deadline = time.monotonic() + 10
    while len(files := list(folder.iterdir())) > 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert files == [cache.path_of(sample, key_of(sample))]


def test_refused_memory_is_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(flat: FlatImage) -> image.Image:
        raise PermissionDeniedError("no executable memory here")

    monkeypatch.setattr(image, "map_image", refuse)
    with pytest.raises(UnavailableError, match="no executable memory here"):
        image.wait(recipe("texts"))


def test_builder_that_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "load", lambda recipe, key: None)
    with pytest.raises(UnavailableError, match="ended with code 0"):
        image.wait(recipe("texts"))


@pytest.mark.parametrize(
    ("code", "printed", "reason"),
    [
        (127, "", "Python could not be started"),
        (127, "no libpython3", "no libpython3"),
        (126, "", "Python could not be started"),
        (130, "", "it printed nothing"),
        (errno.ENOSPC, "half a", "No space left on device"),
    ],
)
def test_codes_of_builders(
    code: int, printed: str, reason: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some are numbers of the system's errors, others those of what starts programs."""
    python = tmp_path / "Python"
    python.write_text(f"#!/bin/sh\nprintf '{printed}'\nexit {code}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(UnavailableError, match=rf"ended with code {code}: (\S+/)?{reason} \("):
        image.Provider(recipe("texts")).wait()


_WAIT = """
import sys
from jitree.codegen import image
from tests.codegen.test_image import recipe, twice
mapped = image.wait(recipe("slow_texts"))
print(twice(mapped, 21))
"""


def test_many_processes_build_once(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "builds"
    environment = os.environ | {"JITREE_TEST_BUILDS": str(log), "PYTHONPATH": str(_ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _WAIT], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        for _ in range(4)
    ]
    assert [process.communicate(timeout=120)[0].strip() for process in processes] == [b"-42"] * 4
    assert len(log.read_text(encoding="ascii").splitlines()) == 1


def test_mapping_imports_no_compiler(folder: Path) -> None:
    image.wait(recipe("texts"))
    program = (
        "import sys, tests\n"
        "from jitree.codegen import image\n"
        f"sample = image.Recipe('sample', 'a sample', {recipe('texts').generator!r}, 1.0)\n"
        "assert image.get(sample) is not None\n"
        "print(sorted({'numba', 'llvmlite', 'elftools', 'subprocess'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(_ROOT)}, capture_output=True,
        text=True, timeout=60, check=True,
    )  # fmt: skip
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize("generator", ["jitree.loaders.vmvx.build", "jitree.dispatch.native.lower"])
def test_builders_of_kernels_import_little(generator: str) -> None:
    """A program waits for them on a slow tier."""
    program = (
        "import sys, jitree.codegen.image.build, jitree.codegen.image.compile\n"
        "before = set(sys.modules)\n"
        f"import {generator}\n"
        "print(sorted({'numba', 'numpy', 'elftools'} & set(sys.modules)))\n"
        "print(sorted({'dataclasses', 'inspect', 'fractions', 'decimal'} & set(sys.modules) - before))"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines() == ["[]", "[]"]


# -- relocations of aarch64 ------------------------------------------------------------------------------

_ADRP, _ADR, _ADD, _LDR64, _LDR32, _B, _BL = (
    0x90000000, 0x10000000, 0x91000000, 0xF9400000, 0xB9400000, 0x14000000, 0x94000000,
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "word", "place", "target", "expected"),
    [
        (275, _ADRP, 0x1234, 0x2FFF, 0xB0000000),  # adrp x0, one page on
        (275, _ADRP, 0x4000, 0x1008, 0xB0FFFFE0),  # three pages back
        (274, _ADR, 0x100, 0xF4, 0x10FFFFA0),  # adr x0, #-12
        (277, _ADD, 0, 0x5123, 0x91048C00),  # add x0, x0, #0x123
        (286, _LDR64, 0, 0x7008, 0xF9400400),  # ldr x0, [x0, #8]
        (285, _LDR32, 0, 0x7008, 0xB9400800),  # ldr w0, [x0, #8]
        (282, _B, 0x100, 0x104, 0x14000001),
        (283, _BL, 0x100, 0xFC, 0x97FFFFFF),
    ],
)
def test_aarch64_relocations(kind: int, word: int, place: int, target: int, expected: int) -> None:
    code = bytearray(0x8000)
    struct.pack_into("<I", code, place, word)
    RELOCATIONS["EM_AARCH64"][kind](code, place, target)
    assert struct.unpack_from("<I", code, place)[0] == expected


def test_far_branch_is_refused() -> None:
    with pytest.raises(UnimplementedError):
        RELOCATIONS["EM_AARCH64"][282](bytearray(4), 0, 1 << 27)
