"""``jitree dump --verify``: all that is wrong with a file, not only what is found first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jitree.errors import StatusError
from jitree.vmfb.archive import IDENTIFIER, Archive
from jitree.vmfb.module import read_for_bodies, read_module, read_signatures
from jitree.vmfb.refusals import body_faults
from jitree.vmfb.schema import ModuleTables, RodataRows
from jitree.vmfb.verify import table_findings

_BEGINNINGS: Final = {0: b"PK\x03\x04", 8: IDENTIFIER}
"""What modules inside modules begin with, by offset."""


def findings(archive: Archive) -> Iterator[str]:
    """A line each, of the modules inside the module too."""
    found = table_findings(archive.flatbuffer)
    yield from found
    try:
        module = read_module(archive)
    except StatusError as error:
        if not found:
            yield str(error)
        yield from _damaged_findings(archive)
        return
    yield from _function_findings(module)
    yield from _inner_findings(module)


def _damaged_findings(archive: Archive) -> Iterator[str]:
    """Of a module that cannot be read as a whole."""
    try:
        module = read_for_bodies(archive)
    except StatusError as error:
        yield f"no function is looked at: {error}"
        return
    yield from _function_findings(module)
    if isinstance(module.rodata, RodataRows):
        yield from _inner_findings(module)


def _function_findings(module: ModuleTables) -> Iterator[str]:
    try:
        signatures = read_signatures(module)
    except StatusError as error:
        yield f"no function is looked at: {error}"
        return
    for function in module.functions:
        yield from map(str, body_faults(module, function, signatures))


def _inner_findings(module: ModuleTables) -> Iterator[str]:
    for index, segment in enumerate(module.rodata):
        data = segment.data
        if not any(data[place : place + len(text)] == text for place, text in _BEGINNINGS.items()):
            continue
        try:
            inner = Archive.open(data, f"rodata[{index}]")
        except StatusError as error:
            yield str(error)
            continue
        yield from (f"rodata[{index}]: {line}" for line in findings(inner))
