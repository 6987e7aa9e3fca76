"""Calls of iree.runtime with what they came to there, and the same calls on jitree.

A file of ``transcripts/`` has groups. ``= name`` begins one, ``+ statement`` is run in it, other lines are
expressions. What iree.runtime 3.13 makes of one stands below, indented by four spaces, and after ``jitree:``
what jitree makes of it instead.
``python -m tests.compat.transcript`` records the first again, with iree.runtime installed.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from jitree.errors import StatusCode

FOLDER: Final = Path(__file__).resolve().parent / "transcripts"
DATA: Final = FOLDER.parent.parent / "data"
_CAUGHT: Final = (
    ValueError, IndexError, KeyError, NotImplementedError, TypeError, AttributeError, AssertionError, OSError,
    RuntimeError, Exception,
)  # fmt: skip
_OWN: Final = ("ReturnError", "BenchmarkToolError", "BenchmarkTimeoutError")
_DONE: Final = "done"
_CRASH: Final = "the process ends"
_PLACE: Final = re.compile(
    r"(?:iree\._runtime_libs\._runtime|jitree\.compat\.iree_runtime\.\w+|iree\.runtime\.\w+)\."
)
_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]{9,16}\b")
_STATUS: Final = re.compile(rf"\b({'|'.join(code.name for code in StatusCode)})\b")


@dataclass
class Step:
    """A line: a statement, or an expression with what it comes to."""

    text: str
    is_statement: bool
    there: str = ""
    here: str = ""


@dataclass
class Group:
    """Lines that are run one after the other in one namespace."""

    name: str
    steps: list[Step] = field(default_factory=list)


def read(path: Path) -> list[Group]:
    groups: list[Group] = []
    for line in path.read_text().splitlines():
        if line.startswith("= "):
            groups.append(Group(line[2:]))
        elif line.startswith("    jitree: "):
            groups[-1].steps[-1].here = line.removeprefix("    jitree: ")
        elif line.startswith("    "):
            groups[-1].steps[-1].there = line.strip()
        elif line.strip() and not line.startswith("#"):
            is_statement = line.startswith("+ ")
            groups[-1].steps.append(
                Step(line.removeprefix("+ "), is_statement, _DONE if is_statement else "")
            )
    return groups


def write(path: Path, groups: list[Group]) -> None:
    lines: list[str] = [text for text in path.read_text().splitlines() if text.startswith("#")]
    for group in groups:
        lines += ["", f"= {group.name}"]
        for step in group.steps:
            lines.append(f"+ {step.text}" if step.is_statement else step.text)
            if step.there != _DONE:
                lines.append(f"    {step.there}")
            if step.here and step.here != step.there:
                lines.append(f"    jitree: {step.here}")
    path.write_text("\n".join(lines).lstrip("\n") + "\n")


def scope(rt: Any, folder: str) -> dict[str, Any]:
    """The names that lines use."""
    import numpy as np

    return {"rt": rt, "np": np, "DATA": DATA, "folder": Path(folder)}


def run(group: Group, rt: Any, skip: frozenset[int] = frozenset()) -> Iterator[tuple[int, str]]:
    """What each line comes to, those of ``skip`` left out."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = scope(rt, folder)
        for place, step in enumerate(group.steps):
            if place not in skip:
                yield place, outcome(step, names).replace(folder, "FOLDER")


def outcome(step: Step, names: dict[str, Any]) -> str:
    try:
        if step.is_statement:
            exec(step.text.replace("\\n", "\n"), names)
            return _DONE
        return shown(eval(step.text, names))
    except Exception as error:
        return failed(error)


def shown(value: Any) -> str:
    """The class and the text; classes of numpy's types have names that differ by release of ml_dtypes."""
    name = "dtype" if isinstance(value, np.dtype) else type(value).__name__
    return _scrubbed(f"{name} {value!r}")


def _scrubbed(text: str) -> str:
    """One line without addresses and without the names of packages."""
    text = _PLACE.sub("", _ADDRESS.sub("0x..", text)).replace(str(DATA), "DATA")
    return text.replace("\n", "\\n")[:300]


def failed(error: Exception) -> str:
    """The class that programs catch and the status, or the text where there is none."""
    known = next(kind for kind in _CAUGHT if isinstance(error, kind))
    status = _STATUS.search(str(error))
    text = status[1] if status else "" if known is TypeError else str(error)
    name = type(error).__name__ if type(error).__name__ in _OWN else known.__name__
    return _scrubbed(f"{name}: {text}".strip())


def record(path: Path) -> None:
    """What iree.runtime does, each group in a process that it may end."""
    rt = importlib.import_module("iree.runtime")

    groups = read(path)
    for group in groups:
        ended: set[int] = set()
        while True:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reader)
                with os.fdopen(writer, "w") as sink:
                    for place, text in run(group, rt, frozenset(ended)):
                        sink.write(f"{place} {text}\n")
                        sink.flush()
                    sink.flush()
                    os._exit(0)
            os.close(writer)
            with os.fdopen(reader) as source:
                rows = [line.rstrip("\n").partition(" ") for line in source]
            for number, _, text in rows:
                group.steps[int(number)].there = text
            _, code = os.waitpid(child, 0)
            if code == 0:
                break
            stopped = int(rows[-1][0]) + 1 if rows else 0
            while stopped in ended:
                stopped += 1
            group.steps[stopped].there = _CRASH
            ended.add(stopped)
    write(path, groups)


if __name__ == "__main__":
    for chosen in [Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.txt")):
        record(chosen)
