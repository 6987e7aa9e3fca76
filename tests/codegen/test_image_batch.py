"""Several images of one builder: their order, when each is used, what is built once, what goes wrong."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from jitree import Session
from jitree.base.finalizers import SharedWeakValues
from jitree.codegen import image
from jitree.codegen.image import batch, cache
from jitree.codegen.image import builder as starting
from jitree.codegen.image.batch import ImageBatch
from jitree.codegen.image.builder import BuilderThread
from jitree.codegen.image.flat import ASIDE, FIRST, MOST, START_SECONDS, Recipe
from jitree.codegen.image.worklist import WorkList

_ROOT = Path(__file__).parents[2]
TIMEOUT = 120


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Builders that wait go on until their program ends; images are those of one test."""
    path = tmp_path / "cache"
    monkeypatch.setattr(image, "_providers", SharedWeakValues())
    monkeypatch.setenv("JITREE_TEST_PATIENCE", "inf")
    monkeypatch.setenv("JITREE_CACHE_DIR", str(path))
    monkeypatch.setenv("JITREE_TEST_BUILDS", str(tmp_path / "builds"))
    monkeypatch.setenv("JITREE_TEST_GO", str(tmp_path / "go"))
    return path


@pytest.fixture
def one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process starts has one."""
    own = {min(os.sched_getaffinity(0))}
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: own)


def batch_of(*names: str) -> ImageBatch:
    """An image for each name, which says what comes of it (:func:`image_texts.named_texts`)."""
    generator = "tests.codegen.image_texts:named_texts"
    recipes = [Recipe("named", name, generator, 1.0, (name.encode(),)) for name in names]
    return ImageBatch(f"{len(names)} images", list(map(image.provider, recipes)))


def begun(folder: Path) -> list[str]:
    """The names of the images that builders have begun, in that order."""
    log = folder.with_name("builds")
    return log.read_text(encoding="ascii").split() if log.exists() else []


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + TIMEOUT
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def get(images: ImageBatch, numbers: Sequence[int]) -> Callable[[], bool]:
    """Whether those are ready."""
    return lambda: all([images.providers[number].get() is not None for number in numbers])


def twice(ready: image.Image | None, value: int) -> int:
    assert ready is not None
    return int(ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(ready.addresses["twice"])(value))


def test_each_image_is_used_when_it_is_there(folder: Path, one_processor: None) -> None:
    """The first one wanted first; others while they are built."""
    images = batch_of("a", "b-waits", "c", "d")
    images.order((2, 1), ())
    images.start()
    until(get(images, [2]))
    assert twice(images.providers[2].image, 21) == -42
    until(lambda: len(begun(folder)) == 2)
    assert not images.settled and begun(folder) == ["c", "b-waits"]
    images.providers[3].put(FIRST)
    folder.with_name("go").touch()
    images.wait()
    assert begun(folder) == ["c", "b-waits", "d", "a"]
    assert [twice(item.image, 4) for item in images.providers] == [8] * 4


def test_images_are_built_side_by_side(folder: Path) -> None:
    """Each on a processor of its own, as far as there are some."""
    images = batch_of("a-waits", "b-waits", "c-waits")
    images.start()
    most = min(3, image.processors())
    until(lambda: len(begun(folder)) == most)
    folder.with_name("go").touch()
    images.wait()
    assert sorted(begun(folder)) == ["a-waits", "b-waits", "c-waits"]


def test_images_of_several_programs_are_built_once(folder: Path) -> None:
    first = batch_of("a", "b")
    first.wait()
    del first
    gc.collect()
    second, third = batch_of("b", "c"), batch_of("c", "b")
    assert second.providers[0] is third.providers[1]
    second.wait()
    third.wait()
    assert sorted(begun(folder)) == ["a", "b", "c"]


def test_a_damaged_entry_is_the_only_one_that_is_built_again(folder: Path) -> None:
    batch_of("a", "b", "c").wait()
    gc.collect()
    images = batch_of("a", "b", "c")
    place = cache.path_of(images.providers[1].recipe, images.providers[1].key)
    place.write_bytes(place.read_bytes()[:-1])
    assert not images.find()
    images.wait()
    assert sorted(begun(folder)) == ["a", "b", "b", "c"]
    assert twice(images.providers[1].image, 4) == 8


@pytest.mark.parametrize(
    ("what", "why", "count"),
    [
        ("fails", "no text today", 3),
        ("dies", "ended by signal 9", 2),
        ("disk-full", "No space left", 2),  # nor has any other: the program is told at once
    ],
)
def test_what_is_built_is_used_whatever_comes_of_others(
    what: str, why: str, count: int, folder: Path, one_processor: None
) -> None:
    """And one warning says that some are missing. ``count``: how many are begun."""
    images = batch_of("a", f"b-{what}", f"c-{what}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        until(lambda: [item.get() for item in images.providers] and images.settled)
        assert [item.get() is not None for item in images.providers] == [True, False, False]
    (said,) = [str(item.message) for item in caught]
    assert "goes without 3 images" in said and why in said
    assert twice(images.providers[0].image, 4) == 8
    assert len(begun(folder)) == count


def test_where_warnings_are_errors_calls_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(image, "_told", set())
    images = batch_of("a-fails")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        until(lambda: [item.get() for item in images.providers] and images.settled)
        assert images.providers[0].get() is None
    assert capsys.readouterr().err.count("jitree: goes without 1 images") == 1


def test_a_copy_of_the_builder_that_dies_takes_no_other_image_along(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever has what image: one is missing."""
    if image.processors() < 2:
        pytest.skip("one processor: there are no copies")
    monkeypatch.setenv("JITREE_TEST_PROCESS", str(os.getpid()))
    images = batch_of("a loses a copy", "b loses a copy", "c loses a copy")
    with pytest.warns(RuntimeWarning, match="goes without 3 images"):
        until(lambda: [item.get() for item in images.providers] and images.settled)
    assert sorted(item.image is not None for item in images.providers) == [False, True, True]


def test_a_builder_that_takes_too_long_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = batch_of("a", "b")
    with pytest.warns(RuntimeWarning, match="2 images.*not been built within 10000 s") as seen:
        for _ in range(2):
            images.tell_silence(1e4)
    assert len(seen) == 1


_WAIT = """
from tests.codegen.test_image_batch import batch_of, twice
images = batch_of("a", "b", "c-slow", "d")
images.wait()
print([twice(item.image, 21) for item in images.providers])
"""


def test_many_processes_build_each_image_once(folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _WAIT], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=TIMEOUT)[0].split() for process in processes]
    assert outputs == [[b"[-42,", b"-42,", b"-42,", b"-42]"]] * 3
    assert sorted(begun(folder)) == ["a", "b", "c-slow", "d"]


def test_who_waits_for_a_builder_at_work_asks_for_its_file_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = batch_of("a", "b")
    images.start()
    first, second = images.providers
    with monkeypatch.context() as changed:
        changed.setattr(image.Provider, "_load", None)
        until(first.may_be_there)
    until(lambda: first.get() is not None)
    assert first.may_be_there(), "no builder is at work on it"
    until(second.may_be_there)
    images.wait()


def test_images_by_which_no_call_ends_sooner_are_put_aside(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside: list[tuple[image.Provider, int]] = []
    monkeypatch.setattr(image.Provider, "put", lambda provider, kind: aside.append((provider, kind)))
    images = batch_of("a", "b", "c", "d")
    images.order((2, 0), (3,))
    images.start()
    assert aside == [(images.providers[3], ASIDE), (images.providers[1], ASIDE)]
    images.wait()


def test_an_estimate_is_of_all_processors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = batch_of("a", "b", "c", "d")
    monkeypatch.setattr(batch, "processors", lambda: 2)
    assert images.estimate == pytest.approx(START_SECONDS + 4 * (1 - START_SECONDS) / 2)


def test_an_estimate_follows_from_what_the_builder_has_taken_so_far(
    folder: Path, two_processors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is three times as slow says so before it has built for the first time."""
    images = batch_of("a", "b", "c", "d")
    monkeypatch.setattr(image.Provider, "builder", SimpleNamespace(work=WorkList.create(4)))
    (work,) = images._work()
    share, before = (1 - START_SECONDS) / 2, images.progress
    assert images.start_seconds == START_SECONDS and images.shares == pytest.approx([share] * 4)
    work.note(3 * START_SECONDS, START_SECONDS)
    assert images.start_seconds == 0.0 and images.shares == pytest.approx([3 * share] * 4)
    work.note(2.0, 1.0)
    whole = (work.pace or 0.0) * (START_SECONDS + 8 * share)
    assert images.estimate == pytest.approx(START_SECONDS + (whole - START_SECONDS) / 2)
    assert images.progress > before
    work.note(1e9, 1.0)
    assert work.pace == MOST, "a clock that has jumped"
    work.close()


@pytest.mark.parametrize("status", [0, 1])
def test_a_builder_that_has_ended_is_forgotten_by_the_system(status: int, tmp_path: Path) -> None:
    """Also one whose images are there, so that nobody asks for it any more."""
    process = os.posix_spawn("/bin/sh", ["sh", "-c", f"exit {status}"], {})
    builder = starting.Builder(process, tmp_path / "log")
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    with Session("local-sync"):
        pass
    with pytest.raises(ChildProcessError):
        os.waitpid(process, os.WNOHANG)
    assert builder.has_ended() and builder.has_built() == (status == 0)


def test_a_session_closes_while_another_thread_starts_the_first_builder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What that imports may be half there."""
    monkeypatch.setitem(sys.modules, starting.__name__, ModuleType(starting.__name__))
    Session("local-sync").close()


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "processors", lambda: 2)


def prepared(images: ImageBatch) -> BuilderThread:
    """The builder that waits, once its process is there."""
    images.prepare()
    builder = images.providers[0].builder
    assert builder is not None and builder.is_waiting
    builder.join()
    return builder


def test_a_builder_waits_for_what_is_wanted(folder: Path, one_processor: None, two_processors: None) -> None:
    """It has started before that is known, and builds nothing."""
    images = batch_of("a", "b", "c")
    builder = prepared(images)
    assert not images.find() and images.begun is None and begun(folder) == []
    assert 0 <= images.start_seconds < START_SECONDS
    images.order((2, 0), ())
    images.wait()
    assert begun(folder) == ["c", "a", "b"]
    assert not builder.is_waiting and images.providers[0].begun is not None
    assert [twice(item.image, 21) for item in images.providers] == [-42] * 3


def test_a_builder_that_waits_keeps_no_other_from_building(folder: Path, two_processors: None) -> None:
    """And builds what is not there by then."""
    images = batch_of("a", "b", "c-slow", "d", "e")
    builder = prepared(images)
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    subprocess.run([sys.executable, "-c", _WAIT], env=environment, check=True, stdout=subprocess.DEVNULL)
    assert sorted(begun(folder)) == ["a", "b", "c-slow", "d"]
    assert not builder.has_built()
    images.wait()
    assert sorted(begun(folder)) == ["a", "b", "c-slow", "d", "e"]


def test_a_builder_that_was_not_wanted_is_followed_by_another(
    folder: Path, two_processors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = batch_of("a", "b")
    builder = prepared(images)
    builder.end()
    until(builder.has_ended)
    assert images.start_seconds == START_SECONDS
    images.wait()
    assert sorted(begun(folder)) == ["a", "b"]


def test_no_builder_waits_where_that_saves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one processor, beside another builder, and where building takes less than starting."""
    monkeypatch.setattr(batch, "prepare_builder", lambda *arguments: pytest.fail("it has started"))
    small = Recipe("named", "small", "tests.codegen.image_texts:named_texts", 1.5 * START_SECONDS, (b"s",))
    monkeypatch.setattr(batch, "processors", lambda: 2)
    ImageBatch("one image", [image.provider(small)]).prepare()
    images = batch_of("a", "b")
    monkeypatch.setattr(batch, "processors", lambda: 1)
    images.prepare()
    monkeypatch.setattr(batch, "processors", lambda: 2)
    monkeypatch.setattr(batch, "builders_at_work", lambda: 1)
    images.prepare()
    assert images.begun is None


_LEAVES = """
from unittest import mock
from tests.codegen import test_image_batch
from jitree.codegen.image import batch
with mock.patch.object(batch, "processors", lambda: 2):
    builder = test_image_batch.prepared(test_image_batch.batch_of("a", "b"))
print(builder._builder._process)
"""


def test_a_builder_that_waits_ends_with_its_program(folder: Path) -> None:
    """It builds nothing, and leaves nothing."""
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    left = subprocess.check_output([sys.executable, "-c", _LEAVES], env=environment, timeout=TIMEOUT)
    until(lambda: not Path(f"/proc/{int(left)}/cmdline").exists())
    assert begun(folder) == [] and not list(folder.iterdir())


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JITREE_TEST_PATIENCE", "0")


def test_a_builder_that_nobody_wanted_has_built_nothing(
    folder: Path, two_processors: None, no_patience: None
) -> None:
    """It ends by itself, its end is no failure, and what is wanted later is built."""
    images = batch_of("a", "b")
    builder = prepared(images)
    until(builder.has_ended)
    assert not builder.has_built() and builder.failure() is None
    assert begun(folder) == [] and not list(folder.iterdir())
    images.wait()
    assert sorted(begun(folder)) == ["a", "b"]


@pytest.mark.parametrize("what", ["end", "limit"])
def test_the_number_of_a_builder_is_its_own_while_it_is_used(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system gives it to another process once a thread has asked whether the builder has ended."""
    process = os.posix_spawn("/bin/sleep", ["sleep", "600"], {})
    builder, seen = starting.Builder(process, tmp_path / "log"), []

    def look(number: int, *more: int, **named: int) -> None:
        assert number == process
        os.kill(process, signal.SIGKILL)
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        with ThreadPoolExecutor(1) as others:
            seen.append(others.submit(starting._looking.acquire, False).result())

    monkeypatch.setattr(os, "killpg", look)
    if what == "end":
        builder.end()
    else:
        builder.limit(look)
    assert seen == [False] and builder.has_ended()
    for again in (builder.end, lambda: builder.limit(look)):
        again()
    assert seen == [False], "one that has ended has no number"
