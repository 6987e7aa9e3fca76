"""Which releases can have compiled a module, by what it imports.

Versions in modules do not tell: families of imports changed without a new version, and a dependency record
holds only the largest minimum version of what the program happens to use. The imports themselves, by name and
calling convention, and the bytecode version narrow it down; ``imports.tsv`` and ``releases.tsv`` say it as
rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from jitree.vmfb.schema import ModuleTables

_NEWEST: Final = "-"
"""As the last family of an import: releases still have it."""
_PACKAGED: Final = "release"


@dataclass(frozen=True, slots=True)
class Release:
    name: str
    packaged: bool
    """False for the nightly builds between two releases."""
    bytecode: int
    """Major version."""
    families: dict[str, str]
    """Family of imports by host module."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a module can come from."""

    families: tuple[str, ...]
    """Of the HAL, oldest first; empty when the module does not import it or no release explains it."""
    releases: tuple[str, ...]
    """Oldest first. Nightlies are listed only when no release explains the module; empty if nothing does."""
    unknown: tuple[str, ...]
    """Imports from host modules that no release has, ``module.function (convention)``."""


@cache
def releases() -> tuple[Release, ...]:
    """All known releases, oldest first."""
    header, *rows = _rows("releases.tsv")
    modules = header[3:]
    return tuple(
        Release(name, kind == _PACKAGED, int(bytecode), dict(zip(modules, families, strict=True)))
        for name, kind, bytecode, *families in rows
    )


@cache
def families(module: str) -> tuple[str, ...]:
    """The families of a host module's imports, oldest first."""
    return tuple(dict.fromkeys(release.families[module] for release in releases()))


@cache
def imports() -> dict[tuple[str, str, str], frozenset[str]]:
    """The families that have an import, by (module, function, calling convention)."""
    table = {}
    for module, function, cconv, first, last in _rows("imports.tsv"):
        order = families(module)
        end = len(order) if last == _NEWEST else order.index(last) + 1
        table[module, function, cconv] = frozenset(order[order.index(first) : end])
    return table


def origin(module: ModuleTables) -> Origin:
    """The releases whose compilers can have written the module."""
    table = imports()
    possible = [release for release in releases() if release.bytecode == module.bytecode_version[0]]
    native = {name for name, _, _ in table}
    used, unknown = set(), []
    for item in module.imports:
        name, _, function = item.full_name.partition(".")
        if name not in native or item.cconv is None:
            continue
        used.add(name)
        known = table.get((name, function, item.cconv))
        if known is None:
            unknown.append(f"{item.full_name} ({item.cconv})")
        else:
            possible = [release for release in possible if release.families[name] in known]
    if unknown:
        possible = []
    possible = [release for release in possible if release.packaged] or possible
    hal = dict.fromkeys(release.families["hal"] for release in possible) if "hal" in used else {}
    return Origin(tuple(hal), tuple(release.name for release in possible), tuple(unknown))


def _rows(name: str) -> Iterator[list[str]]:
    with open(os.path.join(os.path.dirname(__file__), name), encoding="ascii") as file:
        for line in file:
            if not line.startswith("#"):
                yield line.rstrip("\n").split("\t")
