"""An executable of native functions, as the local drivers run it."""

from __future__ import annotations

from jitree.hal.command_layout import ENTRY_SEQUENTIAL
from jitree.hal.executable import SourceLocation
from jitree.loaders.entry_points import TabledExecutable
from jitree.loaders.environment import Environment
from jitree.loaders.library import Library


class NativeExecutable(TabledExecutable):
    """A loaded library with its environment. Its memory is unmapped when the last reference goes."""

    def __init__(self, library: Library, environment: Environment, image: object) -> None:
        """``image`` is what keeps the library mapped."""
        self._library = library
        self._environment = environment
        self._image = image
        super().__init__(library.name, library.functions)

    @property
    def library_version(self) -> int:
        """Of the executable library ABI, 3 to 6."""
        return self._library.version

    @property
    def environment_address(self) -> int:
        return self._environment.address

    def sequential(self, ordinal: int) -> bool:
        """Whether workgroups of one dispatch must not run at the same time."""
        return bool(self._library.functions[ordinal].flags & ENTRY_SEQUENTIAL)

    def source_location(self, ordinal: int) -> SourceLocation | None:
        return self._library.source_location(ordinal)

    def stage_locations(self, ordinal: int) -> dict[str, SourceLocation]:
        return self._library.stage_locations(ordinal)

    def source_files(self) -> dict[str, bytes]:
        return self._library.source_files()
