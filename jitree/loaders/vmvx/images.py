"""Which images the kernels of an executable are, one each, and which executables a module has."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from jitree.codegen.image import Recipe, provider
from jitree.codegen.image.flat import START_SECONDS
from jitree.dispatch.native.source import ModuleSource, by_itself, encode, from_program, mnemonics
from jitree.errors import StatusError
from jitree.loaders.vmvx.kernels import ENTRY_CONVENTION, kernels
from jitree.loaders.vmvx.records import KEEPS
from jitree.vmfb.words import FUSED

if TYPE_CHECKING:
    from jitree.codegen.image.batch import ImageBatch
    from jitree.codegen.image.builder import BuilderLimits
    from jitree.dispatch.bytecode_module import BytecodeModule  # numpy: builders do not need it
    from jitree.vmfb.schema import Export, ModuleTables

_ARCHIVE: Final = b"PK\x03\x04"
_SECONDS_A_WORD: Final = 0.00016
"""Of a processor, for a word of bytecode, until it has been measured on the machine."""

SPANS: Final = Recipe("spans", "the code around VMVX kernels", "jitree.loaders.vmvx.span_texts:generate", 2.0)
"""Runs spans of any kernels."""


def recipes(executable: BytecodeModule) -> list[Recipe]:
    """The image of each of an executable's kernels, in their order. One that calls nothing is the same image
    for all executables that have it."""
    source = from_program(executable.program)
    keeps = not KEEPS.isdisjoint(mnemonics(source))
    return [
        _kernel(executable, export, *_source_of(source, export.ordinal), keeps)
        for export in kernels(executable.module)
    ]


def _source_of(source: ModuleSource, ordinal: int) -> tuple[ModuleSource, int]:
    """What the code of a kernel depends on, and its ordinal in that."""
    own = by_itself(source, ordinal)
    calls = any(mnemonic.startswith("call.") for mnemonic in mnemonics(own))
    return (source, ordinal) if calls else (own, 0)


def _kernel(
    executable: BytecodeModule, export: Export, source: ModuleSource, ordinal: int, keeps: bool
) -> Recipe:
    row = source.functions[ordinal]
    return Recipe(
        name="vmvx_kernels",
        title=f"kernel '{export.name}' of executable '{executable.name}'",
        generator="jitree.loaders.vmvx.build:generate",
        seconds=START_SECONDS + _SECONDS_A_WORD * (row.end - row.start),
        data=(encode(source), array("i", (ordinal, keeps)).tobytes()),
    )


def batch(executable: BytecodeModule, builds: BuilderLimits | None = None) -> ImageBatch:
    """The images of an executable's kernels."""
    from jitree.codegen.image.batch import ImageBatch

    made = recipes(executable)
    title = f"{len(made)} kernel{'s' * (len(made) != 1)} of executable '{executable.name}'"
    return ImageBatch(title, [provider(recipe, builds) for recipe in made])


def hot_recipe(executable: BytecodeModule, ordinal: int) -> Recipe:
    """The image of one kernel, for machines that are in the middle of it."""
    function = executable.program.functions[ordinal]
    return Recipe(
        name="vmvx_hot",
        title=f"a kernel of executable '{executable.name}'",
        generator="jitree.loaders.vmvx.build:generate_hot",
        seconds=START_SECONDS + _SECONDS_A_WORD * (function.end - function.start),
        data=(encode(from_program(executable.program)), array("i", [ordinal]).tobytes()),
    )


def archives(module: ModuleTables) -> Iterator[memoryview]:
    """The constants of a program that look like modules."""
    for segment in module.rodata:
        head = bytes(segment.data[:8])
        if head[:4] == _ARCHIVE or head[4:] == b"IREE":
            yield segment.data


def executables(module: ModuleTables, arithmetic: str = FUSED) -> Iterator[BytecodeModule]:
    """The VMVX executables among a program's constants, as a session of that arithmetic has them. What looks
    like one and is damaged is left out."""
    from jitree.dispatch.bytecode_module import BytecodeModule

    for data in archives(module):
        try:
            found = BytecodeModule.load(bytes(data), "executable", arithmetic)
        except StatusError:
            continue
        functions = found.module.functions
        if any(functions[export.ordinal].cconv == ENTRY_CONVENTION for export in found.module.exports):
            yield found
