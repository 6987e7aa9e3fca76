"""Files that an interrupt leaves open while they are opened: none, wherever it comes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from jitree.base import code_listing
from jitree.base.finalizers import OwnedDescriptor
from jitree.base.platform import files
from jitree.base.platform.threads import Parking
from jitree.codegen.image import contents, worklist
from jitree.hal.enums import MemoryAccess
from jitree.hal.objects import DescriptorFile
from tests.base.interruption import interruptions

OPENED: Final[dict[str, Callable[[str], object]]] = {
    "a thread's rest": lambda path: Parking(),
    "a file of a program": lambda path: DescriptorFile.open(path, MemoryAccess.READ),
    "a pack": lambda path: contents.Pack(path),
    "a list of work": lambda path: worklist.WorkList.create(2).close(),
    "a library in memory": lambda path: files.code_file(b"x"),
    "names for perf": lambda path: code_listing.MapFile(),
}


def descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")


@pytest.mark.parametrize("what", OPENED)
def test_an_interrupt_leaves_no_file_open(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_listing, "_FOLDER", str(tmp_path))
    file = tmp_path / "file"
    file.write_bytes(bytes(8))

    def make() -> None:
        with suppress(contents.Mismatch):
            OPENED[what](str(file))

    make()
    before = descriptors()
    for interruption in interruptions(0):
        interruption.during(make)
        assert descriptors() == before, f"interrupted at place {interruption.place}"


def test_it_is_closed_once() -> None:
    """The number may be another file's by then."""
    opened = OwnedDescriptor(os.open, os.devnull, os.O_RDONLY)
    opened.close()
    other = OwnedDescriptor(os.open, os.devnull, os.O_RDONLY)
    assert other.number == opened.number
    opened.close()
    del opened
    assert os.fstat(other.number)


def test_what_cannot_be_opened_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        OwnedDescriptor(os.open, "/none", os.O_RDONLY)
