"""What a module file holds, without loading it into a session; what functions assert that declare nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jitree.api.calls.declaration import TORCH_ASYNC_SUFFIX, DeclaredTensor, Signature, signature_of
from jitree.api.program_files import digest_of
from jitree.types import element_type
from jitree.vmfb.archive import Archive, Source
from jitree.vmfb.cconv import parse
from jitree.vmfb.module import read_module
from jitree.vmfb.schema import Dependency, Import

if TYPE_CHECKING:
    from jitree.dispatch.asserted import AssertedTensor
    from jitree.dispatch.bytecode_module import BytecodeModule
    from jitree.dispatch.function import VmFunction


@dataclass(frozen=True, slots=True)
class ModuleSummary:
    """The tables of a module, function bodies aside."""

    name: str
    version: int
    bytecode_version: tuple[int, int]
    """(major, minor)"""
    functions: dict[str, Signature]
    """Exported functions, ``__init`` and the like left out."""
    reflection: dict[str, dict[str, str]]
    """What the compiler attached to each of them."""
    dependencies: tuple[Dependency, ...]
    imports: tuple[Import, ...]
    file_size: int
    """Bytes."""
    fingerprint: str
    """The digest of the file, as ``b2sum -l 256`` prints it."""

    def __str__(self) -> str:
        needs = ", ".join(f"{item.name} >= {item.minimum_version}" for item in self.dependencies) or "nothing"
        major, minor = self.bytecode_version
        lines = [
            f"module {self.name} (version {self.version}, bytecode {major}.{minor}, {self.file_size} bytes)",
            f"  needs {needs}; imports {len(self.imports)} functions",
            *(f"  {signature.declaration}" for signature in self.functions.values()),
        ]
        return "\n".join(lines)


def inspect(source: Source) -> ModuleSummary:
    """Reads the tables of a module file: a path, bytes or an open binary file.

    NOT_FOUND for a missing file, INVALID_ARGUMENT for one that is no module or damaged.
    """
    module = read_module(Archive.open(source))
    exports = [export for export in module.exports if not export.name.startswith("__")]
    rows = {export.name: module.functions[export.ordinal] for export in exports}
    return ModuleSummary(
        name=module.name,
        version=module.version,
        bytecode_version=module.bytecode_version,
        functions={name: signature_of(name, parse(row.cconv), row.attrs) for name, row in rows.items()},
        reflection={name: dict(row.attrs) for name, row in rows.items()},
        dependencies=module.dependencies,
        imports=module.imports,
        file_size=module.archive.data.nbytes,
        fingerprint=digest_of(module.archive.data).hex(),
    )


def declaration_of(function: VmFunction, signature: Signature) -> str:
    """``func @main(tensor<4x?xf32>, !vm.ref<?>) -> (!vm.ref<?>)``."""
    from jitree.dispatch.bytecode_module import BytecodeModule

    module = function.module
    asserted = asserted_by(module, function.name) if isinstance(module, BytecodeModule) else {}
    if not asserted:
        return signature.declaration
    arguments = (
        str(_tensor(asserted[index])) if index in asserted else argument.type
        for index, argument in enumerate(signature.arguments)
    )
    results = ", ".join(result.type for result in signature.results)
    return f"func @{function.name}({', '.join(arguments)}) -> ({results})"


def asserted_by(module: BytecodeModule, name: str) -> Mapping[int, AssertedTensor]:
    """What an exported function asserts, by position; of two twins the one that takes fences does so."""
    from jitree.dispatch.asserted import asserted_tensors

    ordinals = {export.name: export.ordinal for export in module.module.exports}
    return asserted_tensors(module, ordinals.get(name + TORCH_ASYNC_SUFFIX, ordinals[name]))


def _tensor(tensor: AssertedTensor) -> DeclaredTensor:
    return DeclaredTensor(element_type(tensor.element_type), tensor.shape)
