"""Parses the values of a call: in order, by name, and from streams.

input := [name "="] value | "-" | "@" path ".json"
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from jitree.errors import InvalidArgumentError, error_context
from jitree.tools.values import (
    NULL,
    SCALAR_TYPES,
    START,
    HostTensor,
    HostValue,
    Ignored,
    Null,
    Scalar,
    ValueFiles,
    array_tensor,
    is_at_end,
    is_element_type,
    missing_file,
    of_kind,
    parse_value,
    read_next,
)

Declared = Callable[[], Sequence[tuple[str, str]]]
"""Gives the name and the declared type of every parameter."""


def parse_values(
    texts: Sequence[str], kinds: Sequence[str], files: ValueFiles, declared: Declared = list
) -> list[HostValue]:
    """Makes the values of parameters of the given kinds, in order.

    One text may yield several values (``*arrays.npy``). Fewer values than parameters are returned as
    they are; more are INVALID_ARGUMENT. Contexts name the text.
    """
    given = [pair for text in texts for pair in _separate(text, kinds, declared)]
    named = _places([name for name, _ in given if name is not None], declared) if declared is not list else {}
    free = [place for place in range(len(kinds)) if place not in named.values()]
    values: dict[int, HostValue] = {}
    for name, text in given:
        places = free if name is None else [named[name]]
        with error_context("parsing function inputs"), error_context(f"parsing input `{_shown(name, text)}`"):
            if not places:
                raise InvalidArgumentError(f"function expected fewer input values; it takes {len(kinds)}")
            parsed = (
                [text] if isinstance(text, HostTensor) else _parse(text, places[0], kinds, files, declared)
            )
            if len(parsed) > len(places):
                raise InvalidArgumentError(
                    f"function expected fewer input values; it takes {len(kinds)}, "
                    f"with these there are {len(values) + len(parsed)}"
                )
            for place, value in zip(places, parsed, strict=False):
                values[place] = _as_input(value, kinds[place])
            del places[: len(parsed)]
    missing = [place for place in range(max(values, default=-1)) if place not in values]
    if missing:
        names = ", ".join(declared()[place][0] for place in missing)
        raise InvalidArgumentError(f"no value for {names}", "parsing function inputs")
    return [values[place] for place in sorted(values)]


_NAMED: Final = re.compile(r"\s*([A-Za-z_][\w.$-]*)\s*=(.*)", re.DOTALL)
_STREAM: Final = "-"
_JSON: Final = ".json"
_ARRAY: Final = b"\x93NUMPY"
_Given = tuple[str | None, Any]
"""A name, or None, and a text, an array, or a value of JSON (in a list of one)."""


def _separate(text: str, kinds: Sequence[str], declared: Declared) -> list[_Given]:
    """The values that a text has: one, or those of a stream."""
    stripped = text.strip()
    if stripped == _STREAM or (stripped[:1] == START and stripped.endswith(_JSON)):
        with error_context("parsing function inputs"), error_context(f"parsing input `{text}`"):
            return _streamed(stripped.removeprefix(START))
    match = _NAMED.fullmatch(text)
    if match is None or declared is list or is_element_type(match[1]):
        return [(None, text)]
    if match[1] not in dict(declared()) and not _has_type(match[2]):
        return [(None, text)]
    return [(match[1], match[2])]


def _has_type(text: str) -> bool:
    """Whether what follows ``name=`` can be nothing but a value of its own."""
    head = text.strip().partition("=")[0].rpartition("x")[2].strip()
    return text.strip()[:1] in ("@", "&") or is_element_type(head)


def _streamed(path: str) -> list[_Given]:
    from jitree.tools.input_files import json_inputs
    from jitree.vmfb.archive import content, standard_input

    if path != _STREAM and not os.path.exists(path):
        raise missing_file(path)
    data = content(standard_input()) if path == _STREAM else content(path)
    if bytes(data[: len(_ARRAY)]) != _ARRAY:
        found = json_inputs(data, "standard input" if path == _STREAM else f"`{path}`")
        return [(name, [value]) for name, value in found]
    stream = io.BytesIO(data)
    tensors: list[_Given] = []
    while not is_at_end(stream):
        tensors.append((None, array_tensor(read_next(stream, path))))
    return tensors


def _places(names: Sequence[str], declared: Declared) -> dict[str, int]:
    """The place of each name. INVALID_ARGUMENT for one that is not there, or is given twice."""
    if not names:
        return {}
    known = [name for name, _ in declared()]
    for name in names:
        if name not in known or names.count(name) > 1:
            from jitree.base.near_names import did_you_mean  # only failures pay for it

            raise InvalidArgumentError(
                f"input '{name}' is given twice"
                if name in known
                else f"the function has no parameter '{name}'{did_you_mean(name, known)}; "
                f"it has: {', '.join(known) or 'none'}",
                "parsing function inputs",
            )
    return {name: known.index(name) for name in names}


def _shown(name: str | None, value: Any) -> str:
    text = value if isinstance(value, str) else "..."
    return text if name is None else f"{name}={text}"


def _parse(
    given: str | list[Any], place: int, kinds: Sequence[str], files: ValueFiles, declared: Declared
) -> list[HostValue]:
    if isinstance(given, str):
        return parse_value(given, kinds[place], files)
    from jitree.tools.input_files import json_text

    types = [text for _, text in declared()]
    is_scalar = kinds[place] in SCALAR_TYPES
    text = json_text(given[0], types[place] if place < len(types) else "unknown", is_scalar)
    return parse_value(text, kinds[place], files)


def _as_input(value: HostValue, kind: str) -> HostValue:
    """Takes ``(null)`` and ``(ignored)`` as 0 for scalars, else as a null reference."""
    if not isinstance(value, Null | Ignored):
        return of_kind(value, kind)
    if kind not in SCALAR_TYPES:
        return NULL
    return Scalar(SCALAR_TYPES[kind], 0 if kind in "iI" else 0.0)
