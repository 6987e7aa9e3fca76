"""``jitree dump --tiers``: which functions are compiled as wholes, which loops become nests, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from jitree.dispatch.bytecode_module import BytecodeModule
from jitree.dispatch.native import nests
from jitree.dispatch.native.build import Refusal, build
from jitree.dispatch.native.lower_function import check_supported
from jitree.dispatch.native.source import Source, from_program
from jitree.dispatch.native.ssa import Function, Loop
from jitree.loaders.vmvx_images import executables


class _Count(NamedTuple):
    """Of what there is, how much is native."""

    functions: int = 0
    native_functions: int = 0
    loops: int = 0
    nests: int = 0

    def add(self, *numbers: int) -> _Count:
        return _Count(*(a + b for a, b in zip(self, numbers, strict=True)))


def tier_lines(module: BytecodeModule) -> Iterator[str]:
    """A report of a module and of its VMVX executables."""
    yield from _module_lines(f"module @{module.name}", module)
    for number, executable in enumerate(executables(module.module)):
        yield ""
        yield from _module_lines(f"executable {number}, @{executable.name}", executable)


def _module_lines(title: str, module: BytecodeModule) -> Iterator[str]:
    source = from_program(module.program)
    names = [module.module.function_name(row.ordinal) for row in source.functions]
    width = max(map(len, names), default=0)
    count = _Count()
    yield f"{title}:"
    for row, name in zip(source.functions, names, strict=True):
        start = f"  [{row.ordinal:3}] {name:{width}}  "
        try:
            function = _analyse(source, row.ordinal)
        except Refusal as refusal:
            yield f"{start}fast: {refusal}"
            count = count.add(1, 0, 0, 0)
            continue
        yield f"{start}native"
        count = count.add(1, 1, 0, 0)
        for found in nests.find(function):
            taken = isinstance(found, nests.Nest)
            what = (
                f"nest of {_depth(found.loop)}"
                if isinstance(found, nests.Nest)
                else f"no nest: {found.reason}"
            )
            offset = module.program.location(found.loop.header.pc)[1]
            yield f"          loop at {offset:08X}: {what}"
            count = count.add(0, 0, 1, taken)
    yield (
        f"  {count.native_functions} of {count.functions} functions native, "
        f"{count.nests} of {count.loops} loops are nests"
    )


def _analyse(source: Source, ordinal: int) -> Function:
    """Raises Refusal for a function that is not compiled as a whole."""
    function = build(source, ordinal)
    check_supported(function)
    return function


def _depth(loop: Loop) -> int:
    return 1 + max(map(_depth, loop.children), default=0)
