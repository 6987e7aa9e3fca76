"""Compiled modules, verified and decoded: shared by every context that registers them."""

from __future__ import annotations

from collections.abc import Sequence

from jitree.errors import error_context
from jitree.vmfb.archive import Archive, Source
from jitree.vmfb.cconv import CallingConvention, parse
from jitree.vmfb.decode import decode_module
from jitree.vmfb.module import read_module
from jitree.vmfb.program import DecodedModule
from jitree.vmfb.schema import Attr, Dependency, Import, ModuleTables
from jitree.vmfb.words import STRICT


class BytecodeModule:
    """A loaded module. It has no state: globals belong to the contexts."""

    __slots__ = ("__weakref__", "module", "name", "program")

    def __init__(self, module: ModuleTables, program: DecodedModule) -> None:
        self.module = module
        self.name = module.name
        self.program = program

    @staticmethod
    def load(source: Source, name: str | None = None, arithmetic: str = STRICT) -> BytecodeModule:
        """Opens, verifies and decodes a module; ``name`` is for messages, ``arithmetic`` one of
        :mod:`jitree.vmfb.words`.

        INVALID_ARGUMENT and the other statuses of a failed check, with the file as context.
        """
        archive = Archive.open(source, name)
        module = read_module(archive)
        with error_context(f"loading bytecode module at '{archive.name}'"):
            return BytecodeModule(module, decode_module(module, arithmetic))

    @property
    def version(self) -> int:
        return self.module.version

    @property
    def attrs(self) -> Sequence[Attr]:
        return self.module.attrs

    @property
    def dependencies(self) -> Sequence[Dependency]:
        return self.module.dependencies

    @property
    def imports(self) -> Sequence[Import]:
        return self.module.imports

    def export_names(self) -> list[str]:
        """Exported functions in file order, ``__init`` and the like included."""
        return [export.name for export in self.module.exports]

    def convention(self, ordinal: int) -> CallingConvention:
        """The calling convention of an internal function."""
        return parse(self.module.functions[ordinal].cconv)

    def __repr__(self) -> str:
        return f"<BytecodeModule {self.name} of {len(self.module.functions)} functions>"
