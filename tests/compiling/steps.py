"""Steps of compiling that are taken once for the same files, however many tests compile them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from jitree.compiling.programs import CompilerWork, MessageLog

_known: Final = dict[object, list[bytes | None]]()


@pytest.fixture(scope="module")
def steps_once() -> Iterator[None]:
    """Puts the results of a step there that has ended well, and without a word, for these files before.

    Each is a process, which takes half a second of a processor and more, and gives the same each time."""
    run = CompilerWork.run

    def once(work: CompilerWork, who: str, command: Sequence[str], log: MessageLog | None = None) -> int:
        paths = [Path(word) for word in command if os.path.isabs(word)]
        before = [_content(path) for path in paths]
        key = who, *(word for word in command if not os.path.isabs(word)), *before
        messages = log or work.log
        if key not in _known:
            said = messages.text()
            status = run(work, who, command, log)
            if status or messages.text() != said:
                return status
            _known[key] = [_content(path) for path in paths]
        for path, old, new in zip(paths, before, _known[key], strict=True):
            if new is not None and new != old:
                path.write_bytes(new)
        return 0

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(CompilerWork, "run", once)
        yield


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None
