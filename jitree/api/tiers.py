"""Says which functions of a program become machine code. It goes by function and loop, and says why others do
not."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jitree.codegen.image import Recipe, cache
from jitree.codegen.image.build import generate
from jitree.dispatch.native import nests, tiering
from jitree.dispatch.native.build import build
from jitree.dispatch.native.source import from_program
from jitree.dispatch.native.ssa import Block, SsaLoop
from jitree.errors import not_installed
from jitree.loaders.vmvx import kernels as vmvx_kernels
from jitree.loaders.vmvx.kernels import kernels
from jitree.vmfb.decode import BytecodeModule


class _Count(NamedTuple):
    """How much of what there is is native."""

    functions: int = 0
    native_functions: int = 0
    loops: int = 0
    """How many innermost loops they have."""
    nests: int = 0
    """Innermost loops that are part of a nest."""

    def add(self, *numbers: int) -> _Count:
        return _Count(*(a + b for a, b in zip(self, numbers, strict=True)))


def tier_lines(module: BytecodeModule) -> Iterator[str]:
    """Reports on a module and its VMVX executables, and on what hinders code."""
    notes = _notes(tiering.recipe(module.program, module.name))
    refusals = {int(ordinal): reason for ordinal, reason in notes["refusals"].items()}
    yield from _module_lines(f"module @{module.name}", module, refusals)
    for number, executable in enumerate(vmvx_kernels.executables(module.module)):
        yield ""
        exports, recipes = kernels(executable.module), vmvx_kernels.recipes(executable)
        refusals = {
            export.ordinal: reason
            for export, recipe in zip(exports, recipes, strict=True)
            if (reason := _notes(recipe)["refusal"])
        }
        yield from _module_lines(f"executable {number}, @{executable.name}", executable, refusals)
    notes = [cache.place().reason, *map(not_installed, _missing())]
    if any(notes):
        yield ""
        yield from filter(None, notes)


def _missing() -> Iterator[ImportError]:
    """What machine code of programs is made with, if it is not there: then none of it is made."""
    try:
        importlib.import_module("llvmlite")
    except ImportError as error:
        yield error


def _notes(recipe: Recipe) -> Any:
    """What the generator of an image says."""
    return json.loads(generate(recipe).notes.rpartition(b"\n")[2])


def _module_lines(title: str, module: BytecodeModule, refusals: Mapping[int, str]) -> Iterator[str]:
    """``refusals``: why functions are not compiled."""
    source = from_program(module.program)
    names = [module.module.function_name(row.ordinal) for row in source.functions]
    width = max(map(len, names), default=0)
    count = _Count()
    yield f"{title}:"
    for row, name in zip(source.functions, names, strict=True):
        start = f"  [{row.ordinal:3}] {name:{width}}  "
        if row.ordinal in refusals:
            yield f"{start}fast: {refusals[row.ordinal]}"
            count = count.add(1, 0, 0, 0)
            continue
        yield f"{start}native"
        count = count.add(1, 1, 0, 0)
        function = build(source, row.ordinal)
        taken: set[Block] = set()
        for found in nests.find(function):
            if isinstance(found, nests.Nest):
                taken |= found.loop.blocks
                what = f"nest of {_depth(found.loop)}"
            else:
                what = f"no nest: {found.reason}"
            yield f"          loop at {module.program.location(found.loop.header.pc)[1]:08X}: {what}"
        innermost = [loop for loop in function.all_loops() if not loop.children]
        count = count.add(0, 0, len(innermost), sum(loop.header in taken for loop in innermost))
    yield (
        f"  {count.native_functions} of {count.functions} functions native, "
        f"{count.nests} of {count.loops} innermost loops in nests"
    )


def _depth(loop: SsaLoop) -> int:
    return 1 + max(map(_depth, loop.children), default=0)
