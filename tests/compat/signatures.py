"""The arguments of every function of iree.runtime, and those of the functions that have its names here.

``python -m tests.compat.signatures`` records the first in ``signatures.txt``, with iree.runtime installed.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final

PATH: Final = Path(__file__).resolve().with_suffix(".txt")
_UNNAMED: Final = re.compile(r"\*?\barg\d?s?\b")


def functions(rt: Any, names: list[str]) -> Iterator[tuple[str, Any]]:
    """Public functions, and methods of public classes, by their names."""
    for name in names:
        found = getattr(rt, name)
        if not inspect.isclass(found):
            if callable(found):
                yield name, found
        elif not issubclass(found, Enum):
            for method in sorted(vars(found)):
                function = getattr(found, method)
                is_property = isinstance(inspect.getattr_static(found, method), property)
                if callable(function) and not is_property and not method.startswith("_"):
                    yield f"{name}.{method}", function


def arguments(function: Any) -> str | None:
    """Names, and defaults of those that have one; ``_`` for an argument without a name."""
    native = getattr(function, "__nb_signature__", None)
    if native is None:
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return None
        return " ".join(
            f"{item.name}={item.default!r}" if item.default is not item.empty else item.name
            for item in parameters if item.name != "self"
        )  # fmt: skip
    text, _, defaults = native[0]
    inside = re.sub(r"\[[^\]]*\]", "", text[text.index("(") + 1 : text.rindex(")")])
    shown = []
    for part in inside.split(", "):
        name, _, rest = part.partition(":")
        default = re.search(r"= \\(\d+)", rest)
        shown.append(f"{name}={defaults[int(default[1])]!r}" if default else _UNNAMED.sub("_", name.strip()))
    return " ".join(item for item in shown if item not in ("self", "/", "*", ""))


def read() -> dict[str, str]:
    rows = (line.partition(" ") for line in PATH.read_text().splitlines())
    return {name: rest for name, _, rest in rows}


def record() -> None:
    rt = importlib.import_module("iree.runtime")
    names = sorted(name for name in dir(rt) if not name.startswith("_"))
    rows = ((name, arguments(function)) for name, function in functions(rt, names))
    PATH.write_text("".join(f"{name} {text}".rstrip() + "\n" for name, text in rows if text is not None))


if __name__ == "__main__":
    record()
