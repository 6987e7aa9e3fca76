"""Which images the kernels of an executable are, and which executables a module has."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from jitree.codegen.image import Recipe
from jitree.codegen.image.flat import START_SECONDS
from jitree.dispatch.native.source import encode, from_program
from jitree.errors import StatusError
from jitree.loaders.vmvx_kernels import ENTRY_CONVENTION, kernels
from jitree.loaders.vmvx_layout import TOGETHER
from jitree.vmfb.words import FUSED

if TYPE_CHECKING:
    from jitree.dispatch.bytecode_module import BytecodeModule  # numpy: builders do not need it
    from jitree.vmfb.schema import ModuleTables

_ARCHIVE: Final = b"PK\x03\x04"
_SECONDS_A_WORD: Final = 0.00022
"""Of a processor, for a word of bytecode, until it has been measured on the machine."""

SPANS: Final = Recipe("spans", "the code around VMVX kernels", "jitree.loaders.vmvx_span_texts:generate", 2.0)
"""Runs spans of any kernels; its notes are what each has for itself (:mod:`jitree.loaders.vmvx_text`)."""


def recipe(executable: BytecodeModule, ordinals: Sequence[int] = ()) -> Recipe:
    """The image of an executable's kernels, or of those of them whose functions have these ordinals."""
    ordinals = ordinals or [export.ordinal for export in kernels(executable.module)]
    return _recipe("vmvx_kernels", "generate", executable, ordinals)


def hot_recipe(executable: BytecodeModule, ordinal: int) -> Recipe:
    """The image of one kernel, for machines that are in the middle of it."""
    return _recipe("vmvx_hot", "generate_hot", executable, [ordinal])


def _recipe(name: str, generator: str, executable: BytecodeModule, ordinals: Sequence[int]) -> Recipe:
    functions = executable.program.functions
    words = sum(functions[ordinal].end - functions[ordinal].start for ordinal in ordinals)
    return Recipe(
        name=name,
        title=_title(executable.name, len(ordinals)),
        generator=f"jitree.loaders.vmvx_build:{generator}",
        seconds=START_SECONDS + _SECONDS_A_WORD * words,
        data=(encode(from_program(executable.program)), array("i", ordinals).tobytes()),
        processes=-(-len(ordinals) // TOGETHER),
    )


def _title(name: str, count: int) -> str:
    return f"{count} kernel{'s' * (count != 1)} of executable '{name}'"


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
