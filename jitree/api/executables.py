"""Loads executables for the processors of this machine, with what they may import.

A loader is imported when the first executable of its formats comes: programs use one kind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from jitree.hal.executable import Executable, ExecutableLoader, ExecutableParameters
from jitree.regs.memory import UNBOUNDED, Bounds
from jitree.vmfb.words import FUSED

if TYPE_CHECKING:
    from jitree.dispatch.engine import Engine
    from jitree.dispatch.host_module import HostModule
    from jitree.loaders.environment import ImportProvider

Plugin = str | os.PathLike[str] | Mapping[str, Any]
"""The path of a plugin library (``embedded:path`` for an embedded ELF library), or C functions by name."""


def create_loaders(
    tier: str | Engine | None = None,
    plugins: Sequence[Plugin] = (),
    modules: Sequence[HostModule] = (),
    bounds: Bounds = UNBOUNDED,
    arithmetic: str = FUSED,
) -> tuple[ExecutableLoader, ...]:
    """One of each loader.

    ``tier`` is what runs VMVX executables, ``modules`` are what they import beside ``vmvx``, ``bounds`` what
    each thread's part of one may have, ``arithmetic`` how they round. ``plugins`` resolve the imports of
    compiled executables, the last first; see :mod:`jitree.loaders.system_library`.
    """
    providers = _providers(plugins)
    return (
        LateLoader("embedded-elf-", lambda: _embedded(providers)),
        LateLoader("system-elf-", lambda: _system(providers)),
        LateLoader("vmvx-", lambda: _vmvx(tier, modules, bounds, arithmetic)),
    )


class LateLoader(ExecutableLoader):
    """A loader that is made when it is needed."""

    def __init__(self, prefix: str, create: Callable[[], ExecutableLoader]) -> None:
        """``prefix`` is how the names of all its formats begin."""
        self._prefix = prefix
        self._create = create

    @cached_property
    def loader(self) -> ExecutableLoader:
        return self._create()

    @property
    def runs_in_python(self) -> bool:
        return "loader" in self.__dict__ and self.loader.runs_in_python

    def query_support(self, format: str) -> bool:
        return format.startswith(self._prefix) and self.loader.query_support(format)

    def stores(self, data: memoryview) -> Sequence[tuple[str, int]]:
        return self.loader.stores(data)

    def try_load(self, parameters: ExecutableParameters) -> Executable:
        return self.loader.try_load(parameters)

    def query_i64(self, category: str, key: str) -> int | None:
        return self.loader.query_i64(category, key)


def _embedded(providers: Sequence[ImportProvider]) -> ExecutableLoader:
    from jitree.loaders.embedded_elf import EmbeddedElfLoader

    return EmbeddedElfLoader(providers)


def _system(providers: Sequence[ImportProvider]) -> ExecutableLoader:
    from jitree.loaders.system_library import SystemLibraryLoader

    return SystemLibraryLoader(providers)


def _vmvx(
    tier: str | Engine | None, modules: Sequence[HostModule], bounds: Bounds, arithmetic: str
) -> ExecutableLoader:
    from jitree.loaders.vmvx.loader import VmvxLoader
    from jitree.modules.vmvx import VmvxModule

    return VmvxLoader((VmvxModule(), *modules), tier, bounds, arithmetic)


def _providers(plugins: Sequence[Plugin]) -> tuple[ImportProvider, ...]:
    if not plugins:
        return ()
    from jitree.loaders.system_library import open_plugin

    return tuple(open_plugin(plugin) for plugin in plugins)
