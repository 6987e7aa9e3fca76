"""``jitree dump --time``: what compiling the kernels of VMVX executables takes, measured on this machine.

Each kernel is compiled by itself, in this process, without the functions that all have in common.
What a process needs once (imports, tables) is had before the first one. The passes are those that
:mod:`jitree.codegen.image.generated` lists.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from jitree.codegen.image import Recipe
from jitree.codegen.image.build import generate
from jitree.codegen.image.compile import compile_unit, host_target, optimized_module
from jitree.dispatch.bytecode_module import BytecodeModule
from jitree.loaders.vmvx import kernels as vmvx_kernels
from jitree.loaders.vmvx.kernels import kernels

Result = TypeVar("Result")
_MILLISECONDS: Final = 1e3


class _Times(NamedTuple):
    """Seconds of the processor."""

    generating: float = 0.0
    passes: float = 0.0
    machine_code: float = 0.0

    def plus(self, other: _Times) -> _Times:
        return _Times(*(a + b for a, b in zip(self, other, strict=True)))

    def text(self) -> str:
        parts = zip(("generating", "passes", "machine code"), self, strict=True)
        return ", ".join(f"{name} {_MILLISECONDS * seconds:.1f}" for name, seconds in parts) + " ms"


def time_lines(module: BytecodeModule) -> Iterator[str]:
    """A line for each kernel of the module's VMVX executables, and the sum."""
    for number, executable in enumerate(vmvx_kernels.executables(module.module)):
        yield f"executable {number}, @{executable.name}:"
        exports = kernels(executable.module)
        width = max(len(export.name) for export in exports)
        total = _Times()
        recipes = vmvx_kernels.recipes(executable)
        _measured(recipes[0])
        for export, recipe in zip(exports, recipes, strict=True):
            times = _measured(recipe)
            total = total.plus(times)
            yield f"  [{export.ordinal:3}] {export.name:{width}}  {times.text()}"
        yield f"  in all: {total.text()}"


def _measured(recipe: Recipe) -> _Times:
    target = host_target()
    generating, generated = _timed(lambda: generate(recipe))
    units = generated.units
    passes, _ = _timed(
        lambda: [optimized_module(unit.texts, unit.entries, target, unit.pipeline) for unit in units]
    )
    compiling, _ = _timed(lambda: [compile_unit(unit, target) for unit in units])
    return _Times(generating, passes, max(compiling - passes, 0.0))


def _timed(work: Callable[[], Result]) -> tuple[float, Result]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result
