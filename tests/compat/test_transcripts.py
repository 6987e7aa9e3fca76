"""What iree.runtime does with good and odd arguments, against what its names do here."""

from __future__ import annotations

import re
from operator import attrgetter

import pytest

import jitree.compat.iree_runtime as rt
from jitree.compat.iree_runtime import hal
from jitree.compat.iree_runtime.names import SUBMODULES
from tests.base.rows import each_row
from tests.compat import signatures
from tests.compat.transcript import FOLDER, Group, read, run

GROUPS = [
    pytest.param(group, id=f"{path.stem}: {group.name}")
    for path in sorted(FOLDER.glob("*.txt"))
    for group in read(path)
]


@pytest.mark.parametrize("group", GROUPS)
def test_calls_come_to_what_is_recorded(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hal, "_given", [])
    different = []
    for place, found in run(group, rt):
        step = group.steps[place]
        expected = step.here or step.there
        if found != expected:
            different.append(f"{step.text}\n  expected {expected}\n  found    {found}")
    assert not different, "\n".join(different)


def test_every_name_is_called() -> None:
    """The transcripts name what the package has, but for tokenizers, which are another package."""
    text = "".join(path.read_text() for path in FOLDER.glob("*.txt"))
    names = {name for name in rt.__all__ if not name.startswith("Tokenizer")} - {*SUBMODULES}
    assert {name for name in names if not re.search(rf"\b{name}\b", text)} == set()


OTHERWISE = {
    "HalDriver.create_device": "one function takes what two take there",
    "HalModuleBufferViewTraceCallback": "a type",
}


def test_arguments_have_the_names_and_defaults_of_those_there() -> None:
    def check(row: tuple[str, str]) -> None:
        name, there = row
        found = attrgetter(name)(rt)
        if name in OTHERWISE:
            return
        expected, here = there.split(), (signatures.arguments(found) or "").split()
        assert len(here) == len(expected), here
        assert all(one in ("_", other) for one, other in zip(expected, here, strict=True)), here

    each_row(signatures.read().items(), check)
