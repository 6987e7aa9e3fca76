"""Images made from data: several units, notes, sharing."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import weakref
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from jitree.base.platform.starting import priority_of
from jitree.codegen import image
from jitree.codegen.image import builder as background
from jitree.codegen.image import cache, shipped, worklist
from jitree.codegen.image.builder import BuilderThread
from jitree.codegen.image.flat import SUFFIX, Recipe, map_image, title_of
from jitree.codegen.image.keys import key_of
from jitree.codegen.image.worklist import WorkList
from jitree.errors import AlreadyExistsError, UnavailableError
from tests.codegen.images import built
from tests.hal.helpers import wait_until


def recipe(generator: str, *data: bytes) -> Recipe:
    return Recipe("made", "made of data", f"tests.codegen.image_texts:{generator}", 1.0, data)


def call(mapped: image.Image, name: str, *values: int) -> int:
    function = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(values))(mapped.addresses[name])
    return int(function(*values))


def test_generator_gets_the_data() -> None:
    mapped = map_image(built(recipe("sum_of_constants", b"7", b"35")))
    assert set(mapped.addresses) == {"total", "first"}
    assert call(mapped, "total") == 42
    assert call(mapped, "first") == 7
    assert mapped.notes == b"2 units"


def test_the_end_of_an_image_leaves_no_text_of_it(folder: Path) -> None:
    """That of the last executable stayed as long as the process."""
    text = bytes(1 << 20) + b"sum"
    held = sys.getrefcount(text)
    wanted = image.provider(recipe("sum_of_constants", text))
    assert wanted.key == image.provider(recipe("sum_of_constants", text)).key
    assert sys.getrefcount(text) > held
    del wanted
    assert sys.getrefcount(text) == held


def test_starting_a_builder_gives_way(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of the program wait for no more than half of it."""
    steps: list[str] = []

    def find(package: str) -> list[str]:
        steps.append(package)
        return []

    def spawn(*arguments: object) -> int:
        steps.append("spawn")
        raise OSError

    monkeypatch.setattr(background, "give_way", lambda: steps.append("-"))
    monkeypatch.setattr(background, "folders_of", find)
    monkeypatch.setattr(background, "spawn", spawn)
    sample = recipe("sum_of_constants", b"7")
    starting = BuilderThread([sample], [key_of(sample)], key_of(sample), 0, None)
    starting.start()
    starting.join()
    found = steps[1:-2]
    assert {"numba", "numpy", "jitree"} <= set(found) and "-" not in found
    assert steps == ["-", *found, "-", "spawn"]


def test_no_process_starts_while_the_program_needs_the_processors(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sample = recipe("sum_of_constants", b"7")
    starting = BuilderThread([sample], [key_of(sample)], key_of(sample), 0, None)

    def pause(seconds: float) -> None:
        steps.append("pause")
        if len(steps) == 3:
            starting.work.release()

    def spawn(*arguments: object) -> int:
        steps.append("spawn")
        raise OSError

    monkeypatch.setattr(background, "give_way", lambda: None)
    monkeypatch.setattr(background, "time", SimpleNamespace(sleep=pause))
    monkeypatch.setattr(background, "spawn", spawn)
    monkeypatch.setattr(worklist, "_HOLD", 1e6)
    starting.work.hold()
    starting.start()
    starting.join()
    assert steps == ["pause"] * 3 + ["spawn"]


def test_none_starts_that_has_been_ended_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session has ended while the program had the processors to itself."""
    sample = recipe("sum_of_constants", b"7")
    starting = BuilderThread([sample], [key_of(sample)], key_of(sample), 0, None)
    spawned: list[object] = []
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        starting.end()
        if len(pauses) == 3:
            starting.work.release()

    monkeypatch.setattr(background, "give_way", lambda: None)
    monkeypatch.setattr(background, "time", SimpleNamespace(sleep=pause))
    monkeypatch.setattr(background, "spawn", lambda *arguments: spawned.append(arguments))
    monkeypatch.setattr(worklist, "_HOLD", 1e6)
    starting.work.hold()
    starting.start()
    starting.join()
    assert len(pauses) == 1 and not spawned
    assert starting.has_ended() and starting.failure() is None


def test_a_builder_has_the_folder_of_when_it_was_wanted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread may come late, where other programs are at work."""
    wanted = threading.Event()
    monkeypatch.setattr(background, "give_way", lambda: wanted.wait(60))
    sample = recipe("sum_of_constants", b"7")
    starting = BuilderThread([sample], [key_of(sample)], key_of(sample), 0, None)
    starting.start()
    other = tmp_path / "other"
    monkeypatch.setenv("JITREE_CACHE_DIR", str(other))
    starting.begin([key_of(sample)], 0)
    wanted.set()
    starting.join()
    wait_until(starting.has_ended)
    assert starting.has_built() and list(folder.glob(f"*{SUFFIX}")) and not list(other.glob("*"))


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="Linux without groups of sessions")
def test_a_builder_goes_after_other_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its niceness says nothing to the calls of this one where Linux divides the processors by sessions."""
    groups: list[str] = []
    monkeypatch.setattr(background, "Builder", lambda process, log: groups.append(group_of(process)))
    for niceness in (0, 2):
        wait_until(partial(placed, niceness, groups))  # it takes such a word now and then
    if not groups[-1]:
        pytest.skip("Linux that divides no processors by sessions (sched_autogroup_enabled is 0)")


def placed(niceness: int, groups: list[str]) -> bool:
    """Starts a builder, and looks into which group it went: one counted from the program's own, or none."""
    assert start_builder(recipe("sum_of_constants", b"7", bytes([niceness])), niceness) is None
    return groups[-1].split()[-1:] in ([], [str(priority_of(os.getpid())[1] + niceness)])


def start_builder(sample: Recipe, niceness: int) -> background.Builder | None:
    key, work = key_of(sample), WorkList.create(1)
    work.niceness = niceness
    try:
        return background.start_builder([sample], [key], key, work, cache.path_of(sample, key))
    finally:
        work.close()


def group_of(process: int) -> str:
    group = Path(f"/proc/{process}/autogroup").read_text(encoding="ascii")
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return group


def test_data_is_part_of_the_key() -> None:
    keys = {key_of(recipe("f", *data)) for data in [(), (b"",), (b"ab",), (b"a", b"b"), (b"b", b"a")]}
    assert len(keys) == 5


def test_units_that_define_one_name_twice() -> None:
    with pytest.raises(AlreadyExistsError, match="first"):
        built(recipe("same_name_twice"))


def test_data_reaches_the_builder_process(folder: Path) -> None:
    large = b" " * (1 << 20) + b"0"
    provider = image.provider(recipe("sum_of_constants", b"4", large, b"5"))
    assert call(provider.wait(), "total") == 9
    (file,) = folder.glob("*.image")
    assert title_of(file.read_bytes()) == "made of data"


def test_provider_is_shared_and_forgotten(folder: Path) -> None:
    sample = recipe("sum_of_constants", b"1")
    provider = image.provider(sample)
    assert image.provider(recipe("sum_of_constants", b"1")) is provider
    assert image.provider(recipe("sum_of_constants", b"2")) is not provider
    mapped = provider.wait()
    assert provider.get() is mapped
    key, forgotten = provider.key, weakref.ref(provider)
    del provider, mapped
    gc.collect()
    assert forgotten() is None
    assert cache.load(sample, key) is not None


@pytest.mark.parametrize(("data", "at_once"), [((b"",), [True, False]), ((), [True, True])])
def test_background_builders_of_programs_are_few(
    data: tuple[bytes, ...],
    at_once: list[bool],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Those of the package's own images, which have no data, are at work side by side."""
    monkeypatch.setenv("JITREE_TEST_BUILDS", str(tmp_path / "builds"))
    monkeypatch.setattr(image.os, "sched_getaffinity", lambda process: {0, 1})  # type: ignore[attr-defined]
    generator = "tests.codegen.image_texts:slow_texts"
    providers = [image.provider(Recipe(f"slow{n}", "slow", generator, 1.0, data)) for n in range(2)]
    assert [provider.get() for provider in providers] == [None, None]
    assert [provider.is_building for provider in providers] == at_once
    assert [call(provider.wait(), "twice", 4) for provider in providers] == [8, 8]


def test_builders_give_way_most_where_there_is_one_processor(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    niceness: dict[int, object] = {}
    for count in (1, 2):
        processors = set(range(count))
        monkeypatch.setattr(image.os, "sched_getaffinity", lambda process, of=processors: of)  # type: ignore[attr-defined]
        monkeypatch.setattr(
            image.Provider, "_start", lambda provider, value, of=count: niceness.update({of: value})
        )
        image.provider(recipe(f"one{count}")).get()
    assert niceness == {1: 10, 2: 2}


def test_a_builder_has_the_processors_of_the_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of a device start them, which may each have a single one."""
    own = os.getpid()
    given: list[object] = []
    monkeypatch.setattr(background, "_start", lambda *arguments: own)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2} if process == own else {1})
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, places: given.append((process, places)))
    sample = recipe("one")
    builder = start_builder(sample, 0)
    assert builder is not None and given == [(own, {0, 1, 2})]
    assert image.processors() == 3
    assert builder.has_ended(), "it is no child"


def test_unit_that_cannot_be_compiled(folder: Path) -> None:
    with pytest.raises(UnavailableError, match="ended with code 1"):
        image.provider(recipe("bad_second_unit")).wait()
    (log,) = folder.glob("*.log")
    assert "nonsense" in log.read_text()


def test_a_package_that_changes_meanwhile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = image.provider(recipe("texts"))
    assert provider.key
    monkeypatch.setenv(shipped.STAMP_VARIABLE, "another")
    with pytest.raises(UnavailableError, match="has changed since this program was started"):
        provider.wait()


def test_started_images_are_built_beside_each_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITREE_TEST_BUILDS", str(folder.with_name("builds")))
    generator = "tests.codegen.image_texts:slow_texts"
    providers = [image.provider(Recipe(f"together{n}", "slow", generator, 1.0)) for n in range(3)]
    for provider in providers:
        provider.start()
    assert [provider.is_building for provider in providers] == [True] * 3
    assert [call(provider.wait(), "twice", 4) for provider in providers] == [8] * 3
