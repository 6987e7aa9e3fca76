"""Module files as command lines name them: ``path[@function][?key=value&…]``."""

from __future__ import annotations

import re
from typing import Final

from jitree.base.records import NamedTuple
from jitree.errors import InvalidArgumentError

IMPORTED_NAME: Final = "jitree_module_"
"""How the names of imported Python files begin, which tells their frames from others in tracebacks."""
_SUFFIXES: Final = (".py", ".so", ".dylib", ".dll")
_REFERENCE: Final = r"(?P<path>.+?\.(?:so|dylib|dll|py))(?:@(?P<function>[^?]*))?(?:\?(?P<query>.*))?"


class ModuleReference(NamedTuple):
    """A file of another kind than compiled programs."""

    path: str
    function: str | None
    """The function that makes the module; None = the usual one."""
    parameters: tuple[tuple[str, str], ...]
    """In the order given."""

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")


def parse_reference(text: str) -> ModuleReference | None:
    """``lib.so@create?key=value`` or ``module.py``; None for what names neither kind of file.

    INVALID_ARGUMENT for parameters that are not of the form ``key=value``.
    """
    if not any(suffix in text for suffix in _SUFFIXES):
        return None
    match = re.fullmatch(_REFERENCE, text)
    if match is None:
        return None
    parameters = []
    for item in filter(None, (match["query"] or "").split("&")):
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise InvalidArgumentError(f"'{text}': parameter '{item}' is not of the form key=value")
        parameters.append((key, value))
    return ModuleReference(match["path"], match["function"] or None, tuple(parameters))
