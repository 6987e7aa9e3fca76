"""``jitree dump --llvm --asm``: what the native tier makes of a function on this machine. Needs llvmlite."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from jitree.codegen.image import Recipe
from jitree.codegen.image.build import generate
from jitree.dispatch.bytecode_module import BytecodeModule
from jitree.dispatch.native import tiering
from jitree.errors import NotFoundError
from jitree.loaders import vmvx_images
from jitree.loaders.vmvx_kernels import kernels
from jitree.loaders.vmvx_text import WORKGROUP
from jitree.vmfb.schema import FunctionRow, ModuleTables

_SYMBOLS: Final = ("f{}", "enter.{}", "r{}", "resume.{}")
"""What a function becomes: itself and its entry from the interpreter; itself from where it resumes and that
entry. What is inlined everywhere is not there."""
_OF_KERNELS: Final = (WORKGROUP,)
"""What a kernel becomes."""
_ASSEMBLY: Final = re.compile(
    r"^\"?(?P<name>[A-Za-z_][\w.$]*)\"?:.*?^\.Lfunc_end\d+:$", re.DOTALL | re.MULTILINE
)
"""A function in what LLVM prints; constants have labels that begin with a dot."""

Matches = Callable[[ModuleTables, FunctionRow, str], bool]
"""(module, function, text): whether that is what a function is called."""
Renderer = Callable[[Any, Sequence[str]], Iterator[str]]
"""(optimised LLVM module, symbols) -> lines"""


class _Place(NamedTuple):
    """A function and the image that it is compiled in."""

    title: str
    recipe: Recipe
    symbols: Sequence[str]


def code_lines(
    module: BytecodeModule, text: str, matches: Matches, renderers: Sequence[Renderer]
) -> Iterator[str]:
    """The code of the functions that are called ``text``, of the module or else of its VMVX executables.

    NOT_FOUND if there is none, or if it is not compiled as a whole (``--tiers`` says why)."""
    from jitree.codegen.image.compile import host_target, optimized_module

    places = _places(module, text, matches)
    if not places:
        raise NotFoundError(f"no function `{text}` in the module or its VMVX executables")
    for place in places:
        units = [unit for unit in generate(place.recipe).units if set(place.symbols) & set(unit.entries)]
        if not units:
            raise NotFoundError(f"{place.title} is not compiled as a whole; `jitree dump --tiers` says why")
        for unit in units:
            optimized = optimized_module(unit.texts, unit.entries, host_target(), unit.pipeline)
            for render in renderers:
                yield f"; {place.title}"
                yield from render(optimized, place.symbols)


def _places(module: BytecodeModule, text: str, matches: Matches) -> list[_Place]:
    places = [
        _Place(
            f"function {function.ordinal} of module @{module.name}",
            recipe,
            [symbol.format(function.ordinal) for symbol in _SYMBOLS],
        )
        for recipe in [tiering.recipe(module.program, module.name)]
        for function in module.module.functions
        if matches(module.module, function, text)
    ]
    if places:
        return places
    return [
        _Place(f"kernel {export.ordinal} of executable {number}", recipe, _OF_KERNELS)
        for number, executable in enumerate(vmvx_images.executables(module.module))
        for export, recipe in zip(kernels(executable.module), vmvx_images.recipes(executable), strict=True)
        if matches(executable.module, executable.module.functions[export.ordinal], text)
    ]


def llvm_lines(optimized: Any, symbols: Sequence[str]) -> Iterator[str]:
    """LLVM IR after all passes."""
    for function in optimized.functions:
        if function.name in symbols and not function.is_declaration:
            yield from str(function).splitlines()


def assembly_lines(optimized: Any, symbols: Sequence[str]) -> Iterator[str]:
    """Assembly for this processor."""
    from jitree.codegen.image.compile import host_target, target_machine

    text = target_machine(host_target()).emit_assembly(optimized)
    for match in _ASSEMBLY.finditer(text):
        if match["name"] in symbols:
            yield from match[0].splitlines()
