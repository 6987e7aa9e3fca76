"""Loaders of executables for the processors of this machine, with what executables may import."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jitree.loaders.embedded_elf import EmbeddedElfLoader
from jitree.loaders.system_library import SystemLibraryLoader
from jitree.loaders.vmvx import VmvxLoader
from jitree.modules.vmvx import VmvxModule

if TYPE_CHECKING:
    from jitree.dispatch.native_module import NativeModule
    from jitree.hal.executable import ExecutableLoader
    from jitree.loaders.environment import ImportProvider

Plugin = str | os.PathLike[str] | Mapping[str, Any]
"""The path of a plugin library (``embedded:path`` for an embedded ELF library), or C functions by name."""


def create_loaders(
    tier: str | None = None, plugins: Sequence[Plugin] = (), modules: Sequence[NativeModule] = ()
) -> tuple[ExecutableLoader, ...]:
    """One of each loader.

    ``tier`` is what runs VMVX executables, ``modules`` are what they import beside ``vmvx``. ``plugins``
    resolve the imports of compiled executables, the last first; see :mod:`jitree.loaders.plugins`.
    """
    providers = _providers(plugins)
    return (
        EmbeddedElfLoader(providers),
        SystemLibraryLoader(providers),
        VmvxLoader((VmvxModule(), *modules), tier),
    )


def _providers(plugins: Sequence[Plugin]) -> tuple[ImportProvider, ...]:
    if not plugins:
        return ()
    from jitree.loaders.plugins import open_plugin

    return tuple(open_plugin(plugin) for plugin in plugins)
