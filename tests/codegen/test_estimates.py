"""What builds take on this machine."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from jitree.base.finalizers import SharedWeakValues
from jitree.codegen import image
from jitree.codegen.image import batch, cache, estimates
from jitree.codegen.image.batch import ImageBatch
from jitree.codegen.image.flat import START_SECONDS, FlatImage, Recipe
from jitree.codegen.image.keys import key_of

STATED = [
    Recipe("made", "made of data", "a:b", 2.0 + START_SECONDS, (bytes([number]),)) for number in range(4)
]
"""Eight seconds of work, and the start of a builder."""
WHOLE = estimates._stated(STATED)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JITREE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _takes(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    times = SimpleNamespace(
        user=seconds / 2, system=0.0, children_user=seconds / 4, children_system=seconds / 4
    )
    monkeypatch.setattr(os, "times", lambda: times)
    estimates.note(STATED)


@pytest.mark.parametrize(("processors", "seconds"), [(1, 8.0), (2, 4.0), (4, 2.0), (16, 2.0)])
def test_processes_share_all_but_the_start(processors: int, seconds: float) -> None:
    assert estimates.estimated(STATED, processors) == pytest.approx(seconds + START_SECONDS)
    assert estimates.estimated([STATED[0]._replace(seconds=0.1)], processors) == 0.1
    assert estimates.shares(STATED, processors, 1.0) == pytest.approx([seconds / 4] * 4)


def test_the_last_builds_correct_what_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one in the middle: a machine that sleeps, or a damaged build, says little."""
    for seconds in (2 * WHOLE, 2 * WHOLE, 2 * WHOLE, 1000.0, 0.1):
        _takes(seconds, monkeypatch)
    assert estimates.estimated(STATED, 1) == 2 * WHOLE
    assert estimates.estimated([one._replace(name="other") for one in STATED], 1) == WHOLE
    for _ in range(9):
        _takes(WHOLE / 2, monkeypatch)
    assert estimates.estimated(STATED, 1) == WHOLE / 2


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"7", b'{"made": 2.0}', b'{"made": ["2"]}', b'{"made": [0.0]}', b'{"made": [NaN]}',
     b'{"made": [1e300]}', b'{"made": [true]}', b'{"made": []}', b'{"made": [-1.0]}', b"[" * 100_000],
)  # fmt: skip
def test_a_damaged_file_says_nothing(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write("build-times.json", data)
    assert estimates.estimated(STATED, 1) == WHOLE
    _takes(2 * WHOLE, monkeypatch)
    assert estimates.estimated(STATED, 1) == 2 * WHOLE


def test_a_folder_that_cannot_be_written_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, data: bytes) -> None:
        json.loads(data)
        raise OSError

    monkeypatch.setattr(cache, "write", refuse)
    _takes(2 * WHOLE, monkeypatch)
    assert estimates.estimated(STATED, 1) == WHOLE


# -- what a terminal shows ---------------------------------------------------------------------------------


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def no_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)


class _Progress:
    """As `rich` has it, as far as it is used."""

    def __init__(self, *columns: object, **options: Any) -> None:
        assert options["console"].options == {"stderr": True} and options["transient"]
        assert not options["auto_refresh"], "a thread of its own would be in the way of forks"
        self.steps: list[int] = []
        self.is_open = False
        _made.append(self)

    def __enter__(self) -> _Progress:
        self.is_open = True
        return self

    def __exit__(self, *exception: object) -> None:
        self.is_open = False

    def add_task(self, title: str, total: int) -> int:
        assert total == 100
        return 7

    def update(self, task: int, completed: int, refresh: bool) -> None:
        assert task == 7 and refresh and self.is_open
        self.steps.append(completed)


_made: list[_Progress] = []


@pytest.fixture
def rich(monkeypatch: pytest.MonkeyPatch) -> list[_Progress]:
    """The bars that are made."""
    _made.clear()
    console, progress = ModuleType("rich.console"), ModuleType("rich.progress")
    console.Console = lambda **options: SimpleNamespace(options=options)  # type: ignore[attr-defined]
    progress.BarColumn, progress.Progress = object, _Progress  # type: ignore[attr-defined]
    for module in (ModuleType("rich"), console, progress):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return _made


def test_a_bar_follows_the_estimate_and_is_never_full(
    rich: list[_Progress], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := _Terminal())
    with pytest.raises(KeyboardInterrupt), estimates.Bar("69 kernels", 4.2) as bar:
        for passed in (0.0, 2.1, 4.2, 100.0):
            bar.show(passed)
        raise KeyboardInterrupt
    assert terminal.getvalue() == "jitree: building 69 kernels (about 4 s, once) …\n"
    (shown,) = rich
    assert shown.steps == [50, 98] and not shown.is_open


def test_one_bar_shows_all_waits(rich: list[_Progress], monkeypatch: pytest.MonkeyPatch) -> None:
    """A call waits for each of its kernels; between them the terminal is the program's."""
    monkeypatch.setattr(sys, "stderr", terminal := _Terminal())
    monkeypatch.setattr(ImageBatch, "estimate", 4.0)
    images = ImageBatch("69 kernels", [])
    for passed in (1.0, 2.0, 3.0):
        bar = images.shown()
        assert bar is not None
        with bar:
            assert images.shown() is None, "for other threads"
            bar.show(passed)
        assert not rich[0].is_open
    assert terminal.getvalue() == "jitree: building 69 kernels (about 4 s, once) …\n"
    (shown,) = rich
    assert shown.steps == [25, 50, 75]


def test_what_takes_less_than_a_second_has_no_bar(
    rich: list[_Progress], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := _Terminal())
    with estimates.Bar("7 kernels", 0.2) as bar:
        bar.show(0.1)
    assert terminal.getvalue() == "jitree: building 7 kernels (about 1 s, once) …\n" and not rich


def test_a_terminal_without_rich_has_a_line(no_rich: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := _Terminal())
    with estimates.Bar("7 kernels", 5.0) as bar:
        bar.show(1.0)
    assert terminal.getvalue() == "jitree: building 7 kernels (about 5 s, once) …\n"


@pytest.mark.parametrize("stream", [io.StringIO(), None])
def test_a_file_has_nothing(
    stream: io.StringIO | None, rich: list[_Progress], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with estimates.Bar("69 kernels", 5.0) as bar:
        bar.show(1.0)
    assert not rich and (stream is None or not stream.getvalue())


def _batch(monkeypatch: pytest.MonkeyPatch) -> ImageBatch:
    monkeypatch.setattr(image, "_providers", SharedWeakValues())
    return ImageBatch("four images", list(map(image.provider, STATED)))


def test_one_look_tells_that_nothing_is_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call waits for it: neither keys are computed nor files looked for, one by one."""
    with monkeypatch.context() as few:
        few.setattr(image.Provider, "_load", lambda provider: pytest.fail("it is looked for"))
        assert not _batch(few).find()
        folder.joinpath("spans-0.image").write_bytes(b"of another name")
        assert not _batch(few).find()


@pytest.mark.parametrize("shows", [True, False])
def test_what_is_there_is_found(shows: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a folder that shows no names."""
    cache.store(STATED[1], key_of(STATED[1]), FlatImage(bytes(64), b"", {"f": 0}))

    def refuse(path: str) -> None:
        raise PermissionError(f"{path} cannot be listed")

    if not shows:
        monkeypatch.setattr(os, "scandir", refuse)
    images = _batch(monkeypatch)
    assert not images.find()
    assert [item.image is not None for item in images.providers] == [False, True, False, False]


def test_what_is_there_is_not_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a builder is at work on the rest."""
    cache.store(STATED[1], key_of(STATED[1]), FlatImage(bytes(64), b"", {"f": 0}))
    monkeypatch.setattr(batch, "processors", lambda: 1)
    images = _batch(monkeypatch)
    assert images.estimate == pytest.approx(WHOLE)
    images.find()
    images.providers[0].begun = 1.0
    assert images.estimate == pytest.approx(WHOLE - 2.0) and images.progress == (1, 0.0)


def test_estimates_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each decision of a call asks for them."""
    images, made, own = _batch(monkeypatch), list[int](), estimates.estimated

    def estimated(recipes: Sequence[Recipe], processors: int, pace: float | None = None) -> float:
        made.append(processors)
        return own(recipes, processors, pace)

    monkeypatch.setattr(estimates, "estimated", estimated)
    monkeypatch.setattr(batch, "processors", lambda: 2)
    assert {images.estimate for _ in range(9)} == {images.estimate} and len(images.shares) == len(STATED)
    assert made == [2]
    monkeypatch.setattr(batch, "processors", lambda: 64)
    assert images.estimate and made == [2, 64]
