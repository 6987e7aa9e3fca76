"""Finds the releases that can have compiled a module, by what it imports.

Versions in modules do not tell: families of imports changed without a new version, and a dependency record
holds only the largest minimum version of what the program happens to use. The imports themselves, by name and
calling convention, and the bytecode version narrow it down; ``imports.tsv`` and ``vmfb/releases.tsv``
say it as rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from jitree.modules.import_rows import all_rows
from jitree.vmfb.module import release_rows
from jitree.vmfb.schema import ModuleTables

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
    """Families of the HAL, oldest first; empty when the module imports none or no release explains it."""
    releases: tuple[str, ...]
    """Oldest first. Nightlies are listed only when no release explains the module; empty if nothing does."""
    unknown: tuple[str, ...]
    """Imports from host modules that no release has, ``module.function (convention)``."""


@cache
def releases() -> tuple[Release, ...]:
    """All known releases, oldest first."""
    header, *rows = release_rows()
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
    found = {}
    for row in all_rows():
        order = families(row.module)
        end = order.index(row.last) + 1 if row.last else len(order)
        found[row.module, row.name, row.cconv] = frozenset(order[order.index(row.first) : end])
    return found


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
