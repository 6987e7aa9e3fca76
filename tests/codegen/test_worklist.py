"""What a program and the processes of its builder tell each other, and what another builder does to that."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
import time
import warnings
from itertools import count
from mmap import mmap
from pathlib import Path
from types import SimpleNamespace

import pytest

from jitree.codegen.image import build, builder_process, cache, worklist
from jitree.codegen.image.flat import ASIDE, FIRST, NEXT, PUT_OFF, START_SECONDS
from jitree.codegen.image.keys import key_of
from jitree.codegen.image.worklist import WorkList
from tests.codegen.test_image_batch import _ROOT, _WAIT, TIMEOUT, batch_of, folder

__all__ = ["folder"]


@pytest.fixture(autouse=True)
def unplaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's own process keeps its priority."""
    monkeypatch.setattr(worklist, "place", lambda *arguments: None)


def test_what_another_builder_has_built_meanwhile_is_no_silence(folder: Path) -> None:
    """A program that was idle has not looked for it."""
    images = batch_of("a", "b", "c-slow", "d")
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    subprocess.run([sys.executable, "-c", _WAIT], env=environment, check=True, stdout=subprocess.DEVNULL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images.tell_silence(1e4)
    assert images.settled


def test_another_processs_builder_gets_on_with_its_images_alone(folder: Path) -> None:
    """This process's own come and go meanwhile, which is no progress of what it waits for."""
    images = batch_of("a", "b")
    lock = cache.path_of(images.providers[0].recipe, images._key).with_suffix(cache.LOCK_SUFFIX)
    lock.touch(0o600)
    seen, builders = {images.progress}, set[object]()
    with open(lock, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        end = time.monotonic() + TIMEOUT
        while len(builders) < 3 and time.monotonic() < end:
            for item in images.providers:
                item.start()
            builders |= {item.builder for item in images.providers if item.builder is not None}
            seen.add(images.progress)
    assert len(builders) == 3 and len(seen) == 1
    before = images.progress
    images.wait()
    assert images.progress > before


def test_what_another_builder_has_made_says_nothing_of_the_pace(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worklist, "_PATIENCE", worklist._PATIENCE)  # the generator's module changes it
    batch_of("a", "b").wait()
    gc.collect()
    recipes = [item.recipe for item in batch_of("a", "b", "c").providers]
    work = WorkList.create(3)
    work.order(range(3))
    worker = build._ImageWorker(recipes, list(map(key_of, recipes)), build.target_here())
    assert [outcome.number for outcome in worker.run(work)] == [2]
    assert work.stated == pytest.approx(recipes[2].seconds - START_SECONDS)
    work.close()


def test_what_is_wanted_is_taken_first(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[object] = []
    monkeypatch.setattr(worklist, "place", lambda process, wanted: events.append(wanted))
    monkeypatch.setattr(worklist, "priority_of", lambda process: (process == os.getpid(), 7))
    work = WorkList.create(8)
    work.niceness = 2
    assert list(work) == [], "nothing is wanted yet"
    work.put(6, FIRST)
    assert list(work) == []
    work.order(range(8))
    numbers = iter(work)
    assert next(numbers) == 0
    assert events.pop() == (3, 9), "behind the program and its group"
    work.put(3, FIRST)
    work.put(1, PUT_OFF)
    work.put(7, PUT_OFF)
    work.put(0, FIRST)
    work.put(2, ASIDE)
    work.put(5, ASIDE)
    for number in numbers:
        events.append(number)
        if number == 4:
            work.put(5, FIRST)
        if number == 2:
            work.put(7, NEXT)
    urgent, aside = (3, 9), (6, 12)
    expected = [urgent, 3, urgent, 4, urgent, 5, urgent, 6, aside, 2, urgent, 7, aside, 1]
    assert events == expected, "what has been taken is not taken again"
    work.close()


def test_what_is_brought_forward_comes_among_the_next() -> None:
    work = WorkList.create(5)
    work.order(range(5))
    for number in (1, 2, 3):
        work.put(number, ASIDE)
    work.put(4, FIRST)
    work.hold()
    for number in (2, 3, 4):
        work.put(number, NEXT)
    numbers = iter(work)
    assert [next(numbers) for _ in range(4)] == [4, 0, 2, 3]
    work.put(2, NEXT)
    work.release()
    assert list(numbers) == [1], "what has been taken is not taken again"
    work.close()


def test_what_is_put_aside_waits_while_the_program_needs_the_processors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, pauses = WorkList.create(3), list[float]()
    held = memoryview(mmap(work.descriptor, 8)).cast("d")
    now = [1000.0]

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += 0.02

    monkeypatch.setattr(worklist, "place", lambda *arguments: None)
    for module in (worklist, builder_process):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pause))
    work.order(range(3))
    work.put(1, ASIDE)
    work.put(2, PUT_OFF)
    work.hold()
    numbers = iter(work)
    assert next(numbers) == 0 and not pauses, "a call ends sooner by it"
    assert next(numbers) == 1 and len(pauses) == 3, "the program has not said so again"
    builder_process.wait_while_held(held)
    assert len(pauses) == 3, "a builder starts at once"
    work.hold()
    builder_process.wait_while_held(held)
    assert len(pauses) == 6, "what a builder begins with waits, too"
    work.hold()
    assert builder_process.Given({}, held).find_spec("any") is None
    assert len(pauses) == 9, "and each import"
    work.hold()
    work.put(2, FIRST)
    assert next(numbers) == 2 and len(pauses) == 9, "a call waits for it"
    work.release()
    builder_process.wait_while_held(held)
    assert len(pauses) == 9, "the program does not need them any more"
    work.close()
    assert builder_process.Given({}, held).find_spec("any") is None, (
        "what is imported after the file is closed"
    )


@pytest.mark.parametrize("what", ["parents", "seconds"])
def test_what_nobody_wants_is_not_waited_for(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parents, seconds = count(7, what == "parents"), count()
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda seconds: None)
    if what == "parents":
        clock.monotonic = lambda: 0
    monkeypatch.setattr(worklist, "time", clock)
    work = WorkList.create(2)
    work._program = 7
    assert not work.wait()
    work.order([1])
    assert work.wait() and list(work) == [1]
    work.close()
